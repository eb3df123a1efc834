"""What a chat request costs beside a plain one, beyond the tokenizing itself. Owner: main thread.

usage: python perf/chat_cost.py [--messages 10] [--rounds 5] [--gate 2]

A core's least CPU time of a unary `/generate` and of a `/v1/chat/completions` with a conversation,
by `bytecodes.py` (all stages, real sockets and rings), with a real tokenizer of 128k entries; then
the least time that encoding the same texts takes alone. What is left of each is compared: JSON,
contract, template, records, the answer. `--gate` fails above that ratio.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.bytecodes import PROMPT, messages
from perf.harness.prepare import prepare
from tpc_server.text.encode import Encoder

SCRIPT = Path(__file__).with_name("bytecodes.py")
VOCAB_SIZE = 129280
BATCH = 64


def core_us(model: Path, path: str, count: int) -> float:
    """Least CPU microseconds of a core per request."""
    command = [sys.executable, str(SCRIPT), "unary", "--time", "--batch", str(BATCH)]
    command += ["--model", str(model), "--vocab-size", str(VOCAB_SIZE), "--path", path]
    command += ["--messages", str(count)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found = re.search(r"([\d.]+) us of CPU", done.stdout)
    assert found is not None, done.stdout
    return float(found[1])


def encode_us(encoder: Encoder, texts: list[str]) -> float:
    """Least CPU microseconds of one encoding, over batches like a core's turn."""
    least = 1 << 62
    for start in range(0, len(texts), BATCH):
        begin = time.thread_time_ns()
        for text in texts[start : start + BATCH]:
            encoder.encode(text)
        least = min(least, time.thread_time_ns() - begin)
    return least / BATCH / 1e3


def rendered(count: int, number: int) -> str:
    """A conversation as the benchmark model's template renders it."""
    said = messages(count, number)
    return "".join(f"{m['role']}: {m['content']}\n" for m in said) + "assistant:"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--messages", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--gate", type=float, help="fail above this ratio")
    options = parser.parse_args()
    model = prepare(want_granian=False).model
    encoder = Encoder((model / "tokenizer.json").read_text(encoding="utf-8"))
    count = options.messages
    numbers = range(BATCH * 20)
    cases = {
        "/generate": [PROMPT.format(number) for number in numbers],
        "/v1/chat/completions": [rendered(count, number) for number in numbers],
    }
    beyond = {}
    print("| | core, us | encoding, us | beyond it, us |\n|---|---|---|---|")
    for path, texts in cases.items():
        core = min(core_us(model, path, count) for _ in range(options.rounds))
        encoding = min(encode_us(encoder, texts) for _ in range(options.rounds))
        beyond[path] = core - encoding
        name = path if path == "/generate" else f"{path}, {count} messages"
        print(f"| {name} | {core:.1f} | {encoding:.1f} | {beyond[path]:.1f} |")
    ratio = beyond["/v1/chat/completions"] / beyond["/generate"]
    print(f"\nbeyond the tokenizing: {ratio:.2f} times a plain request")
    return 1 if options.gate and ratio > options.gate else 0


if __name__ == "__main__":
    sys.exit(main())
