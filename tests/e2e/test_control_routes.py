"""Weights and the storage behind the cache: control messages of the scheduler, over sockets."""

from __future__ import annotations

import hashlib

import pytest

from tests.e2e.test_placements import placed
from tests.http_client import Client

pytestmark = pytest.mark.timeout(60)
ADMIN = {"Authorization": "Bearer chief-key"}
DONE = {"rid": None, "http_worker_ipc": None, "success": True, "message": ""}
RANK = {
    "checksums": {"lm_head.weight": "e7"}, "per_gpu_checksum": "d2b4",
    "parallelism_info": [{"role": "target", "tp_rank": 0}],
}  # fmt: skip
STORAGE = "/hicache/storage-backend"
FIELDS = (
    "hicache_storage_backend", "hicache_storage_backend_extra_config",
    "hicache_storage_prefetch_policy", "hicache_write_policy",
)  # fmt: skip


@pytest.fixture(params=["1", "ingress=0 tokenize=1 detok=2 egress=3"])
def run(start, request):
    """All stages on one core, and each on its own; a server with an admin key."""
    plan = placed(request.param.split())
    keys = {"api_keys": ("user-key",), "admin_api_keys": ("chief-key",)}
    return start(options={"plan": plan, "health_timeout_s": 0.2, **keys})


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
    user = {"Authorization": "Bearer user-key"}
    for method in ("GET", "PUT", "DELETE"):
        assert ask(run, method, STORAGE, {}, {}).status == 401
        answer = ask(run, method, STORAGE, {}, user)
        assert answer.status == 400 and "admin" in answer.json()["error"]["message"]
    assert not run.scheduler.received
    run.scheduler.control["ClearHiCacheReqInput"] = DONE
    assert ask(run, "POST", f"{STORAGE}/clear", None, user).status == 200


def test_the_admins_alone_where_there_is_one(run):
    user = {"Authorization": "Bearer user-key"}
    for method, path in (
        ("GET", "/weights_checker"), ("PUT", STORAGE), ("DELETE", STORAGE), ("GET", STORAGE),
        ("POST", f"{STORAGE}/clear"),
    ):  # fmt: skip
        assert ask(run, method, path, None, user).status == 401
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
