"""Aborts, disconnects, crowds, and processes that die: the scheduler goes on. Owner: pytest."""

from __future__ import annotations

import json
import os
import signal
import threading
import time

import psutil
import pytest

from tests.http_client import Client, call
from tests.sglang import programs
from tests.sglang.serving import reason_at_end, refused, until
from tpc_server.link import control

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(400)]

HELLO = {
    "text": "Hello world",
    "sampling_params": {"temperature": 0, "max_new_tokens": 6, "ignore_eos": True},
}
IDS = [36327, 31669, 24256, 31669, 24256, 31669]
LONG = {"temperature": 0, "max_new_tokens": 1500, "ignore_eos": True}
SHORT = {"temperature": 0, "max_new_tokens": 2, "ignore_eos": True}


def in_use(sglang):
    """Requests that SGLang's scheduler runs or holds."""
    loads = call(sglang.address, "GET", "/v1/loads").json()["loads"]
    return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)


def begin_stream(sglang, client, rid, tokens=1500):
    """Ask for a stream and read its first event."""
    params = {**LONG, "max_new_tokens": tokens}
    body = {"text": "Hello world", "rid": rid, "stream": True, "sampling_params": params}
    client.request("POST", "/generate", body)
    assert client.head()[0] == 200
    return client.chunk()


def test_who_runs(sglang):
    info = call(sglang.address, "GET", "/server_info").json()
    assert (info["frontend"], info["mode"], info["gil_enabled"]) == ("tpc", "sidecar", False)
    assert info["version"] == "0.5.23"
    assert info["startup_time"]["tokenizer_e2e"] > info["startup_time"]["scheduler_e2e"] > 0
    (scheduler,), (frontend,) = sglang.schedulers(), sglang.frontends()
    assert frontend.ppid() == scheduler.pid
    # Nothing of an operator's secrets, nor any argument, is on its command line.
    assert [word for word in frontend.cmdline() if word.startswith("--")] == ["--sidecar"]


def test_an_abort(sglang):
    answers = []

    def ask(rid):
        body = {"text": "Hello world", "rid": rid, "sampling_params": LONG}
        answers.append((rid, call(sglang.address, "POST", "/generate", body)))

    threads = [threading.Thread(target=ask, args=(f"run{k}",)) for k in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: in_use(sglang) == 3)
    assert call(sglang.address, "POST", "/abort_request", {"rid": "run1"}).status == 200
    threads[1].join(60)
    (rid, answer), = answers  # fmt: skip
    meta = answer.json()["meta_info"]
    assert (rid, answer.status, meta["finish_reason"]["type"]) == ("run1", 200, "abort")
    assert call(sglang.address, "POST", "/abort_request", {"abort_all": True}).status == 200
    for thread in threads:
        thread.join(60)
    reasons = [answer.json()["meta_info"]["finish_reason"]["type"] for _, answer in answers]
    assert reasons == ["abort"] * 3
    until(lambda: in_use(sglang) == 0)


def test_who_hangs_up_is_aborted(sglang):
    """They end before one that asked for less, which still runs."""
    clients = [Client(sglang.address) for _ in range(4)]
    with Client(sglang.address, timeout=60) as stays:
        begin_stream(sglang, stays, "stays", tokens=1000)
        for k, client in enumerate(clients):
            begin_stream(sglang, client, f"gone{k}")
        until(lambda: in_use(sglang) == 5)
        for client in clients:
            client.reset()
        until(lambda: in_use(sglang) == 1)
        assert call(sglang.address, "POST", "/abort_request", {"rid": "stays"}).status == 200
        assert reason_at_end(stays)["type"] == "abort"
    until(lambda: in_use(sglang) == 0)


def test_a_crowd_of_short_requests(sglang):
    """500 at once: each gets its own answer."""
    prompts = [f"number {k} of many" for k in range(500)]
    found: dict[int, tuple[int, list[int]]] = {}

    def ask(k):
        body = {"text": prompts[k], "rid": f"crowd{k}", "sampling_params": SHORT}
        with Client(sglang.address, timeout=300) as client:
            answer = client.call("POST", "/generate", body)
        assert answer.json()["meta_info"]["id"] == f"crowd{k}"
        found[k] = (answer.status, answer.json()["output_ids"])

    threads = [threading.Thread(target=ask, args=(k,)) for k in range(500)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(found) == 500 and all(status == 200 for status, _ in found.values())
    for k in (0, 250, 499):  # asked alone, the same
        body = {"text": prompts[k], "sampling_params": SHORT}
        assert call(sglang.address, "POST", "/generate", body).json()["output_ids"] == found[k][1]
    until(lambda: in_use(sglang) == 0)


def test_cached_tokens_across_a_flush(sglang):
    body = {**HELLO, "text": "a prompt of some length that is asked for twice in a row"}

    def cached():
        return call(sglang.address, "POST", "/generate", body).json()["meta_info"]["cached_tokens"]

    assert call(sglang.address, "POST", "/flush_cache").status == 200
    assert cached() == 0
    assert cached() > 5
    assert call(sglang.address, "POST", "/flush_cache").status == 200
    assert cached() == 0


def test_logprob_columns_belong_to_their_tokens(sglang):
    """The chosen id is the greedy one, its logprob the largest; lists are as long as they say."""
    params = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
    body = {"text": "The quick brown fox", "sampling_params": params, "return_logprob": True,
            "logprob_start_len": 0, "top_logprobs_num": 3}  # fmt: skip
    answer = call(sglang.address, "POST", "/generate", body).json()
    meta = answer["meta_info"]
    chosen, top = meta["output_token_logprobs"], meta["output_top_logprobs"]
    assert len(chosen) == len(top) == meta["completion_tokens"] == 8
    assert [row[1] for row in chosen] == answer["output_ids"]
    for (value, _, _), rows in zip(chosen, top, strict=True):
        assert [r[0] for r in rows] == sorted([r[0] for r in rows], reverse=True)
        assert abs(value - rows[0][0]) < 1e-5
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    assert meta["input_token_logprobs"][0][0] is None and meta["input_top_logprobs"][0] is None


def test_idle_costs_nothing(sglang):
    """CPU time of all threads of scheduler and frontend, by /proc."""
    watched = sglang.schedulers() + sglang.frontends()
    assert len(watched) == 2
    until(lambda: in_use(sglang) == 0)

    def used():
        return [sum(process.cpu_times()[:2]) for process in watched]

    before = used()
    threading.Event().wait(10.0)
    spent = [after - was for after, was in zip(used(), before, strict=True)]
    print("of 10 s:", spent)
    assert max(spent) < 0.5, spent


def test_the_frontend_is_killed_in_mid_stream(sglang):
    (scheduler,), (frontend,) = sglang.schedulers(), sglang.frontends()
    with Client(sglang.address) as client:
        begin_stream(sglang, client, "cut", tokens=7000)
        frontend.send_signal(signal.SIGKILL)
        with pytest.raises((EOFError, ConnectionError)):
            while True:
                client.chunk()
    # Connections wait in the port's queue until the next one takes them.
    began = time.monotonic()
    with Client(sglang.address, timeout=60) as client:
        answer = client.call("POST", "/generate", HELLO)
    assert (answer.status, answer.json()["output_ids"]) == (200, IDS)
    print(f"served again after {time.monotonic() - began:.1f} s")
    (again,) = sglang.frontends()
    assert again.pid != frontend.pid
    assert [p.pid for p in sglang.schedulers()] == [scheduler.pid]
    # What it had is aborted: not one of its 7000 steps is taken for long.
    some = {"text": "Hello world", "sampling_params": {**LONG, "max_new_tokens": 250}}
    for _ in range(8):
        assert call(sglang.address, "POST", "/generate", some).status == 200
        if in_use(sglang) == 0:
            break
    assert in_use(sglang) == 0
    assert sorted(psutil.Process(again.pid).cpu_affinity()) == sorted(os.sched_getaffinity(0))


def tell(sglang, command):
    """What a program of ours says, run by SGLang's Python."""
    said = programs.run(sglang, "-m", "tpc_server", command, "--port", str(sglang.port))
    return json.loads(said)


def test_the_frontend_is_replaced_under_load(sglang):
    """By SIGHUP, by `tpc-server reload`: a new process takes over, no request is lost."""
    answers: list[int] = []
    failures: list[BaseException] = []
    over = threading.Event()

    def ask():
        try:
            while not over.is_set():
                with Client(sglang.address, timeout=60) as client:
                    for _ in range(3):
                        answer = client.call("POST", "/generate", HELLO)
                        assert answer.json()["output_ids"] == IDS
                        answers.append(answer.status)
                        if answer.headers.get("connection") == "close":
                            break
        except BaseException as error:
            failures.append(error)

    def replace(how):
        (old,) = sglang.frontends()
        how(old.pid)
        until(lambda: [p.pid for p in sglang.frontends()] not in ([], [old.pid]))
        until(lambda: len(sglang.frontends()) == 1)
        assert sglang.frontends() != [old]

    def reload(pid):
        assert pid in tell(sglang, "status")["pids"]
        said = tell(sglang, "reload")
        assert said["ok"] is True and len({*said["pids"]} - {pid}) == 1

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        replace(lambda pid: os.kill(pid, signal.SIGHUP))
        replace(reload)
    finally:
        over.set()
        for thread in threads:
            thread.join(90)
    assert failures == [] and len(answers) > 10 and set(answers) == {200}
    assert len(sglang.frontends()) == 1


def test_zz_sigterm_drains_first(sglang):
    """The last of this module: it ends the shared SGLang."""
    with Client(sglang.address, timeout=60) as client:
        begin_stream(sglang, client, "last", tokens=200)
        tree = sglang.tree()
        path = control.folder() / f"{sglang.port}.sock"
        assert path.is_socket()
        sglang.process.send_signal(signal.SIGTERM)
        until(lambda: refused(sglang.address))
        assert reason_at_end(client) == {"type": "length", "length": 200}
    assert sglang.process.wait(60) == -signal.SIGTERM
    assert not path.exists()
    until(lambda: not [p for p in tree if p.is_running() and p.status() != psutil.STATUS_ZOMBIE])
