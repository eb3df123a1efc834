"""What a 1 MB prompt does to the other streams of its core. Owner: main thread.

usage: python perf/long_prompt.py [--megabytes 1] [--streams 16] [--tick 20] [--gate MS]

Starts our server with the synthetic engine, all stages on one core, opens streams, and watches the
gaps between their events, first alone and then three times while a prompt of a megabyte is
tokenized. The context is wide enough for it: the answer tells how many tokens it was. The
difference of the worst gaps, the median of three, is the delay. `--gate` fails above so many ms.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTEXT = 1 << 26  # tokens: no prompt is refused by its length before it is tokenized
ROUNDS = 3


def start(tick: float, model: str | None) -> tuple[subprocess.Popen[str], int]:
    """A server process and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "tpc_server", "--engine", "synthetic", "--port", str(port),
        "--cores", "1", "--incremental-streaming-output", "--synthetic-tick-ms", str(tick),
        "--context-length", str(CONTEXT), "--drain-timeout", "0.1", "--log-level", "error",
    ]  # fmt: skip
    if model is not None:
        command += ["--model-path", model]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    while "try" not in process.stdout.readline():
        if process.poll() is not None:
            raise SystemExit("the server did not start")
    return process, port


def request(port: int, body: dict[str, object]) -> socket.socket:
    """A connection with its request sent."""
    raw = json.dumps(body).encode()
    sock = socket.create_connection(("127.0.0.1", port))
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n"
    sock.sendall(head.encode() + raw)
    return sock


def watch(
    streams: list[socket.socket], seconds: float, until: socket.socket | None = None
) -> list[float]:
    """Gaps between the events of each stream, in ms: for so long, or until the other answer."""
    chosen = selectors.DefaultSelector()
    last: dict[int, float] = {}
    gaps: list[float] = []
    for each in [*streams, *([until] if until is not None else [])]:
        chosen.register(each, selectors.EVENT_READ, each)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for key, _ in chosen.select(0.5):
            sock: socket.socket = key.data
            if sock is until:
                return gaps
            if not sock.recv(1 << 16):
                raise SystemExit("a stream ended")
            now = time.monotonic()
            if key.fd in last:
                gaps.append(1e3 * (now - last[key.fd]))
            last[key.fd] = now
    if until is not None:
        raise SystemExit(f"the long prompt was not answered within {seconds:g} s")
    return gaps


def prompt_tokens(sock: socket.socket) -> int:
    """Reads the long prompt's answer: how many tokens it was."""
    with sock, sock.makefile("rb") as file:
        status = file.readline().decode().strip()
        size = 0
        while line := file.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                size = int(value)
        body = file.read(size)
    if " 200 " not in f"{status} ":
        raise SystemExit(f"the long prompt got {status}: {body[:200].decode()}")
    return int(json.loads(body)["meta_info"]["prompt_tokens"])


def long_text(megabytes: float) -> str:
    """So much English text, without a look at the network."""
    import pydoc_data.topics

    text = " ".join(pydoc_data.topics.topics.values()).encode("ascii", "ignore").decode()
    size = int(megabytes * 1e6)
    return (text * (size // len(text) + 1))[:size]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=1.0)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tick", type=float, default=20.0, help="of the engine, in ms")
    parser.add_argument("--gate", type=float, metavar="MS", help="fail above this delay")
    parser.add_argument("--seconds", type=float, default=4.0, help="how long to look alone")
    parser.add_argument("--model-path", metavar="PATH", help="of the tokenizer (default: SmolLM2)")
    options = parser.parse_args()
    process, port = start(options.tick, options.model_path)
    try:
        sampling = {"max_new_tokens": 30000, "ignore_eos": True}
        body = {"text": "x", "stream": True, "sampling_params": sampling}
        streams = [request(port, body) for _ in range(options.streams)]
        watch(streams, min(1.0, options.seconds))
        alone = max(watch(streams, options.seconds))
        long: dict[str, object] = {
            "text": long_text(options.megabytes),
            "sampling_params": {"max_new_tokens": 1},
        }
        worst = []
        for _ in range(ROUNDS):
            sock = request(port, long)
            beside = watch(streams, 60.0, sock)
            worst.append(max(beside))
            print(
                f"  beside {prompt_tokens(sock)} tokens of prompt: median gap "
                f"{statistics.median(beside):.1f} ms, worst {max(beside):.1f} ms"
            )
    finally:
        process.terminate()
        process.wait(40)
    delay = statistics.median(worst) - alone
    print(
        f"worst gap alone {alone:.1f} ms, beside {options.megabytes:g} MB "
        f"{alone + delay:.1f} ms: {delay:+.1f} ms"
    )
    if options.gate is not None and delay > options.gate:
        print(f"above --gate {options.gate:g}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
