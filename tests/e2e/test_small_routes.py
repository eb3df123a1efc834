"""The small routes: models, health family, flush, tokenize and detokenize."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import pytest

from tests import tiny_tokenizer
from tests.e2e.test_lifecycle import until
from tests.e2e.test_placements import placed
from tests.http_client import Client, call
from tpc_server import ServerArgs

pytestmark = pytest.mark.timeout(60)
FLUSHED = {"rid": None, "http_worker_ipc": None, "success": True, "message": ""}


@pytest.fixture(params=["1", "ingress=0 tokenize=1 detok=2 egress=3"])
def cores(request):
    """All stages on one core, and each on its own."""
    return {"plan": placed(request.param.split()), "health_timeout_s": 0.3}


def test_facts(start):
    run = start(served_model_name="org/tiny 1")
    with Client(run.address) as client:
        card = client.call("GET", "/v1/models").json()["data"][0]
        for path in ("/v1/models/org/tiny%201", "/v1/models/org%2Ftiny%201", "/v1/%6dodels"):
            answer = client.call("GET", path)
            assert answer.status == 200
            found = answer.json()
            assert found == card or found["data"] == [card]
        answer = client.call("GET", "/v1/models/org")
        assert answer.status == 404
        assert answer.json() == {
            "error": {
                "message": "The model 'org' does not exist", "type": "invalid_request_error",
                "param": "model", "code": "model_not_found",
            }
        }  # fmt: skip
        assert client.call("POST", "/v1/models/org", {}).status == 405
        for path in ("/v1/models/", "/v1/%6dodels/", "/v1/models%2F"):
            assert client.call("GET", path).json()["data"] == [card]
        assert client.call("GET", "/v1/models//").status == 404
        assert client.call("GET", "/").json() == "SGLang is running"
        assert client.call("HEAD", "/").status == 200
        assert set(client.call("GET", "/version").json()) == {"version", "frontend_version"}
        same = client.call("GET", "/model_info").body
        assert client.call("GET", "/get_model_info").body == same
        assert client.call("GET", "/get_server_info").json()["served_model_name"] == "org/tiny 1"
        for path in ("/update_weights_from_disk", "/load_lora_adapter", "/encode"):
            assert client.call("POST", path, {}).status == 404


def test_adapters_are_listed(start):
    """As SGLang lists them; asked for alone they are none of its models."""
    run = start(lora_ids={"ada": "1"})
    first, second = call(run.address, "GET", "/v1/models").json()["data"]
    assert (second["id"], second["parent"], second["max_model_len"]) == ("ada", "tiny", None)
    assert set(second) == set(first)
    assert call(run.address, "GET", "/v1/models/ada").status == 404


def test_health_family(start):
    run = start(options={"health_timeout_s": 0.3})
    for path in ("/ready", "/ping", "/live", "/health", "/health_generate"):
        assert call(run.address, "GET", path).status == 200, path
    run.scheduler.silent = True
    for path in ("/health", "/health_generate"):
        assert call(run.address, "GET", path).status == 503, path
    for path, status in (("/ready", 503), ("/ping", 503), ("/live", 200)):
        answer = call(run.address, "GET", path)
        assert (answer.status, answer.body) == (status, b""), path
    run.scheduler.silent = False
    assert call(run.address, "GET", "/health").status == 200
    assert call(run.address, "GET", "/ready").status == 200


def test_not_ready_before_the_warm_up_and_while_draining(start):
    run = start(skip_server_warmup=False, manual=True)
    for path in ("/ready", "/ping", "/health", "/health_generate"):
        assert call(run.address, "GET", path).status == 503, path
    assert call(run.address, "GET", "/live").status == 200
    run.scheduler.step(100)
    until(run, lambda: run.server.ready)
    assert call(run.address, "GET", "/ready").status == 200
    with Client(run.address) as busy, Client(run.address) as client:
        run.scheduler.step(-run.scheduler._steps)
        busy.request("POST", "/generate", {"text": "ab", "sampling_params": {"max_new_tokens": 2}})
        run.scheduler.wait_for(lambda s: s.live)
        client.send(b"GET /ready HTTP/1.1\r\nHost: x\r\n")  # its head is not whole yet
        until(run, lambda: run.total("connections") == 2)
        run.server.start_drain()
        until(run, lambda: _refused(run.address))
        client.send(b"\r\n")
        assert client.answer().status == 503
        run.scheduler.step(2)
        assert busy.answer().status == 200


def _refused(address):
    try:
        with Client(address, 1.0):
            return False
    except OSError:
        return True


def test_flush_cache(start, cores):
    run = start(options=cores)
    run.scheduler.control["FlushCacheReqInput"] = FLUSHED
    with Client(run.address) as client:
        for method, path, seconds in (
            ("GET", "/flush_cache", 0.0), ("POST", "/flush_cache", 0.0),
            ("POST", "/flush_cache?timeout=1.5&x=2", 1.5),
        ):  # fmt: skip
            answer = client.call(method, path)
            assert answer.status == 200 and answer.body.startswith(b"Cache flushed.")
            assert answer.headers["content-type"].startswith("text/plain")
            tag, rid, worker, timeout = run.scheduler.received[-1]
            assert (tag, worker, timeout) == ("FlushCacheReqInput", None, seconds)
            assert len(rid) == 32
        for bad in ("-1", "soon", "nan", "inf", "", "1e300", "86401"):
            answer = client.call("GET", f"/flush_cache?timeout={bad}")
            assert answer.status == 400 and "timeout" in answer.json()["error"]["message"]
        run.scheduler.control["FlushCacheReqInput"] = {**FLUSHED, "success": False}
        answer = client.call("POST", "/flush_cache")
        assert (answer.status, answer.body) == (400, b"Flush cache failed.\n")
        run.scheduler.control["FlushCacheReqInput"] = {"success": False, "message": "busy: é"}
        answer = client.call("POST", "/flush_cache")
        assert (answer.status, answer.body) == (400, "busy: é".encode())
        run.scheduler.control["FlushCacheReqInput"] = 5
        assert client.call("POST", "/flush_cache").status == 500
        del run.scheduler.control["FlushCacheReqInput"]
        assert client.call("POST", "/flush_cache?timeout=0.1").status == 503


def test_tokenize(start, cores):
    run = start(options=cores)
    with Client(run.address) as client:
        for path in ("/tokenize", "/v1/tokenize"):
            answer = client.call("POST", path, {"model": "any", "prompt": "héy"})
            expected = {"tokens": list("héy".encode()), "count": 4, "max_model_len": 4096}
            assert answer.status == 200 and answer.json() == expected
        for prompts in (["ab", "", "c"], ["x"], [], ["y" * 3] * 1000, ["ab", "z" * 20000]):
            found = client.call("POST", "/tokenize", {"prompt": prompts}).json()
            assert found["tokens"] == [list(p.encode()) for p in prompts]
            assert found["count"] == [len(p) for p in prompts]
        found = client.call("POST", "/tokenize", {"prompt": "", "add_special_tokens": False})
        assert found.json()["tokens"] == [] and found.json()["count"] == 0
        long = "long text " * 20000
        found = client.call("POST", "/tokenize", {"prompt": long}).json()
        assert bytes(found["tokens"]).decode() == long
        assert client.call("POST", "/generate", {"text": "ab"}).status == 200


def test_detokenize(start, cores):
    run = start(options=cores)
    ids = list("héy".encode())
    with Client(run.address) as client:
        for path in ("/detokenize", "/v1/detokenize"):
            answer = client.call("POST", path, {"model": "any", "tokens": ids})
            assert (answer.status, answer.json()) == (200, {"text": "héy"})
        for tokens in ([ids, [], [65]], [[]], [[66] * 9000, [67]], [[68]] * 500):
            texts = client.call("POST", "/detokenize", {"tokens": tokens}).json()["text"]
            assert texts == [bytes(t).decode() for t in tokens]
        assert client.call("POST", "/detokenize", {"tokens": []}).json() == {"text": ""}
        assert client.call("POST", "/detokenize", {"tokens": [195]}).json() == {"text": "\ufffd"}


SPECIAL = [72, 256, 73]


def test_special_tokens(start):
    run = start()
    with Client(run.address) as client:
        shown = client.call(
            "POST", "/detokenize", {"tokens": SPECIAL, "skip_special_tokens": False}
        ).json()["text"]
        hidden = client.call("POST", "/detokenize", {"tokens": SPECIAL}).json()["text"]
        assert hidden == "HI" and shown.startswith("H") and len(shown) > 2


REFUSED = [
    ("/tokenize", {}, "Exactly one of 'prompt' or 'messages' must be provided."),
    ("/tokenize", {"prompt": 5}, "prompt"),
    ("/tokenize", {"prompt": ["a", 5]}, "prompt[1]"),
    ("/tokenize", {"prompt": "a", "add_special_tokens": None}, "add_special_tokens"),
    ("/tokenize", {"prompt": "a", "model": 5}, "model"),
    ("/tokenize", {"prompt": "a", "tools": [{}]}, "tools needs messages"),
    ("/tokenize", {"prompt": ["a"] * 4097}, "4096"),
    ("/detokenize", {}, "missing field `tokens`"),
    ("/detokenize", {"tokens": None}, "tokens"),
    ("/detokenize", {"tokens": "ab"}, "tokens"),
    ("/detokenize", {"tokens": [1.0]}, "tokens[0]"),
    ("/detokenize", {"tokens": [True]}, "tokens"),
    ("/detokenize", {"tokens": [1, [2]]}, "tokens[1]"),
    ("/detokenize", {"tokens": [[1], 2]}, "tokens[1]"),
    ("/detokenize", {"tokens": [-1]}, "out-of-vocabulary token id -1"),
    ("/detokenize", {"tokens": [[5], [100000]]}, "tokens[1] contains out-of-vocabulary"),
    ("/detokenize", {"tokens": [10**30]}, "tokens"),
    ("/detokenize", {"tokens": [1], "skip_special_tokens": 1}, "skip_special_tokens"),
    ("/detokenize", b"[1]", "JSON object"),
    ("/detokenize", b"", "empty"),
    ("/tokenize", b'{"prompt":"a","extra":1e400}', "extra"),
]


def test_refused_text_calls(start):
    run = start()
    with Client(run.address) as client:
        for path, body, text in REFUSED:
            answer = client.call("POST", path, body)
            error = answer.json()
            assert answer.status == 400 and text in error["message"], (body, error)
            assert list(error) == ["object", "message", "type", "param", "code"]
            assert (error["object"], error["code"]) == ("error", 400)
            assert error["param"] is None or error["param"] in error["message"]


def test_text_calls_without_a_tokenizer(start):
    run = start(skip_tokenizer_init=True)
    for path, body in (("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})):
        answer = call(run.address, "POST", path, body)
        assert answer.status == 400 and "no tokenizer" in answer.json()["message"]


def test_clients_that_leave_a_text_call(start, cores):
    """Nothing stays behind, and others are served."""
    run = start(options=cores)
    body = json.dumps({"prompt": ["some words " * 3000] * 20}).encode()
    for leave in (Client.reset, Client.close):
        clients = [Client(run.address) for _ in range(4)]
        for client in clients:
            client.request("POST", "/tokenize", body)
        threads = [threading.Thread(target=leave, args=(client,)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert call(run.address, "POST", "/tokenize", {"prompt": "x"}).json()["count"] == 1
    until(run, lambda: not run.total("inflight") and not run.total("live_requests"))


def test_pipelined_text_calls_keep_their_order(start, cores):
    run = start(options=cores)
    with Client(run.address) as client:
        sizes = (30000, 1, 9000, 2)
        for size in sizes:
            client.request("POST", "/tokenize", {"prompt": "a" * size})
        assert [client.answer().json()["count"] for _ in sizes] == list(sizes)


def test_any_content_type(start):
    run = start()
    with Client(run.address) as client:
        for kind in ("application/x-www-form-urlencoded", "text/plain", "application/json"):
            answer = client.call("POST", "/tokenize", {"prompt": "ab"}, Content_Type=kind)
            assert answer.json()["count"] == 2


def test_api_description_and_its_page(start):
    run = start(options={"health_timeout_s": 0.3})  # nobody answers the probe
    with Client(run.address) as client:
        answer = client.call("GET", "/openapi.json")
        assert answer.status == 200 and answer.headers["content-type"] == "application/json"
        api = answer.json()
        assert api["openapi"].startswith("3.1") and "/generate" in api["paths"]
        for path, operations in api["paths"].items():
            elsewhere = ("/metrics", "/metrics/", "/flush_cache", "/route")
            if "get" in operations and path not in elsewhere:
                assert "{" in path or client.call("HEAD", path).status != 404, path
        page = client.call("GET", "/docs")
        assert page.status == 200 and page.headers["content-type"].startswith("text/html")
        assert b"openapi.json" in page.body
        assert "connect-src 'self'" in page.headers["content-security-policy"]


def test_api_description_can_be_hidden(start, monkeypatch):
    monkeypatch.setenv("DISABLE_OPENAPI_DOC", "true")
    run = start()
    for path in ("/openapi.json", "/docs"):
        assert call(run.address, "GET", path).status == 404
    assert call(run.address, "GET", "/version").status == 200


@pytest.fixture
def chat_model(tmp_path):
    """The byte tokenizer with a chat template."""
    folder = tiny_tokenizer.write(tmp_path / "chat-model")
    template = (
        "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
        "{% if tools %}<{{ tools | length }}>{% endif %}{{ mood }}"
        "{% if add_generation_prompt %}[assistant]{% endif %}"
    )
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": template, "bos_token": "<bos>", "eos_token": "<eos>"})
    )
    return str(folder)


HI = [{"role": "user", "content": "hi"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def test_tokenize_messages(start, cores, chat_model):
    """Rendered as for a chat request, or as the body says."""
    run = start(model_path=chat_model, options=cores)
    talk = [*HI, {"role": "assistant", "content": "yo"}]
    cases = [
        ({"messages": HI}, "[user]hi[assistant]"),
        ({"messages": HI, "add_generation_prompt": True}, "[user]hi[assistant]"),
        ({"messages": HI, "add_generation_prompt": False}, "[user]hi"),
        ({"messages": talk, "add_generation_prompt": False}, "[user]hi[assistant]yo"),
        ({"messages": talk, "continue_final_message": True}, "[user]hi[assistant]yo"),
        ({"messages": HI, "tools": [TOOL]}, "[user]hi<1>[assistant]"),
        ({"messages": HI, "tools": [TOOL], "tool_choice": "none"}, "[user]hi[assistant]"),
        ({"messages": HI, "chat_template_kwargs": {"mood": "!"}}, "[user]hi![assistant]"),
        ({"messages": HI * 200}, "[user]hi" * 200 + "[assistant]"),
    ]
    with Client(run.address) as client:
        for body, text in cases:
            found = client.call("POST", "/tokenize", body).json()
            assert found["tokens"] == [257, *text.encode()], body
            assert found["count"] == len(found["tokens"]) and found["max_model_len"] == 4096
    answer = call(
        run.address, "POST", "/v1/chat/completions", {"messages": HI, "max_completion_tokens": 1}
    )
    assert answer.status == 200
    assert run.scheduler.prompts[-1] == [257, *b"[user]hi[assistant]"]
    for body, text in (
        ({"messages": HI, "prompt": "a"}, "Exactly one of"),
        ({"messages": []}, "essages cannot be empty"),
        ({"messages": [{"role": "boss", "content": "x"}]}, "messages[0].role"),
        ({"messages": talk, "add_generation_prompt": False, "continue_final_message": True},
         "continue_final_message needs add_generation_prompt"),
        ({"messages": HI, "tool_choice": "required"}, "tools cannot be empty"),
        ({"messages": HI, "chat_template_kwargs": []}, "chat_template_kwargs"),
    ):  # fmt: skip
        answer = call(run.address, "POST", "/tokenize", body)
        assert answer.status == 400 and text in answer.json()["message"], body


def test_tokenize_messages_without_a_template(start):
    answer = call(start().address, "POST", "/tokenize", {"messages": HI})
    assert answer.status == 400 and "no chat template" in answer.json()["message"]


def test_invocations_are_chat_requests(start, chat_model):
    run = start(model_path=chat_model)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 4}
    for stream in (False, True):
        bodies = []
        for path in ("/invocations", "/v1/chat/completions"):
            answer = call(run.address, "POST", path, {**body, "rid": "r", "stream": stream})
            assert answer.status == 200
            bodies.append(re.sub(rb'"created":\d+', b"", answer.body))
        assert bodies[0] == bodies[1]
    answer = call(run.address, "POST", "/invocations", {})
    assert answer.status == 400 and answer.json()["object"] == "error"


@pytest.mark.parametrize("values", [["1"], ["2"], ["ingress=0,1", "tokenize=2", "detok=3,4"]])
def test_an_abort_ends_a_rid_on_every_core_and_api(start, chat_model, values):
    """Requests of one rid on whatever cores; another rid that starts alike goes on."""
    run = start(model_path=chat_model, options={"plan": placed(values)}, manual=True)
    native: dict[str, Any] = {"text": "ab", "sampling_params": {"max_new_tokens": 50, "n": 2}}
    chat: dict[str, Any] = {"messages": HI, "max_completion_tokens": 50, "n": 2}
    bodies = [
        ("/generate", native), ("/generate", {**native, "text": ["a", "b"]}),
        ("/v1/chat/completions", chat), ("/v1/chat/completions", {**chat, "stream": True}),
        ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 50}),
    ]  # fmt: skip
    clients = [Client(run.address) for _ in range(len(bodies) + 1)]
    for client, (path, body) in zip(clients, bodies, strict=False):
        client.request("POST", path, {**body, "rid": "job"})
    other = clients[-1]
    other.request("POST", "/generate", {**native, "rid": "job1"})
    run.scheduler.wait_for(lambda s: len(s.live) == 2 + 4 + 2 + 2 + 2 + 2)
    run.scheduler.step(2)
    assert call(run.address, "POST", "/abort_request", {"rid": "job"}).status == 200
    for client in clients[:-1]:
        answer = client.answer()
        assert answer.status == 200 and b"abort" in answer.body
    assert call(run.address, "POST", "/abort_request", {"rid": "job"}).body == b""  # once more
    run.scheduler.wait_for(lambda s: len(s.live) == 2)
    assert len(set(run.scheduler.aborted)) == 12
    run.scheduler.step(100)
    assert [item["meta_info"]["finish_reason"]["type"] for item in other.answer().json()] == [
        "length"
    ] * 2
    until(run, lambda: not run.total("inflight") and not run.total("live_requests"))


def test_headers_of_a_healthy_answer(start, cores):
    """What a deployment's router reads off the deep probe, and only where all is well."""
    told = {"x-deployment": "blue 7", "X-Role": "decode"}
    run = start(options=cores, health_generate_headers=told)
    with Client(run.address) as client:
        answer = client.call("GET", "/health_generate", X_Request_Id="me")
        assert answer.status == 200 and answer.headers["x-request-id"] == "me"
        assert (answer.headers["x-deployment"], answer.headers["x-role"]) == ("blue 7", "decode")
        assert "x-role" not in client.call("GET", "/health").headers
        run.scheduler.silent = True
        client.request("GET", "/health_generate")
        run.scheduler.wait_for(lambda s: s.live)
        run.server.push_health_ack()
        assert client.answer().headers["x-role"] == "decode"
        answer = client.call("GET", "/health_generate")
        assert answer.status == 503 and "x-role" not in answer.headers


@pytest.mark.parametrize("headers", [{"a b": "c"}, {"a": "b\r\nc: d"}, {"a": 1}, {"": "x"}])
def test_no_headers_at_all(headers):
    with pytest.raises(TypeError, match="health_generate_headers"):
        ServerArgs(health_generate_headers=headers)


def test_a_path_that_a_proxy_puts_in_front(start):
    """As --fastapi-root-path: with it and without it; keys look at what will be dispatched."""
    run = start(options={"root_path": "/some/app", "api_keys": ("k",)})
    with Client(run.address) as client:
        for root in ("", "/some/app", "/some/%61pp"):
            for path in ("/v1/models", "/v1/models/tiny", "/v1/models/", "/model_info"):
                assert client.call("GET", root + path).status == 401
                assert client.call("GET", root + path, Authorization="Bearer k").status == 200
            assert client.call("GET", f"{root}/live").status == 200
            body = {"text": "ab", "sampling_params": {"max_new_tokens": 2}}
            answer = client.call("POST", f"{root}/generate", body, Authorization="Bearer k")
            assert answer.json()["text"] == "ab"
        answer = client.call("GET", "/some/app", Authorization="Bearer k")
        assert answer.json() == "SGLang is running"
        api = client.call("GET", "/openapi.json", Authorization="Bearer k").json()
        assert api["servers"] == [{"url": "/some/app"}]
        for path in ("/some/apple/live", "/some/live", "/live/some/app"):
            assert client.call("GET", path, Authorization="Bearer k").status == 404
        answer = client.call("GET", "/some/app/v1/nope", Authorization="Bearer k")
        assert answer.status == 404 and answer.json()["object"] == "error"


def test_how_many_generations_a_request_may_ask_for(start, monkeypatch):
    monkeypatch.setenv("SGLANG_MAX_BATCH_REQS_PER_HTTP_REQ", "3")
    run = start()
    for path, body, shown in (
        ("/generate", {"text": ["a"] * 4}, "4 generations, over the limit of 3"),
        ("/v1/completions", {"prompt": ["a", "b"], "n": 2}, "4 generations, over the limit of 3"),
        ("/tokenize", {"prompt": ["a"] * 4}, "4 entries, over the limit of 3"),
    ):
        answer = call(run.address, "POST", path, body)
        assert answer.status == 400 and shown in answer.body.decode()
    assert call(run.address, "POST", "/generate", {"text": ["a"] * 3}).status == 200
