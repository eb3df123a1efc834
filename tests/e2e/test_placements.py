"""Any placement of the four stages answers the same; masks of the real threads."""

from __future__ import annotations

import os

import pytest

from tests.http_client import Client, call
from tpc_server.affinity import topology
from tpc_server.affinity.plan import PlanSettings, parse_cores, plan

PLACEMENTS = (
    ["1"],
    ["2"],
    ["0,1,2"],
    ["ingress=0", "tokenize=1", "detok=2", "egress=3"],
    ["ingress=0,1", "tokenize=2,3", "detok=0,1", "egress=0,1"],
    ["ingress=0,1", "tokenize=2", "detok=3", "egress=1,0"],
    ["ingress=0", "tokenize=0", "detok=1", "egress=1"],
)


def placed(values):
    """A plan for this machine, however few CPUs it has."""
    return plan(topology.read(), PlanSettings(cores=parse_cores(values)))


@pytest.mark.parametrize("values", PLACEMENTS, ids=" ".join)
def test_every_placement_serves(start, values):
    core_plan = placed(values)
    run = start(options={"plan": core_plan})
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 6}}
    with Client(run.address) as client:
        for _ in range(3):
            assert client.call("POST", "/generate", body).json()["text"] == "abcabc"
        events = client.call("POST", "/generate", {**body, "stream": True}).events()
        assert [e["text"] for e in events[:-1]] == ["abcabc"[:k] for k in range(1, 7)]
        batch = client.call("POST", "/generate", {**body, "text": ["ab", "c"]}).json()
        assert [b["text"] for b in batch] == ["ababab", "cccccc"]
        assert client.call("POST", "/generate", {"text": "a" * 5000}).status == 400
        assert client.call("GET", "/health").status == 200
    assert call(run.address, "GET", "/nope").status == 404


@pytest.mark.parametrize("values", PLACEMENTS, ids=" ".join)
def test_every_placement_aborts_and_notices_resets(start, values):
    run = start(options={"plan": placed(values)}, manual=True)
    body = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 50}}
    client = Client(run.address)
    client.request("POST", "/generate", {**body, "rid": "one"})
    other = Client(run.address)
    other.request("POST", "/generate", {**body, "rid": "two"})
    run.scheduler.wait_for(lambda s: len(s.live) == 2)
    run.scheduler.step(2)
    client.head()
    client.chunk()
    client.reset()
    run.scheduler.wait_for(lambda s: any(r.startswith("one#") for r in s.aborted))
    assert call(run.address, "POST", "/abort_request", {"rid": "two"}).status == 200
    events = other.answer().events()
    assert events[-1] == "[DONE]"
    assert events[-2]["meta_info"]["finish_reason"]["type"] == "abort"
    other.close()


def test_threads_run_on_the_cpus_of_the_plan(start):
    core_plan = placed(["ingress=0", "tokenize=1", "detok=2", "egress=3"])
    run = start(options={"plan": core_plan})
    for core, spec in zip(run.server.cores, core_plan.cores, strict=True):
        assert spec.cpus
        assert os.sched_getaffinity(core.native_id) == set(spec.cpus)


def dealt(count):
    """That many CPUs that this process may use, the same ones again where there are fewer."""
    allowed = sorted(os.sched_getaffinity(0))
    return [allowed[k % len(allowed)] for k in range(count)]


def test_threads_run_on_the_cores_that_the_server_is_given(start):
    """SGLang's way: two I/O threads, then the tokenizers', then the detokenizers'."""
    cpus = dealt(5)
    run = start(server={"cores": cpus}, tokenizer_worker_num=2)
    masks = [os.sched_getaffinity(core.native_id) for core in run.server.cores]
    assert masks == [{cpu} for cpu in (cpus[0], cpus[1], cpus[4], cpus[2], cpus[3])]
    assert run.server.plan.stage_cores("tokenize") == (3, 4)
    body = {"text": "abc", "sampling_params": {"max_new_tokens": 6}}
    for _ in range(4):
        assert call(run.address, "POST", "/generate", body).json()["text"] == "abcabc"


@pytest.mark.parametrize("cores", [None, [], dealt(3)], ids=["none", "empty", "too few"])
def test_without_enough_cores_no_thread_is_pinned(start, cores):
    run = start(server={"cores": cores})
    allowed = os.sched_getaffinity(0)
    assert {frozenset(os.sched_getaffinity(c.native_id)) for c in run.server.cores} == {
        frozenset(allowed)
    }
    assert bool(run.server.plan.warnings) == bool(cores)
    assert call(run.address, "GET", "/health").status == 200


def test_a_mask_that_was_narrowed_before_is_kept_unless_cores_are_given(start):
    before = os.sched_getaffinity(0)
    only = max(before)
    os.sched_setaffinity(0, {only})
    try:
        run = start()
        assert all(os.sched_getaffinity(c.native_id) == {only} for c in run.server.cores)
        given = sorted(before)[:1] * 4
        run = start(server={"cores": given})
        assert all(os.sched_getaffinity(c.native_id) == set(given) for c in run.server.cores)
        assert os.sched_getaffinity(0) == {only}
    finally:
        os.sched_setaffinity(0, before)


def test_long_streams_spread_over_the_io_cores(start):
    run = start(options={"plan": placed(["2"])}, manual=True)
    clients = [Client(run.address) for _ in range(8)]
    for k, client in enumerate(clients):
        client.request("POST", "/generate", {"text": "abc", "rid": f"r{k}", "stream": True})
        run.scheduler.wait_for(lambda s, k=k: len(s.live) == k + 1)
    for _ in range(600):
        open_now = [c["connections"] for c in run.server.counters()]
        if sum(open_now) == 8:
            break
        run.server.wait_event(50)
    assert sorted(open_now) in ([3, 5], [4, 4])
    for client in clients:
        client.close()
