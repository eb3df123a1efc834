"""Rings under real concurrency: 10^7 messages and 10^5 real sleeps over the three variants.

Two threads, two processes, and a process with a GIL pushing into one without. The seed is
printed; TPC_STRESS_SEED replays one, as far as a race can be replayed.
"""

from __future__ import annotations

import functools
import json
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.gil_env import NONE_FOUND
from tests.stress import ring_traffic
from tpc_server.bootstrap.clients import client_interpreter
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
from tpc_server.ring import Producer, Record, ring_bytes
from tpc_server.ring_reader import Consumer
from tpc_server.shm import Region

ROOT = Path(__file__).resolve().parents[2]
MESSAGES = 3_400_000
CYCLES = 36_000
"""Each, per variant: three of them make 10^7 messages and 10^5 sleeps."""
MISSED = 0.05
"""Part of the doorbells that may come while the other side is about to find the data itself."""
SOAK_MESSAGES = 100_000_000
SOAK_CYCLES = 1_000_000
LIMIT_S = 240
SOAK_LIMIT_S = 7200


def new_seed() -> int:
    seed = int(os.environ.get("TPC_STRESS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"TPC_STRESS_SEED={seed}")
    return seed


def check(sent: dict[str, int], received: dict[str, int], messages: int, cycles: int) -> None:
    print(f"producer {sent}\nconsumer {received}")
    assert sent["sent"] == received["received"] >= messages
    assert sent["slept"] + received["slept"] >= (1 - MISSED) * cycles
    # A doorbell is written at most once a batch, a broadcast and the close being batches too.
    assert sent["doorbells"] + sent["saved"] <= sent["batches"] + 2 * sent["records"] + 1
    # And only to a sleeper: a flag that was taken down by waking is not rung again.
    assert received["slept"] <= sent["doorbells"]
    assert sent["slept"] <= received["doorbells"]


def run_threads(messages: int, cycles: int, seconds: float) -> None:
    seed = new_seed()
    region = Region.create(ring_traffic.REGION_BYTES)
    data, space = EventFd(), EventFd()
    until = time.monotonic() + seconds
    results: dict[str, dict[str, int]] = {}
    errors: list[BaseException] = []

    def consume() -> None:
        try:
            results["consumer"] = ring_traffic.consume(region, data, space, seed, until)
        except BaseException as error:
            errors.append(error)

    def produce() -> None:
        try:
            results["producer"] = ring_traffic.produce(
                region, data, space, seed, messages, cycles, until
            )
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=side, daemon=True) for side in (consume, produce)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 30)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "hangs"
    check(results["producer"], results["consumer"], messages, cycles)
    data.close()
    space.close()
    region.close()


def run_processes(
    producer: str, consumer: str, messages: int, cycles: int, seconds: float
) -> tuple[dict[str, int], dict[str, int]]:
    seed = new_seed()
    region = Region.create(ring_traffic.REGION_BYTES)
    data, space = EventFd(), EventFd()
    fds = (region.fd, data.fileno(), space.fileno())
    settings: dict[str, Any] = {
        "region": fds[0],
        "data": fds[1],
        "space": fds[2],
        "seed": seed,
        "messages": messages,
        "cycles": cycles,
        "seconds": seconds,
    }
    children = [
        subprocess.Popen(
            [python, "-m", "tests.stress.ring_traffic", role, json.dumps(settings)],
            cwd=ROOT,
            env={"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(ROOT)},
            pass_fds=fds,
            stdout=subprocess.PIPE,
            text=True,
        )
        for role, python in (("consumer", consumer), ("producer", producer))
    ]
    try:
        outputs = [child.communicate(timeout=seconds + 30)[0] for child in children]
    finally:
        for child in children:
            child.kill()
            child.wait()
    assert [child.returncode for child in children] == [0, 0]
    received, sent = (json.loads(output) for output in outputs)
    check(sent, received, messages, cycles)
    data.close()
    space.close()
    region.close()
    return sent, received


@functools.cache
def gil_python() -> str:
    found = client_interpreter()
    if found is None:
        pytest.skip(NONE_FOUND)
    return found.executable


@pytest.mark.timeout(LIMIT_S + 60)
def test_two_threads():
    run_threads(MESSAGES, CYCLES, LIMIT_S)


@pytest.mark.timeout(LIMIT_S + 60)
def test_two_processes():
    run_processes(sys.executable, sys.executable, MESSAGES, CYCLES, LIMIT_S)


@pytest.mark.timeout(LIMIT_S + 60)
def test_a_process_with_a_gil_pushes_to_this_python():
    python = gil_python()
    sent, received = run_processes(python, sys.executable, MESSAGES, CYCLES, LIMIT_S)
    assert sent["gil"]
    free_threaded = getattr(sys, "_is_gil_enabled", None)
    assert received["gil"] == (free_threaded is None or free_threaded())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("megabytes", [24, pytest.param(256, marks=pytest.mark.full)])
def test_a_frame_much_larger_than_its_ring(megabytes):
    """One broadcast through rings of 4 MB to two cores: every byte arrives, at both."""
    block = random.Random(new_seed()).randbytes(1 << 20)
    payload = b"".join(bytes([number]) + block for number in range(megabytes))
    capacity = 1 << 22
    stride = ring_bytes(capacity) + DOORBELL_BYTES
    region = Region.create(2 * stride + DOORBELL_BYTES)
    events = [EventFd() for _ in range(3)]
    space = Doorbell(region, 2 * stride, events[2])
    homes = [
        Doorbell(region, number * stride + ring_bytes(capacity), events[number])
        for number in range(2)
    ]
    got: list[list[Record]] = [[], []]

    def consume(number: int) -> None:
        receiver = Receiver(Consumer(region, number * stride, capacity), Bell(space, space=True))
        sleeper = Sleeper(homes[number])
        while True:
            out = receiver.drain(8)
            got[number] += out
            if receiver.closed or time.monotonic() > until:
                return
            if not out and sleeper.try_sleep((receiver,)):
                sleeper.wait(1000)

    until = time.monotonic() + 200
    threads = [threading.Thread(target=consume, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    senders = [
        Sender(Producer(region, number * stride, capacity, 8), Bell(homes[number]))
        for number in range(2)
    ]
    # Parts as a scheduler has them: a header and typed columns.
    parts = (payload[:1000], memoryview(payload)[1000:])
    done = broadcast(
        senders, 7, b"step", parts, lambda: time.monotonic() > until, SpaceWaiter(space)
    )
    for sender in senders:
        sender.close()
    for thread in threads:
        thread.join(210)
    assert done
    assert got == [[(7, b"step", payload)]] * 2
    for event in events:
        event.close()
    region.close()


@pytest.mark.soak
@pytest.mark.timeout(SOAK_LIMIT_S + 60)
@pytest.mark.parametrize("variant", ["threads", "processes", "gil"])
def test_soak(variant):
    if variant == "threads":
        run_threads(SOAK_MESSAGES, SOAK_CYCLES, SOAK_LIMIT_S)
        return
    python = sys.executable if variant == "processes" else gil_python()
    run_processes(python, sys.executable, SOAK_MESSAGES, SOAK_CYCLES, SOAK_LIMIT_S)
