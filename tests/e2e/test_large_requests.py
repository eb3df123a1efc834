"""Requests larger than the ring to the scheduler: they wait for room, nobody else is refused."""

from __future__ import annotations

import msgpack
import pytest

from tests import tiny_tokenizer
from tests.e2e.parity_scheduler import by_hand
from tests.e2e.test_lifecycle import until
from tests.e2e.test_placements import placed
from tests.http_client import Client
from tpc_server import ModelConfig
from tpc_server.mesh import REQUEST_RING_BYTES

MODEL = ModelConfig(context_len=2_000_000, vocab_size=tiny_tokenizer.VOCAB)
DONE = {"type": "length", "length": 2}


def prompts_of(request):
    """Length of its prompt, by the buffer."""
    return len(dict(request.buffers)["input_ids"])


def rid_of(request):
    return msgpack.unpackb(request.header, strict_map_key=False)[1]


def take_slowly(run, count):
    """All that comes, one at a time, until there are `count`."""
    found = []
    for _ in range(100_000):
        found += run.server.recv_requests(1)
        if len(found) >= count:
            return found
        run.server.wait_request(20)
    raise AssertionError(f"{len(found)} of {count} came")


@pytest.mark.parametrize("cores", [["1"], ["ingress=0", "tokenize=1", "detok=0", "egress=0"]],
                         ids=["one core", "two cores"])  # fmt: skip
def test_a_batch_of_more_than_the_ring_holds_is_served(model_folder, cores):
    ids = [[65] * 32_000] * 17
    assert REQUEST_RING_BYTES < 17 * 32_000 * 8
    with by_hand(model_folder, {"plan": placed(cores)}, model_config=MODEL) as run:
        body = {"input_ids": ids, "sampling_params": {"max_new_tokens": 2}}
        client = Client(run.address)
        run.clients.append(client)
        client.request("POST", "/generate", body)
        until(run, lambda: run.server.wait_request(10))
        found = take_slowly(run, 17)
        assert [prompts_of(request) for request in found] == [32_000] * 17
        rids = [rid_of(request) for request in found]
        run.push(*[(rid, "ok", DONE) for rid in rids])
        answer = client.answer()
        assert answer.status == 200
        assert [one["text"] for one in answer.json()] == ["ok"] * 17


def test_a_batch_of_more_than_the_ring_may_hold_requests_is_served(model_folder):
    with by_hand(model_folder, {"plan": placed(["1"])}, to_scheduler_cap=5) as run:
        client = run.send(["x"] * 40, rid="many", stream=False)
        # Nothing is taken: the ring is full, another call is told so at once.
        until(run, lambda: run.total("encoded") == 40)
        refused = run.send("abc", rid="late", stream=False).answer()
        assert refused.status == 503 and "full" in refused.json()["error"]["message"]
        found = take_slowly(run, 40)
        run.push(*[(rid_of(request), "ok", DONE) for request in found])
        assert client.answer().status == 200
        client, rid = run.open("next", stream=False)
        run.push((rid, "ok", DONE))
        assert client.answer().status == 200


def test_a_prompt_larger_than_the_ring_and_what_comes_beside_it(model_folder):
    count = REQUEST_RING_BYTES // 8 + 1000
    with by_hand(model_folder, {"plan": placed(["1"])}, model_config=MODEL) as run:
        small = run.send("abc", rid="first", stream=False)
        until(run, lambda: run.total("encoded") == 1)
        large = Client(run.address)
        run.clients.append(large)
        large.request("POST", "/generate", {"input_ids": [65] * count, "rid": "large"})
        # Half of it is in the ring, and nothing more fits: all the same nobody is refused.
        until(run, lambda: run.total("requests") == 2)
        behind = run.send("abc", rid="behind", stream=False)
        until(run, lambda: run.total("encoded") == 2)
        info = Client(run.address)
        run.clients.append(info)
        info.request("GET", "/server_info")
        until(run, lambda: run.total("requests") == 4)
        found = take_slowly(run, 4)
        names = [rid_of(request).partition("#")[0] for request in found if request.buffers]
        assert sorted(names) == ["behind", "first", "large"]
        sizes = [prompts_of(request) for request in found if request.buffers]
        assert sorted(sizes) == [3, 3, count]
        for request in found:
            if request.buffers:
                run.push((rid_of(request), "ok", DONE))
        for client in (small, large, behind):
            assert client.answer().status == 200
        assert info.answer().status == 200


def test_a_batch_that_waits_is_let_go_of_when_its_client_goes(model_folder):
    with by_hand(model_folder, {"plan": placed(["1"])}, to_scheduler_cap=5) as run:
        client = run.send(["x"] * 40, rid="many", stream=False)
        until(run, lambda: run.total("encoded") == 40)
        client.reset()
        run.clients.remove(client)
        until(run, lambda: run.total("live_requests") == 0)
        # What is there makes room first: a single request is refused while there is none.
        kinds = [bool(request.buffers) for request in take_slowly(run, 5)]
        run.send("abc", rid="next", stream=False)
        rid = None
        while rid is None:
            for request in run.server.recv_requests(1):
                kinds.append(bool(request.buffers))
                if rid_of(request).startswith("next#"):
                    rid = rid_of(request)
            run.server.wait_request(20)
        # What was in the ring already, and its aborts; nothing of what waited.
        assert sum(kinds) <= 7
