"""Ends of connections, and of the server, that met something unusual. Each was a bug once."""

from __future__ import annotations

import json
import socket
import threading

import pytest

from tests.e2e.test_lifecycle import until
from tests.e2e.test_placements import placed
from tests.http_client import Client, call
from tpc_server import ModelConfig, Server, ServerArgs
from tpc_server.boundary.messages import decode_ingress

BODY = {"text": "abc", "sampling_params": {"max_new_tokens": 6}}
APART = ["ingress=0", "tokenize=1", "detok=2", "egress=3"]


def raw(body, method="POST", path="/generate"):
    """Bytes of a request."""
    data = json.dumps(body).encode()
    return b"%b %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (
        method.encode(), path.encode(), len(data), data,
    )  # fmt: skip


def test_pipelined_requests_before_a_half_close_are_all_answered(start):
    """The descriptor was watched for input again after its end had been read."""
    run = start(manual=True)
    with Client(run.address) as client:
        client.send(raw(BODY) * 3)
        client.sock.shutdown(socket.SHUT_WR)
        for _ in range(3):
            run.scheduler.wait_for(lambda s: s.live)
            run.scheduler.step(6)
            assert client.answer().json()["text"] == "abcabc"
        assert not client.fill()
    assert run.total("resets") == 0


def test_a_connection_announced_just_before_its_core_died_is_closed(start):
    """The writing core has to take it, to be able to let go of it."""
    run = start(options={"plan": placed(APART)})
    run.server.command(b"stall", b"1", only=3)
    with Client(run.address) as client:
        until(run, lambda: run.total("accepted") == 1)
        run.server.command(b"throw", only=0)
        until(run, lambda: run.total("resets") == 1)
        try:
            assert not client.fill()
        except ConnectionResetError:
            pass
    assert call(run.address, "POST", "/generate", BODY).json()["text"] == "abcabc"


def test_a_drain_serves_who_waits_to_be_accepted_and_refuses_who_comes_later(start):
    run = start(manual=True)
    busy = Client(run.address)
    busy.request("POST", "/generate", BODY)
    run.scheduler.wait_for(lambda s: s.live)
    run.server.command(b"stall", b"0.5")
    waiting = Client(run.address)  # in the listener's queue
    waiting.request("POST", "/generate", BODY)
    run.server.start_drain()
    run.scheduler.wait_for(lambda s: len(s.live) == 2)
    with pytest.raises(OSError):
        Client(run.address, timeout=30).call("GET", "/v1/models")
    run.scheduler.step(6)
    for client in (waiting, busy):
        assert client.answer().json()["text"] == "abcabc"
        assert not client.fill()
        client.close()


def test_a_scheduler_that_waits_is_let_go_when_the_server_stops(start):
    run = start()
    run.scheduler.stop()
    ended = []

    def park():
        while run.server.wait_request(60_000) or run.server.recv_requests():
            pass
        ended.append(run.server.push_health_ack())

    thread = threading.Thread(target=park, daemon=True)
    thread.start()
    run.server.shutdown()
    thread.join(20)
    assert ended == [False]


def test_a_burst_is_held_up_to_the_cap_and_refused_beyond_it(start):
    """A core that stands still for a moment costs no answer, a longer while costs some."""
    run = start(options={"plan": placed(APART)}, server={"stage_channel_cap": 16})
    clients = [Client(run.address) for _ in range(80)]
    for client in clients:
        assert client.call("GET", "/v1/models").status == 200
    for _ in range(5):  # a busy machine may be slower than the stall
        run.server.command(b"stall", b"1", only=1)
        for client in clients:
            client.request("POST", "/generate", BODY)
        answers = [client.answer() for client in clients]
        statuses = [answer.status for answer in answers]
        assert set(statuses) <= {200, 503} and statuses.count(200) >= 8, statuses
        for answer in answers:
            if answer.status == 200:
                assert answer.json()["text"] == "abcabc"
            else:
                assert "overloaded" in answer.json()["error"]["message"]
        if 503 in statuses:
            break
    else:
        raise AssertionError("nothing was ever refused")
    for client in clients:
        client.close()


def test_an_abort_never_overtakes_a_request_that_is_half_in_the_ring(model_folder):
    """A request larger than the ring arrives in pieces as the scheduler makes room."""
    ids = [7] * 700_000
    args = ServerArgs(
        model_path=str(model_folder), port=0, log_level="error", skip_server_warmup=True,
        model_config=ModelConfig(context_len=1_000_000, vocab_size=258),
    )  # fmt: skip
    with Server(args) as server:
        client = Client(("127.0.0.1", server.http_port))
        client.request("POST", "/generate", {"input_ids": ids})
        while not server.port._requests[0].pure_poll():
            server.wait_event(20)
        client.reset()
        while not server.port._aborts[0].pure_poll():
            server.wait_event(20)
        got = []
        while len(got) < 2:
            server.wait_request(100)
            got += server.recv_requests()
        tags = [decode_ingress(request.header)[0] for request in got]
        assert tags == ["TokenizedGenerateReqInput", "AbortReq"]
        assert len(dict(got[0].buffers)["input_ids"]) == len(ids)
