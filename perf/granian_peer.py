"""granian RSGI with a clock in it: one event per stream and tick. Owner: granian's worker thread.

usage: python -m perf.granian_peer --port N --board FILE [--tick-ms T] [--event-bytes N]
                                   [--style {handler,loop}] [--threads N]

Stands for "a Python application on granian": no tokenizing, no detokenizing, no scheduler, the
same bytes per event as ours. Two styles: `handler`, as RSGI applications are written, each
stream's own coroutine waits for the step and sends its event; `loop`, the cheapest we found, one
task calls `send_bytes` for all streams of the step and the handlers only wait for their end.
Counters are read by the harness from outside (granian owns the signals of its process).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.floor import BODY_BYTES, SEED, TOKENS
from perf.harness.board import REQUESTS, STEPS, Board

UNARY_BODY = b"x" * BODY_BYTES


def event_of(size: int) -> bytes:
    """An event whose chunk (framed by granian) is about `size` bytes on the wire."""
    return b"data: %b\n\n" % (b"x" * (size - 8 - 6))


class Clock:
    """The streams of one event loop and the task that feeds them."""

    def __init__(self, board: Board, tick_ns: int, event: bytes) -> None:
        self.board = board
        self.tick_ns = tick_ns
        self.event = event
        self.step = 0
        # [transport, tokens left, future that ends the handler]
        self.live: list[list[Any]] = []
        self.task: asyncio.Task[None] | None = None
        # style `handler`: one future a step that every stream waits for
        self.waiting = 0
        self.next_step: asyncio.Future[None] | None = None

    async def follow(self, transport: Any, tokens: int, seed: int) -> None:
        """One stream of style `handler`."""
        self.board.first_step[seed % REQUESTS] = self.step
        if self.task is None:
            self.next_step = asyncio.get_running_loop().create_future()
            self.task = asyncio.create_task(self.beat())
        self.waiting += 1
        for _ in range(tokens):
            assert self.next_step is not None
            await self.next_step
            await transport.send_bytes(self.event)
        self.waiting -= 1
        await transport.send_bytes(b"data: [DONE]\n\n")

    async def beat(self) -> None:
        """Style `handler`: wakes every stream at each tick."""
        loop = asyncio.get_running_loop()
        due_ns = time.monotonic_ns() + self.tick_ns
        while True:
            delay = due_ns - time.monotonic_ns()
            await asyncio.sleep(max(delay, 0) / 1e9)
            due_ns += self.tick_ns
            if not self.waiting:
                break
            assert self.next_step is not None
            step, self.next_step = self.next_step, loop.create_future()
            self.board.push_ns[self.step % STEPS] = time.monotonic_ns()
            self.step += 1
            step.set_result(None)
        self.task = None

    def join(self, transport: Any, tokens: int, seed: int) -> asyncio.Future[None]:
        self.board.first_step[seed % REQUESTS] = self.step
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.live.append([transport, tokens, done])
        if self.task is None:
            self.task = asyncio.create_task(self.run())
        return done

    async def run(self) -> None:
        due_ns = time.monotonic_ns() + self.tick_ns
        event = self.event
        while self.live:
            delay = due_ns - time.monotonic_ns()
            await asyncio.sleep(max(delay, 0) / 1e9)
            due_ns += self.tick_ns
            self.board.push_ns[self.step % STEPS] = time.monotonic_ns()
            self.step += 1
            ended = False
            for stream in self.live:
                await stream[0].send_bytes(event)
                stream[1] -= 1
                ended = ended or stream[1] == 0
            if ended:
                for stream in [each for each in self.live if each[1] == 0]:
                    transport, stream[0] = stream[0], None
                    await transport.send_bytes(b"data: [DONE]\n\n")
                    del transport  # granian ends the answer when the last reference is gone
                    stream[2].set_result(None)
                self.live = [each for each in self.live if each[1]]
        self.task = None


class Application:
    """RSGI entry; granian's worker threads share one, so each event loop gets its own clock."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.follow = options.style == "handler"
        self.options = options
        self.lock = threading.Lock()
        self.clocks: dict[int, Clock] = {}  # by thread

    def clock(self) -> Clock:
        """This thread's clock; its steps are noted in a part of the board of its own."""
        found = self.clocks.get(threading.get_ident())
        if found is None:
            options = self.options
            board, tick_ns = Board(options.board), int(options.tick_ms * 1e6)
            found = Clock(board, tick_ns, event_of(options.event_bytes))
            with self.lock:
                found.step = len(self.clocks) * STEPS // 4
                self.clocks[threading.get_ident()] = found
        return found

    async def __rsgi__(self, scope: Any, protocol: Any) -> None:
        asked = await protocol()
        if b'"stream": true' not in asked:
            protocol.response_bytes(200, [("content-type", "application/json")], UNARY_BODY)
            return
        tokens = TOKENS.search(asked)
        seed = SEED.search(asked)
        assert tokens is not None and seed is not None, asked
        transport = protocol.response_stream(200, [("content-type", "text/event-stream")])
        if self.follow:
            await self.clock().follow(transport, int(tokens[1]), int(seed[1]))
        else:
            await self.clock().join(transport, int(tokens[1]), int(seed[1]))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--board", required=True)
    parser.add_argument("--tick-ms", type=float, default=20.0)
    parser.add_argument("--event-bytes", type=int, default=233)
    parser.add_argument("--style", choices=("handler", "loop"), default="handler")
    parser.add_argument("--threads", type=int, default=1, help="event loops")
    return parser.parse_args()


def main() -> None:
    options = parse()
    from granian import Granian
    from granian.constants import Interfaces, Loops

    def load(_target: str) -> Application:
        return Application(options)

    print(f"PID {os.getpid()}", flush=True)
    server = Granian(
        "perf.granian_peer:app",
        address="127.0.0.1",
        port=options.port,
        interface=Interfaces.RSGI,
        loop=Loops.asyncio,
        workers=options.threads,
        log_enabled=False,
        backlog=4096,
    )
    loader: Any = load  # granian types it as a loader of ASGI-like callables
    server.serve(target_loader=loader)


if __name__ == "__main__":
    main()
