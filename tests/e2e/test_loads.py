"""/v1/loads of a running server."""

from __future__ import annotations

import json
import struct
import time

import msgpack
import pytest

from tests.http_client import Client, call
from tpc_server import MetricsConfig

pytestmark = pytest.mark.timeout(60)


def loads(one, query=""):
    answer = call(one.address, "GET", f"/v1/loads{query}")
    assert answer.status == 200, answer.body
    return answer.json()


def test_from_the_scheduler_s_snapshot(start, tmp_path):
    payload = msgpack.packb({"num_running_reqs": 4, "queues": [1, 2, 3, 4, 5]})
    path = tmp_path / "loads"
    path.write_bytes(
        struct.pack("<4sHHII", b"SLNS", 2, 1, 4096, len(payload)) + payload.ljust(4092, b"\0")
    )
    one = start(
        load_snapshot_path=str(path), load_snapshot_dp_size=1, metrics=MetricsConfig(),
        accelerator="A", num_accelerators=8,
    )  # fmt: skip
    told = loads(one)
    assert told["accelerator"] == "A" and told["num_accelerators"] == 8
    assert told["loads"][0]["num_running_reqs"] == 4
    assert told["loads"][0]["queues"]["retracted"] == 4
    assert "source" not in told
    assert loads(one, "?dp_rank=1")["loads"] == []
    text = call(one.address, "GET", "/v1/loads?format=prometheus&include=core").body
    assert b'sglang_num_running_reqs{dp_rank="0"} 4\n' in text and b"queues" not in text
    page = call(one.address, "GET", "/metrics").body
    assert b"sglang:get_loads_duration_seconds_count 3.0" in page


def test_from_the_scheduler_s_state_and_our_own_counts(start):
    one = start(manual=True, metrics=MetricsConfig())
    one.scheduler.control["GetInternalStateReq"] = {"internal_state": {"num_queue_reqs": 9}}
    with Client(one.address) as client:
        client.request("POST", "/generate", {"text": "abc", "stream": True})
        one.scheduler.wait_for(lambda s: s.live)
        one.scheduler.step()
        client.head()
        client.chunk()
        deadline = time.monotonic() + 20  # states are counted and published now and then
        while (told := loads(one))["loads"][0]["num_running_reqs"] != 1:
            assert time.monotonic() < deadline
        assert told["source"] == "internal_state"
        assert told["loads"][0]["num_waiting_reqs"] == 9
    assert b"get_loads_duration_seconds_count 0.0" not in call(one.address, "GET", "/metrics").body


def test_a_silent_scheduler_does_not_keep_the_answer(start):
    one = start()
    one.scheduler.control.clear()
    told = loads(one, "?include=core&dp_rank=0")
    assert told["source"] == "frontend"
    assert set(told["loads"][0]) == {"timestamp", "dp_rank", "num_running_reqs", "num_waiting_reqs"}


def test_bad_queries_are_400(start):
    one = start()
    for named, value in (
        ("include", "x"),
        ("dp_rank", "a"),
        ("dp_rank", "1_0"),
        ("dp_rank", "%D9%A1"),
        ("format", "y"),
    ):
        answer = call(one.address, "GET", f"/v1/loads?{named}={value}")
        assert answer.status == 400
        assert named in json.loads(answer.body)["message"]
