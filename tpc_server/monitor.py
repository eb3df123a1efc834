"""Watches the cores from outside: stalls, and the collector. Owner: the monitor thread.

It reads published counters only. The garbage collector stops every thread, so it is off while
requests are served (requests hold no cycles) and run when the server has been idle for a while.
"""

from __future__ import annotations

import faulthandler
import gc
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any, Final

_PERIOD_S: Final = 1.0
# Looks this far apart: the monitor was held up, and so was everything else.
_HELD_NS: Final = int(2.5 * _PERIOD_S * 1e9)
_IDLE_S: Final = 1.5
# New containers since the last collection that make one worth its pause even under load.
_GC_BOUND: Final = 2_000_000


class Monitor:
    """A daemon thread that looks once a second."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tpc-monitor", daemon=True)
        self.collections = 0
        self.stalls = 0

    def start(self) -> None:
        """Begin; turns the collector off when the options say that the server manages it."""
        self._manage_gc = self._server.options.manage_gc and gc.isenabled()
        if self._manage_gc:
            gc.collect()
            gc.freeze()
            gc.disable()
        self._thread.start()

    def stop(self) -> None:
        """End, and give the collector back as it was."""
        self._stop.set()
        self._thread.join(3.0)
        if self._manage_gc:
            gc.unfreeze()
            gc.enable()

    def _run(self) -> None:
        server = self._server
        stalls = Stalls(int(server.options.stall_s * 1e9), time.monotonic_ns())
        served = -1
        dirty = False  # something was served since the last collection
        idle_since = time.monotonic()
        while not self._stop.wait(_PERIOD_S):
            snapshots = server.counters()
            beats = [counters["heartbeat_ns"] for counters in snapshots]
            for core, late_ns in stalls.look(time.monotonic_ns(), beats):
                self.stalls += 1
                server.setup.log(
                    "error", "core does not answer", core=core,
                    seconds=round(late_ns / 1e9, 1), stack=_stacks(),
                )  # fmt: skip
            answered = sum(c["requests"] for c in snapshots)
            busy = any(c["live_requests"] or c["inflight"] for c in snapshots)
            if busy or answered != served:
                if answered != served and not busy:
                    idle_since = time.monotonic()
                served = answered
                dirty = True
                if busy and self._manage_gc and gc.get_count()[0] > _GC_BOUND:
                    self._collect()
                if busy:
                    idle_since = time.monotonic()
            elif self._manage_gc and dirty and time.monotonic() - idle_since > _IDLE_S:
                dirty = False
                self._collect()

    def _collect(self) -> None:
        gc.collect()
        self.collections += 1


class Stalls:
    """Which cores have stood still, each told once until it goes on. Owner: the monitor thread.

    A stopped process or a machine that slept holds up the monitor itself: its own looks are then
    far apart, and the cores get their whole time anew from the first look after that.
    """

    def __init__(self, stall_ns: int, now_ns: int) -> None:
        self._stall_ns = stall_ns
        self._looked_ns = self._held_ns = now_ns
        self._reported: set[int] = set()

    def look(self, now_ns: int, beats_ns: Sequence[int]) -> list[tuple[int, int]]:
        """(core, how long) of those that stand still since a look ago; `beats_ns` by core."""
        if now_ns - self._looked_ns > _HELD_NS:
            self._held_ns = now_ns
        self._looked_ns = now_ns
        found = []
        for core, beat_ns in enumerate(beats_ns):
            late_ns = now_ns - max(beat_ns, self._held_ns)
            if late_ns <= self._stall_ns:
                if beat_ns >= self._held_ns:
                    self._reported.discard(core)
            elif core not in self._reported:
                self._reported.add(core)
                found.append((core, late_ns))
        return found


def _stacks() -> str:
    """Stacks of all threads, without stopping them (a stuck core may never reach a safe point)."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
