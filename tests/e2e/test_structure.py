"""What the design promises, counted: doorbells, sends, allocations, idle wake-ups. No clocks."""

from __future__ import annotations

import gc
import sys

import pytest

from tests.http_client import Client

STREAMS = 4


def endless(header, ids):
    """One token a step."""
    return [([97 + k % 26], None) for k in range(5000)]


def published(run, name, at_least):
    """A counter's sum once it has reached a value (cores publish when they sleep)."""
    for _ in range(600):
        if run.total(name) >= at_least:
            return run.total(name)
        run.server.wait_event(50)
    raise AssertionError(f"{name} is {run.total(name)}, not {at_least}")


def stream(run, count, rid="s"):
    """Streams whose first frame has arrived, so that they are on the plain path."""
    clients = [Client(run.address) for _ in range(count)]
    for k, client in enumerate(clients):
        client.request(
            "POST", "/generate",
            {"text": "x", "rid": f"{rid}{k}", "stream": True,
             "sampling_params": {"max_new_tokens": 4000}},
        )  # fmt: skip
    run.scheduler.wait_for(lambda s: len(s.live) == count)
    run.scheduler.step()
    for client in clients:
        client.head()
        client.chunk()
    return clients


def advance(run, clients, steps):
    """Steps one at a time, each read by every client before the next."""
    for _ in range(steps):
        run.scheduler.step()
        for client in clients:
            assert client.chunk().startswith(b"data: {")


@pytest.mark.parametrize("incremental", [True, False], ids=["incremental", "cumulative"])
def test_one_send_a_stream_and_step_and_one_doorbell_a_step(start, incremental):
    run = start(script=endless, manual=True, incremental_streaming_output=incremental)
    clients = stream(run, STREAMS)
    rows = published(run, "rows", STREAMS)
    sends = published(run, "sends", STREAMS)
    steps = 100
    advance(run, clients, steps)
    assert published(run, "rows", rows + steps * STREAMS) == rows + steps * STREAMS
    assert run.total("sends") - sends == steps * STREAMS
    assert run.server.port.doorbells()[0] <= run.scheduler.pushes
    assert run.total("blocked") == 0
    for client in clients:
        client.close()


def test_a_token_leaves_nothing_behind(start):
    """Incremental streams: as many allocated blocks after 800 more steps as before."""
    run = start(script=endless, manual=True, incremental_streaming_output=True)
    clients = stream(run, STREAMS)
    advance(run, clients, 200)  # every token's piece, counter and chunk head has been made
    gc.collect()
    before = sys.getallocatedblocks()
    advance(run, clients, 800)
    gc.collect()
    grown = sys.getallocatedblocks() - before
    assert grown < 800  # a quarter of a block a token would be 800
    for client in clients:
        client.close()


def test_idle_cores_wake_at_most_twenty_times_a_second(start):
    run = start()
    first = run.server.counters()
    for _ in range(600):
        now = run.server.counters()
        if all(
            b["heartbeat_ns"] - a["heartbeat_ns"] > 2e9 for a, b in zip(first, now, strict=True)
        ):
            break
        run.server.wait_event(50)
    for a, b in zip(first, now, strict=True):
        seconds = (b["heartbeat_ns"] - a["heartbeat_ns"]) / 1e9
        assert seconds > 2
        assert (b["waits"] - a["waits"]) / seconds <= 20
        assert b["loops"] - a["loops"] <= 2 * (b["waits"] - a["waits"]) + 10
