"""The proof must fail when the code is wrong: each mutation has a schedule that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.interleave.explore import Violation
from tests.interleave.mutants import mutant
from tests.interleave.scenarios import World, message
from tests.interleave.tso import NoBarrier
from tpc_server import mailbox, ring, ring_reader

pytestmark = pytest.mark.timeout(300)
ASLEEP = "stuck|no end can be reached"
"""The second where the other side spins for ever for what the sleeper should send."""
MOST_STATES = 200_000
SMALL = [message(number, 8) for number in range(2)]
COUNTED = [message(number, 0) for number in range(2)]


def polled(**changes: Any) -> World:
    """A producer that polls for space, a consumer that sleeps for data."""
    world = World(rings=1, doorbells=1, **changes)
    world.add_poller(0, 0, SMALL)
    world.add_consumer([0], 0, [SMALL])
    return world


def blocked(**changes: Any) -> World:
    """A producer that sleeps for space, a consumer that spins for data."""
    world = World(rings=1, doorbells=2, **changes)
    world.add_blocker([0], [0], 1, COUNTED, cap_records=1)
    world.add_consumer([0], 0, [COUNTED], space=1, sleeps=False)
    return world


def wrapped(**changes: Any) -> World:
    """Records enough to be written over others just read."""
    sent = [message(number, 8) for number in range(5)]
    world = World(rings=1, doorbells=1, **changes)
    world.add_poller(0, 0, sent, batch=5)
    world.add_consumer([0], 0, [sent], sleeps=False)
    return world


def shared(**changes: Any) -> World:
    """Two producers ring one doorbell."""
    world = World(rings=2, doorbells=1, **changes)
    world.add_poller(0, 0, SMALL[:1])
    world.add_poller(1, 0, SMALL[:1])
    world.add_consumer([0, 1], 0, [SMALL[:1], SMALL[:1]])
    return world


def without_barrier(end: str) -> dict[str, Any]:
    return {"barriers": lambda name: NoBarrier if name == end else None}


@pytest.mark.parametrize("build", [polled, blocked, wrapped, shared])
def test_the_unchanged_code_passes(build):
    """Also as a copy, so that no mutation below fails for being one."""
    build().explore()
    copies = {"ring": mutant(ring), "ring_reader": mutant(ring_reader)}
    build(**copies, mailbox=mutant(mailbox)).explore()


@pytest.mark.parametrize(
    ("build", "end"),
    [(polled, "arm"), (polled, "ring"), (blocked, "arm space"), (blocked, "ring space")],
)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_missing_barrier_is_found(build, end, lazy):
    """Somebody sleeps for ever: store and load of one side changed places."""
    with pytest.raises(Violation, match=ASLEEP):
        build(**without_barrier(end)).explore(MOST_STATES, lazy)


PUBLISH_HEAD = (
    "        self._sent += 1\n        self._head = end\n        self._words[self._head_at] = end\n"
)
WRITE_RECORD = "        self._buf[at : at + size + 8] = data\n"
PUBLISH_TAIL = "        self._words[self._tail_at] = tail | self._shut\n"
READ_RECORDS = "        for _ in range(max_records):\n            if pos >= end:\n"

SWAPPED: dict[str, tuple[Callable[..., World], Any, list[tuple[str, str]]]] = {
    "head before the record": (
        polled,
        ring,
        [(WRITE_RECORD + PUBLISH_HEAD, PUBLISH_HEAD + WRITE_RECORD)],
    ),
    "tail before the copy": (
        wrapped,
        ring_reader,
        [
            (PUBLISH_TAIL, ""),
            (READ_RECORDS, "        self._words[self._tail_at] = tail + end\n" + READ_RECORDS),
        ],
    ),
    "eventfd before the flag": (
        shared,
        mailbox,
        [
            (
                "            self._words[self._at] = 0\n            self._event.write()\n",
                "            self._event.write()\n            self._words[self._at] = 0\n",
            ),
        ],
    ),
    "flag after the look": (
        polled,
        mailbox,
        [
            (
                "        self.arm()\n        for receiver in receivers:",
                "        for receiver in receivers:",
            ),
            (
                "        return True\n\n    def wait",
                "        self.arm()\n        return True\n\n    def wait",
            ),
        ],
    ),
    "eventfd reset after the flag": (
        polled,
        mailbox,
        [
            (
                "        self.disarm()\n        if rung:\n            self.clear()\n",
                "        self.disarm()\n",
            ),
            (
                "        self._acquire()\n        self._release()\n\n    def disarm",
                "        self._acquire()\n        self._release()\n"
                "        self.clear()\n\n    def disarm",
            ),
        ],
    ),
}


@pytest.mark.parametrize("name", SWAPPED)
@pytest.mark.parametrize("lazy", [False, True])
def test_two_swapped_accesses_are_found(name, lazy):
    build, module, changes = SWAPPED[name]
    key = module.__name__.rpartition(".")[2]
    with pytest.raises(Violation):
        build(**{key: mutant(module, *changes)}).explore(MOST_STATES, lazy)


LEFT_OUT: dict[str, tuple[Callable[..., World], Any, list[tuple[str, str]]]] = {
    "look again for data": (
        polled,
        mailbox,
        [("            if receiver.pure_poll():\n", "            if False:\n")],
    ),
    "look again for space": (
        blocked,
        mailbox,
        [
            (
                "        unsent, unfinished = offer(unsent, unfinished, kind, key, parts)\n"
                "        if",
                "        if",
            ),
            (
                "            waiter.wait(BACKSTOP_MS)\n",
                "            waiter.wait(BACKSTOP_MS)\n"
                "            unsent, unfinished = offer(unsent, unfinished, kind, key, parts)\n",
            ),
        ],
    ),
    "the close in the look again": (
        polled,
        ring_reader,
        [
            (
                "return head != tail and not (self._closed and head == tail + 1)",
                "return head & -2 != tail",
            )
        ],
    ),
    "the bell": (polled, mailbox, [("            self._bell.ring()\n", "            pass\n")]),
    "the space bell": (
        blocked,
        mailbox,
        [
            (
                "self.consumer.tail != freed:\n            self._space_bell.ring()",
                "self.consumer.tail != freed:\n            pass",
            )
        ],
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
@pytest.mark.parametrize("lazy", [False, True])
def test_a_step_left_out_is_found(name, lazy):
    build, module, changes = LEFT_OUT[name]
    key = module.__name__.rpartition(".")[2]
    with pytest.raises(Violation, match=ASLEEP):
        build(**{key: mutant(module, *changes)}).explore(MOST_STATES, lazy)


def test_a_second_doorbell_in_a_batch_is_found():
    twice = mutant(
        mailbox,
        (
            "            self._words[self._at] = 0\n            self._event.write()\n",
            "            self._event.write()\n            self._event.write()\n",
        ),
    )
    with pytest.raises(Violation, match="doorbells in one batch"):
        polled(mailbox=twice).explore(MOST_STATES)


def test_a_counterexample_reads_as_a_schedule():
    with pytest.raises(Violation) as found:
        polled(**without_barrier("ring")).explore()
    lines = str(found.value).splitlines()
    assert lines[0] == "stuck"
    flag_missed = lines.index("  producer 0: load 384 -> 0000000000000000")
    assert any("consumer 0: load" in line for line in lines[1:flag_missed])
    assert lines[-2:] == [
        "  at the end: producer 0 has ended",
        "  at the end: consumer 0 in sleep after 0 accesses, next: event wait 0",
    ]
