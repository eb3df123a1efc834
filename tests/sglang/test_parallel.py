"""Several schedulers: tensor parallel ranks, leaders of data parallel attention. Owner: pytest.

On CPU SGLang needs two variables for that: which CPUs each rank has, and no NCCL, whose library its
CUDA build of torch brings.
"""

from __future__ import annotations

import os
import signal
import threading

import psutil
import pytest

from tests.http_client import Client, call
from tests.sglang.serving import SGLang, reason_at_end, refused, until
from tests.sglang.test_life import HELLO, IDS, begin_stream, in_use

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(600)]
TP = ("--tp", "2")
DP = (*TP, "--dp", "2", "--enable-dp-attention")


def variables():
    cpus = sorted(os.sched_getaffinity(0))
    return {
        "SGLANG_CPU_OMP_THREADS_BIND": f"{cpus[0]}|{cpus[-1]}",
        "SGLANG_NCCL_SO_PATH": "/no/nccl/here",
    }


def by_rank(sglang):
    """Schedulers in the order of their ranks."""
    return sorted(sglang.schedulers(), key=lambda process: process.cmdline())


def end_of(sglang, tree):
    """It ends as by a signal, and nothing is left."""
    assert sglang.process.wait(60) == -signal.SIGTERM
    until(lambda: not [p for p in tree if p.is_running() and p.status() != psutil.STATUS_ZOMBIE])


@pytest.fixture(scope="module")
def tensor(prepared, tmp_path_factory):
    log = tmp_path_factory.mktemp("tp") / "log"
    with SGLang(prepared, log, "tpc", TP, variables()) as one:
        yield one.wait()


def test_only_the_first_rank_has_a_frontend(tensor):
    first, second = by_rank(tensor)
    (frontend,) = tensor.frontends()
    assert frontend.ppid() == first.pid
    assert [p.pid for p in second.children(recursive=True)] == []
    assert call(tensor.address, "GET", "/server_info").json()["tp_size"] == 2


def test_answers_of_two_ranks(tensor):
    bodies = [{**HELLO, "rid": f"tp{k}", "stream": k % 2 == 1} for k in range(16)]
    found = []

    def ask(body):
        with Client(tensor.address, timeout=120) as client:
            answer = client.call("POST", "/generate", body)
        found.append((answer.events()[-2] if body["stream"] else answer.json())["output_ids"])

    threads = [threading.Thread(target=ask, args=(body,)) for body in bodies]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert found == [IDS] * len(bodies)
    until(lambda: in_use(tensor) == 0)


def test_an_abort_reaches_both(tensor):
    with Client(tensor.address) as client:
        begin_stream(tensor, client, "long")
        assert in_use(tensor) == 1
        client.reset()
    until(lambda: in_use(tensor) == 0)
    assert call(tensor.address, "POST", "/generate", HELLO).json()["output_ids"] == IDS


def test_zz_sigterm_to_all_processes_drains_first(tensor):
    """As from systemd, which also tells the frontend; a rank without one does not end the others
    by ending first."""
    with Client(tensor.address, timeout=120) as client:
        begin_stream(tensor, client, "last", tokens=200)
        tree = tensor.tree()
        for process in (psutil.Process(tensor.process.pid), *tree):
            process.send_signal(signal.SIGTERM)
        until(lambda: refused(tensor.address))
        assert reason_at_end(client) == {"type": "length", "length": 200}
    end_of(tensor, tree)


@pytest.fixture(scope="module")
def leaders(prepared, tmp_path_factory):
    """Without a step: SGLang's attention backend for such CPUs has none for ranks together."""
    env = {**variables(), "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION": "0"}
    log = tmp_path_factory.mktemp("dp") / "log"
    flags = (*DP, "--skip-server-warmup")
    with SGLang(prepared, log, "tpc", flags, env) as one:
        one.wait()
        until(lambda: call(second(one), "GET", "/health").status == 200)
        yield one


def second(sglang):
    """Where the second leader listens."""
    return sglang.address[0], sglang.port + 1


def test_each_leader_has_a_frontend(leaders):
    frontends = {p.ppid(): p for p in leaders.frontends()}
    assert set(frontends) == {p.pid for p in by_rank(leaders)} and len(frontends) == 2
    for rank, address in enumerate((leaders.address, second(leaders))):
        info = call(address, "GET", "/server_info").json()
        (state,) = info["internal_states"]
        assert (info["frontend"], state["attn_dp_size"]) == ("tpc", 2)
        (load,) = call(address, "GET", f"/v1/loads?dp_rank={rank}").json()["loads"]
        assert load["dp_rank"] == rank
        assert call(address, "POST", "/flush_cache").status == 200


def test_a_frontend_that_is_killed_is_one_leaders(leaders):
    first, other = by_rank(leaders)
    before = {p.ppid(): p for p in leaders.frontends()}
    before[other.pid].send_signal(signal.SIGKILL)
    with Client(second(leaders), timeout=120) as client:  # it waits in the port's queue
        assert client.call("GET", "/server_info").json()["frontend"] == "tpc"
    after = {p.ppid(): p for p in leaders.frontends()}
    assert after[first.pid] == before[first.pid] and after[other.pid] != before[other.pid]


def test_zz_sigterm_ends_all_leaders(leaders):
    tree = leaders.tree()
    leaders.process.send_signal(signal.SIGTERM)
    until(lambda: refused(second(leaders)) and refused(leaders.address))
    end_of(leaders, tree)
