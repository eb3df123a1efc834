"""What a ring, a doorbell and a barrier cost. Owner: one process, at most two threads.

usage: python perf/handoff.py [--rounds 41] [--json FILE] [--skip-pairs]

Two kinds of figures, medians of `rounds`:

- *alone*: CPU time of one thread that plays both ends, so caches are warm and nobody competes.
  Of these the bare loop is not subtracted; its cost is in the table.
- *pairs*: two threads (on a GIL build: two processes) pinned to two CPUs. Throughput with both
  spinning, and the round trip of a record there and back, spinning and asleep. Wall time: other
  work on the machine is in it.

Standard library only: run it with any Python from 3.11, `python3.12 perf/handoff.py` shows what
a scheduler with a GIL pays.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tpc_server.eventfd import EventFd
from tpc_server.mailbox import DOORBELL_BYTES, Bell, Doorbell, Receiver, Sender, Sleeper
from tpc_server.ring import Producer, ring_bytes
from tpc_server.ring_reader import Consumer
from tpc_server.shm import Region

CAPACITY = 1 << 20
STRIDE = ring_bytes(CAPACITY) + DOORBELL_BYTES
SMALL = b"x" * 282  # with an 18-byte key: the 300 bytes of a request
FRAME = b"x" * 10_000
KEY = b"k" * 18
INNER = 512
FRAMES = 48
TRIPS = 400
ASLEEP_TRIPS = 200
LONGEST_MS = 60_000


def gil_is_on() -> bool:
    check = getattr(sys, "_is_gil_enabled", None)
    return True if check is None else bool(check())


class Pair:
    """Two rings, one each way, in one region; built by whoever holds the descriptors."""

    def __init__(self, region: Region, events: tuple[EventFd, EventFd], forward: bool) -> None:
        there, back = (0, STRIDE) if forward else (STRIDE, 0)
        out = Doorbell(region, there + STRIDE - DOORBELL_BYTES, events[0 if forward else 1])
        home = Doorbell(region, back + STRIDE - DOORBELL_BYTES, events[1 if forward else 0])
        self.sender = Sender(Producer(region, there, CAPACITY, 1 << 20), Bell(out))
        self.receiver = Receiver(Consumer(region, back, CAPACITY))
        self.sleeper = Sleeper(home)


def loop(n: int) -> None:
    for _ in range(n):
        pass


def call(n: int, function: Callable[[], Any]) -> None:
    for _ in range(n):
        function()


def push(n: int, sender: Sender, parts: tuple[bytes, ...]) -> None:
    for _ in range(n):
        sender.post(1, KEY, parts)


def drain(n: int, batch: int, receiver: Receiver) -> None:
    for _ in range(n // batch):
        receiver.drain(batch)


def lock_pair(n: int, acquire: Callable[[], Any], release: Callable[[], Any]) -> None:
    for _ in range(n):
        acquire()
        release()


def write_and_read(n: int, event: EventFd) -> None:
    for _ in range(n):
        event.write()
        event.read()


def arm_and_ring(n: int, sleeper: Sleeper, bell: Bell) -> None:
    for _ in range(n):
        sleeper.arm()
        bell.ring()


def steps(n: int, sender: Sender, receiver: Receiver) -> None:
    for _ in range(n):
        sender.post(1, b"", (FRAME,))
        sender.flush()
        receiver.drain(64)


def cpu_ns(n: int, function: Callable[..., None], *arguments: Any) -> float:
    start = time.thread_time_ns()
    function(n, *arguments)
    return (time.thread_time_ns() - start) / n


def measure_alone(rounds: int) -> dict[str, float]:
    """Median ns of CPU per call or per record."""
    region = Region.create(2 * STRIDE)
    events = (EventFd(), EventFd())
    doorbell = Doorbell(region, STRIDE - DOORBELL_BYTES, events[0])
    bell = Bell(doorbell)
    sender = Sender(Producer(region, 0, CAPACITY, 1 << 20), bell)
    consumer = Consumer(region, 0, CAPACITY)
    receiver = Receiver(consumer)
    with_space = Receiver(consumer, Bell(doorbell, space=True))
    sleeper = Sleeper(doorbell)
    lock = threading.Lock()
    samples: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        samples.setdefault(name, []).append(value)

    for _ in range(rounds):
        note("bare loop", cpu_ns(INNER, loop))
        note("barrier: acquire, release", cpu_ns(INNER, lock_pair, lock.acquire, lock.release))
        for name, parts in (("1 part", (SMALL,)), ("3 parts", (SMALL[:94],) * 3)):
            note(f"push 300 B, {name}", cpu_ns(INNER, push, sender, parts))
            drain(INNER, INNER, receiver)
        for batch in (1, 8, 32, 256):
            push(INNER, sender, (SMALL,))
            note(f"drain 300 B, {batch} at once", cpu_ns(INNER, drain, batch, receiver))
        push(INNER, sender, (SMALL,))
        note("drain 300 B, 32 at once, space bell", cpu_ns(INNER, drain, 32, with_space))
        note("push 10 KB", cpu_ns(FRAMES, push, sender, (FRAME,)))
        note("drain 10 KB, 1 at once", cpu_ns(FRAMES, drain, 1, receiver))
        note("step of 10 KB: post, flush, drain", cpu_ns(FRAMES, steps, sender, receiver))
        note("drain of an empty ring", cpu_ns(INNER, drain, 1, receiver))
        note("pure_poll", cpu_ns(INNER, call, receiver.pure_poll))
        sleeper.disarm()
        note("flush, nothing posted", cpu_ns(INNER, call, sender.flush))
        note("bell, nobody asleep", cpu_ns(INNER, call, bell.ring))
        note("arm", cpu_ns(INNER, call, sleeper.arm))
        note("eventfd write and read", cpu_ns(INNER, write_and_read, events[0]))
        note("arm, then bell with write", cpu_ns(INNER, arm_and_ring, sleeper, bell))
        sleeper.disarm()
        sleeper.clear()
    return {name: statistics.median(values) for name, values in samples.items()}


def send_many(pair: Pair, n: int, batch: int, parts: tuple[bytes, ...]) -> None:
    sender = pair.sender
    sent = 0
    while sent < n:
        for _ in range(batch):
            while not sender.post(1, KEY, parts):
                pass
        sender.flush()
        sent += batch


def take_many(pair: Pair, n: int) -> None:
    receiver = pair.receiver
    taken = 0
    while taken < n:
        taken += len(receiver.drain(256))


def answer(pair: Pair, trips: int, asleep: bool) -> None:
    """Sends back what comes; the far end of a round trip."""
    for _ in range(trips):
        take_one(pair, asleep)
        pair.sender.post(1, KEY, (SMALL,))
        pair.sender.flush()


def ask(pair: Pair, trips: int, asleep: bool) -> None:
    for _ in range(trips):
        pair.sender.post(1, KEY, (SMALL,))
        pair.sender.flush()
        take_one(pair, asleep)


def take_one(pair: Pair, asleep: bool) -> None:
    receiver = pair.receiver
    while not receiver.drain(1):
        if asleep and pair.sleeper.try_sleep((receiver,)) and not pair.sleeper.wait(LONGEST_MS):
            raise TimeoutError(f"no answer for {LONGEST_MS} ms")


def far_end(region: Region, events: tuple[EventFd, EventFd], cpu: int, plan: list[Any]) -> None:
    """The other side of every pair measurement, in the same order."""
    os.sched_setaffinity(0, {cpu})
    pair = Pair(region, events, forward=False)
    for kind, n in plan:
        take_one(pair, False)  # the start signal
        if kind == "many":
            take_many(pair, n)
            pair.sender.post(1, KEY, ())  # done
            pair.sender.flush()
        else:
            answer(pair, n, kind == "asleep")


def measure_pairs(rounds: int) -> dict[str, float]:
    """Median wall ns per record or per round trip, between two CPUs."""
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        return {}
    cases: list[tuple[str, str, int, int, tuple[bytes, ...]]] = [
        ("300 B, flush each", "many", 4096, 1, (SMALL,)),
        ("300 B, flush every 32", "many", 4096, 32, (SMALL,)),
        ("10 KB, flush each", "many", 512, 1, (FRAME,)),
        ("round trip, spinning", "spin", TRIPS, 1, (SMALL,)),
        ("round trip, both asleep", "asleep", ASLEEP_TRIPS, 1, (SMALL,)),
    ]
    plan = [(kind, n) for _ in range(rounds) for _, kind, n, _, _ in cases]
    region = Region.create(2 * STRIDE)
    events = (EventFd(), EventFd())
    far: Any
    if gil_is_on():
        context = multiprocessing.get_context("fork")
        far = context.Process(target=far_end, args=(region, events, cpus[1], plan), daemon=True)
    else:
        far = threading.Thread(target=far_end, args=(region, events, cpus[1], plan), daemon=True)
    far.start()
    os.sched_setaffinity(0, {cpus[0]})
    samples: dict[str, list[float]] = {}
    pair = Pair(region, events, forward=True)
    try:
        for _ in range(rounds):
            for name, kind, n, batch, parts in cases:
                pair.sender.post(1, KEY, ())
                pair.sender.flush()
                start = time.perf_counter_ns()
                if kind == "many":
                    send_many(pair, n, batch, parts)
                    take_one(pair, False)
                else:
                    ask(pair, n, kind == "asleep")
                samples.setdefault(name, []).append((time.perf_counter_ns() - start) / n)
        far.join(LONGEST_MS / 1000)
    finally:
        os.sched_setaffinity(0, set(cpus))
    return {name: statistics.median(values) for name, values in samples.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--skip-pairs", action="store_true")
    options = parser.parse_args()
    result: dict[str, Any] = {
        "python": sys.version,
        "gil": gil_is_on(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
        "alone_ns": measure_alone(options.rounds),
        "pairs_ns": {} if options.skip_pairs else measure_pairs(max(5, options.rounds // 4)),
    }
    gil = "with a GIL" if result["gil"] else "free-threaded"
    print(f"Python {platform.python_version()} {gil}, load {result['load']:.1f}")
    for title, figures in (("alone, CPU", "alone_ns"), ("between two CPUs, wall", "pairs_ns")):
        if result[figures]:
            print(f"\n| {title} | ns |\n|---|---|")
        for name, value in result[figures].items():
            print(f"| {name} | {value:.0f} |")
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
