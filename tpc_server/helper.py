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

from .mailbox import EventFd

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

    __slots__ = ("_done", "_idle", "_lanes", "_name", "_open", "_wake")

    def __init__(
        self, name: str, idle: tuple[Callable[[], None], Callable[[], None]] | None = None
    ) -> None:
        self._name = name
        self._idle = idle or (_nothing, _nothing)
        self._lanes: list[SimpleQueue[_Job | None] | None] = [None, None]
        self._open: dict[Hashable, _Job] = {}
        self._done: deque[_Job] = deque()
        # Closed with its last holder: a thread may outlive this object by one long call.
        self._wake = EventFd()

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._wake.fileno()

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
        self._wake.read()
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

    def _lane(self, huge: bool) -> SimpleQueue[_Job | None]:
        lane = self._lanes[huge]
        if lane is None:
            lane = SimpleQueue()
            threading.Thread(
                target=_serve,
                args=(lane, self._done, self._wake, self._idle[huge]),
                name=f"{self._name}-huge" if huge else self._name,
                daemon=True,
            ).start()
            self._lanes[huge] = lane
        return lane


def _nothing() -> None:
    """What an idle thread does."""


def _serve(
    lane: SimpleQueue[_Job | None], done: deque[_Job], wake: EventFd, idle: Callable[[], None]
) -> None:
    """A helper thread's whole life."""
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    except OSError:
        pass  # a container may forbid it; the kernel then shares the CPU evenly
    while True:
        job = lane.get()
        if job is None:
            return
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
        wake.write()
