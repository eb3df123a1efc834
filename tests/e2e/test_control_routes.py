"""Weights, storage behind the cache, pauses and sessions: control messages of the scheduler, over
sockets."""

from __future__ import annotations

import hashlib

import pytest

from tests.e2e.test_placements import placed
from tests.http_client import Client
from tpc_server.boundary.messages import GENERATE

pytestmark = pytest.mark.timeout(60)
ADMIN = {"Authorization": "Bearer chief-key"}
DONE = {"rid": None, "http_worker_ipc": None, "success": True, "message": ""}
USER = {"Authorization": "Bearer user-key"}
RANK = {
    "checksums": {"lm_head.weight": "e7"}, "per_gpu_checksum": "d2b4",
    "parallelism_info": [{"role": "target", "tp_rank": 0}],
}  # fmt: skip
STORAGE = "/hicache/storage-backend"
FIELDS = (
    "hicache_storage_backend", "hicache_storage_backend_extra_config",
    "hicache_storage_prefetch_policy", "hicache_write_policy",
)  # fmt: skip


KEYS = {"api_keys": ("user-key",), "admin_api_keys": ("chief-key",)}


@pytest.fixture(params=["1", "ingress=0 tokenize=1 detok=2 egress=3"])
def run(start, request):
    """All stages on one core, and each on its own; a server with an admin key."""
    return start(options={"plan": placed(request.param.split()), **KEYS})


def ask(run, method, path, body=None, headers=ADMIN):
    with Client(run.address) as client:
        client.request(method, path, body, headers)
        return client.answer(method)


def test_weights(run):
    run.scheduler.control["CheckWeightsReqInput"] = {**DONE, "message": "Success.",
                                                     "payload": [RANK, RANK]}  # fmt: skip
    plain = ["checksum", False, None, "all"]
    asked = [
        ("GET", None, plain), ("POST", None, plain), ("POST", b"null", plain), ("POST", {}, plain),
        ("POST", {"action": "compare", "allow_quant_error": True, "skip_tensor_list": ["rotary"],
                  "selector": "draft", "unknown": 1},
         ["compare", True, ["rotary"], "draft"]),
        ("GET", {"skip_tensor_list": None}, plain),
    ]  # fmt: skip
    for method, body, sent in asked:
        answer = ask(run, method, "/weights_checker", body)
        assert answer.status == 200, answer.body
        assert answer.json() == {
            "success": True, "message": "Success.", "ranks": [RANK, RANK],
            "per_engine_checksum": hashlib.sha256(b"d2b4d2b4").hexdigest(),
        }  # fmt: skip
        assert run.scheduler.received[-1][0] == "CheckWeightsReqInput"
        assert run.scheduler.received[-1][3:] == sent
    run.scheduler.control["CheckWeightsReqInput"] = {"success": False, "message": "no snapshot"}
    answer = ask(run, "POST", "/weights_checker", {"action": "compare"})
    assert (answer.status, answer.json()) == (400, {"success": False, "message": "no snapshot"})
    run.scheduler.control["CheckWeightsReqInput"] = {**DONE, "payload": [{"checksums": {}}]}
    assert ask(run, "POST", "/weights_checker").status == 500


@pytest.mark.parametrize(("method", "path", "body", "named"), [
    ("POST", "/weights_checker", {"action": None}, "action"),
    ("POST", "/weights_checker", {"action": 1}, "action"),
    ("POST", "/weights_checker", {"allow_quant_error": "yes"}, "allow_quant_error"),
    ("POST", "/weights_checker", {"skip_tensor_list": "a"}, "skip_tensor_list"),
    ("POST", "/weights_checker", {"skip_tensor_list": ["a", 1]}, "skip_tensor_list[1]"),
    ("POST", "/weights_checker", {"selector": "both"}, "selector"),
    ("POST", "/weights_checker", {"selector": []}, "selector"),
    ("POST", "/weights_checker", b"[1", "JSON"),
    ("PUT", STORAGE, {}, "hicache_storage_backend"),
    ("PUT", STORAGE, {"hicache_storage_backend": None}, "hicache_storage_backend"),
    ("PUT", STORAGE, {"hicache_storage_backend": "file", "hicache_write_policy": 1},
     "hicache_write_policy"),
    ("PUT", STORAGE, b"", "empty"),
    ("POST", "/pause_generation", b"", "empty"),
    ("POST", "/pause_generation", {"mode": "soon"}, "mode"),
    ("POST", "/pause_generation", {"mode": None}, "mode"),
    ("POST", "/continue_generation", {"torch_empty_cache": 1}, "torch_empty_cache"),
    ("POST", "/open_session", {}, "capacity_of_str_len"),
    ("POST", "/open_session", {"capacity_of_str_len": 1.5}, "capacity_of_str_len"),
    ("POST", "/open_session", {"capacity_of_str_len": 1 << 70}, "capacity_of_str_len"),
    ("POST", "/open_session", {"capacity_of_str_len": 1, "session_id": 1}, "session_id"),
    ("POST", "/open_session", b'{"capacity_of_str_len": 1, "timeout": 1e999}', "timeout"),
    ("POST", "/open_session", {"capacity_of_str_len": 1, "timeout": "1"}, "timeout"),
    ("POST", "/close_session", {}, "session_id"),
    ("POST", "/close_session", {"session_id": None}, "session_id"),
    ("POST", "/generate", {"text": "a", "session_params": []}, "session_params"),
    ("POST", "/generate", {"text": "a", "session_params": {"id": 1}}, "session_params.id"),
    ("POST", "/generate", {"text": "a", "session_params": {"name": "s"}}, "name"),
    ("POST", "/generate", {"text": "a", "session_params": {"id": "s"}, "session_id": "t"},
     "session_id"),
    ("POST", "/generate", {"input_ids": [], "session_params": {"rid": "s"}}, "input_ids"),
])  # fmt: skip
def test_bad_bodies(start, method, path, body, named):
    run = start(options={"admin_api_keys": ("chief-key",)})
    answer = ask(run, method, path, body)
    assert answer.status == 400 and named in answer.json()["error"]["message"], answer.body
    assert not run.scheduler.received


def test_storage(run):
    for tag in ("Attach", "Detach", "Clear"):
        name = "ClearHiCacheReqInput" if tag == "Clear" else f"{tag}HiCacheStorageReqInput"
        run.scheduler.control[name] = {**DONE, "message": "" if tag == "Clear" else f"{tag}: é"}
    body = {
        "hicache_storage_backend": "file", "hicache_storage_backend_extra_config_json": "{}",
        "hicache_storage_prefetch_policy": None, "hicache_write_policy": "write_through",
    }  # fmt: skip
    answer = ask(run, "PUT", STORAGE, body)
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/plain")
    assert answer.body.decode() == "HiCache storage backend attached.\nAttach: é\n"
    assert run.scheduler.received[-1][3:] == ["file", "{}", None, "write_through"]
    assert ask(run, "DELETE", STORAGE).body.decode().endswith("detached.\nDetach: é\n")
    answer = ask(run, "POST", f"{STORAGE}/clear")
    assert (answer.status, answer.body.count(b"\n")) == (200, 1)
    assert run.scheduler.received[-1][0] == "ClearHiCacheReqInput"
    for name, method, path in (
        ("AttachHiCacheStorageReqInput", "PUT", STORAGE),
        ("DetachHiCacheStorageReqInput", "DELETE", STORAGE),
        ("ClearHiCacheReqInput", "POST", f"{STORAGE}/clear"),
    ):
        run.scheduler.control[name] = {"success": False, "message": "not enabled"}
        answer = ask(run, method, path, body if method == "PUT" else None)
        assert answer.status == 400
        assert answer.body.startswith(b"Failed to ") and answer.body.endswith(b"\nnot enabled\n")
        run.scheduler.control[name] = 7
        assert ask(run, method, path, body if method == "PUT" else None).status == 500


def test_what_the_storage_is(start):
    """The scheduler's own state where it says, which a frontend that was replaced cannot know."""
    run = start(
        options={"admin_api_keys": ("chief-key",)}, hicache_storage_backend="mooncake",
        hicache_storage_backend_extra_config="{}", hicache_storage_prefetch_policy="wait_complete",
        hicache_write_policy="write_back",
    )  # fmt: skip
    launched = dict(zip(FIELDS, ("mooncake", "{}", "wait_complete", "write_back"), strict=True))
    assert ask(run, "GET", STORAGE).json() == launched
    state = {"hicache_storage_backend": None, "hicache_storage_backend_extra_config": None}
    run.scheduler.control["GetInternalStateReq"] = {"internal_state": {**state, "api_key": "x"}}
    assert ask(run, "GET", STORAGE).json() == {**launched, **state}


def test_nobodys_without_an_admin_key(start):
    run = start(options={"api_keys": ("user-key",)})
    for method in ("GET", "PUT", "DELETE"):
        assert ask(run, method, STORAGE, {}, {}).status == 401
        answer = ask(run, method, STORAGE, {}, USER)
        assert answer.status == 400 and "admin" in answer.json()["error"]["message"]
    assert not run.scheduler.received
    run.scheduler.control["ClearHiCacheReqInput"] = DONE
    assert ask(run, "POST", f"{STORAGE}/clear", None, USER).status == 200


def test_the_admins_alone_where_there_is_one(run):
    for method, path in (
        ("GET", "/weights_checker"), ("PUT", STORAGE), ("DELETE", STORAGE), ("GET", STORAGE),
        ("POST", f"{STORAGE}/clear"),
    ):  # fmt: skip
        assert ask(run, method, path, None, USER).status == 401
    assert not run.scheduler.received


def test_a_client_that_leaves_before_the_answer(run):
    """The late answer is nobody's; the core goes on."""
    with Client(run.address) as client:
        client.request("POST", "/weights_checker", None, ADMIN)
        run.scheduler.wait_for(lambda s: s.received)
    rid = run.scheduler.received[0][1]
    run.server.push_control_result(rid, b"\x80")
    run.scheduler.control["CheckWeightsReqInput"] = {**DONE, "payload": None}
    assert ask(run, "GET", "/weights_checker").json() == {"success": True, "message": ""}


def sent(run, *tags):
    """What the scheduler was sent of these, without rids."""
    return [[m[0], *m[3:]] for m in run.scheduler.received if m[0] in tags]


PAUSES = ("PauseGenerationReqInput", "AbortReq", "ContinueGenerationReqInput")


@pytest.mark.parametrize("mode", ["in_place", "retract"])
def test_a_pause(run, mode):
    body = {"text": "abcdef", "sampling_params": {"max_new_tokens": 3}}
    for _ in range(2):  # twice is as once
        answer = ask(run, "POST", "/pause_generation", {"mode": mode})
        assert (answer.status, answer.json()) == (
            200, {"message": "Generation paused successfully.", "status": "ok"},
        )  # fmt: skip
    assert sent(run, *PAUSES) == [["PauseGenerationReqInput", mode]] * 2
    assert ask(run, "GET", "/ready").status == 503
    assert ask(run, "GET", "/ping", None, USER).status == 200  # nobody is to replace it for that
    with Client(run.address) as client:
        client.request("POST", "/generate", body, USER)
        run.scheduler.wait_for(lambda s: s.live)
        answer = ask(run, "POST", "/continue_generation", {})
        assert (answer.status, answer.json()) == (
            200, {"message": "Generation continued successfully.", "status": "ok"},
        )  # fmt: skip
        assert client.answer().json()["text"] == "abc"
    assert sent(run, *PAUSES)[-1] == ["ContinueGenerationReqInput", True]
    assert ask(run, "GET", "/ready").status == 200


def test_a_pause_that_ends_what_runs(start):
    """Messages in an order that ends every request, and holds the next ones."""
    run = start(manual=True)
    with Client(run.address) as one, Client(run.address) as next_one:
        one.request("POST", "/generate", {"text": "abcdef"})
        run.scheduler.wait_for(lambda s: s.live)
        answer = ask(run, "POST", "/pause_generation", {}, {})
        assert answer.status == 200
        assert one.answer().json()["meta_info"]["finish_reason"]["type"] == "abort"
        assert sent(run, *PAUSES) == [
            ["PauseGenerationReqInput", "retract"], ["AbortReq", True, None, None],
        ]  # fmt: skip
        next_one.request(
            "POST", "/generate", {"text": "xyz", "sampling_params": {"max_new_tokens": 1}}
        )
        run.scheduler.wait_for(lambda s: s.live)
        run.scheduler.step()
        assert ask(run, "GET", "/live").status == 200 and run.scheduler.live
        wanted = {"torch_empty_cache": False}
        assert ask(run, "POST", "/continue_generation", wanted, {}).status == 200
        assert next_one.answer().json()["text"] == "x"
    assert sent(run, *PAUSES)[-1] == ["ContinueGenerationReqInput", False]


def test_a_scheduler_that_does_not_answer_is_not_called_paused(start):
    run = start(options={"health_timeout_s": 0.2, **KEYS})
    del run.scheduler.control["GetInternalStateReq"]
    for path in ("/pause_generation", "/continue_generation"):
        assert ask(run, "POST", path, {}).status == 503
    assert ask(run, "POST", "/close_session", {"session_id": "s"}, USER).status == 503
    assert ask(run, "GET", "/ready").status == 200


def test_a_session(run):
    answer = ask(run, "POST", "/open_session", {"capacity_of_str_len": 1000}, USER)
    made = answer.json()
    assert answer.status == 200 and len(made) == 32
    body = {"capacity_of_str_len": 5, "session_id": "mine", "streaming": False, "timeout": 7}
    assert ask(run, "GET", "/open_session", body, USER).json() == "mine"
    assert sent(run, "OpenSessionReqInput") == [
        ["OpenSessionReqInput", 1000, made, None, None],
        ["OpenSessionReqInput", 5, "mine", False, 7.0],
    ]
    first = {
        "text": "abc", "rid": "turn", "session_params": {"id": "mine"},
        "sampling_params": {"max_new_tokens": 1},
    }  # fmt: skip
    meta = ask(run, "POST", "/generate", first, USER).json()["meta_info"]
    generated = [m for m in run.scheduler.received if m[0] == "TokenizedGenerateReqInput"]
    at = GENERATE["session_params"]
    assert generated[-1][at] == ["mine", None, None, None, None]
    # The session knows the request by the id that the client is told.
    assert meta["id"] == generated[-1][1] and meta["id"].startswith("turn#")
    following = {
        "input_ids": [], "sampling_params": {"max_new_tokens": 0},
        "session_params": {"id": "mine", "rid": meta["id"], "offset": 3, "replace": True,
                           "drop_previous_output": False},
    }  # fmt: skip
    answer = ask(run, "POST", "/generate", following, USER)
    assert answer.status == 200, answer.body
    generated = [m for m in run.scheduler.received if m[0] == "TokenizedGenerateReqInput"]
    assert generated[-1][at] == ["mine", meta["id"], 3, True, False]
    assert run.scheduler.prompts[-1] == []
    answer = ask(run, "POST", "/close_session", {"session_id": "mine"}, USER)
    assert (answer.status, answer.body) == (200, b"")
    assert sent(run, "CloseSessionReqInput") == [["CloseSessionReqInput", "mine"]]
    run.scheduler.control["OpenSessionReqInput"] = {"success": False}
    answer = ask(run, "POST", "/open_session", body, USER)
    assert answer.status == 400 and "still open" in answer.json()["error"]["message"]


@pytest.mark.parametrize("by", ["the client's id", "the id that it was told"])
def test_a_request_of_a_session_is_ended(start, by):
    run = start(manual=True)
    with Client(run.address) as client:
        body = {"text": "abc", "rid": "turn", "session_params": {"id": "mine"}}
        client.request("POST", "/generate", body)
        run.scheduler.wait_for(lambda s: s.live)
        (wire_rid,) = run.scheduler.live
        rid = "turn" if by == "the client's id" else wire_rid
        assert ask(run, "POST", "/abort_request", {"rid": rid}, {}).status == 200
        meta = client.answer().json()["meta_info"]
    assert meta["finish_reason"]["type"] == "abort" and meta["id"] == wire_rid


def test_streaming_sessions_must_be_allowed(start):
    body = {"capacity_of_str_len": 1, "streaming": True}
    run = start()
    answer = ask(run, "POST", "/open_session", body, {})
    assert answer.status == 400 and "--enable-streaming-session" in answer.body.decode()
    assert not run.scheduler.received
    run = start(options={"streaming_session": True})
    assert ask(run, "POST", "/open_session", body, {}).status == 200
    assert sent(run, "OpenSessionReqInput")[0][3] is True


def test_logit_processors_must_be_allowed(start):
    body = {
        "text": ["abc", "abc"], "sampling_params": {"max_new_tokens": 1},
        "custom_logit_processor": ["code", None],
    }  # fmt: skip
    run = start()
    answer = ask(run, "POST", "/generate", body, {})
    assert answer.status == 400 and "--enable-custom-logit-processor" in answer.body.decode()
    assert not run.scheduler.received
    run = start(options={"custom_logit_processor": True})
    assert ask(run, "POST", "/generate", body, {}).status == 200
    at = GENERATE["custom_logit_processor"]
    assert [m[at] for m in run.scheduler.received] == ["code", None]
    chat = {"prompt": "abc", "max_tokens": 1, "custom_logit_processor": "code"}
    assert ask(run, "POST", "/v1/completions", chat, {}).status == 200
    assert run.scheduler.received[-1][at] == "code"
