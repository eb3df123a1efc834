"""What a 1 MB prompt does to the other streams of its core. Owner: main thread.

usage: python perf/long_prompt.py [--megabytes 1] [--streams 16] [--tick 20]

Starts our server with the synthetic engine, all stages on one core, opens streams, and watches the
gaps between their events, first alone and then while a prompt of a megabyte is tokenized (it is
longer than the context, so it ends with a 400). The difference of the worst gaps is the delay.
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


def start(tick: float) -> tuple[subprocess.Popen[str], int]:
    """A server process and its port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable, "-m", "tpc_server", "--engine", "synthetic", "--port", str(port),
        "--cores", "1", "--incremental-streaming-output", "--synthetic-tick-ms", str(tick),
    ]  # fmt: skip
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


def watch(streams: list[socket.socket], until: socket.socket | None, seconds: float) -> list[float]:
    """Gaps between the events of each stream, in ms, until the other answer comes or time is up."""
    chosen = selectors.DefaultSelector()
    last: dict[int, float] = {}
    gaps: list[float] = []
    for each in [*streams, *([until] if until is not None else [])]:
        chosen.register(each, selectors.EVENT_READ, each)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for key, _ in chosen.select(0.5):
            sock: socket.socket = key.data
            data = sock.recv(1 << 16)
            if sock is until:
                print("  the long prompt was answered:", data.split(b"\r\n", 1)[0].decode())
                return gaps
            now = time.monotonic()
            if key.fd in last:
                gaps.append(1e3 * (now - last[key.fd]))
            last[key.fd] = now
    return gaps


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=float, default=1.0)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tick", type=float, default=20.0)
    options = parser.parse_args()
    process, port = start(options.tick)
    try:
        sampling = {"max_new_tokens": 30000, "ignore_eos": True}
        body = {"text": "x", "stream": True, "sampling_params": sampling}
        streams = [request(port, body) for _ in range(options.streams)]
        watch(streams, None, 1.0)
        alone = watch(streams, None, 4.0)
        import pydoc_data.topics

        text = " ".join(pydoc_data.topics.topics.values())
        text = (text * 10)[: int(options.megabytes * 1e6)]
        worst = []
        for _ in range(3):
            beside = watch(streams, request(port, {"text": text}), 60.0)
            worst.append(max(beside))
            print(f"  gaps beside it: median {statistics.median(beside):.1f} ms,"
                  f" worst {max(beside):.1f} ms")  # fmt: skip
        print(
            f"worst gap alone {max(alone):.1f} ms, beside {options.megabytes:g} MB "
            f"{statistics.median(worst):.1f} ms: {statistics.median(worst) - max(alone):+.1f} ms"
        )
    finally:
        process.terminate()
        process.wait(40)
    return 0


if __name__ == "__main__":
    sys.exit(main())
