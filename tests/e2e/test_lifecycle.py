"""Warm-up, drain, shutdown, cores that die or stall."""

from __future__ import annotations

import pytest

from tests.e2e.test_placements import placed
from tests.http_client import Client, call

BODY = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 6}}


def until(run, what):
    """Poll the published counters until `what()`; each turn waits for the server's own event."""
    for _ in range(600):
        if what():
            return
        run.server.wait_event(50)
    raise AssertionError(run.server.counters())


def test_health_is_503_until_the_warm_up_is_answered(start):
    run = start(manual=True, skip_server_warmup=False)
    run.scheduler.wait_for(lambda s: s.live)
    assert call(run.address, "GET", "/health").status == 503
    header = run.scheduler.received[0]
    assert header[3] == "The capital city of France is" and header[8][0] == 8
    run.scheduler.step(8)
    until(run, lambda: run.server.ready)
    run.scheduler.manual = False
    assert call(run.address, "GET", "/health").status == 200


def test_drain_lets_streams_finish_and_closes_connections(start):
    run = start(manual=True)
    idle = Client(run.address)
    assert idle.call("GET", "/v1/models").status == 200
    busy = Client(run.address)
    busy.request("POST", "/generate", BODY)
    run.scheduler.wait_for(lambda s: s.live)
    run.scheduler.step()
    status, _ = busy.head()
    assert status == 200 and busy.chunk()
    run.server.start_drain()
    assert not idle.fill()  # closed at once: nothing was under way
    with pytest.raises(OSError):
        Client(run.address, timeout=5).call("GET", "/v1/models")
    assert run.server.inflight() == 1
    run.scheduler.step(5)
    rest = b""
    while piece := busy.chunk():
        rest += piece
    assert rest.endswith(b"data: [DONE]\n\n") and b'"length"' in rest
    assert not busy.fill()
    until(run, lambda: run.server.inflight() == 0)


def test_shutdown_ends_streams_with_an_error_and_done(start):
    run = start(manual=True)
    stream, unary = Client(run.address), Client(run.address)
    stream.request("POST", "/generate", BODY)
    unary.request("POST", "/generate", {**BODY, "stream": False})
    run.scheduler.wait_for(lambda s: len(s.live) == 2)
    run.scheduler.step()
    stream.head()
    stream.chunk()
    run.server.shutdown()
    rest = b""
    while piece := stream.chunk():
        rest += piece
    assert b"shutting down" in rest and rest.endswith(b"data: [DONE]\n\n")
    assert unary.answer().status == 503
    assert run.server.push_health_ack() is False
    assert run.server.recv_requests() == []


@pytest.mark.parametrize(
    "values",
    [["1"], ["2"], ["ingress=0", "tokenize=1", "detok=2", "egress=3"]],
    ids=" ".join,
)
def test_a_core_that_dies_ends_its_streams_and_serves_again(start, values):
    core_plan = placed(values)
    for core in range(len(core_plan.cores)):
        run = start(manual=True, options={"plan": core_plan})
        client = Client(run.address)
        client.request("POST", "/generate", BODY)
        run.scheduler.wait_for(lambda s: s.live)
        run.scheduler.step()
        client.head()
        client.chunk()
        until(run, lambda: run.total("live_requests") == 1)  # noqa: B023
        owner = [c["live_requests"] for c in run.server.counters()].index(1)
        run.server.command(b"throw", only=core)
        until(run, lambda: run.server.counters()[core]["resets"] == 1)  # noqa: B023
        # Tokenize had nothing of it any more; a core of all stages had all or nothing of it.
        touched = core == owner or "tokenize" not in core_plan.cores[core].stages
        if touched:
            run.scheduler.wait_for(lambda s: s.aborted and not s.live)
            until(run, lambda: run.total("live_requests") == 0)  # noqa: B023
        client.close()
        run.scheduler.manual = False
        fresh = call(run.address, "POST", "/generate", {**BODY, "stream": False})
        assert fresh.json()["text"] == "abcabc"
        assert not run.server.failed
        run.scheduler.stop()
        run.server.shutdown()


def test_the_client_of_a_dying_core_gets_an_error(start):
    run = start(manual=True)
    stream, unary = Client(run.address), Client(run.address)
    stream.request("POST", "/generate", BODY)
    unary.request("POST", "/generate", {**BODY, "stream": False})
    run.scheduler.wait_for(lambda s: len(s.live) == 2)
    run.scheduler.step()
    stream.head()
    stream.chunk()
    run.server.command(b"throw")
    rest = b""
    while piece := stream.chunk():
        rest += piece
    assert b"a core was restarted" in rest and rest.endswith(b"data: [DONE]\n\n")
    assert unary.answer().status == 503
    run.scheduler.wait_for(lambda s: not s.live and len(s.aborted) == 2)


def test_a_core_that_keeps_dying_ends_the_server(start):
    run = start()
    for _ in range(3):
        run.server.command(b"throw")
    until(run, lambda: run.server.failed)


def test_a_core_that_hangs_is_reported_with_its_stack(start, capfd):
    run = start(options={"stall_s": 0.5})
    run.server.command(b"stall", b"4")
    until(run, lambda: run.server.monitor.stalls)
    assert call(run.address, "GET", "/v1/models").status == 200  # once it goes on
    run.server.shutdown()
    shown = capfd.readouterr().err
    assert "core does not answer" in shown and "_command" in shown
