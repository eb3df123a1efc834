"""The HTTP layer: limits, smuggling, Expect, HEAD, half-close, time-outs, transports."""

from __future__ import annotations

import json
import socket
import time
from email.utils import parsedate_to_datetime

import pytest

from tests.http_client import Client, call
from tests.stress.clock import until
from tpc_server.affinity import topology
from tpc_server.affinity.plan import PlanSettings, parse_cores, plan

GOOD = json.dumps({"text": "ab", "sampling_params": {"max_new_tokens": 2}}).encode()


def has_ipv6() -> bool:
    """Containers often have the family and no address of it."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


POST = b"POST /generate HTTP/1.1\r\nHost: x\r\n"


def body_of(data: bytes) -> bytes:
    return b"Content-Length: %d\r\n\r\n" % len(data) + data


def chunked(*pieces: bytes) -> bytes:
    framed = b"".join(b"%x\r\n%b\r\n" % (len(p), p) for p in pieces)
    return b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


def test_chunked_body_in_any_pieces(start):
    run = start()
    raw = POST + chunked(GOOD[:7], GOOD[7:])
    with Client(run.address) as client:
        client.send(raw)
        assert client.answer().json()["text"] == "ab"
        for at in range(0, len(raw), 5):
            client.send(raw[at : at + 5])
        assert client.answer().json()["text"] == "ab"


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"GET /v1/models HTTP/1.1\r\n\r\n", 400),
        (b"GET /v1/models HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
        (b"GET /v1/models HTTP/2.0\r\nHost: a\r\n\r\n", 505),
        (b"GET /v1/models HTTP/0.9\r\nHost: a\r\n\r\n", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
        (POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n1\r\na\r\n0\r\n\r\n", 501),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n7d1\r\n", 413),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"x" * 200_000, 431),
        (POST + b"Transfer-Encoding: chunked\r\n\r\n0\r\nX: " + b"x" * 200_000, 431),
        (b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\nGET / HTTP/1.1\r\n", 404),
    ],
    ids=range(10),
)
def test_refused_and_closed(start, raw, status):
    run = start(options={"max_body_bytes": 2000})
    with Client(run.address) as client:
        client.send(raw)
        answer = client.answer()
        body = answer.json()  # in the shape of the route, where that is known
        assert answer.status == status and body.get("error", body)["code"] == status
        assert answer.headers["connection"] == "close"
        assert not client.fill() and not client.buffer
    assert not run.scheduler.received


def test_malformed_head_requests_get_no_body(start):
    run = start()
    for raw in (
        b"HEAD / HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n",
        b"HEAD / HTTP/1.1\r\n\r\n",
        b"HEAD /health HTTP/1.1\r\nHost: x\r\nExpect: wonders\r\nContent-Length: 3\r\n\r\n",
    ):
        with Client(run.address) as client:
            client.send(raw)
            assert client.answer("HEAD").status in (400, 417)
            assert not client.fill() and not client.buffer


def test_upgrades_are_ignored(start):
    """What `curl --http2` and websocket clients ask for is optional: they get HTTP/1.1."""
    run = start()
    upgrade = b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: x\r\n"
    h2c = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    with Client(run.address) as client:
        client.send(b"GET /v1/models HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n")
        assert client.answer().status == 200
        client.send(POST + h2c + body_of(GOOD) + POST + h2c + chunked(GOOD) + POST + body_of(GOOD))
        for _ in range(3):
            assert client.answer().json()["text"] == "ab"
        client.send(POST + h2c + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(GOOD))
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(GOOD)
        assert client.answer().json()["text"] == "ab"


def test_streams_are_not_to_be_buffered_by_proxies(start):
    run = start()
    body = {"text": "ab", "stream": True, "sampling_params": {"max_new_tokens": 2}}
    answer = call(run.address, "POST", "/generate", body)
    assert answer.headers["x-accel-buffering"] == "no"
    assert answer.headers["cache-control"] == "no-cache"
    assert answer.headers["content-type"].startswith("text/event-stream")


def test_expect_continue(start):
    run = start()
    with Client(run.address) as client:
        client.send(POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(GOOD))
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(GOOD)
        assert client.answer().status == 200
        client.send(POST + b"Expect: 200-maybe\r\nContent-Length: 4\r\n\r\n")
        assert client.answer().status == 417
    with Client(run.address) as client:
        client.send(
            b"POST /nope HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n"
        )
        assert client.answer().status == 404  # without waiting for the body


def test_head_methods_and_unknown_paths(start):
    run = start()
    with Client(run.address) as client:
        full = client.call("GET", "/v1/models")
        head = client.call("HEAD", "/v1/models")
        assert head.status == 200 and head.body == b""
        assert head.headers["content-length"] == str(len(full.body))
        answer = client.call("GET", "/generate")
        assert answer.status == 405 and answer.headers["allow"] == "POST, PUT"
        assert client.call("DELETE", "/health").status == 405
        assert client.call("GET", "/nope").status == 404
        assert client.call("GET", "/v1/models?x=1").status == 200
        assert client.call("PUT", "/generate", GOOD).status == 200


def test_limits(start):
    run = start(options={"max_body_bytes": 2000, "max_head_bytes": 4096, "max_connections": 3})
    for raw, status in [
        (POST + b"Content-Length: 2001\r\n\r\n", 413),
        (POST + chunked(b"x" * 1500, b"x" * 501), 413),
        (POST + b"X: " + b"a" * 5000, 431),
        (POST + b"".join(b"H%d: %b\r\n" % (i, b"v" * 80) for i in range(60)) + b"\r\n", 431),
        (b"POST /" + b"a" * 5000 + b" HTTP/1.1\r\n\r\n", 431),
    ]:
        with Client(run.address) as client:
            client.send(raw)
            answer = client.answer()
            assert answer.status == status, raw[:60]
            assert answer.json()["error"]["code"] == status
            assert not client.fill()
    with Client(run.address) as a, Client(run.address) as b, Client(run.address) as c:
        for client in (a, b, c):
            assert client.call("GET", "/v1/models").status == 200
        with Client(run.address) as d:
            assert d.answer().status == 503
        assert a.call("GET", "/v1/models").status == 200


def test_time_outs(start):
    """A head that never ends, a body that never comes, an idle connection."""
    run = start(options={"header_timeout_s": 0.3, "body_timeout_s": 0.3, "idle_timeout_s": 0.3})
    for raw in (b"POST /gen", POST + b"Content-Length: 10\r\n\r\nabc"):
        with Client(run.address) as client:
            client.send(raw)
            assert client.answer().status == 408
            assert not client.fill()
    with Client(run.address) as client:
        assert client.call("GET", "/v1/models").status == 200
        assert not client.fill()  # closed by the server, without an answer
        assert client.buffer == b""


def test_connection_close_and_http10(start):
    run = start()
    with Client(run.address) as client:
        answer = client.call("GET", "/v1/models", None, Connection="close")
        assert answer.headers["connection"] == "close"
        assert not client.fill()
    stream = json.dumps(
        {"text": "ab", "stream": True, "sampling_params": {"max_new_tokens": 2}}
    ).encode()
    with Client(run.address) as client:
        client.send(b"POST /generate HTTP/1.0\r\n" + body_of(stream))
        status, headers = client.head()
        assert status == 200 and "transfer-encoding" not in headers
        while client.fill():
            pass
        events = [e for e in client.buffer.split(b"\n\n") if e]
        assert len(events) == 3 and events[-1] == b"data: [DONE]"


def test_half_closed_client_gets_its_answer(start):
    run = start(manual=True)
    with Client(run.address) as client:
        client.send(POST + body_of(GOOD))
        run.scheduler.wait_for(lambda s: s.live)
        client.sock.shutdown(socket.SHUT_WR)
        # The probe of a half-closed peer is the sign that the server has seen the end.
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        run.scheduler.step(2)
        assert client.answer().json()["text"] == "ab"
        assert not client.fill()
    assert not run.scheduler.aborted


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_closes_is_noticed_before_the_first_token(start, stream):
    run = start(manual=True)
    client = Client(run.address)
    body = {"text": ["abc", "d"], "stream": stream}
    client.request("POST", "/generate", body)
    run.scheduler.wait_for(lambda s: len(s.live) == 2)
    client.close()
    run.scheduler.wait_for(lambda s: len(s.aborted) == 2)
    run.scheduler.wait_for(lambda s: not s.live)


def test_uds(start, tmp_path):
    path = str(tmp_path / "s")
    run = start(options={"uds": path})
    assert call(run.address, "POST", "/generate", GOOD).json()["text"] == "ab"


def test_uds_with_several_cores(start, tmp_path):
    """The first one accepts for both; each of them serves."""
    placed = ["ingress=0,1", "tokenize=2", "detok=0,1", "egress=0,1"]
    core_plan = plan(topology.read(), PlanSettings(cores=parse_cores(placed)))
    run = start(options={"uds": str(tmp_path / "s"), "plan": core_plan}, manual=True)
    body = {"text": "ab", "stream": True, "sampling_params": {"max_new_tokens": 2}}
    clients = [Client(run.address) for _ in range(9)]
    for client in clients:
        client.request("POST", "/generate", body)
    run.scheduler.wait_for(lambda s: len(s.live) == 9)
    assert until(lambda: all(c["connections"] >= 2 for c in run.server.counters()[:2]), 10)
    run.scheduler.step(2)
    for client in clients:
        assert client.answer().events()[-2]["text"] == "ab"
        client.close()


@pytest.mark.skipif(not has_ipv6(), reason="no IPv6: ::1 cannot be bound")
def test_ipv6(start):
    run = start(host="::1")
    assert call(run.address, "POST", "/generate", GOOD).json()["text"] == "ab"


def test_port_taken(start):
    from tpc_server.listen import ListenError

    run = start()
    with pytest.raises(ListenError, match="cannot listen on"):
        start(port=run.address[1])


def test_health_follows_the_scheduler(start):
    run = start()
    assert call(run.address, "GET", "/health").status == 200
    run.scheduler.silent = True
    with Client(run.address) as client:
        client.request("GET", "/health_generate")
        run.scheduler.wait_for(lambda s: s.live)
        run.server.push_health_ack()
        assert client.answer().status == 200
    impatient = start(options={"health_timeout_s": 0.3})
    impatient.scheduler.silent = True
    assert call(impatient.address, "GET", "/health").status == 503


def test_server_info_is_an_allow_list(start):
    poison = {"api_key": "K1", "model_path": "shown", "hf_token": "K2", "ssl_keyfile": "K3",
              "nested": {"api_key": "K4"}, "dtype": "float32", "status": "ready",
              "kv_events": {"publisher": "zmq", "endpoint_port_base": 5557, "key": "K4"},
              "launch_command": "--api-key K4"}  # fmt: skip
    run = start(launch_server_info=json.dumps(poison))
    run.scheduler.control["GetInternalStateReq"] = {
        "internal_state": {"api_key": "K5", "last_gen_throughput": 1.5, "server_args": {"k": "K6"},
                           "memory_usage": {"weight": 1.0, "secret": "K7"},
                           "rust_server_startup_time": {"load_weight": 0.5, "secret": "K8",
                                                        "cuda_graph": {"decode": 0.1}}}
    }  # fmt: skip
    answer = call(run.address, "GET", "/server_info")
    info = answer.json()
    assert not any(f"K{i}".encode() in answer.body for i in range(1, 9))
    assert info["startup_time"] == {"load_weight": 0.5, "cuda_graph": {"decode": 0.1}}
    assert info["frontend"] == "tpc" and info["mode"] == "in-process" and info["http"] == "native"
    assert info["dtype"] == "float32" and isinstance(info["gil_enabled"], bool)
    assert info["internal_states"] == [
        {"last_gen_throughput": 1.5, "memory_usage": {"weight": 1.0}}
    ]
    assert info["core_plan"]["cores"][0]["stages"]
    assert info["kv_events"] == {"publisher": "zmq", "endpoint_port_base": 5557}
    assert info["status"] == "ready"
    # What SGLang's benchmarks and kits read.
    state = {
        "memory_usage": {"token_capacity": 8192, "token_capacity_swa": None,
                         "graph": {"decode": 0.5, "note": "K9"}},
        "step_time_dict": {1: [0.5], "K": {"a": {"b": {"c": {"d": 1}}}}},
        "rust_mm_transport": {"copies": 0}, "attn_dp_size": 2, "dp_size": 1,
        "effective_max_running_requests_per_dp": 4, "avg_spec_accept_length": 2.5,
        "cuda_graph_config": {"decode": {"bs": [1, 2], "backend": "full"}},
        "token_usage": float("nan"), "launch_command": "--api-key K9", "server_args": {"n": 1},
    }  # fmt: skip
    run.scheduler.control["GetInternalStateReq"] = {"internal_state": state}
    answer = call(run.address, "GET", "/server_info")
    assert b"K9" not in answer.body
    assert answer.json()["internal_states"] == [{
        "memory_usage": {"token_capacity": 8192, "token_capacity_swa": None,
                         "graph": {"decode": 0.5}},
        "step_time_dict": {"1": [0.5], "K": {"a": {"b": {}}}},
        "rust_mm_transport": {"copies": 0}, "attn_dp_size": 2, "dp_size": 1,
        "effective_max_running_requests_per_dp": 4, "avg_spec_accept_length": 2.5,
        "cuda_graph_config": {"decode": {"bs": [1, 2]}},
    }]  # fmt: skip
    assert info["cores"]["0"]["accepted"] >= 1


def test_quiet_streams_get_comments(start):
    run = start(manual=True, options={"sse_keepalive_s": 0.2})
    with Client(run.address) as client:
        client.request(
            "POST", "/generate",
            {"text": "ab", "stream": True, "sampling_params": {"max_new_tokens": 2}},
        )  # fmt: skip
        run.scheduler.wait_for(lambda s: s.live)
        status, _ = client.head()
        assert status == 200
        assert client.chunk() == b": keep-alive\n\n"
        run.scheduler.step(2)
        body = b""
        while piece := client.chunk():
            body += piece
    frames = [f for f in body.split(b"\n\n") if f.startswith(b"data: ")]
    assert len(frames) == 3 and frames[-1] == b"data: [DONE]"


def test_every_answer_says_when_it_was_made(start):
    run = start()
    before = int(time.time()) - 2  # the line is made at a tick of the core
    with Client(run.address) as client:
        answers = [
            client.call("POST", "/generate", {"text": "ab"}),
            client.call("POST", "/generate", {"text": "ab", "stream": True}),
            client.call("POST", "/generate", {"text": 1}),
            client.call("GET", "/nope"),
            client.call("HEAD", "/health"),
        ]
        client.sock.sendall(b"nonsense\r\n\r\n")
        answers.append(client.answer())
    assert [answer.status for answer in answers] == [200, 200, 400, 404, 200, 400]
    for answer in answers:
        assert before <= parsedate_to_datetime(answer.headers["date"]).timestamp() <= time.time()


SHAPED = (
    "/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/tiny", "/v1/tokenize",
    "/v1/loads", "/v1/nope", "/invocations", "/tokenize", "/v1/completions/", "/%761/completions",
)  # fmt: skip


@pytest.mark.parametrize("path", [*SHAPED, "/generate", "/health", "/nope", "/abort_request"])
def test_errors_of_the_http_layer_have_the_shape_of_the_route(start, path):
    """405, 404, 413 before and while the body comes, and a body that never ends."""
    run = start(options={"max_body_bytes": 2000, "body_timeout_s": 0.2})
    post = b"POST %b HTTP/1.1\r\nHost: t\r\n" % path.encode()
    with Client(run.address) as client:
        answers = [client.call("DELETE", path)]
    for rest in (
        b"Content-Length: 2001\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\n7d1\r\n",
        b"Content-Length: 9\r\nExpect: nothing\r\n\r\n", b"Content-Length: 9\r\n\r\n{",
    ):  # fmt: skip
        with Client(run.address) as client:
            client.send(post + rest)
            answers.append(client.answer())
    codes = [answer.status for answer in answers]
    assert codes[0] == (404 if "nope" in path else 405) and codes[1:] == [413, 413, 417, 408]
    for answer in answers:
        body = answer.json()
        if path in SHAPED:
            assert list(body) == ["object", "message", "type", "param", "code"]
            assert body["object"] == "error" and body["code"] == answer.status
        else:
            assert list(body) == ["error"] and body["error"]["code"] == answer.status
