"""Keys, CORS, request ids, header overrides, compressed bodies: over sockets."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from typing import Any

import pytest

from tests.http_client import Client, call
from tests.stress.clock import until
from tpc_server import inflate
from tpc_server.affinity import topology
from tpc_server.affinity.plan import PlanSettings, parse_cores, plan
from tpc_server.boundary.messages import GENERATE as FIELDS
from tpc_server.routes.router import methods_of
from tpc_server.routes.table import ADMIN, ADMIN_OPTIONAL, KEY, OPEN, REGISTRY, ROUTES

USER = {"Authorization": "Bearer user-key"}
CHIEF = {"Authorization": "Bearer chief-key"}
KEYS = {"api_keys": ("user-key",), "admin_api_keys": ("chief-key",)}
BODY = {"text": "ab", "sampling_params": {"max_new_tokens": 2}}
GOOD = json.dumps(BODY).encode()
ZSTD = inflate.zstd_module()


def ask(client, method, path, body=None, headers=None):
    client.request(method, path, body, headers)
    return client.answer(method)


def each_route():
    for route in ROUTES:
        for method in methods_of(route) if route.handler not in REGISTRY else ():
            yield route, method.decode(), route.path.partition("{")[0] + "x" * ("{" in route.path)


# -- keys --------------------------------------------------------------------------------


def test_every_route_without_a_key(start):
    """Each of them, whatever it is called, and however its path is written."""
    run = start(options=KEYS)
    open_paths = {route.path for route, *_ in each_route() if route.access == OPEN}
    assert open_paths >= {"/health", "/health_generate", "/ready", "/live"}
    assert all(p.startswith(("/health", "/ready", "/live", "/metrics")) for p in open_paths)
    with Client(run.address) as client:
        for route, method, path in each_route():
            body = b"{}" if method in ("POST", "PUT") else None
            spelled = "/%" + path[1:2].encode().hex() + path[2:] if path != "/" else "/"
            for written in (
                path, path + "?a=b", f"http://h{path}", spelled, path + "/", "/" + path,
                path.upper(), f"/.{path}", f"/health/..{path}", path + "/../health",
            ):  # fmt: skip
                for headers in ({}, {"Authorization": "Bearer wrong"}):
                    answer = ask(client, method, written, body, headers)
                    if route.access == OPEN:  # no metrics; written oddly it is no route
                        assert answer.status in (200, 401, 404, 503), (method, written)
                        assert (answer.status == 401) <= (written not in (path, spelled)), written
                        continue
                    assert answer.status == 401, (method, written)
                    assert answer.headers["www-authenticate"] == "Bearer"
                    if method != "HEAD":
                        assert answer.body == b'{"error":"Unauthorized"}'
    assert not run.scheduler.received or all(
        m[1].startswith("HEALTH_CHECK") for m in run.scheduler.received
    )


@pytest.mark.parametrize("path", [
    "//v1/models", "/V1/models", "/v1/models/", "/%761/models", "/v1/%6dodels", "/v1//models",
    "/./v1/models", "/health/../v1/models", "/health/%2e%2e/v1/models", "/health%2f..%2fv1/models",
    "/healthy", "/metricsx", "/nope", "/invocations", "/generate/", "/v1/models;x", "*",
    "http://h/v1/models", "http://h/health/../v1/models",
])  # fmt: skip
def test_however_a_path_is_written(start, path):
    run = start(options=KEYS)
    with Client(run.address) as client:
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"):
            assert ask(client, method, path).status == 401, method
        status = ask(client, "GET", path, None, USER).status
        assert status in (200, 404, 405)
        if path in ("/v1/models/", "/generate/"):  # as without the slash, for whom it is open
            assert status == (200 if "models" in path else 405)
        assert ask(client, "OPTIONS", path).status in (404, 405)
    assert not run.scheduler.received


def test_what_a_key_opens(start):
    """The user's key everything but administration, the admin key only that: as SGLang."""
    run = start(options={**KEYS, "health_timeout_s": 0.2})
    with Client(run.address) as client:
        for route, method, path in each_route():
            body = b"[" if method in ("POST", "PUT") else None
            for key, classes in ((USER, (OPEN, KEY)), (CHIEF, (OPEN, ADMIN_OPTIONAL, ADMIN))):
                answer = ask(client, method, path, body, key)
                assert (answer.status != 401) == (route.access in classes), (method, path)
        assert ask(client, "POST", "/generate", GOOD, USER).json()["text"] == "ab"
        for written in ("bearer user-key", "BEARER  user-key"):
            assert ask(client, "GET", "/v1/models", None, {"authorization": written}).status == 200
        for wrong in ("Bearer USER-KEY", "Bearer ", "Bearer", "user-key", "Basic user-key", ""):
            assert ask(client, "GET", "/v1/models", None, {"Authorization": wrong}).status == 401
        twice = {"Authorization": "Bearer wrong", "authorization": "Bearer user-key"}
        assert ask(client, "GET", "/v1/models", None, twice).status == 400


def test_anthropics_clients_send_their_key_without_a_scheme(start):
    """On Anthropic's routes, and on no other."""
    run = start(options=KEYS)
    with Client(run.address) as client:
        for path in ("/v1/messages", "/v1/messages/count_tokens"):
            for headers in (
                {"x-api-key": "user-key"}, {"X-API-Key": " user-key "},
                {"x-api-key": "user-key", "Authorization": "Bearer wrong"},
                {"x-api-key": "wrong", **USER},
            ):  # fmt: skip
                assert ask(client, "POST", path, b"{}", headers).status == 400, headers
            for wrong in ("", "USER-KEY", "Bearer user-key", "chief-key", "wrong"):
                assert ask(client, "POST", path, b"{}", {"x-api-key": wrong}).status == 401, wrong
            twice = {"x-api-key": "wrong", "X-Api-Key": "user-key"}
            with Client(run.address) as other:
                assert ask(other, "POST", path, b"{}", twice).status == 400
        for route, method, path in each_route():
            if route.access != OPEN and not path.startswith("/v1/messages"):
                body = b"{}" if method in ("POST", "PUT") else None
                for key in ("user-key", "chief-key"):
                    assert ask(client, method, path, body, {"x-api-key": key}).status == 401, path
        assert ask(client, "POST", "/v1/messagesx", b"{}", {"x-api-key": "user-key"}).status == 401
    with Client(run.address) as client:  # before the body, too
        head = b"POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nX-Api-Key: %b\r\n"
        client.send(head % b"user-key" + b"Expect: 100-continue\r\n\r\n")
        client.send(b"{}")
        assert client.answer().status == 400


def test_only_an_admin_key(start):
    run = start(options={"admin_api_keys": ("chief-key",)})
    with Client(run.address) as client:
        assert ask(client, "POST", "/generate", GOOD).status == 200
        assert ask(client, "POST", "/abort_request", {"rid": "x"}).status == 401
        assert ask(client, "POST", "/abort_request", {"rid": "x"}, CHIEF).status == 200


def test_a_bad_key_is_told_before_the_body_is_read(start):
    run = start(options=KEYS)
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\n"
    waiting = b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(GOOD)
    large = b"Content-Length: 50000000\r\n\r\n" + b"a" * 1000
    chunks = b"Transfer-Encoding: chunked\r\n\r\n5\r\n"
    for rest in (waiting, large, chunks):
        with Client(run.address) as client:
            client.send(head % b"wrong" + rest)
            answer = client.answer()
            assert answer.status == 401 and answer.body == b'{"error":"Unauthorized"}'
            assert answer.headers["connection"] == "close"
            assert answer.headers["www-authenticate"] == "Bearer"
            assert not client.fill()
    with Client(run.address) as client:
        client.send(head % b"user-key" + waiting)
        assert client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.send(GOOD)
        assert client.answer().status == 200
        # A known head, and another connection's key, open nothing.
        client.send(head % b"user-key" + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD)
        assert client.answer().status == 200
        client.send(head % b"wrong" + b"Content-Length: %d\r\n\r\n" % len(GOOD) + GOOD)
        assert client.answer().status == 401
    assert len(run.scheduler.received) == 2


def test_no_key_is_ever_shown(start, capfd):
    secrets = {"api_keys": ("k1-secret",), "admin_api_keys": ("k2-secret",)}
    run = start(options=secrets, log_level="debug")
    key = {"Authorization": "Bearer k1-secret"}
    with Client(run.address) as client:
        for path in ("/server_info", "/get_server_info", "/model_info", "/version", "/metrics"):
            answer = ask(client, "GET", path, None, key)
            assert answer.status in (200, 404) and b"secret" not in answer.body
        for bad in (b"{", b'{"text":1}'):
            assert b"secret" not in ask(client, "POST", "/generate", bad, key).body
        assert b"secret" not in ask(client, "GET", "/k1-secret", None, {}).body
    run.server.shutdown()
    out = capfd.readouterr()
    assert "secret" not in out.out + out.err


# -- CORS --------------------------------------------------------------------------------

PAGE = {"Origin": "https://page.example"}


def test_pages_of_any_origin_may_call(start):
    run = start()
    asked = {**PAGE, "Access-Control-Request-Method": "POST",
             "Access-Control-Request-Headers": "authorization,content-type"}  # fmt: skip
    with Client(run.address) as client:
        for path in ("/generate", "/v1/models", "/nope"):
            answer = ask(client, "OPTIONS", path, None, asked)
            assert answer.status == 200 and answer.body == b"OK"
            assert answer.headers["access-control-allow-origin"] == "*"
            assert "POST" in answer.headers["access-control-allow-methods"]
            assert answer.headers["access-control-allow-headers"] == "authorization,content-type"
        for method, path, body, status in (
            ("POST", "/generate", GOOD, 200),
            ("POST", "/generate", {**BODY, "stream": True}, 200),
            ("POST", "/generate", b"{", 400),
            ("POST", "/v1/completions", b"{", 400),
            ("GET", "/generate", None, 405),
            ("GET", "/nope", None, 404),
            ("GET", "/health", None, 200),
            ("HEAD", "/v1/models", None, 200),
            ("GET", "/server_info", None, 200),
            ("OPTIONS", "/generate", None, 405),
        ):
            answer = ask(client, method, path, body, PAGE)
            assert answer.status == status
            assert answer.headers["access-control-allow-origin"] == "*", path
            assert "access-control-allow-credentials" not in answer.headers
            plain = ask(client, method, path, body)  # the same without an origin
            assert "access-control-allow-origin" not in plain.headers


def test_pages_of_some_origins_may_call(start):
    run = start(options={"cors_origins": ("https://page.example",), **KEYS})
    asked = {"Access-Control-Request-Method": "GET"}
    with Client(run.address) as client:
        assert ask(client, "OPTIONS", "/v1/models", None, {**PAGE, **asked}).status == 200
        other = {"Origin": "https://evil.example"}
        answer = ask(client, "OPTIONS", "/v1/models", None, {**other, **asked})
        assert answer.status == 400 and "access-control-allow-origin" not in answer.headers
        answer = ask(client, "GET", "/v1/models", None, {**PAGE, **USER})
        assert answer.headers["access-control-allow-origin"] == PAGE["Origin"]
        assert answer.headers["vary"] == "Origin"
        answer = ask(client, "GET", "/v1/models", None, PAGE)  # a page learns why
        assert answer.status == 401
        assert answer.headers["access-control-allow-origin"] == PAGE["Origin"]
        answer = ask(client, "GET", "/v1/models", None, {**other, **USER})
        assert answer.status == 200 and "access-control-allow-origin" not in answer.headers


def test_cors_turned_off(start):
    run = start(options={"cors_origins": ()})
    with Client(run.address) as client:
        asked = {**PAGE, "Access-Control-Request-Method": "GET"}
        assert ask(client, "OPTIONS", "/v1/models", None, asked).status == 405
        headers = ask(client, "GET", "/v1/models", None, PAGE).headers
        assert not any(name.startswith("access-control") for name in headers)


# -- request ids -------------------------------------------------------------------------


@pytest.mark.parametrize("cores", [["1"], ["ingress=0", "tokenize=0", "detok=1", "egress=1"]])
def test_a_request_id_comes_back_on_every_answer(start, cores):
    core_plan = plan(topology.read(), PlanSettings(cores=parse_cores(cores)))
    run = start(options={"max_body_bytes": 2000, "plan": core_plan})
    name = {"X-Request-ID": "abc 7/ü".encode().decode("latin-1")[:5] + "!"}
    with Client(run.address) as client:
        for method, path, body, status in (
            ("POST", "/generate", GOOD, 200),
            ("POST", "/generate", {**BODY, "stream": True}, 200),
            ("POST", "/generate", {"text": "a" * 100, "sampling_params": 1}, 400),
            ("GET", "/generate", None, 405),
            ("GET", "/nope", None, 404),
            ("GET", "/health", None, 200),
            ("GET", "/server_info", None, 200),
        ):
            answer = ask(client, method, path, body, name)
            assert answer.status == status and answer.headers["x-request-id"] == "abc 7!"
            answer = ask(client, method, path, body)
            assert answer.status == status and "x-request-id" not in answer.headers
        for insane in ("", "x" * 129, "a\tb", "\xff"):
            assert (
                "x-request-id"
                not in ask(client, "GET", "/nope", None, {"X-Request-Id": insane}).headers
            )
        assert ask(client, "GET", "/nope", None, {"x-request-id": "x" * 128}).headers[
            "x-request-id"
        ] == "x" * 128  # fmt: skip
        # Pipelined: each its own.
        head = "GET /v1/models HTTP/1.1\r\nHost: x\r\n{}\r\n"
        client.send("".join(
            head.format(f"X-Request-Id: {n}\r\n" if n != "-" else "") for n in "12-3-"
        ).encode())  # fmt: skip
        got = [client.answer().headers.get("x-request-id", "-") for _ in range(5)]
        assert got == list("12-3-")
        answer = ask(client, "POST", "/generate", b"a" * 2001, name)
        assert answer.status == 413 and answer.headers["x-request-id"] == "abc 7!"


def test_request_ids_for_requests_without(start):
    run = start(options={"request_id_headers": True})
    with Client(run.address) as client:
        names = [ask(client, "GET", "/v1/models").headers["x-request-id"] for _ in range(3)]
        assert len(set(names)) == 3 and {len(n) for n in names} == {32}
        answer = ask(client, "GET", "/nope", None, {"X-Request-Id": "mine"})
        assert answer.headers["x-request-id"] == "mine"


# -- what routers say --------------------------------------------------------------------


def test_routers_name_rank_and_key(start):
    """On the OpenAI routes, above the body; the native one is told in its body."""
    run = start(chat_template="{{ messages[0].content }}")
    said = {"X-Data-Parallel-Rank": " 3 ", "X-SMG-Routing-Key": "team 7"}
    rank, key = FIELDS["routed_dp_rank"], FIELDS["routing_key"]
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": ["ab", "cd"], "max_tokens": 1, "n": 2},
        "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
        "/generate": BODY,
    }
    with Client(run.address) as client:
        for path, body in bodies.items():
            for given in (body, {**body, "routed_dp_rank": 1}):
                for headers in (said, {}, {"x-data-parallel-rank": "-1"}):
                    before = len(run.scheduler.received)
                    assert ask(client, "POST", path, given, headers).status == 200
                    of_body = given.get("routed_dp_rank")
                    wanted = int(headers.get("x-data-parallel-rank", of_body or 0)) or None
                    sent = (3, "team 7") if headers is said else (wanted, None)
                    if path == "/generate":
                        sent = (of_body, None)
                    for message in run.scheduler.received[before:]:
                        assert (message[rank], message[key]) == sent, (path, given, headers)
        for bad in ("", "x", "1.0", "0x1", "1_0", "\xb2", "9" * 30, "9" * 6000):
            answer = ask(client, "POST", "/v1/completions", bodies["/v1/completions"],
                         {"x-data-parallel-rank": bad})  # fmt: skip
            assert answer.status == 400 and "X-Data-Parallel-Rank" in answer.json()["message"]
        assert ask(client, "POST", "/generate", BODY, {"x-data-parallel-rank": "x"}).status == 200


# -- overrides ---------------------------------------------------------------------------


def test_headers_take_the_place_of_fields(start):
    from tpc_server.boundary.messages import GENERATE

    run = start(options={"header_overrides": True})
    given = {
        "X-Override-Rid": "from-header", "x-override-bootstrap-host": "h",
        "x-override-bootstrap-port": "81", "x-override-bootstrap-room": "-7",
        "x-override-priority": "3", "X-OVERRIDE-ROUTED-DP-RANK": "2",
        "x-override-disagg-prefill-dp-rank": "1",
    }  # fmt: skip
    with Client(run.address) as client:
        body = {**BODY, "rid": "from-body", "priority": 1}
        answer = ask(client, "POST", "/generate", body, given)
        assert answer.json()["meta_info"]["id"] == "from-header"
        wire = run.scheduler.received[-1]
        assert wire[GENERATE["rid"]].startswith("from-header#")
        assert [
            wire[GENERATE[name]] for name in (
                "bootstrap_host", "bootstrap_port", "bootstrap_room", "priority",
                "routed_dp_rank", "disagg_prefill_dp_rank",
            )
        ] == ["h", 81, -7, 3, 2, 1]  # fmt: skip
        completion = {"model": "tiny", "prompt": "ab", "max_tokens": 2}
        assert ask(client, "POST", "/v1/completions", completion, given).status == 200
        assert run.scheduler.received[-1][GENERATE["priority"]] == 3
        for name in list(given)[2:]:
            answer = ask(client, "POST", "/generate", BODY, {name: "x1"})
            assert answer.status == 400 and name.lower() in answer.json()["error"]["message"]
        for bad in ("x", "1_0", "\xb2", "9" * 30):
            headers = {"x-override-priority": bad}
            answer = ask(client, "POST", "/v1/completions", completion, headers)
            assert answer.status == 400 and "x-override-priority" in answer.json()["message"]
        chat = {"messages": [{"role": "user", "content": "a"}]}
        for path, body in (
            ("/generate", BODY), ("/v1/completions", completion), ("/v1/chat/completions", chat),
            ("/invocations", chat), ("/vertex_generate", {"instances": [BODY]}),
        ):  # fmt: skip
            answer = ask(client, "POST", path, body, {"x-override-conversation-id": "c"})
            assert answer.status == 400 and b"x-override-conversation-id" in answer.body, path
        assert ask(client, "POST", "/generate", b"{", given).status == 400
        assert ask(client, "POST", "/tokenize", {"prompt": "ab"}, given).status == 200


def test_overridden_bodies_are_decoded_and_refused_like_others(start, monkeypatch):
    from tpc_server.routes import admission

    def on_the_core(*args, **more):
        raise AssertionError("decoded twice, and however large it is")

    monkeypatch.setattr(admission, "parse_object", on_the_core, raising=False)
    run = start(options={"header_overrides": True})
    named = {"x-override-rid": 'a"\\b'}
    with Client(run.address) as client:
        for space in (b"", b" \r\n\t"):
            answer = ask(client, "POST", "/generate", GOOD[:-1] + space + b"}" + space, named)
            assert answer.json()["meta_info"]["id"] == named["x-override-rid"]
        for body in (
            b"", b"{}", b" { } ", b"}", b"[]", b"[{}]", b"null", b'"}', b"{" + GOOD, GOOD[:-1],
            GOOD + b"}", GOOD[:-1] + b",}", b'{"text": "}', b'{"text": "a\\"}', b'{"text"}',
            b'{"text": {}', b'{"text": "\xff"}', b"\xef\xbb\xbf" + GOOD,
            b'{"text": "a", "ignored": 1e400}', b'{"text": "a", "rid": 1, "stream": 1}',
        ):  # fmt: skip
            plain = ask(client, "POST", "/generate", body)
            answer = ask(client, "POST", "/generate", body, named)
            # The field that the header adds moves the place where a body stops being JSON.
            told, plainly = [re.sub(rb"JSON at byte [^\"]*", b"", a.body) for a in (answer, plain)]
            assert answer.status == 400 and told == plainly, body


def test_overrides_are_off_unless_asked_for(start):
    run = start()
    with Client(run.address) as client:
        answer = ask(client, "POST", "/generate", {**BODY, "rid": "b"}, {"x-override-rid": "h"})
        assert answer.json()["meta_info"]["id"] == "b"


# -- compressed bodies -------------------------------------------------------------------


def raw_deflate(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKED = [
    ("Content-Encoding", "gzip", gzip.compress),
    ("content-encoding", "GZIP", gzip.compress),
    ("Content-Encoding", "deflate", zlib.compress),
    ("Content-Encoding", "deflate", raw_deflate),
    ("Content-Encoding", "identity", bytes),
    ("X-Body-Compressed", "gzip", gzip.compress),
    *((name, "zstd", ZSTD.compress) for name in ("Content-Encoding", "x-body-compressed") if ZSTD),
]


@pytest.mark.parametrize(("header", "coding", "pack"), PACKED)
def test_compressed_bodies(start, header, coding, pack):
    run = start(options={"max_body_bytes": 3_000_000})
    large = json.dumps({**BODY, "unknown": "ab" * 900_000}).encode()
    with Client(run.address) as client:
        for body, status in ((GOOD, 200), (large, 200), (GOOD, 200), (b"{", 400)):
            answer = ask(client, "POST", "/generate", pack(body), {header: coding})
            assert answer.status == status
            if status == 200:
                assert answer.json()["text"] == "ab"
        # Each of a pipeline waits for its turn.
        packed = pack(large)
        head = b"POST /generate HTTP/1.1\r\nHost: x\r\n%b: %b\r\nX-Request-Id: 1\r\n" % (
            header.encode(), coding.encode(),
        )  # fmt: skip
        client.send(head + b"Content-Length: %d\r\n\r\n" % len(packed) + packed)
        client.request("GET", "/v1/models")
        answer = client.answer()
        assert answer.json()["text"] == "ab" and answer.headers["x-request-id"] == "1"
        assert client.answer().json()["data"][0]["id"] == "tiny"


def test_compressed_bodies_that_are_refused(start):
    run = start(options={"max_body_bytes": 100_000, **KEYS})
    bomb = gzip.compress(bytes(30_000_000))
    with Client(run.address) as client:
        for body, coding, status in (
            (gzip.compress(GOOD)[:-1], "gzip", 400),
            (GOOD, "gzip", 400),
            (GOOD, "br", 415),
            (GOOD, "gzip, gzip", 415),
            (bomb, "gzip", 413),
        ):
            answer = ask(client, "POST", "/generate", body, {"Content-Encoding": coding, **USER})
            assert answer.status == status and answer.json()["error"]["code"] == status
            if status == 415:
                assert answer.headers["accept-encoding"].startswith("gzip, deflate")
            # Nothing is taken apart for strangers.
            answer = ask(client, "POST", "/generate", body, {"Content-Encoding": coding})
            assert answer.status == 401
        assert ask(client, "POST", "/generate", GOOD, USER).status == 200
    assert len(run.scheduler.received) == 1


def test_a_large_compressed_body_holds_nobody_up_and_its_client_may_leave(start):
    run = start()
    packed = gzip.compress(json.dumps({**BODY, "unknown": "a" * 40_000_000}).encode())
    head = b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\n"
    raw = head + b"Content-Length: %d\r\n\r\n" % len(packed) + packed
    with Client(run.address) as client:
        gone = [Client(run.address) for _ in range(5)]
        for one in gone:
            one.send(raw)
        assert call(run.address, "GET", "/v1/models").status == 200
        for one in gone:
            one.reset()
        assert until(lambda: run.total("connections") == 1, 20)
        assert until(lambda: run.total("inflight") == 0, 20)
        assert ask(client, "POST", "/generate", BODY).json()["text"] == "ab"
