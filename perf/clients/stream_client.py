"""Streaming load: many connections, server-sent events counted and timed. Owner: one process.

usage: python -m perf.clients.stream_client --port N --streams 256 --tokens 400 …

Prints one line of JSON. The loop does as little as can be: one epoll, one `recv` a readable
socket, one `count`, one clock reading; everything else is worked out after the last byte. An
event is counted at its `\\ndata: `: inside JSON a line feed is escaped, so text cannot fake one.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import select
import socket
import sys
import time
from pathlib import Path
from typing import Any

from perf.harness.board import REQUESTS, STEPS, Board
from perf.harness.stats import percentiles

EVENT = b"\ndata: "
END = b"0\r\n\r\n"
RECV_BYTES = 1 << 16


def request_body(path: str, prompt: str, tokens: int, seed: int) -> dict[str, Any]:
    """The JSON of one request; `seed` tells the scheduler which request this is."""
    if path == "/generate":
        sampling: dict[str, Any] = {"temperature": 0, "max_new_tokens": tokens}
        sampling |= {"ignore_eos": True, "sampling_seed": seed}
        return {"text": prompt, "sampling_params": sampling, "stream": True}
    body: dict[str, Any] = {"model": "m", "max_tokens": tokens, "ignore_eos": True}
    body |= {"temperature": 0, "seed": seed, "stream": True}
    if path.endswith("/chat/completions"):
        return body | {"messages": [{"role": "user", "content": prompt}]}
    return body | {"prompt": prompt}


def render(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data


def budgets_of(requests: int, tokens: int, spread: float, first_seed: int) -> list[int]:
    """Tokens of each request: `tokens`, or evenly over `tokens` ± `spread`, by seed alone."""
    if not spread:
        return [tokens] * requests
    low = round(tokens * (1 - spread))
    width = round(tokens * 2 * spread) + 1
    return [low + (first_seed + i) * 7919 % width for i in range(requests)]


class StreamLoad:
    """`streams` connections that ask for one stream after another, `budgets[i]` tokens long."""

    def __init__(self, port: int, path: str, streams: int, budgets: list[int]) -> None:
        self.port = port
        self.path = path
        self.streams = streams
        self.budgets = budgets
        # what was read when: (time, request, events in that read), flat, three entries a read
        self.reads: list[int] = []
        self.bytes = 0
        self.done = 0
        self.failed = 0
        self.sample = bytearray()  # the whole answer to the first request
        self.seconds = 0.0

    def run(self, requests: list[bytes], timeout_s: float) -> None:
        """Runs the load to its end, or gives up after `timeout_s`."""
        poller = select.epoll()
        socks: dict[int, socket.socket] = {}
        current: dict[int, int] = {}  # descriptor -> index of its request
        for index in range(self.streams):
            sock = socket.create_connection(("127.0.0.1", self.port), timeout=30)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            socks[sock.fileno()] = sock
            current[sock.fileno()] = index
            poller.register(sock.fileno(), select.EPOLLIN)
        receive = {fd: sock.recv for fd, sock in socks.items()}
        note = self.reads.append
        clock = time.monotonic_ns
        begin = clock()
        deadline = begin + int(timeout_s * 1e9)
        for fd, sock in socks.items():
            sock.sendall(requests[current[fd]])
        total = 0
        while socks and clock() < deadline:
            for fd, _mask in poller.poll(1.0):
                got = receive[fd](RECV_BYTES)
                now = clock()
                index = current[fd]
                total += len(got)
                note(now)
                note(index)
                note(got.count(EVENT))
                if index == 0:
                    self.sample += got
                if got.endswith(END) or not got:
                    following = index + self.streams
                    if got and following < len(requests):
                        current[fd] = following
                        socks[fd].sendall(requests[following])
                    else:
                        poller.unregister(fd)
                        socks.pop(fd).close()
                    if got:
                        self.done += 1
                    else:
                        self.failed += 1
        self.failed += len(socks)
        self.seconds = (clock() - begin) / 1e9
        self.bytes = total

    def summary(self, board: Board, first_seed: int) -> dict[str, Any]:
        """Counts, and the added latency of every event: read time minus hand-over time.

        Request i has carried seed `first_seed + i`.
        """
        lead = 1 if self.path.endswith("/chat/completions") else 0  # the role comes first
        count = [-lead] * len(self.budgets)
        latencies: list[int] = []
        reads = self.reads
        for at in range(0, len(reads), 3):
            now, index, events = reads[at], reads[at + 1], reads[at + 2]
            first = board.first_step[(first_seed + index) % REQUESTS]
            last = min(count[index] + events, self.budgets[index])
            for token in range(max(count[index], 0), last):
                if token:  # the first event also carries tokenizing and admission
                    latencies.append(now - board.push_ns[(first + token) % STEPS])
            count[index] += events
        events = sum(count) + lead * len(count) - self.done  # [DONE] is not an event
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "streams": self.streams,
            "tokens": sum(self.budgets),
            "sample_tokens": self.budgets[0],
            "done": self.done,
            "failed": self.failed,
            "events": events,
            "bytes": self.bytes,
            "reads": len(reads) // 3,
            "seconds": self.seconds,
            "events_per_s": events / self.seconds,
            "bytes_per_event": self.bytes / max(events, 1),
            "client_cpu_s": usage.ru_utime + usage.ru_stime,
            "latency_us": percentiles([each / 1e3 for each in latencies]),
        }


def sample_text(raw: bytes, cumulative: bool) -> tuple[str, list[int]]:
    """Text and ids of one recorded `/generate` stream."""
    text = ""
    ids: list[int] = []
    for line in raw.split(b"\n"):
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if cumulative:
                text, ids = "", []
            text += event.get("text", "")
            ids = ids + event.get("output_ids", [])
    return text, ids


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--path", default="/generate")
    parser.add_argument("--streams", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=400)
    parser.add_argument(
        "--token-spread", type=float, default=0.0, help="of 0.5: half as many more or less"
    )
    parser.add_argument("--model", type=Path, required=True, help="folder of the load material")
    parser.add_argument("--board", required=True)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--timeout-s", type=float, default=120)
    parser.add_argument("--cumulative", action="store_true", help="each event has the whole text")
    options = parser.parse_args(argv)
    prompts = json.loads((options.model / "prompts.json").read_text())["stream"]
    first = options.first_seed
    budgets = budgets_of(
        options.streams * options.rounds, options.tokens, options.token_spread, first
    )
    requests = [
        render(
            options.path,
            request_body(options.path, prompts[(first + i) % len(prompts)], tokens, first + i),
        )
        for i, tokens in enumerate(budgets)
    ]
    load = StreamLoad(options.port, options.path, options.streams, budgets)
    gc.disable()
    load.run(requests, options.timeout_s)
    result = load.summary(Board(options.board), options.first_seed)
    if options.path == "/generate":
        text, ids = sample_text(bytes(load.sample), options.cumulative)
        result |= {"sample_text": text, "sample_ids": ids, "sample_seed": options.first_seed}
    json.dump(result, sys.stdout)
    print()


if __name__ == "__main__":
    main()
