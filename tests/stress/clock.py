"""Time that this process was awake for, and when it was not. Owner: whoever made it.

A virtual machine that is stopped for a minute makes every time-out of server and clients fire at
once when it goes on. That is nobody's fault: limits here count awake time only, and what ends
around such a pause is not judged.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

NAP_S: Final = 0.02
# A longer step was no step: the machine stood still, or this process was starved.
_PAUSE_S: Final = 1.5


class Awake:
    """Call `look` often."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.pauses: list[float] = []  # CLOCK_MONOTONIC at which each ended
        self._last = time.monotonic()

    def look(self) -> float:
        """Seconds awake so far."""
        now = time.monotonic()
        step = now - self._last
        self._last = now
        if step > _PAUSE_S:
            self.pauses.append(now)
        self.seconds += min(step, _PAUSE_S)
        return self.seconds

    def paused_since(self, since: float) -> bool:
        """Whether a pause ended later than that."""
        return bool(self.pauses) and self.pauses[-1] > since


def until(what: Callable[[], bool], seconds: float) -> bool:
    """Poll until true; False after so many seconds awake."""
    clock = Awake()
    while not what():
        if clock.look() > seconds:
            return False
        time.sleep(NAP_S)
    return True
