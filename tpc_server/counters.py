"""Per-core counters. Owner: the core's thread; others read the words it publishes.

The core counts in plain attributes and copies them into its own cache lines of the shared
region when it goes to sleep and at least every tenth of a second.
"""

from __future__ import annotations

from typing import Any, Final

NAMES: Final = (
    "heartbeat_ns", "connections", "live_requests", "inflight", "loops", "waits", "wakeups",
    "doorbells_written", "doorbells_saved", "frames", "rows", "rows_stale", "sends",
    "bytes_out", "blocked", "requests", "answers", "aborts", "errors", "accepted",
    "encoded", "malformed", "resets", "spin_hits", "blocked_ns",
)  # fmt: skip
CONNECTIONS: Final = NAMES.index("connections")
WORDS: Final = 64  # 64-bit words of shared memory per core: whole cache lines, room to grow


class Counters:
    """What one core did since it started."""

    __slots__ = NAMES

    def __init__(self) -> None:
        for name in NAMES:
            setattr(self, name, 0)

    def publish(self, words: Any, base: int) -> None:
        """Copy into the shared 64-bit words from index `base` on."""
        for i, name in enumerate(NAMES):
            words[base + i] = getattr(self, name)


def snapshot(words: Any, base: int) -> dict[str, int]:
    """The values a core published last, by name."""
    return {name: int(words[base + i]) for i, name in enumerate(NAMES)}
