"""Faults that a review found, each by the shortest way to it."""

from __future__ import annotations

import msgpack
import pytest

from tests.e2e.test_backpressure import SMALL
from tests.e2e.test_lifecycle import until
from tests.e2e.test_placements import placed
from tests.http_client import Client, call
from tpc_server.contract.generate import GenerateDecoder

GOOD = {"text": "abc", "sampling_params": {"max_new_tokens": 3}}


def test_a_connection_and_its_request_that_come_together_find_each_other(start):
    """Detok and egress share a core that was busy while ingress, on another, sent both."""
    core_plan = placed(["ingress=0", "tokenize=0", "detok=1", "egress=1"])
    run = start(options={"plan": core_plan})
    run.server.command(b"stall", b"0.5", only=1)
    assert call(run.address, "POST", "/generate", GOOD).json()["text"] == "abc"


@pytest.mark.parametrize("size", [1, 300_000], ids=["here", "helper"])
@pytest.mark.parametrize("api", ["/generate", "/v1/completions"])
def test_a_decoder_that_fails_costs_its_request_alone(start, monkeypatch, api, size):
    """As a bug in a decoder would: not the core, three of whose deaths end the server."""
    decode = GenerateDecoder.decode_object

    def failing(self, body):
        if "bug" in body.get("text", ""):
            raise OverflowError("cannot convert float infinity to integer")
        return decode(self, body)

    monkeypatch.setattr(GenerateDecoder, "decode_object", failing)
    run = start(manual=True, log_level="critical")
    with Client(run.address) as stream, Client(run.address) as client:
        stream.request("POST", "/generate", {**GOOD, "stream": True})
        run.scheduler.wait_for(lambda s: s.live)
        for _ in range(4):
            body = {"text" if api == "/generate" else "prompt": "bug" * size}
            answer = client.call("POST", api, body)
            assert answer.status == 500 and b"failed to decode" in answer.body
        run.scheduler.step(3)
        assert stream.answer().events()[-2]["text"] == "abc"
    assert not sum(c["resets"] for c in run.server.counters())


def test_a_pipelined_body_in_pieces_has_no_deadline_while_another_is_answered(start):
    run = start(manual=True, options={"body_timeout_s": 0.3})
    raw = b'{"text": "xyz", "sampling_params": {"max_new_tokens": 1}}'
    with Client(run.address) as client:
        client.request("POST", "/generate", {**GOOD, "stream": True})
        run.scheduler.wait_for(lambda s: s.live)
        run.scheduler.step()
        client.head()
        client.chunk()
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(raw)
        client.send(head + raw[:5])
        before = run.server.counters()[0]["heartbeat_ns"]
        until(run, lambda: run.server.counters()[0]["heartbeat_ns"] - before > 1.5e9)
        client.send(raw[5:])
        run.scheduler.step(2)
        body = b""
        while piece := client.chunk():
            body += piece
        assert b'"length"' in body
        run.scheduler.wait_for(lambda s: s.live)
        run.scheduler.step()
        assert client.answer().json()["text"] == "x"
    assert not run.scheduler.aborted


@pytest.mark.parametrize("damage", [b"\x90", b"\x80", b"\x91", b"\xdc\x00\x00", b"\xdf\xff\xff"])
def test_a_damaged_start_of_a_known_header_does_not_end_the_core(start, damage):
    run = start(manual=True)
    with Client(run.address) as client:
        client.request("POST", "/generate", {**GOOD, "stream": True})
        run.scheduler.wait_for(lambda s: s.live)
        rid = next(iter(run.scheduler.live))
        run.scheduler.step(2)
        client.head()
        client.chunk()
        header = msgpack.packb([[rid], [None], [3], [1], [0], [0]])
        run.server.push_decode_result_batch(damage + header[1:], [b"a" + bytes(7)])
        run.server.push_decode_result_batch(damage + header[1:3], [b""])
        until(run, lambda: run.total("malformed") == 2)
        run.scheduler.step()
        body = b""
        while piece := client.chunk():
            body += piece
        assert body.endswith(b"data: [DONE]\n\n")
    assert run.total("resets") == 0


def hidden(header, ids):
    return [([97], None)] * 400


def test_hidden_states_count_for_the_bound_of_a_slow_reader(start):
    run = start(
        script=hidden, manual=True, incremental_streaming_output=True,
        enable_return_hidden_states=True, options={"stream_buffer_bytes": 100_000, **SMALL},
    )  # fmt: skip
    slow = Client(run.address, rcvbuf=4096)
    slow.request("POST", "/generate", {**GOOD, "stream": True, "return_hidden_states": True})
    run.scheduler.wait_for(lambda s: s.live)
    rid = next(iter(run.scheduler.live))
    values = bytes(4 * 2000)
    extras = [[] for _ in range(10)]
    header = msgpack.packb([[rid], [None], [3], [1], [0], [0], *extras, [1], [2000]])
    for _ in range(200):
        assert run.server.push_decode_result_batch(header, [b"a" + bytes(7), values])
    run.scheduler.wait_for(lambda s: s.aborted)
    slow.close()


def test_a_core_that_dies_while_warming_up_warms_up_again(start):
    run = start(manual=True, skip_server_warmup=False)
    run.scheduler.wait_for(lambda s: s.live)
    run.server.command(b"throw")
    run.scheduler.wait_for(lambda s: len([m for m in s.received if m[0] != "AbortReq"]) == 2)
    run.scheduler.manual = False
    until(run, lambda: run.server.ready)


def test_a_warm_up_that_is_refused_ends_the_server(start):
    run = start(manual=True, skip_server_warmup=False)
    run.scheduler.wait_for(lambda s: s.live)
    run.server.push_error(next(iter(run.scheduler.live)), "no such model")
    until(run, lambda: run.server.failed)


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"port_offset": 70000}, "port_offset"),
        ({"to_scheduler_cap": 0}, "to_scheduler_cap"),
        ({"from_scheduler_cap": "1"}, "from_scheduler_cap"),
        ({"stage_channel_cap": -1}, "stage_channel_cap"),
        ({"cores": ["a"]}, "cores"),
    ],
)
def test_arguments_of_the_server_are_named(start, words, named):
    with pytest.raises(TypeError, match=named):
        start(server=words)
