"""Both ends of a stress run over one ring, for threads and for processes. Owner: each its end.

Messages are consecutive numbers, packed some to a record; the consumer knows what every byte of
the next record must be, so a lost, doubled, torn or reordered record stops it at once. Both
sides sleep for real: the consumer when the ring is empty, the producer when it is full. A sleep
that nobody ends is a lost wake-up, and an error: nothing here goes on after a time-out.

Standard library only, so that any Python from 3.11 can be one end:
    python -m tests.stress.ring_traffic producer|consumer JSON
"""

from __future__ import annotations

import json
import random
import sys
import time
from array import array
from typing import Any, Final

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

CAPACITY: Final = 1 << 14
CAP_RECORDS: Final = 5
DATA_BELL: Final = ring_bytes(CAPACITY)
SPACE_BELL: Final = DATA_BELL + DOORBELL_BYTES
REGION_BYTES: Final = SPACE_BELL + DOORBELL_BYTES
LOST_MS: Final = 30_000
"""Asleep so long while the other side is alive: the wake-up was lost."""

# Messages of a record: small ones, and some that pass in fragments (over 8 KiB of 16).
SIZES: Final = (1, 2, 8, 32, 32, 64, 64, 100)
LARGE: Final = (1100, 2500, 5000)


class LostWakeup(AssertionError):
    """A side slept although the other one had work, or space, for it."""


class StrictWaiter(SpaceWaiter):
    """Counts its sleeps, and takes the backstop away."""

    __slots__ = ("slept",)

    def __init__(self, doorbell: Doorbell) -> None:
        super().__init__(doorbell)
        self.slept = 0

    def wait(self, timeout_ms: int) -> bool:
        if not super().wait(LOST_MS):
            raise LostWakeup("the producer, for space")
        self.slept += 1
        return True


def numbers(first: int, count: int) -> bytes:
    return array("Q", range(first, first + count)).tobytes()


def produce(
    region: Region,
    data: EventFd,
    space: EventFd,
    seed: int,
    messages: int,
    cycles: int,
    until: float,
) -> dict[str, int]:
    """Sends `messages` numbers, and more until `cycles` sleeps were ended by both sides."""
    rng = random.Random(seed)
    bell = Bell(Doorbell(region, DATA_BELL, data))
    sender = Sender(Producer(region, 0, CAPACITY, CAP_RECORDS), bell)
    waiter = StrictWaiter(Doorbell(region, SPACE_BELL, space))
    senders = (sender,)
    sent = records = batches = 0

    def late() -> bool:
        return time.monotonic() > until

    while sent < messages or bell.written + waiter.slept < cycles:
        if late():
            raise TimeoutError(f"{sent} messages, {bell.written + waiter.slept} wake-ups so far")
        for _ in range(rng.randrange(1, 6)):
            count = rng.choice(LARGE) if rng.random() < 0.002 else rng.choice(SIZES)
            payload = numbers(sent, count)
            cut = rng.randrange(len(payload))
            parts = (payload[:cut], memoryview(payload)[cut:])
            key = b"%d" % sent
            if not sender.post(sent & 0xFF, key, parts):
                sender.flush()
                if not broadcast(senders, sent & 0xFF, key, parts, late, waiter):
                    raise TimeoutError("in a broadcast")
            sent += count
            records += 1
        sender.flush()
        batches += 1
        for _ in range(rng.choice((0, 0, 10, 100, 400))):
            pass
    while sender.backlog:
        waiter.arm()
        if sender.flush():
            waiter.disarm()
        else:
            waiter.wait(0)
    assert sender.close()
    return {
        "sent": sent,
        "records": records,
        "batches": batches,
        "doorbells": bell.written,
        "saved": bell.saved,
        "slept": waiter.slept,
    }


def consume(
    region: Region, data: EventFd, space: EventFd, seed: int, until: float
) -> dict[str, int]:
    """Takes everything until the producer closes; checks every byte."""
    rng = random.Random(~seed)
    space_bell = Bell(Doorbell(region, SPACE_BELL, space), space=True)
    receiver = Receiver(Consumer(region, 0, CAPACITY), space_bell)
    sleeper = Sleeper(Doorbell(region, DATA_BELL, data))
    received = slept = idle = 0
    while True:
        out = receiver.drain(rng.randrange(1, 40))
        for kind, key, payload in out:
            count = len(payload) >> 3
            if payload != numbers(received, count):
                raise AssertionError(f"after {received} messages: torn, lost or doubled")
            assert kind == received & 0xFF and key == b"%d" % received
            received += count
        if out:
            idle = 0
            continue
        if receiver.closed:
            break
        idle += 1
        if idle < rng.choice((1, 1, 2, 20)):
            continue
        if sleeper.try_sleep((receiver,)):
            if not sleeper.wait(LOST_MS):
                raise LostWakeup(f"the consumer, after {received} messages")
            slept += 1
        if time.monotonic() > until:
            raise TimeoutError(f"{received} messages received")
    return {"received": received, "slept": slept, "doorbells": space_bell.written}


def main(role: str, settings: dict[str, Any]) -> None:
    region = Region.attach(settings["region"], REGION_BYTES)
    data, space = EventFd(settings["data"]), EventFd(settings["space"])
    until = time.monotonic() + settings["seconds"]
    seed = settings["seed"]
    if role == "producer":
        messages, cycles = settings["messages"], settings["cycles"]
        result = produce(region, data, space, seed, messages, cycles, until)
    else:
        result = consume(region, data, space, seed, until)
    check = getattr(sys, "_is_gil_enabled", None)
    print(json.dumps(result | {"gil": int(check is None or check())}))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
