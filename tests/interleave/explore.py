"""Every schedule of a few sides over the TSO machine. Owner: one test.

Explicit-state search: a state is (memory, events, each side's store buffer, each side's place),
and a state reached twice is expanded once. That pruning is exact, not by hash: the parts are
interned and compared whole, and they determine everything that can still happen.

Two reductions are used besides; both drop only schedules that have an equal one among those
kept (equal: every load gives the same value), which is all that the checks below can see.

* Own stores are appended to the own buffer, and a barrier with an empty buffer is passed, at
  once and without branching: they touch nothing another side can see.
* Stores reach memory as late as they can (`lazy`). Such a step commutes with everything but
  another side's load or buffered store of the same bytes, and a barrier of its own side. So it
  is offered only where another side is about to load those bytes, or holds a store to them, and
  a barrier takes the whole buffer along. With `lazy=False` every store may reach memory at any
  time, one by one; tests/interleave runs small programs both ways.

Checked: no assertion of the sides' programs fails, no shipped code raises, nothing is stuck
unless every side has ended (a sleeper nobody will wake is stuck), and from every state an end
can still be reached (nothing spins for ever whatever the schedule).
"""

from __future__ import annotations

import gc
import itertools
from array import array
from typing import Any, Final

from tests.interleave.tso import (
    BARRIER,
    DONE,
    EVENT_READ,
    EVENT_WAIT,
    EVENT_WRITE,
    LOAD,
    Side,
    Store,
)

State = tuple[int, ...]
"""(memory, events bit mask, then for each side: buffer, node)"""


UNKNOWN: Final = object()


class Violation(AssertionError):
    """A schedule that breaks an invariant; the message is the schedule."""


class Interner:
    """Equal values get one number."""

    def __init__(self) -> None:
        self.numbers: dict[Any, int] = {}
        self.values: list[Any] = []

    def number(self, value: Any) -> int:
        found = self.numbers.setdefault(value, len(self.values))
        if found == len(self.values):
            self.values.append(value)
        return found


class Explorer:
    def __init__(
        self, sides: list[Side], memory: bytes, max_states: int, lazy: bool = True
    ) -> None:
        self.sides = sides
        self.lazy = lazy
        self.max_states = max_states
        self.memories = Interner()
        self.buffers = Interner()
        self.buffers.number(())
        self._steps: list[dict[tuple[int, int, int, int], Any]] = [{} for _ in sides]
        self._flushed: dict[tuple[int, int, int], tuple[int, int]] = {}
        self._watched: dict[tuple[int, ...], tuple[int, ...]] = {}
        self._loaded: dict[tuple[int, int, int, int], bytes] = {}
        self._appended: dict[tuple[int, tuple[Store, ...]], int] = {}
        state: list[int] = [self.memories.number(memory), 0]
        for side in sides:
            stores, node = side.first
            state += [self.buffers.number(stores), node]
        self.start = tuple(state)
        self.states = 0
        self.end_states: list[State] = []

    @property
    def ends(self) -> int:
        return len(self.end_states)

    def run(self) -> int:
        """Visits every reachable state; their number. Raises Violation.

        Raises RuntimeError beyond `max_states`: nothing is proven then.
        """
        collecting = gc.isenabled()
        gc.disable()  # millions of tuples that refer to nothing but numbers
        try:
            return self._search()
        finally:
            if collecting:
                gc.enable()

    def _search(self) -> int:
        index: dict[State, int] = {self.start: 0}
        order: list[State] = [self.start]
        parent = array("q", [-1])
        edge_from = array("q")
        edge_to = array("q")
        ends: list[int] = []
        todo = [0]
        while todo:
            here = todo.pop()
            state = order[here]
            try:
                following = self.successors(state)
            except Violation:
                raise
            except Exception as error:
                raise self._violation(
                    f"{type(error).__name__}: {error}", order, parent, here
                ) from error
            if not following:
                if not self.ended(state):
                    raise self._violation("stuck", order, parent, here)
                ends.append(here)
                self.end_states.append(state)
            for new in following:
                there = index.get(new)
                if there is None:
                    there = index[new] = len(order)
                    if there > self.max_states:
                        raise RuntimeError(f"more than {self.max_states} states")
                    order.append(new)
                    parent.append(here)
                    todo.append(there)
                edge_from.append(here)
                edge_to.append(there)
        self.states = len(order)
        stray = _cannot_reach(ends, len(order), edge_from, edge_to)
        if stray is not None:
            raise self._violation("no end can be reached", order, parent, stray)
        return len(order)

    def successors(self, state: State) -> list[State]:
        """Where the machine can be one step later."""
        out: list[State] = []
        memory, events = state[0], state[1]
        at = 2
        for number in range(len(self.sides)):
            buffer, node = state[at], state[at + 1]
            if buffer:
                for length in self._offers(state, number) if self.lazy else (1,):
                    new_memory, new_buffer = self._flush(memory, buffer, length)
                    out.append((new_memory, events, *state[2:at], new_buffer, *state[at + 1 :]))
            key = (memory, events, buffer, node)
            cache = self._steps[number]
            step = cache.get(key, UNKNOWN)
            if step is UNKNOWN:
                step = cache[key] = self._step(number, *key)
            if step is not None:
                out.append((step[0], step[1], *state[2:at], step[2], step[3], *state[at + 2 :]))
            at += 2
        return out

    def _step(
        self, number: int, memory: int, events: int, buffer: int, node: int
    ) -> tuple[int, int, int, int] | None:
        """One side's pending action: (memory, events, buffer, node) after it, None: it waits."""
        side = self.sides[number]
        kind, where, size = side.actions[node]
        result: Any = None
        if kind == LOAD:
            result = self._load(memory, buffer, where, size)
        elif kind == DONE or (kind == EVENT_WAIT and not events >> where & 1):
            return None
        elif kind in (BARRIER, EVENT_WRITE):
            if buffer:
                if not self.lazy:
                    return None
                memory, buffer = self._flush(memory, buffer, -1)
            if kind == EVENT_WRITE:
                events |= 1 << where
        elif kind == EVENT_READ:
            events &= ~(1 << where)
        stores, node = side.step(node, result)
        while side.actions[node][0] == BARRIER and not buffer and not stores:
            stores, node = side.step(node, None)
        if stores:
            buffer = self._append(buffer, stores)
        return memory, events, buffer, node

    def _offers(self, state: State, number: int) -> tuple[int, ...]:
        """How many of a side's buffered stores may go to memory as one step, here."""
        buffer = state[2 + 2 * number]
        lengths: tuple[int, ...] = ()
        for other, side in enumerate(self.sides):
            if other == number:
                continue
            kind, where, size = side.actions[state[3 + 2 * other]]
            if kind == LOAD:
                lengths += self._watch(buffer, where, size)
            if state[2 + 2 * other]:
                lengths += self._collide(buffer, state[2 + 2 * other])
        return lengths

    def _watch(self, buffer: int, where: int, size: int) -> tuple[int, ...]:
        known = self._watched.get((buffer, where, size))
        if known is None:
            stores = self.buffers.values[buffer]
            known = self._watched[buffer, where, size] = tuple(
                length
                for length, (address, data) in enumerate(stores, 1)
                if address < where + size and where < address + len(data)
            )
        return known

    def _collide(self, buffer: int, other: int) -> tuple[int, ...]:
        known = self._watched.get((buffer, other))
        if known is None:
            lengths: set[int] = set()
            for address, data in self.buffers.values[other]:
                lengths.update(self._watch(buffer, address, len(data)))
            known = self._watched[buffer, other] = tuple(sorted(lengths))
        return known

    def _flush(self, memory: int, buffer: int, length: int) -> tuple[int, int]:
        """Takes the oldest `length` stores (-1: all) to memory: (memory, buffer)."""
        known = self._flushed.get((memory, buffer, length))
        if known is None:
            stores = self.buffers.values[buffer]
            count = len(stores) if length < 0 else length
            data = bytearray(self.memories.values[memory])
            for address, stored in stores[:count]:
                data[address : address + len(stored)] = stored
            known = (self.memories.number(bytes(data)), self.buffers.number(stores[count:]))
            self._flushed[memory, buffer, length] = known
        return known

    def _load(self, memory: int, buffer: int, address: int, size: int) -> bytes:
        key = (memory, buffer, address, size)
        known = self._loaded.get(key)
        if known is None:
            data = bytearray(self.memories.values[memory][address : address + size])
            for start, stored in self.buffers.values[buffer]:
                for offset, byte in enumerate(stored):
                    if address <= start + offset < address + size:
                        data[start + offset - address] = byte
            known = self._loaded[key] = bytes(data)
        return known

    def _append(self, buffer: int, stores: tuple[Store, ...]) -> int:
        known = self._appended.get((buffer, stores))
        if known is None:
            known = self.buffers.number(self.buffers.values[buffer] + stores)
            self._appended[buffer, stores] = known
        return known

    def ended(self, state: State) -> bool:
        nodes = state[3::2]
        return all(
            side.actions[node][0] == DONE for side, node in zip(self.sides, nodes, strict=True)
        )

    def _violation(self, what: str, order: list[State], parent: array[int], at: int) -> Violation:
        path: list[State] = []
        here = at
        while here >= 0:
            path.append(order[here])
            here = parent[here]
        path.reverse()
        lines = [what]
        for before, after in itertools.pairwise(path):
            lines.append("  " + self._describe(before, after))
        for number, side in enumerate(self.sides):
            lines.append(f"  at the end: {side.describe(path[-1][3 + 2 * number])}")
        return Violation("\n".join(lines))

    def _describe(self, before: State, after: State) -> str:
        for number, side in enumerate(self.sides):
            at = 2 + 2 * number
            if before[at + 1] != after[at + 1]:
                kind, where, size = side.actions[before[at + 1]]
                text = f"{side.name}: {kind} {where}"
                if kind == LOAD:
                    text += f" -> {self._load(before[0], before[at], where, size).hex()}"
                return text
        for number, side in enumerate(self.sides):
            at = 2 + 2 * number
            if before[at] != after[at]:
                old, new = self.buffers.values[before[at]], self.buffers.values[after[at]]
                gone = old[: len(old) - len(new)]
                return f"{side.name}: to memory: " + ", ".join(
                    f"{data.hex()} at {address}" for address, data in gone
                )
        return "no change"


def _cannot_reach(
    ends: list[int], count: int, edge_from: array[int], edge_to: array[int]
) -> int | None:
    """A state from which no end can be reached, if there is one."""
    first = array("q", bytes(8 * (count + 1)))
    for there in edge_to:
        first[there + 1] += 1
    for number in range(count):
        first[number + 1] += first[number]
    into = array("q", bytes(8 * len(edge_to)))
    fill = array("q", first)
    for here, there in zip(edge_from, edge_to, strict=True):
        into[fill[there]] = here
        fill[there] += 1
    good = bytearray(count)
    todo = list(ends)
    for end in ends:
        good[end] = 1
    while todo:
        here = todo.pop()
        for before in into[first[here] : first[here + 1]]:
            if not good[before]:
                good[before] = 1
                todo.append(before)
    stray = good.find(0)
    return None if stray < 0 else stray
