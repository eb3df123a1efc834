"""Control routes and what SGLang's programs read, of the real scheduler. Owner: pytest."""

from __future__ import annotations

import hashlib

import pytest

from tests.e2e.parity_replay import recording
from tests.http_client import Client, call

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(400)]
# Of GET /server_info: SGLang's benchmarks, kits and `bench_serving`, by `grep server_info`.
READ = (
    "tokenizer_path", "page_size", "disable_radix_cache", "speculative_algorithm",
    "speculative_eagle_topk", "disable_cuda_graph", "tp_size", "max_total_num_tokens",
    "max_req_input_len", "status", "kv_events", "startup_time", "version",
)  # fmt: skip
READ_OF_STATE = (
    "last_gen_throughput", "effective_max_running_requests_per_dp", "memory_usage", "dp_size",
    "attn_dp_size", "rust_mm_transport",
)  # fmt: skip


def test_weights(sglang):
    """The same checksums as when they were recorded: its dummy weights are always the same."""
    answer = call(sglang.address, "GET", "/weights_checker")
    assert answer.status == 200, answer.body
    told = answer.json()
    recorded = recording()[-1]["decoded"]["payload"]
    assert told["success"] is True and told["ranks"] == recorded
    whole = hashlib.sha256(recorded[0]["per_gpu_checksum"].encode()).hexdigest()
    assert told["per_engine_checksum"] == whole
    answer = call(sglang.address, "POST", "/weights_checker", {"action": "no such action"})
    assert answer.status == 400 and answer.json()["success"] is False and answer.json()["message"]
    body = {"action": "checksum", "skip_tensor_list": ["lm_head"], "selector": "target"}
    names = call(sglang.address, "POST", "/weights_checker", body).json()["ranks"][0]["checksums"]
    assert names and "lm_head.weight" not in names


def test_storage_of_a_scheduler_without_one(sglang):
    answer = call(sglang.address, "POST", "/hicache/storage-backend/clear")
    assert answer.status == 400 and b"Failed" in answer.body
    for method in ("GET", "PUT", "DELETE"):
        answer = call(sglang.address, method, "/hicache/storage-backend")
        assert answer.status == 400 and "admin" in answer.json()["error"]["message"]


def test_what_programs_read(sglang):
    info = call(sglang.address, "GET", "/server_info").json()
    assert [name for name in READ if name not in info] == []
    (state,) = info["internal_states"]
    assert [name for name in READ_OF_STATE if name not in state] == []
    assert state["memory_usage"]["token_capacity"] == info["max_total_num_tokens"] == 8192
    assert "launch_command" not in info and "api_key" not in info


def test_routers_headers(sglang):
    body = {"prompt": "Hello", "max_tokens": 1, "temperature": 0}
    with Client(sglang.address) as client:
        said = {"X-Data-Parallel-Rank": "0", "X-SMG-Routing-Key": "k"}
        client.request("POST", "/v1/completions", body, said)
        assert client.answer().status == 200
        client.request("POST", "/v1/completions", body, {"X-Data-Parallel-Rank": "one"})
        assert client.answer().status == 400
