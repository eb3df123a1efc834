"""Ends a run that hangs, and says where it hung. Owner: the watchdog's own thread.

It reads the cores' tables while they run: lists made in one step from dicts that only grow and
shrink, so a look at the wrong moment costs an entry, not a crash.
"""

from __future__ import annotations

import faulthandler
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from tests.stress.clock import Awake
from tpc_server import connection, request


class Watchdog:
    """`with Watchdog(seconds, server, on_end):` shows everything, then calls `on_end`."""

    def __init__(self, seconds: float, server: Any, on_end: Callable[[], None]) -> None:
        self._seconds = seconds
        self._server = server
        self._on_end = on_end
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="stress-watchdog", daemon=True)
        self.fired = False

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._over.set()
        self._thread.join(10)

    def _run(self) -> None:
        clock = Awake()
        while not self._over.wait(0.1 if self._seconds > 1 else 0.01):
            if clock.look() > self._seconds:
                self.fired = True
                show(self._server, sys.stderr)
                self._on_end()
                return


def show(server: Any, out: TextIO) -> None:
    """All threads' stacks, then what every core holds."""
    out.write(f"--- state at {time.monotonic():.3f}\n{stacks()}")
    for core in getattr(server, "cores", ()):
        for line in core_state(core):
            out.write(line + "\n")
    out.flush()


def stacks() -> str:
    """Stacks of all threads of this process."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


def core_state(core: Any) -> list[str]:
    """Live connections, writers, streams and jobs of one core, a line each."""
    stages = core.stages
    out = [f"core {core.index}: {counters(core)}"]
    if stages.ingress is not None:
        for conn in list(stages.ingress.connections.values()):
            out.append(
                f"  connection {conn.key:x} {connection.STATES[conn.state]} fd {conn.fd}"
                f" inflight {conn.inflight} queued {len(conn.queue)} eof {conn.eof}"
                f" close_after {conn.close_after} linger {conn.linger} mask {conn.mask:x}"
                f" deadline {conn.deadline_ns} in_body {conn.parser.in_body}"
            )
    if stages.egress is not None:
        for writer in list(stages.egress.writers.values()):
            if writer.queue or writer.blocked or writer.broken or writer.closing or writer.end:
                out.append(
                    f"  writer {writer.key:x} queued {writer.queued} in {len(writer.queue)}"
                    f" blocked {writer.blocked} broken {writer.broken} end {writer.end}"
                    f" closing {writer.closing} waiting {len(writer.waiting)}"
                )
    if stages.detok is not None:
        for stream in list(stages.detok.streams.values()):
            group = stream.group
            out.append(
                f"  stream {stream.wire_rid} of {group.key:x} {request.STATES[stream.state]}"
                f" tokens {stream.completion} mode {stream.hot[0]} waiting {stream.waiting}"
                f" writer blocked {stream.writer.blocked} broken {stream.writer.broken}"
                f" group done {group.done} remaining {group.remaining}"
            )
        for key, group in list(stages.detok.groups.items()):
            out.append(f"  group {key:x} api {group.api} remaining {group.remaining}")
    if stages.tokenize is not None:
        out += [f"  job {rid}" for rid in list(stages.tokenize._waiting)]
    out += [f"  backlog to core {c}" for c, port in core._ports.items() if port.backlog]
    return out


def counters(core: Any) -> dict[str, int]:
    """A core's own counters, newer than the published ones."""
    return {name: getattr(core.counters, name) for name in core.counters.__slots__}
