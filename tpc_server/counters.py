"""Per-core counters. Owner: the core's thread; others read the words it publishes.

The core counts in plain attributes and copies them into its own cache lines of the shared
region when it goes to sleep and at least every tenth of a second.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import Any, Final


class Counters:
    """What one core did since it started; gauges are marked (now)."""

    heartbeat_ns: int  # CLOCK_MONOTONIC of the last publication
    connections: int  # open (now)
    live_requests: int  # streams whose detokenization is here (now)
    inflight: int  # HTTP requests that are not answered yet (now)
    loops: int  # turns of the loop
    waits: int  # sleeps in epoll
    wakeups: int  # sleeps that a doorbell ended
    doorbells_written: int  # system calls that woke another end
    doorbells_saved: int  # batches whose reader was awake
    frames: int  # steps from the scheduler
    rows: int  # rows of those that belong here
    rows_stale: int  # rows of other cores, or of requests that ended
    sends: int  # writes to a socket, by the core that has it
    bytes_out: int  # bytes they wrote
    blocked: int  # times a socket was full
    blocked_ns: int  # how long in all
    requests: int  # HTTP requests dispatched
    answers: int  # answers completed
    aborts: int  # requests aborted by their client
    errors: int  # answers that were errors
    accepted: int  # connections accepted (some are handed over)
    encoded: int  # texts tokenized
    malformed: int  # frames rejected
    resets: int  # times the core was rebuilt after an exception
    spin_hits: int  # sleeps that spinning spared
    started_ns: int  # CLOCK_MONOTONIC when the core began
    waited_ns: int  # time in sleeps
    tokenizing: int  # clients' requests that the scheduler does not have yet (now)
    queued: int  # that it has and of which no row came (now)
    decoding: int  # of which rows came (now); these three are counted once a tick

    # The order of the published words.
    __slots__ = (  # noqa: RUF023
        "heartbeat_ns", "connections", "live_requests", "inflight", "loops", "waits", "wakeups",
        "doorbells_written", "doorbells_saved", "frames", "rows", "rows_stale", "sends",
        "bytes_out", "blocked", "blocked_ns", "requests", "answers", "aborts", "errors",
        "accepted", "encoded", "malformed", "resets", "spin_hits", "started_ns", "waited_ns",
        "tokenizing", "queued", "decoding",
    )  # fmt: skip

    def __init__(self) -> None:
        for name in self.__slots__:
            setattr(self, name, 0)

    def publish(self, words: Any, base: int) -> None:
        """Copy into the shared 64-bit words from index `base` on."""
        for i, name in enumerate(NAMES):
            words[base + i] = getattr(self, name)


class Beat:
    """Called by a core in the middle of something long: it lives, it only does not turn."""

    __slots__ = ("_at", "_words")

    def __init__(self, words: Any, base: int) -> None:
        self._words = words
        self._at = base + NAMES.index("heartbeat_ns")

    def __call__(self) -> None:
        self._words[self._at] = monotonic_ns()


NAMES: Final[tuple[str, ...]] = Counters.__slots__
CONNECTIONS: Final = NAMES.index("connections")
WORDS: Final = 64  # 64-bit words of shared memory per core: whole cache lines, room to grow


def snapshot(words: Any, base: int) -> dict[str, int]:
    """The values a core published last, by name."""
    return {name: int(words[base + i]) for i, name in enumerate(NAMES)}
