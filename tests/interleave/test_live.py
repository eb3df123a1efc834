"""A detok core is left out of a push only when nothing there waits for it: every schedule."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.interleave.explore import Explorer, Violation
from tests.interleave.mutants import mutant
from tests.interleave.tso import Recorder, Side, SideMemory
from tpc_server import live as shipped

OPENED_A, OPENED_B, ENDED = 0, 1, 2
# Instead of rings: a word that says how many messages were sent.
AT_DETOK, AT_SCHEDULER = 3, 4


def explore(live: Any = shipped, count_first: bool = True, lazy: bool = True) -> Explorer:
    """Ingress A opens a request, which detok ends whenever it likes; ingress B opens one that
    lives. Whatever the scheduler sees of the others, once it has B's it must find it alive."""

    def opener(name: str, counter: int, to: int) -> Side:
        recorder = Recorder()
        memory = SideMemory(recorder)
        state = SimpleNamespace(count=live.Count(memory.words, counter), words=memory.words)

        def open_one(s: Any) -> str | None:
            if count_first:
                s.count.add(1)
                s.words[to] = 1
            else:
                s.words[to] = 1
                s.count.add(1)
            return None

        return Side(name, recorder, state, {"open": open_one}, "open")

    def ender() -> Side:
        recorder = Recorder()
        memory = SideMemory(recorder)
        state = SimpleNamespace(count=live.Count(memory.words, ENDED), words=memory.words)

        def wait(s: Any) -> str | None:
            return "end" if s.words[AT_DETOK] else "wait"

        def end(s: Any) -> str | None:
            s.count.add(1)
            return None

        return Side("detok", recorder, state, {"wait": wait, "end": end}, "wait")

    def scheduler() -> Side:
        recorder = Recorder()
        memory = SideMemory(recorder)
        state = SimpleNamespace(
            watch=live.Watch(memory.words, (OPENED_A, OPENED_B), ENDED), words=memory.words
        )

        def receive(s: Any) -> str | None:
            return "push" if s.words[AT_SCHEDULER] else "receive"

        def push(s: Any) -> str | None:
            assert s.watch.any_live(), "its first frame would be missed"
            return None

        operations = {"receive": receive, "push": push}
        return Side("scheduler", recorder, state, operations, "receive")

    sides = [
        opener("ingress A", OPENED_A, AT_DETOK), opener("ingress B", OPENED_B, AT_SCHEDULER),
        ender(), scheduler(),
    ]  # fmt: skip
    explorer = Explorer(sides, bytes(64), 1_000_000, lazy)
    explorer.run()
    return explorer


@pytest.mark.parametrize("lazy", [True, False])
def test_a_live_request_is_always_seen(lazy):
    assert explore(lazy=lazy).ends > 0


def test_counting_after_the_request_was_sent_misses_it():
    with pytest.raises(Violation, match="would be missed"):
        explore(count_first=False)


def test_reading_what_has_ended_last_misses_it():
    wrong = mutant(
        shipped,
        (
            "        ended = words[self._ended]\n",
            "        opened = [words[a] for a in self._opened]\n",
        ),
        ("sum([words[at] for at in self._opened]) != ended", "sum(opened) != words[self._ended]"),
    )
    with pytest.raises(Violation, match="would be missed"):
        explore(live=wrong)


def test_a_core_where_all_has_ended_is_left_out():
    words = memoryview(bytearray(64)).cast("Q")
    opened, ended = shipped.Count(words, OPENED_A), shipped.Count(words, ENDED)
    watch = shipped.Watch(words, (OPENED_A, OPENED_B), ENDED)
    assert not watch.any_live()
    opened.add(3)
    for _ in range(3):
        assert watch.any_live()
        ended.add(1)
    assert not watch.any_live()
