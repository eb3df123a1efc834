"""Which detok cores have live requests: a core without any is not woken by the scheduler's steps.
Owner: each object the thread that built it.

Every ingress core counts the groups that it opens at its detok core, that core counts those that
are over, and the scheduler compares. A group is counted as opened before its requests are sent
anywhere, and as over once no row of them is wanted: a frame for them can only be pushed while the
two differ. With a single detok core nobody counts and nobody asks.

All of them are words of shared memory with one writer each; x86-64 keeps stores in order and loads
in order, which is all that is needed (ADR 3; tests/interleave/test_live.py runs this very code).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tpc_server import frame
from tpc_server.shm import Words

if TYPE_CHECKING:
    from tpc_server.stages.base import Port


class Count:
    """One side's counter. It lives in the word alone, and so through the death of its core."""

    __slots__ = ("_at", "_words")

    def __init__(self, words: Words, at: int) -> None:
        self._words = words
        self._at = at

    def add(self, count: int) -> None:
        """So many more."""
        self._words[self._at] += count


class OpeningPort:
    """An ingress core's port to its detok stage: the one way by which groups are opened there."""

    __slots__ = ("_count", "_port", "_send")

    def __init__(self, port: Port, count: Count) -> None:
        self._port = port
        self._send = port.send
        self._count = count

    def send(self, message: frame.Message) -> None:
        """Counts an opening before it is sent."""
        if message[0] == frame.D_OPEN:
            self._count.add(1)
        self._send(message)

    @property
    def backlog(self) -> int:
        """The port's."""
        return self._port.backlog


class Watch:
    """The scheduler's look at one detok core."""

    __slots__ = ("_ended", "_opened", "_words")

    def __init__(self, words: Words, opened: Sequence[int], ended: int) -> None:
        self._words = words
        self._opened = opened
        self._ended = ended

    def any_live(self) -> bool:
        """Whether rows may be wanted there; in doubt they are."""
        words = self._words
        # Ended before opened: both only grow, so equal numbers were equal at the first load. The
        # other way round a request opened and ended in between could stand for one that lives.
        ended = words[self._ended]
        return sum([words[at] for at in self._opened]) != ended
