"""The signals that end the program, and its end at once. Owner: the main thread."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from typing import Any, Final, NoReturn

_SAME_HANGUP_S: Final = 2.0


class Signals:
    """SIGINT, SIGTERM and SIGHUP (a closed terminal) counted, from before the first slow step.

    A terminal that closes tells twice: the shell, and the kernel when the shell has ended.
    """

    def __init__(self) -> None:
        self.count = 0
        self.ending = False  # streams were drained, threads are ending
        self.started = time.monotonic()
        self.wake: Any = None
        self._hangup_at = 0.0
        signal.signal(signal.SIGINT, self._handle)
        signal.signal(signal.SIGTERM, self._handle)
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # so nohup leaves it
            signal.signal(signal.SIGHUP, self._handle)

    @property
    def name(self) -> str:
        """Of the one that came last."""
        return signal.Signals(self._number).name

    def check(self) -> None:
        """While loading: raise again what an import has swallowed (some do: a package whose C part
        is interrupted tells of an ImportError)."""
        if self.count:
            raise KeyboardInterrupt(self._number)

    def _handle(self, number: int, _frame: Any) -> None:
        if number == signal.SIGHUP:
            before, self._hangup_at = self._hangup_at, time.monotonic()
            if before and self._hangup_at - before < _SAME_HANGUP_S:
                return
        self.count += 1
        self._number = number
        if self.ending and self.count > 1:
            leave(0)
        if self.wake is not None:
            self.wake()
        else:  # still loading: nothing to drain
            raise KeyboardInterrupt(number)


def leave(status: int) -> NoReturn:
    """End now: a thread in a long call of C code would be waited for otherwise."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a terminal that is gone
            stream.flush()
    os._exit(status)
