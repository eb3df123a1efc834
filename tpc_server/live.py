"""Which detok cores have live requests: a core without any is not woken by the scheduler's steps.
Owner: each object the thread that built it.

Every ingress core counts what it has opened at its detok core, that core counts what has ended, and
the scheduler compares. A request is counted as opened before anybody can send it to the scheduler,
and as ended once no row of it is wanted: so a frame for it can only be pushed while the two differ.
All of them are words of shared memory with one writer each; x86-64 keeps stores in order and loads
in order, which is all that is needed (ADR 3; tests/interleave/test_live.py runs this very code).
"""

from __future__ import annotations

from collections.abc import Sequence

from tpc_server.shm import Words


class Count:
    """One side's counter. It lives in the word alone, and so through the death of its core."""

    __slots__ = ("_at", "_words")

    def __init__(self, words: Words, at: int) -> None:
        self._words = words
        self._at = at

    def add(self, count: int) -> None:
        """So many more."""
        self._words[self._at] += count


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
