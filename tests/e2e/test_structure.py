"""What the design promises, counted: doorbells, sends, allocations, idle wake-ups. No clocks."""

from __future__ import annotations

import gc
import sys

import pytest

from tests.e2e.test_placements import placed
from tests.http_client import Client

STREAMS = 4
OPENAI = "/v1/completions"


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


def body_of(path, rid):
    if path == OPENAI:
        return {"model": "tiny", "prompt": "x", "stream": True, "max_tokens": 4000}
    sampling = {"max_new_tokens": 4000}
    return {"text": "x", "rid": rid, "stream": True, "sampling_params": sampling}


def stream(run, count, rid="s", path="/generate", among=0):
    """Streams, beside others, whose first frame has arrived, so that they are on the plain path."""
    clients = [Client(run.address) for _ in range(count)]
    for k, client in enumerate(clients):
        client.request("POST", path, body_of(path, f"{rid}{k}"))
    run.scheduler.wait_for(lambda s: len(s.live) == among + count)
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


def test_two_busy_cores_are_rung_once_a_step_each(start):
    """And send once a stream and step, whichever core it is on."""
    run = start(script=endless, manual=True, options={"plan": placed(["2"])})
    clients = []
    live = [0, 0]
    while min(live) < 2:  # the kernel deals connections out
        clients += stream(run, 1, f"s{len(clients)}-", among=len(clients))
        published(run, "live_requests", len(clients))
        live = [c["live_requests"] for c in run.server.counters()]
        for client in clients[:-1]:
            client.chunk()  # the step that the newest one began with
    rows = published(run, "rows", sum(range(1, len(clients) + 1)))
    sends = published(run, "sends", rows)
    frames = [c["frames"] for c in run.server.counters()]
    rung, pushes = run.server.port.doorbells()[0], run.scheduler.pushes
    steps = 100
    advance(run, clients, steps)
    assert run.scheduler.pushes - pushes == steps
    assert published(run, "rows", rows + steps * len(clients)) == rows + steps * len(clients)
    assert run.total("sends") - sends == steps * len(clients)
    for core in range(2):
        assert run.server.counters()[core]["frames"] - frames[core] == steps
    assert run.server.port.doorbells()[0] - rung <= 2 * steps
    for client in clients:
        client.close()


def test_a_step_is_one_doorbell_from_core_to_core(start):
    """Four stages on four cores: all rows of a step wake the core that sends them once."""
    plan = placed(["ingress=0", "tokenize=1", "detok=2", "egress=3"])
    run = start(script=endless, manual=True, options={"plan": plan})
    clients = stream(run, STREAMS)
    rows = published(run, "rows", STREAMS)
    steps = 100
    before = [c["doorbells_written"] for c in run.server.counters()]
    advance(run, clients, steps)
    assert published(run, "rows", rows + steps * STREAMS) == rows + steps * STREAMS
    rung = [c["doorbells_written"] - n for c, n in zip(run.server.counters(), before, strict=True)]
    assert rung[2] <= steps and rung[3] <= steps and rung[0] == rung[1] == 0, rung
    assert run.server.port.doorbells()[0] <= run.scheduler.pushes
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("path", "incremental"),
    [("/generate", True), ("/generate", False), (OPENAI, False)],
    ids=["incremental", "cumulative", "openai"],
)
def test_a_token_leaves_nothing_behind(start, path, incremental):
    """As many allocated blocks after 400 more steps as before. What a cumulative stream keeps for
    its next event grows, but is one piece however many tokens there are."""
    run = start(script=endless, manual=True, incremental_streaming_output=incremental)
    clients = stream(run, STREAMS, path=path)
    advance(run, clients, 200)  # every token's piece, counter and chunk head has been made
    gc.collect()
    rows = published(run, "rows", 201 * STREAMS)
    before = sys.getallocatedblocks()
    advance(run, clients, 400)
    gc.collect()
    grown = sys.getallocatedblocks() - before
    assert published(run, "rows", rows + 400 * STREAMS) == rows + 400 * STREAMS
    assert grown < 400  # a quarter of a block a token would be 400
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
