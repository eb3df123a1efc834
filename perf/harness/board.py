"""Notice board in shared memory. Owner: the scheduler process writes, the client reads afterwards.

The synthetic scheduler notes when each step was handed over and at which step each request
started; the client knows which event of which request it read and when. Joining the two gives
the added latency of every event (hand-over to client byte) without one more byte on the wire.
Both clocks are CLOCK_MONOTONIC of one machine. The client joins after the load has ended, so no
ordering between the two processes is needed.
"""

from __future__ import annotations

import mmap
from pathlib import Path

STEPS = 1 << 17
REQUESTS = 1 << 17
_WORDS = STEPS + REQUESTS


class Board:
    """`push_ns[step % STEPS]` and `first_step[request % REQUESTS]`, both int64, in one file."""

    def __init__(self, path: Path | str, create: bool = False) -> None:
        if create:
            with open(path, "wb") as handle:
                handle.truncate(_WORDS * 8)
        with open(path, "r+b") as handle:
            self._map = mmap.mmap(handle.fileno(), _WORDS * 8)
        words = memoryview(self._map).cast("q")
        self.push_ns = words[:STEPS]
        self.first_step = words[STEPS:]
