"""Time that this process was awake for. Owner: whoever made it; one thread at a time looks.

How long a frontend is silent is counted in looks, not by the clock: where the whole machine stood
still, or the scheduler was starved or busy in one long step, nobody knows whether the frontend
could have turned meanwhile. Such a gap counts as one short look, so a frontend that is really
stuck is still given up, after so many of them.
"""

from __future__ import annotations

from typing import Final

# A scheduler looks every 50 ms where it can, at least every 250 ms while it sleeps.
MOST_NS: Final = 250_000_000


class Awake:
    """`look` often; `ns` says how much time has counted so far."""

    __slots__ = ("_last", "_most", "ns")

    def __init__(self, now_ns: int, most_ns: int = MOST_NS) -> None:
        """`most_ns`: what one look counts at most, where that is less than usual."""
        self.ns = 0
        self._last = now_ns
        self._most = min(most_ns, MOST_NS)

    def look(self, now_ns: int) -> int:
        """What has counted until now, in ns."""
        gap = now_ns - self._last
        self._last = now_ns
        if gap > 0:
            self.ns += min(gap, self._most)
        return self.ns
