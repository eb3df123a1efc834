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
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CONTEXT = 1 << 26  # tokens: no prompt is refused by its length before it is tokenized
ROUNDS = 3
LIMIT_S = 60


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


def head_and_body(body: dict[str, object]) -> bytes:
    """A request for /generate."""
    raw = json.dumps(body).encode()
    return (
        f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(raw)}\r\n\r\n".encode() + raw
    )


class Watch:
    """The streams and when each was last heard of. Owner: main thread."""

    def __init__(self, port: int, count: int) -> None:
        sampling = {"max_new_tokens": 30000, "ignore_eos": True}
        data = head_and_body({"text": "x", "stream": True, "sampling_params": sampling})
        self.port = port
        self.chosen = selectors.DefaultSelector()
        self.last: dict[int, float] = {}
        for _ in range(count):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.sendall(data)
            self.chosen.register(sock, selectors.EVENT_READ, sock)
        while len(self.last) < count:
            self.look(1.0)

    def look(self, timeout: float, until: socket.socket | None = None) -> list[float] | None:
        """Gaps that ended, in ms; None once `until` is readable."""
        gaps = []
        for key, _ in self.chosen.select(timeout):
            sock: socket.socket = key.data
            if sock is until:
                return None
            if not sock.recv(1 << 16):
                raise SystemExit("a stream ended")
            now = time.monotonic()
            if key.fd in self.last:
                gaps.append(1e3 * (now - self.last[key.fd]))
            self.last[key.fd] = now
        return gaps

    def alone(self, seconds: float) -> list[float]:
        """The gaps of so many seconds, at least one."""
        gaps: list[float] = []
        end = time.monotonic() + seconds
        while time.monotonic() < end or not gaps:
            gaps += self.look(0.5) or ()
        return gaps

    def beside(self, data: bytes) -> tuple[list[float], socket.socket]:
        """The gaps from the first byte of a request to that of its answer, which is to be read."""
        sock = socket.create_connection(("127.0.0.1", self.port))
        # Sent beside, so that the streams are read meanwhile.
        threading.Thread(target=sock.sendall, args=(data,), daemon=True).start()
        self.chosen.register(sock, selectors.EVENT_READ, sock)
        gaps: list[float] = []
        end = time.monotonic() + LIMIT_S
        while (found := self.look(0.5, sock)) is not None:
            gaps += found
            if time.monotonic() > end:
                raise SystemExit(f"the long prompt was not answered within {LIMIT_S} s")
        self.chosen.unregister(sock)
        # Whoever was not heard of since it began waits still.
        now = time.monotonic()
        gaps += [1e3 * (now - last) for last in self.last.values()]
        return gaps, sock


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
        watch = Watch(port, options.streams)
        alone = max(watch.alone(options.seconds))
        text = long_text(options.megabytes)
        long = head_and_body({"text": text, "sampling_params": {"max_new_tokens": 1}})
        worst = []
        for _ in range(ROUNDS):
            watch.alone(0.1)
            beside, sock = watch.beside(long)
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
