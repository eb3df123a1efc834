"""/v1/loads: SGLang's snapshot file, the scheduler's internal state, our own counts."""

from __future__ import annotations

import fcntl
import json
import os
import struct
from pathlib import Path

import msgpack
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tpc_server.boundary.server_args import ServerArgs
from tpc_server.contract.errors import BadRequest
from tpc_server.loads import LoadFacts, LoadReader, parse_query, render

SLOT = 16 * 1024
ALL = parse_query(b"")
# As recorded from SGLang (`/v1/loads` of both frontends): every field of a load, in its order.
SNAPSHOT = {
    "timestamp": 1795996608.209274, "num_running_reqs": 2, "num_waiting_reqs": 1,
    "num_used_tokens": 77, "max_total_num_tokens": 8192, "max_running_requests": 4,
    "gen_throughput": 389.44, "total_prefill_uncached_tokens": 56,
    "decode_moments": [369.0, 810.0, 2746587.0, 2462.0, 7039281.0, 810.0],
    "memory": [0.023, 0.008, 0.0, 8192], "disaggregation": ["null"], "queues": [1, 0, 0, 0, 0],
}  # fmt: skip
CORE = [
    "timestamp", "dp_rank", "num_running_reqs", "num_waiting_reqs", "num_waiting_uncached_tokens",
    "num_used_tokens", "num_total_tokens", "num_active_tokens", "num_prealloc_ready_tokens",
    "max_total_num_tokens", "max_running_requests", "token_usage", "gen_throughput",
    "cache_hit_rate", "utilization", "total_prefill_uncached_tokens", "total_prefill_busy_us",
    "decode_moments",
]  # fmt: skip


def write(path: Path, *slots: bytes, magic=b"SLNS", version=2) -> Path:
    """A file as SGLang's scheduler keeps it."""
    data = struct.pack("<4sHHI", magic, version, len(slots), SLOT)
    for slot in slots:
        data += (struct.pack("<I", len(slot)) + slot).ljust(SLOT, b"\0")
    path.write_bytes(data)
    return path


def facts(path, rank=0, size=1, **more):
    return LoadFacts(
        ServerArgs(
            load_snapshot_path=str(path), load_snapshot_dp_rank=rank, load_snapshot_dp_size=size,
            version="0.5.23", accelerator="H", num_accelerators=2, **more,
        )
    )  # fmt: skip


def answer(reader, query=b""):
    body, content_type = reader.answer(parse_query(query))
    assert content_type == b"application/json"
    return json.loads(body)


def test_a_snapshot_is_shown_as_sglang_shows_it(tmp_path):
    path = write(tmp_path / "loads", msgpack.packb(SNAPSHOT))
    body = answer(LoadReader(facts(path)))
    assert list(body) == ["timestamp", "version", "accelerator", "num_accelerators", "loads"]
    assert (body["version"], body["accelerator"], body["num_accelerators"]) == ("0.5.23", "H", 2)
    (load,) = body["loads"]
    assert list(load) == [*CORE, "memory", "disaggregation", "queues"]
    assert load["num_running_reqs"] == 2 and load["num_total_tokens"] == 0
    assert load["decode_moments"] == SNAPSHOT["decode_moments"]
    assert load["memory"] == {
        "weight_gb": 0.023, "kv_cache_gb": 0.008, "graph_gb": 0.0, "token_capacity": 8192,
    }  # fmt: skip
    assert load["disaggregation"]["mode"] == "null"
    assert load["disaggregation"]["kv_transfer_latency_ms"] == 0
    assert load["queues"] == {
        "waiting": 1, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0,
    }  # fmt: skip


def test_sections_and_ranks(tmp_path):
    two = [msgpack.packb({**SNAPSHOT, "dp_rank": k}) for k in range(2)]
    reader = LoadReader(facts(write(tmp_path / "loads", *two), rank=1, size=2))
    assert [load["dp_rank"] for load in answer(reader)["loads"]] == [1]  # this frontend's own
    assert answer(reader, b"dp_rank=0")["loads"] == []
    assert list(answer(reader, b"include=core")["loads"][0]) == CORE
    assert list(answer(reader, b"include=queues,%20memory")["loads"][0]) == [
        *CORE, "memory", "queues",
    ]  # fmt: skip
    assert len(answer(reader, b"include=core,all&dp_rank=1")["loads"][0]) == len(CORE) + 3


@pytest.mark.parametrize("query", [b"include=cores", b"dp_rank=x", b"dp_rank=", b"format=xml"])
def test_bad_queries_name_the_parameter(query):
    with pytest.raises(BadRequest, match=query.split(b"=")[0].decode()):
        parse_query(query)


def test_as_prometheus_text(tmp_path):
    reader = LoadReader(facts(write(tmp_path / "loads", msgpack.packb(SNAPSHOT))))
    body, content_type = reader.answer(parse_query(b"format=prometheus"))
    assert content_type == b"text/plain; version=0.0.4; charset=utf-8"
    found = {
        s.name: s.value
        for family in text_string_to_metric_families(body.decode()) for s in family.samples
        if s.labels == {"dp_rank": "0"} and family.type == "gauge"
    }  # fmt: skip
    assert found["sglang_num_running_reqs"] == 2 and found["sglang_gen_throughput"] == 389.44
    assert found["sglang_memory_token_capacity"] == 8192 and found["sglang_queues_waiting"] == 1
    assert found["sglang_disagg_prefill_inflight_queue_reqs"] == 0
    assert "sglang_dp_rank" not in found and "sglang_disagg_mode" not in found


def test_the_newest_snapshot_is_read_each_time(tmp_path):
    path = write(tmp_path / "loads", msgpack.packb({"num_running_reqs": 1}))
    reader = LoadReader(facts(path))
    assert answer(reader)["loads"][0]["num_running_reqs"] == 1
    payload = msgpack.packb({"num_running_reqs": 9})
    with path.open("r+b") as file:
        file.seek(12)
        file.write(struct.pack("<I", len(payload)) + payload)
    assert answer(reader)["loads"][0]["num_running_reqs"] == 9
    reader.close()


def test_a_writer_that_hangs_does_not_hold_up_the_reader(tmp_path):
    path = write(tmp_path / "loads", msgpack.packb(SNAPSHOT))
    reader = LoadReader(facts(path))
    with path.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert len(answer(reader)["loads"]) == 1


def test_what_cannot_be_read_is_no_load(tmp_path):
    good = msgpack.packb(SNAPSHOT)
    cases = [
        tmp_path / "missing",
        write(tmp_path / "magic", good, magic=b"XXXX"),
        write(tmp_path / "version", good, version=3),
        write(tmp_path / "empty slot", b""),
        write(tmp_path / "garbage", b"\xc1garbage"),
        write(tmp_path / "list", msgpack.packb([1])),
    ]
    (tmp_path / "short").write_bytes(good[:4])
    (tmp_path / "nothing").write_bytes(b"")
    for path in [*cases, tmp_path / "short", tmp_path / "nothing"]:
        assert answer(LoadReader(facts(path)))["loads"] == [], path
    path = write(tmp_path / "rank", good)
    assert answer(LoadReader(facts(path, rank=1, size=2)))["loads"] == []
    os.truncate(write(tmp_path / "cut", good, good), SLOT)
    assert answer(LoadReader(facts(tmp_path / "cut", size=2)))["loads"] == []


def test_a_file_that_comes_later_is_found(tmp_path):
    reader = LoadReader(facts(tmp_path / "loads"))
    assert answer(reader)["loads"] == []
    write(tmp_path / "loads", msgpack.packb(SNAPSHOT))
    assert len(answer(reader)["loads"]) == 1


def test_numbers_that_json_cannot_say_are_null(tmp_path):
    odd = {"gen_throughput": float("nan"), "decode_moments": [float("inf")], "memory": [1, 2, b"x"]}
    reader = LoadReader(facts(write(tmp_path / "loads", msgpack.packb(odd))))
    (load,) = answer(reader)["loads"]
    assert load["gen_throughput"] is None and load["decode_moments"] == [None]
    assert load["memory"]["graph_gb"] is None and load["memory"]["token_capacity"] == 0


def test_without_a_snapshot_the_scheduler_is_asked():
    known = LoadFacts(ServerArgs(max_total_num_tokens=100, deployment_info='{"dp_rank": 3}'))
    counters = {"0": {"tokenizing": 1, "queued": 2, "decoding": 3}}
    state = {
        "last_gen_throughput": 12.5, "num_queue_reqs": 7, "token_usage": float("nan"),
        "memory_usage": {"weight": 1.5, "kvcache": 2, "api_key": "secret"}, "api_key": "secret",
    }  # fmt: skip
    status, body, _ = render(known, ALL, msgpack.packb({"internal_state": state}), counters)
    told = json.loads(body)
    assert status == 200 and told["source"] == "internal_state" and b"secret" not in body
    (load,) = told["loads"]
    del load["timestamp"]
    assert load == {
        "dp_rank": 3, "gen_throughput": 12.5, "num_waiting_reqs": 7, "num_running_reqs": 3,
        "max_total_num_tokens": 100, "memory": {"weight_gb": 1.5, "kv_cache_gb": 2},
    }  # fmt: skip


@pytest.mark.parametrize("payload", [None, msgpack.packb({}), msgpack.packb([1])])
def test_a_scheduler_that_says_nothing_leaves_our_own_counts(payload):
    counters = {str(k): {"tokenizing": 1, "queued": 2, "decoding": 3} for k in range(2)}
    _, body, _ = render(LoadFacts(ServerArgs()), ALL, payload, counters)
    told = json.loads(body)
    assert told["source"] == "frontend"
    assert told["loads"][0]["num_running_reqs"] == 6 and told["loads"][0]["num_waiting_reqs"] == 6


RECORDED = """{
"timestamp": "2026-11-29T23:56:48.209781+00:00", "version": "0.5.23", "accelerator": null,
"num_accelerators": 1, "loads": [{
"timestamp": 1795996608.209274, "dp_rank": 0, "num_running_reqs": 0, "num_waiting_reqs": 0,
"num_waiting_uncached_tokens": 0, "num_used_tokens": 0, "num_total_tokens": 0,
"num_active_tokens": 0, "num_prealloc_ready_tokens": 0, "max_total_num_tokens": 8192,
"max_running_requests": 4, "token_usage": 0.0, "gen_throughput": 389.44, "cache_hit_rate": 0.0,
"utilization": 0.0, "total_prefill_uncached_tokens": 56, "total_prefill_busy_us": 482872,
"decode_moments": [369.0, 810.0, 2746587.0, 2462.0, 7039281.0, 810.0],
"memory": {"weight_gb": 0.023, "kv_cache_gb": 0.008, "graph_gb": 0.0, "token_capacity": 8192},
"disaggregation": {"mode": "null", "prefill_bootstrap_queue_reqs": 0,
"prefill_inflight_queue_reqs": 0, "decode_prealloc_queue_reqs": 0,
"decode_transfer_queue_reqs": 0, "decode_retracted_queue_reqs": 0, "kv_transfer_speed_gb_s": 0.0,
"kv_transfer_latency_ms": 0.0},
"queues": {"waiting": 0, "grammar": 0, "paused": 0, "retracted": 0, "prealloc_ready": 0}}]}"""


def test_a_recorded_load_comes_out_as_recorded(tmp_path):
    """What SGLang's Python frontend answered, from a file its scheduler would have written."""
    recorded = json.loads(RECORDED)
    snapshot = {
        # Sections are arrays there, and what equals its default is left out.
        name: list(value.values()) if isinstance(value, dict) else value
        for name, value in recorded["loads"][0].items()
        if value
    }
    path = write(tmp_path / "loads", msgpack.packb(snapshot))
    args = ServerArgs(
        load_snapshot_path=str(path), load_snapshot_dp_size=1, version="0.5.23",
        num_accelerators=1,
    )  # fmt: skip
    body = answer(LoadReader(LoadFacts(args)))
    body["timestamp"] = recorded["timestamp"]
    assert json.dumps(body) == json.dumps(recorded)
