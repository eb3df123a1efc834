"""Mailboxes: doorbells, backlog, urgent records, waiting for space; mostly in one thread."""

from __future__ import annotations

import importlib
import os
import select
import sys
import threading
from typing import Any

import pytest

from tpc_server.eventfd import EventFd
from tpc_server.mailbox import (
    DOORBELL_BYTES,
    Bell,
    Doorbell,
    Receiver,
    Sender,
    Sleeper,
    SpaceWaiter,
    broadcast,
)
from tpc_server.ring import Producer, ring_bytes
from tpc_server.ring_reader import Consumer
from tpc_server.shm import Region

CAPACITY = 256
HARD_LIMIT_S = 30


class Link:
    """`rings` rings from one producer, each with a consumer of its own."""

    def __init__(self, rings: int = 1, cap_records: int = 1000) -> None:
        stride = ring_bytes(CAPACITY) + DOORBELL_BYTES
        self.region = Region.create(rings * stride + DOORBELL_BYTES)
        self.events = [EventFd() for _ in range(rings + 1)]
        self.space = Doorbell(self.region, rings * stride, self.events[-1])
        self.waiter = SpaceWaiter(self.space)
        self.bells: list[Bell] = []
        self.senders: list[Sender] = []
        self.receivers: list[Receiver] = []
        self.consumers: list[Consumer] = []
        self.sleepers: list[Sleeper] = []
        for number in range(rings):
            doorbell = Doorbell(
                self.region, number * stride + ring_bytes(CAPACITY), self.events[number]
            )
            bell = Bell(doorbell)
            producer = Producer(self.region, number * stride, CAPACITY, cap_records)
            consumer = Consumer(self.region, number * stride, CAPACITY)
            self.bells.append(bell)
            self.senders.append(Sender(producer, bell))
            self.consumers.append(consumer)
            self.receivers.append(Receiver(consumer, Bell(self.space, space=True)))
            self.sleepers.append(Sleeper(doorbell))

    def close(self) -> None:
        for event in self.events:
            event.close()
        self.region.close()


@pytest.fixture
def link():
    made = Link()
    yield made
    made.close()


def readable(sleeper: Any) -> bool:
    return bool(select.select([sleeper.fileno()], [], [], 0)[0])


def never() -> bool:
    return False


def test_the_doorbell_is_written_once_a_batch_and_only_to_a_sleeper(link):
    sender, receiver, sleeper, bell = (
        link.senders[0],
        link.receivers[0],
        link.sleepers[0],
        link.bells[0],
    )
    for number in range(3):
        assert sender.post(number, b"", ())
    assert not readable(sleeper)
    assert sender.flush()
    assert not readable(sleeper)  # awake
    assert (bell.written, bell.saved) == (0, 1)
    assert sender.flush()
    assert (bell.written, bell.saved) == (0, 1)  # nothing posted since
    assert len(receiver.drain(10)) == 3

    assert sleeper.try_sleep([receiver])
    assert not readable(sleeper)
    for number in range(3):
        assert sender.post(number, b"", ())
    assert not readable(sleeper)
    sender.flush()
    assert readable(sleeper)
    assert (bell.written, bell.saved) == (1, 1)
    sender.post(9, b"", ())
    sender.flush()
    assert (bell.written, bell.saved) == (1, 2)  # once a sleep
    sleeper.disarm()
    sleeper.clear()
    assert not readable(sleeper)
    assert len(receiver.drain(10)) == 4


def test_no_sleep_over_data_or_a_close(link):
    sender, receiver, sleeper = link.senders[0], link.receivers[0], link.sleepers[0]
    sender.post(1, b"", ())
    assert not sleeper.try_sleep([receiver])
    assert not link.bells[0].ring()  # taken down again
    receiver.drain(10)
    assert sleeper.try_sleep([receiver])
    sleeper.disarm()
    sender.close()
    assert not sleeper.try_sleep([receiver])
    receiver.drain(1)
    assert receiver.closed
    assert sleeper.try_sleep([receiver])


def test_wait_takes_the_flag_down_and_clears(link):
    sender, sleeper = link.senders[0], link.sleepers[0]
    assert sleeper.try_sleep([])
    assert not sleeper.wait(0)
    sender.post(1, b"", ())
    sender.flush()
    assert link.bells[0].written == 0  # disarmed by the time-out
    assert sleeper.try_sleep([])
    sender.post(1, b"", ())
    sender.flush()
    assert sleeper.wait(HARD_LIMIT_S * 1000)
    assert not readable(sleeper)


def test_clear_of_an_event_nobody_wrote_does_not_block(link):
    link.sleepers[0].clear()
    link.events[0].write()
    link.events[0].write()
    link.sleepers[0].clear()
    assert not readable(link.sleepers[0])


def test_an_eventfd_that_is_full_still_wakes(link):
    os.eventfd_write(link.events[0].fileno(), 2**64 - 2)
    link.events[0].write()
    assert readable(link.sleepers[0])


def test_data_and_space_share_a_doorbell_without_mixing():
    region = Region.create(4096)
    event = EventFd()
    doorbell = Doorbell(region, 0, event)
    sleeper, data, space = Sleeper(doorbell), Bell(doorbell), Bell(doorbell, space=True)
    sleeper.arm()
    assert not space.ring()
    assert data.ring()
    sleeper.disarm()
    sleeper.arm(space=True)
    assert space.ring()
    assert data.ring()
    sleeper.arm(data=False, space=True)
    assert not data.ring()
    sleeper.disarm()
    assert not space.ring()
    event.close()
    with pytest.raises(ValueError, match="multiple of 128"):
        Doorbell(region, 8, event)


def test_urgent_records_are_kept_one_a_key_and_in_order():
    link = Link(cap_records=2)
    sender, receiver = link.senders[0], link.receivers[0]
    for key in (b"a", b"b", b"c", b"d"):
        sender.post_urgent(1, key, (b"first",))
    assert sender.backlog
    sender.post_urgent(2, b"c", (b"sec", b"ond"))
    assert not sender.post(9, b"", ())  # would overtake
    assert not sender.flush()
    assert receiver.drain(10) == [(1, b"a", b"first"), (1, b"b", b"first")]
    assert sender.flush()
    assert not sender.backlog
    assert receiver.drain(10) == [(2, b"c", b"second"), (1, b"d", b"first")]
    assert sender.post(9, b"", ())
    link.close()


def test_many_urgent_records_are_never_lost():
    link = Link(cap_records=3)
    sender, receiver = link.senders[0], link.receivers[0]
    keys = [b"%d" % number for number in range(500)]
    for key in keys:
        sender.post_urgent(1, key, ())
    got: list[bytes] = []
    turns = 0
    while sender.backlog or receiver.pure_poll():
        got += [key for _, key, _ in receiver.drain(10)]
        sender.flush()
        turns += 1
        assert turns < 1000
    assert got == keys
    link.close()


def test_flush_goes_on_with_a_large_record(link):
    sender, receiver = link.senders[0], link.receivers[0]
    assert sender.post(1, b"k", (b"x" * 1000,))
    assert sender.backlog
    got: list[Any] = []
    turns = 0
    while not sender.flush():
        assert not sender.post(2, b"", ())
        got += receiver.drain(10)
        turns += 1
        assert turns < 100
    got += receiver.drain(10)
    assert got == [(1, b"k", b"x" * 1000)]


def test_space_wakes_only_who_waits(link):
    sender, receiver, waiter = link.senders[0], link.receivers[0], link.waiter
    sender.post(1, b"", ())
    receiver.drain(1)
    assert not readable(waiter)
    sender.post(1, b"", ())
    waiter.arm()
    assert receiver.drain(0) == []
    assert not readable(waiter)  # nothing freed
    receiver.drain(1)
    assert readable(waiter)
    assert waiter.wait(0)


def test_a_fragment_wakes_who_waits_although_no_record_came(link):
    sender, receiver, waiter = link.senders[0], link.receivers[0], link.waiter
    assert sender.post(1, b"", (b"x" * 1000,))
    waiter.arm()
    assert receiver.drain(1) == []
    assert waiter.wait(0)


def test_broadcast_puts_the_record_into_every_ring():
    link = Link(rings=3)
    for sleeper in link.sleepers:
        sleeper.arm()
    assert broadcast(link.senders, 5, b"key", (b"a", b"b"), never, link.waiter)
    for receiver, sleeper in zip(link.receivers, link.sleepers, strict=True):
        assert readable(sleeper)
        assert receiver.drain(10) == [(5, b"key", b"ab")]
    link.close()


def test_broadcast_into_nothing_is_done():
    link = Link()
    assert broadcast([], 1, b"", (), never, link.waiter)
    link.close()


def test_broadcast_fills_the_other_rings_before_it_waits_for_a_full_one():
    """Stopped while waiting: the others have the record, whole, the full one does not."""
    link = Link(rings=3, cap_records=2)
    full = link.senders[0]
    assert full.post(0, b"", ())
    assert full.post(0, b"", ())
    for sleeper in link.sleepers:
        sleeper.arm()
    looks: list[int] = []

    def stopped() -> bool:
        looks.append(len(looks))
        return len(looks) > 2

    assert not broadcast(link.senders, 5, b"", (b"x",), stopped, link.waiter)
    assert len(looks) == 3
    assert [kind for kind, _, _ in link.receivers[0].drain(10)] == [0, 0]
    for receiver, sleeper in zip(link.receivers[1:], link.sleepers[1:], strict=True):
        assert readable(sleeper)
        assert receiver.drain(10) == [(5, b"", b"x")]
    link.close()


def test_broadcast_skips_the_dead():
    link = Link(rings=3, cap_records=1)
    for sender in link.senders:
        assert sender.post(0, b"", ())
    link.receivers[0].close()
    link.receivers[1].close()
    link.receivers[2].drain(1)
    assert link.senders[0].dead
    assert link.senders[1].dead
    assert not link.senders[2].dead
    assert broadcast(link.senders, 1, b"", (b"x",), never, link.waiter)
    assert link.receivers[2].drain(9) == [(1, b"", b"x")]
    link.close()


def test_broadcast_finishes_a_backlog_first():
    link = Link(rings=1)
    sender, receiver = link.senders[0], link.receivers[0]
    assert sender.post(1, b"", (b"x" * 1000,))
    got: list[Any] = []
    done = threading.Event()

    def consume() -> None:
        while not done.is_set() or receiver.pure_poll():
            got.extend(receiver.drain(4))

    thread = threading.Thread(target=consume)
    thread.start()
    assert broadcast(link.senders, 2, b"", (b"y",), never, link.waiter)
    done.set()
    thread.join(HARD_LIMIT_S)
    assert not thread.is_alive()
    assert [(kind, len(payload)) for kind, _, payload in got] == [(1, 1000), (2, 1)]
    link.close()


@pytest.mark.parametrize("size", [10, 5000])
def test_broadcast_sleeps_until_space_is_freed(size):
    """Consumers on threads that sleep too; the time-out is not what moves it."""
    link = Link(rings=2, cap_records=4)
    count = 300
    got: list[list[Any]] = [[], []]

    def consume(number: int) -> None:
        receiver, sleeper = link.receivers[number], link.sleepers[number]
        while True:
            out = receiver.drain(3)
            got[number].extend((kind, len(payload)) for kind, _, payload in out)
            if receiver.closed:
                return
            if not out and sleeper.try_sleep([receiver]):
                assert sleeper.wait(HARD_LIMIT_S * 1000), "lost wake-up"

    threads = [threading.Thread(target=consume, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for number in range(count):
        payload = bytes([number & 0xFF]) * size
        assert broadcast(link.senders, number & 0xFF, b"", (payload,), never, link.waiter)
    for sender in link.senders:
        assert sender.close()
    for thread in threads:
        thread.join(HARD_LIMIT_S)
        assert not thread.is_alive()
    wanted = [(number & 0xFF, size) for number in range(count)]
    assert got == [wanted, wanted]
    link.close()


def test_close_wakes_the_consumer(link):
    link.sleepers[0].arm()
    assert link.senders[0].close()
    assert readable(link.sleepers[0])
    assert link.receivers[0].drain(1) == []
    assert link.receivers[0].closed


def test_close_of_the_consumer_wakes_the_producer(link):
    link.waiter.arm()
    link.receivers[0].close()
    assert link.waiter.wait(0)
    assert link.senders[0].dead


def test_a_wait_lets_other_threads_run(link):
    """The sleeper holds no GIL: the thread that wakes it runs while it waits."""
    sender, sleeper = link.senders[0], link.sleepers[0]
    assert sleeper.try_sleep([link.receivers[0]])

    def wake() -> None:
        sender.post(1, b"", ())
        sender.flush()

    thread = threading.Thread(target=wake)
    thread.start()
    assert sleeper.wait(HARD_LIMIT_S * 1000)
    thread.join(HARD_LIMIT_S)
    assert link.receivers[0].drain(1) == [(1, b"", b"")]


def run_in_subinterpreter(code: str) -> None:
    """Runs code in an interpreter of its own; raises when it does."""
    try:
        interpreters: Any = importlib.import_module("_interpreters")
    except ImportError:
        interpreters = importlib.import_module("_xxsubinterpreters")  # before 3.13
    made = interpreters.create()
    try:
        if hasattr(interpreters, "exec"):
            failure = interpreters.exec(made, code)
            assert failure is None, failure
        else:
            interpreters.run_string(made, code)
    finally:
        interpreters.destroy(made)


def test_a_subinterpreter_can_be_the_producer(link):
    """Nothing but the standard library, and only modules that isolated interpreters import."""
    sleeper, receiver = link.sleepers[0], link.receivers[0]
    assert sleeper.try_sleep([receiver])
    code = f"""
import os, sys
sys.path[:] = {sys.path!r}
from tpc_server.eventfd import EventFd
from tpc_server.mailbox import Bell, Doorbell, Sender
from tpc_server.ring import Producer, ring_bytes
from tpc_server.shm import Region
region = Region.attach(os.dup({link.region.fd}), {link.region.size})
event = EventFd(os.dup({link.events[0].fileno()}))
bell = Bell(Doorbell(region, ring_bytes({CAPACITY}), event))
sender = Sender(Producer(region, 0, {CAPACITY}, 9), bell)
assert sender.post(3, b"k", (b"from", b" there"))
assert sender.close()
event.close()
region.close()
"""
    run_in_subinterpreter(code)
    assert sleeper.wait(HARD_LIMIT_S * 1000)
    assert receiver.drain(9) == [(3, b"k", b"from there")]
    assert receiver.closed
