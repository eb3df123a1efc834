"""The floor: the same bytes at the same ticks, sent by a bare loop. Owner: one process, one thread.

usage: python -m perf.floor --port N --board FILE [--tick-ms T] [--event-bytes N]

No parsing, no tokenizing, no rendering: one `send()` of a ready frame per stream and step. What
is left is nearly all the kernel's; nothing that sends one frame per token with `send()` costs
less. A request without `"stream": true` is answered at once (the unary floor).
"""

from __future__ import annotations

import argparse
import re
import select
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.harness.board import REQUESTS, STEPS, Board
from perf.harness.marks import Marks

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
TAIL = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
BODY_BYTES = 263  # what both servers answer to the 11-token prompt
UNARY = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % BODY_BYTES
    + b"x" * BODY_BYTES
)
TOKENS = re.compile(rb'"max_(?:new_)?tokens": ?(\d+)')
SEED = re.compile(rb'"(?:sampling_)?seed": ?(\d+)')


def frame_of(size: int) -> bytes:
    """One chunk of exactly `size` bytes on the wire that holds one event."""
    for payload in range(size - 16, size):
        frame = b"%x\r\ndata: %b\n\n\r\n" % (payload, b"x" * (payload - 8))
        if len(frame) == size:
            return frame
    raise ValueError(f"no chunk is {size} bytes long")


class Floor:
    """Streams by descriptor: the bound `send` and what is left to send."""

    def __init__(self, port: int, board: Board, tick_ns: int, event_bytes: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", port), backlog=4096)
        self.poller = select.epoll()
        self.poller.register(self.listener.fileno(), select.EPOLLIN)
        self.board = board
        self.tick_ns = tick_ns
        self.frame = frame_of(event_bytes)
        self.socks: dict[int, socket.socket] = {}
        self.sends: dict[int, Callable[[bytes], int]] = {}
        self.left: dict[int, int] = {}
        self.step = self.tokens = self.requests = self.missed_ticks = 0

    def counters(self) -> dict[str, Any]:
        return {
            "tokens": self.tokens,
            "requests": self.requests,
            "steps": self.step,
            "missed_ticks": self.missed_ticks,
            "live_rows": len(self.left),
        }

    def listen(self, timeout: float) -> None:
        """Takes connections and requests until `timeout` seconds are over or something came."""
        for fd, _mask in self.poller.poll(timeout):
            if fd == self.listener.fileno():
                sock, _peer = self.listener.accept()
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.socks[sock.fileno()] = sock
                self.sends[sock.fileno()] = sock.send
                self.poller.register(sock.fileno(), select.EPOLLIN)
                continue
            asked = self.socks[fd].recv(65536)
            if not asked:
                self.left.pop(fd, None)
                self.sends.pop(fd)
                self.socks.pop(fd).close()
                continue
            self.requests += 1
            if b'"stream": true' not in asked:
                self.sends[fd](UNARY)
                self.tokens += 1
                continue
            tokens = TOKENS.search(asked)
            seed = SEED.search(asked)
            assert tokens is not None and seed is not None, asked
            self.board.first_step[int(seed[1]) % REQUESTS] = self.step
            self.left[fd] = int(tokens[1])
            self.sends[fd](HEAD)

    def tick(self) -> None:
        """One frame to every stream: this loop is what is measured."""
        self.board.push_ns[self.step % STEPS] = time.monotonic_ns()
        frame = self.frame
        sends = self.sends
        for fd in self.left:
            sends[fd](frame)
        self.step += 1
        self.tokens += len(self.left)
        ended = []
        for fd in self.left:
            self.left[fd] -= 1
            if self.left[fd] == 0:
                ended.append(fd)
        for fd in ended:
            del self.left[fd]
            sends[fd](TAIL)


def run(floor: Floor, marks: Marks) -> None:
    due_ns = 0
    while not marks.stop:
        marks.poll(floor.counters)
        if not floor.left:
            floor.listen(0.1)
            due_ns = time.monotonic_ns() + floor.tick_ns
            continue
        now = time.monotonic_ns()
        if now < due_ns:
            floor.listen((due_ns - now) / 1e9)
            continue
        if floor.tick_ns and now - due_ns > floor.tick_ns:
            floor.missed_ticks += (now - due_ns) // floor.tick_ns
            due_ns = now
        due_ns += floor.tick_ns
        floor.tick()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--board", required=True)
    parser.add_argument("--tick-ms", type=float, default=20.0)
    parser.add_argument("--event-bytes", type=int, default=233)
    options = parser.parse_args()
    marks = Marks()
    floor = Floor(
        options.port, Board(options.board), int(options.tick_ms * 1e6), options.event_bytes
    )
    marks.ready({})
    run(floor, marks)


if __name__ == "__main__":
    main()
