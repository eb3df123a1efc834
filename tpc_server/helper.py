"""Threads beside a core for calls that would hold it up. Owner: the core that built it.

Long texts are encoded there and large bodies decoded. Huge jobs have a thread of their own, so that
no other one waits behind them; each thread starts with its first job and takes its jobs in their
order. Where a thread shares its core's CPU, a higher niceness lets the core
run first.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Hashable
from queue import SimpleQueue
from typing import Any, Final

from .eventfd import EventFd

_NICE: Final = 10  # above the core's

#: (what was handed to `submit`, what the call returned, the exception if it raised one)
Result = tuple[Any, Any, Exception | None]
#: tag, (function, arguments) or None once it is cancelled or done, result, exception
_Job = list[Any]
_TAG: Final = 0
_CALL: Final = 1
_RESULT: Final = 2
_ERROR: Final = 3


class Helper:
    """Two queues of calls, the second for huge ones.

    `fileno` becomes readable when results wait; then `results` takes them. All methods belong to
    the core. `idle[huge]` is called by a queue's thread when nothing is left in it.
    """

    __slots__ = ("_closed", "_done", "_idle", "_lanes", "_name", "_open", "_wake")

    def __init__(
        self, name: str, idle: tuple[Callable[[], None], Callable[[], None]] | None = None
    ) -> None:
        self._name = name
        self._idle = idle or (_nothing, _nothing)
        self._lanes: list[SimpleQueue[_Job | None] | None] = [None, None]
        self._open: dict[Hashable, _Job] = {}
        self._done: deque[_Job] = deque()
        self._wake = _Wake()
        self._closed = False

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._wake.event.fileno()

    def call(self, tag: Hashable, huge: bool, work: Callable[..., Any], *args: Any) -> None:
        """Queue one call; `tag`, unlike all others that are open, comes back with its result.

        RuntimeError when no thread can be started.
        """
        lane = self._lane(huge)
        job: _Job = [tag, (work, args), None, None]
        self._open[tag] = job
        lane.put(job)

    def cancel(self, tag: Hashable) -> bool:
        """Forget a call: no result of it will come. False when there is none of this tag."""
        job = self._open.pop(tag, None)
        if job is None:
            return False
        job[_CALL] = None
        return True

    def results(self) -> list[Result]:
        """All results that wait."""
        self._wake.event.read()
        taken: list[Result] = []
        done = self._done
        while done:
            job = done.popleft()
            if self._open.get(job[_TAG]) is job:
                del self._open[job[_TAG]]
                taken.append((job[_TAG], job[_RESULT], job[_ERROR]))
        return taken

    def close(self) -> None:
        """End the threads, each after the call it is at; never waits."""
        for job in self._open.values():
            job[_CALL] = None
        self._open.clear()
        for lane in self._lanes:
            if lane is not None:
                lane.put(None)
        self._lanes = [None, None]
        if not self._closed:
            self._closed = True
            self._wake.leave()

    def _lane(self, huge: bool) -> SimpleQueue[_Job | None]:
        lane = self._lanes[huge]
        if lane is None:
            lane = SimpleQueue()
            self._wake.enter()
            try:
                threading.Thread(
                    target=_serve,
                    args=(lane, self._done, self._wake, self._idle[huge]),
                    name=f"{self._name}-huge" if huge else self._name,
                    daemon=True,
                ).start()
            except RuntimeError:
                self._wake.leave()
                raise
            self._lanes[huge] = lane
        return lane


class _Wake:
    """The descriptor, closed by whoever leaves last: a thread may outlive its core by a long call.

    Counted here and not by the interpreter, which frees what another thread let go of whenever it
    pleases.
    """

    __slots__ = ("_lock", "_users", "event")

    def __init__(self) -> None:
        self.event = EventFd()
        self._lock = threading.Lock()
        self._users = 1

    def enter(self) -> None:
        with self._lock:
            self._users += 1

    def leave(self) -> None:
        with self._lock:
            self._users -= 1
            if not self._users:
                self.event.close()


def _nothing() -> None:
    """What an idle thread does."""


def _serve(
    lane: SimpleQueue[_Job | None], done: deque[_Job], wake: _Wake, idle: Callable[[], None]
) -> None:
    """A helper thread's whole life."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    except OSError:
        pass  # a container may forbid it; the kernel then shares the CPU evenly
    while True:
        job = lane.get()
        if job is None:
            break
        call = job[_CALL]
        if call is None:
            continue
        job[_CALL] = None  # what it holds is let go as soon as it is over
        try:
            job[_RESULT] = call[0](*call[1])
        except Exception as error:
            # Its trace would hold this frame, and with it the descriptor, as long as it lives.
            job[_ERROR] = error.with_traceback(None)
        call = None
        if lane.empty():
            idle()
        done.append(job)
        job = None
        wake.event.write()
    wake.leave()
