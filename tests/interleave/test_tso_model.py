"""The model machine itself, on the classic litmus programs of x86-TSO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests.interleave.explore import Explorer, Violation
from tests.interleave.tso import ModelBarrier, ModelEvent, ModelWords, Recorder, Side

X, Y = 0, 1
Program = Callable[[ModelWords, ModelBarrier, ModelEvent], tuple[int, ...]]


def outcomes(programs: Sequence[Program], lazy: bool) -> set[tuple[tuple[int, ...], ...]]:
    """What the programs can return, over all schedules, each as its sides' results."""
    sides: list[Side] = []
    for number, program in enumerate(programs):
        recorder = Recorder()
        state = SimpleNamespace(seen=[])
        tools = (ModelWords(recorder, 8), ModelBarrier(recorder), ModelEvent(recorder, 0))

        def run(s: Any, program: Program = program, tools: Any = tools) -> str | None:
            s.seen = list(program(*tools))
            return None

        sides.append(Side(f"side {number}", recorder, state, {"run": run}, "run"))
    found: set[tuple[tuple[int, ...], ...]] = set()
    explorer = Explorer(sides, bytes(16), 100_000, lazy)
    ended = explorer.ended

    def remember(state: tuple[int, ...]) -> bool:
        if ended(state):
            found.add(
                tuple(side.result(node) for side, node in zip(sides, state[3::2], strict=True))
            )
        return ended(state)

    explorer.ended = remember  # type: ignore[method-assign]
    explorer.run()
    return found


def store_then_load(mine: int, other: int, barrier: bool) -> Program:
    def program(words: ModelWords, lock: ModelBarrier, event: ModelEvent) -> tuple[int, ...]:
        words[mine] = 1
        if barrier:
            lock.acquire()
        return (words[other],)

    return program


@pytest.mark.parametrize("lazy", [False, True])
def test_a_store_may_be_delayed_past_a_later_load(lazy):
    """SB: both sides may miss the other's store. This is what breaks flag protocols."""
    sides = [store_then_load(X, Y, False), store_then_load(Y, X, False)]
    both = {((a,), (b,)) for a in (0, 1) for b in (0, 1)}
    assert outcomes(sides, lazy) == both
    one_barrier = [store_then_load(X, Y, True), store_then_load(Y, X, False)]
    assert ((0,), (0,)) in outcomes(one_barrier, lazy)
    two_barriers = [store_then_load(X, Y, True), store_then_load(Y, X, True)]
    assert outcomes(two_barriers, lazy) == both - {((0,), (0,))}


@pytest.mark.parametrize("lazy", [False, True])
def test_stores_are_seen_in_order(lazy):
    """MP: who sees the second store sees the first."""

    def writer(words: ModelWords, lock: ModelBarrier, event: ModelEvent) -> tuple[int, ...]:
        words[X] = 1
        words[Y] = 1
        return ()

    def reader(words: ModelWords, lock: ModelBarrier, event: ModelEvent) -> tuple[int, ...]:
        return (words[Y], words[X])

    found = {result[1] for result in outcomes([writer, reader], lazy)}
    assert found == {(0, 0), (0, 1), (1, 1)}


@pytest.mark.parametrize("lazy", [False, True])
def test_own_stores_are_seen_at_once(lazy):
    """SB with forwarding: a side reads its own store before anybody else can."""

    def program(mine: int, other: int) -> Program:
        def run(words: ModelWords, lock: ModelBarrier, event: ModelEvent) -> tuple[int, ...]:
            words[mine] = 1
            return (words[mine], words[other])

        return run

    found = outcomes([program(X, Y), program(Y, X)], lazy)
    assert ((1, 0), (1, 0)) in found
    assert all(side[0] == 1 for result in found for side in result)


@pytest.mark.parametrize("lazy", [False, True])
def test_two_stores_to_one_word_end_in_either_order(lazy):
    def writer(value: int) -> Program:
        def run(words: ModelWords, lock: ModelBarrier, event: ModelEvent) -> tuple[int, ...]:
            words[X] = value
            lock.acquire()
            return (words[X],)

        return run

    found = outcomes([writer(1), writer(2)], lazy)
    assert found == {((1,), (2,)), ((1,), (1,)), ((2,), (2,))}


@pytest.mark.parametrize("lazy", [False, True])
def test_an_event_that_nobody_writes_is_a_stuck_schedule(lazy):
    def sleeper(words: ModelWords, lock: ModelBarrier, event: ModelEvent) -> tuple[int, ...]:
        event.wait(-1)
        event.read()
        return (words[X],)

    def waker(words: ModelWords, lock: ModelBarrier, event: ModelEvent) -> tuple[int, ...]:
        words[X] = 1
        event.write()
        return ()

    assert outcomes([sleeper, waker], lazy) == {((1,), ())}
    with pytest.raises(Violation, match="stuck"):
        outcomes([sleeper], lazy)


def test_spinning_for_ever_is_a_violation():
    recorder = Recorder()
    words = ModelWords(recorder, 8)
    side = Side(
        "spinner",
        recorder,
        SimpleNamespace(),
        {"spin": lambda s: None if words[X] else "spin"},
        "spin",
    )
    with pytest.raises(Violation, match="no end can be reached"):
        Explorer([side], bytes(16), 1000).run()
