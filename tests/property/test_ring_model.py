"""A ring behaves like a list with bounds, whatever is pushed, drained, parked and closed."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from tpc_server.ring import Producer, ring_bytes
from tpc_server.ring_format import MIN_CAPACITY
from tpc_server.ring_reader import Consumer
from tpc_server.shm import Region

GUARD = 128
"""Bytes on both sides of the ring that nothing may touch."""


def payload_parts(total: int, cuts: list[int], seed: int) -> list[bytes | memoryview | bytearray]:
    """`total` bytes that depend on their place, cut into buffers of several types."""
    whole = bytes((seed + 7 * at) & 0xFF for at in range(total))
    edges = sorted({0, total, *(cut % (total + 1) for cut in cuts)})
    kinds: tuple[Any, ...] = (bytes, bytearray, memoryview)
    return [
        kinds[number % 3](whole[start:end])
        for number, (start, end) in enumerate(itertools.pairwise(edges))
    ]


class RingMachine(RuleBasedStateMachine):
    @initialize(
        capacity=st.sampled_from([64, 128, 256, 1024]),
        cap_records=st.integers(1, 12),
        laps=st.integers(0, 40),
    )
    def start(self, capacity, cap_records, laps):
        self.capacity = capacity
        self.cap_records = cap_records
        self.region = Region.create(ring_bytes(capacity) + 2 * GUARD)
        self.region.buf[0:GUARD] = b"\x55" * GUARD
        self.after = GUARD + ring_bytes(capacity)
        self.region.buf[self.after : self.after + GUARD] = b"\x55" * GUARD
        self.producer = Producer(self.region, GUARD, capacity, cap_records)
        self.consumer = Consumer(self.region, GUARD, capacity)
        self.accepted: list[tuple[int, bytes, bytes]] = []
        self.drained = 0
        self.closing = False
        self.gone = False
        self.number = 0
        for _ in range(laps):  # start somewhere in the ring
            assert self.producer.try_push(0, b"", (b"12345678",))
            assert self.consumer.drain(1) == [(0, b"", b"12345678")]

    @rule(
        size=st.one_of(st.integers(0, 40), st.integers(0, 4000)),
        key_size=st.integers(0, MIN_CAPACITY // 4),
        cuts=st.lists(st.integers(0, 4000), max_size=4),
        kind=st.integers(0, 255),
    )
    def push(self, size, key_size, cuts, kind):
        self.number += 1
        key = bytes([self.number & 0xFF]) * key_size
        parts = payload_parts(size, cuts, self.number)
        waiting = len(self.accepted) - self.drained
        blocked = self.producer.parked or self.closing or waiting >= self.cap_records
        empty = self.consumer.size_guess() == 0
        took = self.producer.try_push(kind, key, parts)
        if blocked:
            assert not took
        elif empty:
            assert took, "an empty ring refused a record"
        if took:
            self.accepted.append((kind, key, b"".join(parts)))
            large = 2 * ((size + key_size + 15) & -8) > self.capacity
            assert large or not self.producer.parked

    @rule(most=st.integers(0, 8))
    def drain(self, most):
        before = self.consumer.size_guess()
        out = self.consumer.drain(most)
        assert len(out) <= most
        assert out == self.accepted[self.drained : self.drained + len(out)]
        self.drained += len(out)
        if most and before:
            assert self.consumer.size_guess() < before, "a drain made no progress"

    @rule()
    def pump(self):
        assert self.producer.pump() == (not self.producer.parked)

    @precondition(lambda self: not self.closing)
    @rule()
    def close(self):
        told = self.producer.close()
        self.closing = True
        assert told == (not self.producer.parked)

    @precondition(lambda self: self.closing)
    @rule()
    def close_again(self):
        self.producer.close()

    @invariant()
    def bounds_hold(self):
        assert 0 <= self.producer.size_guess() == self.consumer.size_guess() <= self.capacity
        assert self.producer.size_guess() % 8 == 0

    @invariant()
    def polls_agree(self):
        pending = self.consumer.size_guess() > 0
        told = self.closing and not self.producer.parked
        assert self.consumer.pure_poll() or not pending
        if self.consumer.closed:
            assert told
            assert self.drained == len(self.accepted)

    def teardown(self):
        if not hasattr(self, "region"):
            return
        turns = 0
        while not self.producer.pump() or self.consumer.size_guess():
            out = self.consumer.drain(5)
            assert out == self.accepted[self.drained : self.drained + len(out)]
            self.drained += len(out)
            turns += 1
            assert turns < 10_000, "the backlog does not move"
        assert self.drained == len(self.accepted), "records lost"
        assert self.consumer.drain(9) == []
        assert self.consumer.closed == self.closing
        assert self.region.buf[0:GUARD] == b"\x55" * GUARD
        assert self.region.buf[self.after : self.after + GUARD] == b"\x55" * GUARD
        self.region.close()


def test_a_ring_is_a_bounded_list():
    run_state_machine_as_test(
        RingMachine, settings=settings(max_examples=80, stateful_step_count=40, deadline=None)
    )


@given(
    capacity=st.sampled_from([64, 256, 4096]),
    sizes=st.lists(st.integers(0, 3000), max_size=20),
    start=st.integers(0, 511),
)
@settings(max_examples=100, deadline=None)
def test_any_sizes_pass_in_order_from_any_place(capacity, sizes, start):
    """Producer and consumer take turns; every size passes, from every offset in the ring."""
    region = Region.create(ring_bytes(capacity))
    producer = Producer(region, 0, capacity, 1 << 20)
    consumer = Consumer(region, 0, capacity)
    for _ in range(start):
        assert producer.try_push(0, b"", ())
        assert consumer.drain(1)
    wanted = [(number, b"k", bytes([number]) * size) for number, size in enumerate(sizes)]
    got: list[tuple[int, bytes, bytes]] = []
    for kind, key, payload in wanted:
        turns = 0
        while not producer.try_push(kind, key, (payload[:3], payload[3:])):
            got += consumer.drain(2)
            producer.pump()
            turns += 1
            assert turns < 1000
    while not producer.pump() or consumer.pure_poll():
        got += consumer.drain(2)
    assert got == wanted
    region.close()
