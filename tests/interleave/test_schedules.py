"""The shipped rings and wake-ups over every schedule: torn, lost, reordered, asleep for ever.

Rings of 64 bytes; `messages((8, 3), ...)` are records of 8 payload bytes and a key of 3, which
take 8 + 8 + 3 bytes rounded up to 24. A run that returns has visited every state.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.interleave.scenarios import Message, World, message

pytestmark = pytest.mark.timeout(300)


def messages(*sizes: tuple[int, int]) -> list[Message]:
    return [message(number, payload, key) for number, (payload, key) in enumerate(sizes)]


POLLED: dict[str, tuple[list[Message], dict[str, Any]]] = {
    # Six records of 16 bytes in 64: the ring is full, empty, and wraps exactly at its end.
    "wrap": (messages(*[(8, 0)] * 6), {"batch": 1}),
    "wrap in batches": (messages(*[(8, 0)] * 6), {"batch": 3}),
    # 24-byte records leave 16 bytes at the end: pads.
    "pads": (messages((8, 3), (12, 0), (16, 0), (9, 2), (1, 1)), {"batch": 2}),
    "bounded by count": (messages(*[(0, 1)] * 5), {"batch": 2, "cap_records": 2}),
    "empty records": (messages(*[(0, 0)] * 5), {"batch": 2}),
    # Over half the ring: fragments, the rest parked until the consumer frees space.
    "fragments": (messages((48, 2)), {}),
    "fragments after a record": (messages((8, 1), (40, 2)), {}),
    "fragments before a record": (messages((40, 0), (8, 1)), {}),
    "fragments of several rings": (messages((100, 1)), {}),
}


@pytest.mark.parametrize("name", POLLED)
def test_one_producer_one_consumer(name):
    sent, options = POLLED[name]
    world = World(rings=1, doorbells=1)
    world.add_poller(0, 0, sent, **options)
    world.add_consumer([0], 0, [sent])
    assert world.explore().ends > 0


BLOCKED = {
    "wrap": (messages((8, 0), (16, 1), (16, 0)), 64),
    "one at a time": (messages((0, 0), (0, 0), (0, 0)), 1),
    "fragments": (messages((48, 2)), 64),
}


@pytest.mark.parametrize("name", BLOCKED)
def test_a_producer_asleep_for_space_is_woken(name):
    sent, cap_records = BLOCKED[name]
    world = World(rings=1, doorbells=2)
    world.add_blocker([0], [0], 1, sent, cap_records)
    world.add_consumer([0], 0, [sent], space=1)
    assert world.explore().ends > 0


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("sent", [messages((8, 0), (40, 2)), messages((70, 1))], ids=["2", "1"])
def test_a_producer_asleep_for_space_is_woken_between_fragments(sent):
    world = World(rings=1, doorbells=2)
    world.add_blocker([0], [0], 1, sent)
    world.add_consumer([0], 0, [sent], space=1)
    assert world.explore().ends > 0


@pytest.mark.parametrize("first", [1, 2])
def test_two_rings_on_one_consumer(first):
    """Both producers ring the same doorbell, and may both clear the same flag."""
    one, two = messages(*[(8, 0)] * first), messages((8, 0))
    world = World(rings=2, doorbells=1)
    world.add_poller(0, 0, one, batch=2)
    world.add_poller(1, 0, two)
    world.add_consumer([0, 1], 0, [one, two])
    assert world.explore().ends > 0


def broadcast_world(sleeps: bool) -> World:
    sent = messages((0, 0), (0, 0))
    world = World(rings=2, doorbells=3)
    world.add_blocker([0, 1], [0, 1], 2, sent, cap_records=1)
    world.add_consumer([0], 0, [sent], space=2, sleeps=sleeps)
    world.add_consumer([1], 1, [sent], space=2, sleeps=False)
    return world


def test_two_consumers_free_space_for_one_producer():
    """Both consumers ring the producer's doorbell, and may both clear its flag."""
    assert broadcast_world(sleeps=False).explore().ends > 0


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_two_consumers_free_space_for_one_producer_and_sleep():
    assert broadcast_world(sleeps=True).explore().ends > 0


def test_a_consumer_that_leaves_lets_a_blocked_producer_go():
    sent = messages((16, 1), (16, 0), (8, 0))
    world = World(rings=1, doorbells=2)
    world.add_blocker([0], [0], 1, sent, cap_records=1)
    world.add_consumer([0], 0, [sent], space=1, quits_after=1)
    assert world.explore().ends > 0


def test_a_consumer_that_leaves_in_a_large_record_lets_its_producer_go():
    sent = messages((8, 0), (60, 0))
    world = World(rings=1, doorbells=2)
    world.add_blocker([0], [0], 1, sent)
    world.add_consumer([0], 0, [sent], space=1, quits_after=1)
    assert world.explore().ends > 0


def test_urgent_records_pass_a_ring_of_one():
    sent = messages((0, 1), (0, 1), (0, 1))
    world = World(rings=1, doorbells=1)
    world.add_urgent(0, 0, sent)
    world.add_consumer([0], 0, [sent])
    assert world.explore().ends > 0


@pytest.mark.parametrize("name", ["wrap", "pads", "fragments"])
def test_delaying_stores_loses_no_end(name):
    """The reduction against the plain search: one finds an end wherever the other does."""
    sent, options = POLLED[name]
    sent = sent[:3]
    sizes = []
    for lazy in (False, True):
        world = World(rings=1, doorbells=1)
        world.add_poller(0, 0, sent, **options)
        world.add_consumer([0], 0, [sent])
        explorer = world.explore(lazy=lazy)
        places = {
            tuple(side.place(node) for side, node in zip(world.sides, state[3::2], strict=True))
            for state in explorer.end_states
        }
        sizes.append((explorer.states, places))
    (all_states, all_ends), (few_states, few_ends) = sizes
    assert few_states < all_states
    assert few_ends == all_ends
