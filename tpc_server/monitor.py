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
from typing import Any, Final

_PERIOD_S: Final = 1.0
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
        stall_ns = int(server.options.stall_s * 1e9)
        reported: set[int] = set()
        served = -1
        dirty = False  # something was served since the last collection
        idle_since = time.monotonic()
        while not self._stop.wait(_PERIOD_S):
            snapshots = server.counters()
            now = time.monotonic_ns()
            for core, counters in enumerate(snapshots):
                late = now - counters["heartbeat_ns"]
                if late <= stall_ns:
                    reported.discard(core)
                elif core not in reported:
                    reported.add(core)
                    self.stalls += 1
                    server.setup.log(
                        "error", "core does not answer", core=core,
                        seconds=round(late / 1e9, 1), stack=_stacks(),
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


def _stacks() -> str:
    """Stacks of all threads, without stopping them (a stuck core may never reach a safe point)."""
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()
