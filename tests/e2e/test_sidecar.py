"""The cores in a process of their own: the same contract, and what happens when processes end."""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import tiny_tokenizer
from tests.e2e.test_placements import placed
from tests.fake_scheduler import FakeScheduler, echo
from tests.http_client import Client, call
from tpc_server import ModelConfig, Options, ServerArgs
from tpc_server.affinity.plan import PlanSettings, parse_cores, plan
from tpc_server.affinity.topology import read
from tpc_server.link.server import ServerError, SidecarServer

pytestmark = pytest.mark.timeout(120)


class Running:
    """A sidecar server and its scheduler."""

    def __init__(self, server, scheduler):
        self.server = server
        self.scheduler = scheduler
        self.address = ("127.0.0.1", server.http_port)

    def ask(self, **fields):
        body = {"text": "abc", "sampling_params": {"max_new_tokens": 4}, **fields}
        return call(self.address, "POST", "/generate", body)

    def pid(self):
        return self.server.processes()[-1]


def until(what, seconds=30.0):
    """Wait for something that comes by itself."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "it did not come"
        pause.wait(0.01)


@pytest.fixture
def sidecar(model_folder):
    """`sidecar(script=…, manual=…, frontends=…, options=…, **server_args)`."""
    running = []

    def begin(script=echo, manual=False, options=None, frontends=1, **args):
        server = SidecarServer(
            ServerArgs(
                **{
                    "model_path": str(model_folder), "served_model_name": "tiny", "port": 0,
                    "log_level": "error", "skip_server_warmup": True,
                    "model_config": ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB),
                    **args,
                }
            ),
            options=Options(**(options or {})), frontends=frontends,
        )  # fmt: skip
        one = Running(server, FakeScheduler(server, script, manual))
        running.append(one)
        return one

    yield begin
    for one in running:
        pids = one.server.processes()
        one.scheduler.stop()
        one.server.shutdown()
        for pid in pids:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


def stream(run, client, rid, tokens=4000):
    """Begin a stream and read its first event."""
    body = {"text": "abc", "rid": rid, "stream": True}
    client.request("POST", "/generate", {**body, "sampling_params": {"max_new_tokens": tokens}})
    run.scheduler.wait_for(lambda s: any(name.startswith(f"{rid}#") for name in s.live))
    run.scheduler.step()
    assert client.head()[0] == 200
    client.chunk()


def test_the_contract(sidecar):
    run = sidecar(skip_server_warmup=False)
    until(lambda: run.server.ready)
    assert call(run.address, "GET", "/health").status == 200
    assert run.ask().json()["text"] == "abca"
    info = call(run.address, "GET", "/server_info").json()
    assert (info["mode"], info["gil_enabled"], info["port"]) == (
        "sidecar", False, run.server.http_port
    )  # fmt: skip
    events = call(run.address, "POST", "/v1/completions",
                  {"prompt": "xyz", "max_tokens": 3, "stream": True}).events()  # fmt: skip
    assert [e["choices"][0]["text"] for e in events[:-1]] == ["x", "y", "z"]
    assert call(run.address, "POST", "/generate", {}).status == 400


def test_no_thread_of_ours_in_the_schedulers_process(model_folder):
    before = set(threading.enumerate())
    with SidecarServer(
        ServerArgs(model_path=str(model_folder), port=0, log_level="error",
                   model_config=ModelConfig(context_len=4096, vocab_size=258))
    ):  # fmt: skip
        assert set(threading.enumerate()) == before


def test_a_child_that_is_killed_is_replaced(sidecar):
    run = sidecar(manual=True)
    with Client(run.address) as client:
        stream(run, client, "cut")
        pid = run.pid()
        os.kill(pid, signal.SIGKILL)
        with pytest.raises((EOFError, ConnectionError)):
            while True:
                client.chunk()
    # Its request is aborted in the scheduler, which otherwise notices nothing.
    run.scheduler.wait_for(lambda s: any(rid.startswith("cut#") for rid in s.aborted))
    run.scheduler.manual = False
    run.scheduler.step()
    answer = run.ask()  # waits in the listening socket's queue until the new one accepts
    assert answer.status == 200 and answer.json()["text"] == "abca"
    assert run.pid() != pid and run.server.seats[0].restarts == 1


def test_a_push_to_a_dead_child_is_dropped_and_true(sidecar):
    run = sidecar()
    assert run.ask().status == 200  # from its first request on it is pushed to
    run.scheduler.stop()
    os.kill(run.pid(), signal.SIGKILL)
    big = [bytes(1 << 20)]
    began = time.monotonic()
    for _ in range(20):  # more than its ring holds
        assert run.server.push_batch(b"\x96" + b"\x90" * 6, big) is True
    assert time.monotonic() - began < 10


def test_a_child_that_stops_turning_is_given_up(sidecar):
    run = sidecar(manual=True, options={"stall_s": 0.5})
    with Client(run.address) as client:
        stream(run, client, "stuck")
        pid = run.pid()
        os.kill(pid, signal.SIGSTOP)
        run.scheduler.wait_for(lambda s: any(rid.startswith("stuck#") for rid in s.aborted))
    until(lambda: run.server.processes() and run.pid() != pid)
    run.scheduler.manual = False
    assert run.ask().status == 200


def test_a_child_that_keeps_dying_is_started_ever_more_slowly(sidecar):
    run = sidecar()
    for _ in range(3):
        until(lambda: run.server.processes() and run.server.seats[0].link is not None)
        os.kill(run.pid(), signal.SIGKILL)
        until(lambda: run.server.seats[0].link is None)
    assert run.server.seats[0]._pause_s >= 0.8
    assert run.ask().status == 200


def test_reload_loses_no_request(sidecar):
    """Clients with and without keep-alive go on through five upgrades."""
    run = sidecar()
    stop = threading.Event()
    failures: list[object] = []
    answered = [0]

    def keep_alive(text):
        client = Client(run.address)
        while not stop.is_set():
            client.request("POST", "/generate",
                           {"text": text, "sampling_params": {"max_new_tokens": 3}})  # fmt: skip
            answer = client.answer()
            if answer.status != 200 or answer.json()["text"] != text:
                failures.append(answer.body)
            answered[0] += 1
            if answer.headers.get("connection") == "close":
                client.close()
                client = Client(run.address)
        client.close()

    def fresh(text):
        while not stop.is_set():
            answer = run.ask(text=text, sampling_params={"max_new_tokens": 3}, stream=True)
            if answer.status != 200 or answer.events()[-2]["text"] != text:
                failures.append(answer.body)
            answered[0] += 1

    def guarded(function, text):
        try:
            function(text)
        except Exception as error:
            failures.append(error)

    threads = [
        threading.Thread(target=guarded, args=(function, text))
        for function in (keep_alive, fresh) for text in ("abc", "xyz")
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    try:
        for _ in range(5):
            pid = run.pid()
            assert run.server.reload()
            until(lambda pid=pid: run.pid() != pid and not run.server.seats[0].reloading)
            seen = answered[0]
            until(lambda seen=seen: answered[0] > seen + 20 or failures)
        until(lambda: len(run.server.processes()) == 1 or failures, 60)
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    assert not failures and answered[0] > 100


def test_reload_lets_streams_finish(sidecar, capfd):
    run = sidecar(manual=True)
    with Client(run.address) as client:
        stream(run, client, "long", tokens=6)
        old = run.pid()
        os.kill(old, signal.SIGHUP)  # the child itself asks for it
        until(lambda: len(run.server.processes()) == 2)
        until(lambda: not run.server.seats[0].reloading)
        (_, new) = run.server.processes()
        assert run.server._command("status")["processes"] == [
            {"pid": old, "state": "leaving"}, {"pid": new, "state": "serving"},
        ]  # fmt: skip
        run.scheduler.step(10)
        assert b"".join(iter(client.chunk, b"")).endswith(b"data: [DONE]\n\n")
        client.close()
    until(lambda: run.server.processes() and old not in run.server.processes())
    until(lambda: not run.server.seats[0]._dying)
    said = capfd.readouterr().err
    assert f"process {new} takes the connections, process {old} finishes its requests" in said
    assert said.count("that was replaced has ended (exit status 0)") == 1
    run.scheduler.manual = False
    run.scheduler.step()
    assert run.ask().status == 200


def test_a_child_that_a_signal_ends_finishes_its_requests_while_another_serves(sidecar, capfd):
    run = sidecar(manual=True)
    with Client(run.address) as client:
        stream(run, client, "long", tokens=6)
        old = run.pid()
        os.kill(old, signal.SIGTERM)
        seat = run.server.seats[0]
        until(lambda: seat.link is not None and seat.link.process.pid != old)
        until(lambda: seat.link is not None and seat.link.accepting)
        assert old in run.server.processes()
        run.scheduler.step(10)
        assert b"".join(iter(client.chunk, b"")).endswith(b"data: [DONE]\n\n")
        client.close()
    until(lambda: old not in run.server.processes() and not seat._dying)
    assert not [rid for rid in run.scheduler.aborted if rid.startswith("long#")]
    run.scheduler.manual = False
    run.scheduler.step()
    assert run.ask().status == 200
    said = capfd.readouterr().err
    assert "a signal told to end has ended (exit status 0)" in said and "killed" not in said


def test_a_hangup_reaches_a_child_that_starts_once_it_serves(sidecar, capfd):
    run = sidecar()
    seat = run.server.seats[0]
    os.kill(run.pid(), signal.SIGKILL)
    until(lambda: seat._starting is not None)
    started = seat._starting.process.pid
    os.kill(started, signal.SIGHUP)
    until(lambda: seat.link is not None and seat.link.process.pid == started)
    until(lambda: run.server.processes() and started not in run.server.processes())  # the reload
    until(lambda: seat.link is not None and seat.link.accepting)
    assert run.ask().status == 200
    assert seat.restarts == 1 and "did not start" not in capfd.readouterr().err


def _streams_through_a_reload(run, seconds):
    """Whether a stream that goes on for so long after a reload ends as it should."""
    with Client(run.address) as client:
        stream(run, client, "long", tokens=4000)
        old = run.pid()
        assert run.server.reload()
        until(lambda: run.pid() != old and not run.server.seats[0].reloading)
        until(lambda: all(link.retired for link in run.server.seats[0]._retired))
        enough = time.monotonic() + seconds
        while time.monotonic() < enough:
            run.scheduler.step()
            if not client.chunk():
                return False
        run.scheduler.manual = False
        run.scheduler.step()
        body = b"".join(iter(client.chunk, b""))
    return b'"length":4000' in body and body.endswith(b"data: [DONE]\n\n")


def test_a_stream_may_outlive_the_process_that_was_replaced(sidecar):
    """By any time: neither the limit of a drain holds nor another."""
    run = sidecar(manual=True, options={"drain_s": 0.2})
    assert _streams_through_a_reload(run, 1.0)
    until(lambda: len(run.server.processes()) == 1)


def test_what_a_process_that_was_replaced_may_take_can_be_bounded(sidecar):
    run = sidecar(manual=True, options={"retire_s": 0.2})
    assert not _streams_through_a_reload(run, 20.0)


def test_a_process_that_was_replaced_drains_when_it_is_told_to_end(sidecar):
    run = sidecar(manual=True, options={"drain_s": 0.2})
    (old,) = run.server.processes()
    with Client(run.address) as client:
        stream(run, client, "a")
        assert run.server.reload()
        until(lambda: any(link.retired for link in run.server.seats[0]._retired))
        os.kill(old, signal.SIGTERM)
        until(lambda: old not in run.server.processes())
        assert b"".join(iter(client.chunk, b"")).endswith(b"data: [DONE]\n\n")


def test_a_process_that_takes_over_is_healthy_at_once(sidecar):
    """What was warmed up is the scheduler, which stays; nobody sees a 503 of one that is not."""
    run = sidecar(skip_server_warmup=False)
    until(lambda: run.server.ready)
    run.scheduler.wait_for(lambda s: not s.live)
    run.scheduler.manual = True  # no warm-up would be answered
    old = run.pid()
    assert run.server.reload()
    until(lambda: run.pid() != old and not run.server.seats[0].reloading)
    until(lambda: run.server.ready)
    assert call(run.address, "GET", "/ready").status == 200


@pytest.mark.parametrize(
    ("how", "cores"),
    [
        ({"rid": "old"}, "ingress=0 tokenize=1 detok=2,3 egress=0"), ({"abort_all": True}, "1"),
    ],
    ids=["one", "all"],
)  # fmt: skip
def test_an_abort_reaches_requests_of_another_process(sidecar, how, cores):
    """Of one that is leaving, which takes no connections any more; and of no other request."""
    run = sidecar(manual=True, options={"plan": placed(cores.split())})
    with Client(run.address) as client, Client(run.address) as other:
        stream(run, client, "old")
        stream(run, other, "old2")
        assert run.server.reload()
        until(lambda: len(run.server.processes()) == 2 and not run.server.seats[0].reloading)
        assert call(run.address, "POST", "/abort_request", how).status == 200
        run.scheduler.wait_for(lambda s: any(rid.startswith("old#") for rid in s.aborted))
        run.scheduler.step(2)
        body = b""
        while chunk := client.chunk():
            body += chunk
        assert b'"type":"abort"' in body and body.endswith(b"data: [DONE]\n\n")
        if "abort_all" in how:
            run.scheduler.wait_for(lambda s: any(rid.startswith("old2#") for rid in s.aborted))
        else:
            assert not any(rid.startswith("old2#") for rid in run.scheduler.aborted)


def test_a_scheduler_that_ends_takes_its_child_along(sidecar):
    """Every stream ends with an error and [DONE]."""
    run = sidecar(manual=True)
    with Client(run.address) as client:
        stream(run, client, "orphan")
        link = run.server.seats[0].link
        run.server.seats[0].stopping = True
        pid = run.pid()
        run.scheduler.stop()
        os.dup2(os.open(os.devnull, os.O_RDWR), link.channel.fileno())  # as if it had died
        body = b""
        while chunk := client.chunk():
            body += chunk
        assert b'"code":503' in body and body.endswith(b"data: [DONE]\n\n")
    until(lambda: ended(pid))


def ended(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] in "ZX"


def test_several_frontends_share_the_port(sidecar):
    run = sidecar(frontends=2)
    assert len(run.server.processes()) == 2
    for _ in range(40):
        assert run.ask().status == 200
    until(lambda: sum(c["requests"] for c in run.server.counters()) >= 40)
    first, second = run.server.processes()
    os.kill(first, signal.SIGKILL)
    until(lambda: first not in run.server.processes())
    assert second in run.server.processes()
    until(lambda: len(run.server.processes()) == 2)


@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("how", ["killed", "reloaded"])
def test_a_restarted_child_has_the_first_mask(sidecar, pinned, how):
    """And each of its threads that of the first one's: its cores, too, where they are pinned."""
    allowed = os.sched_getaffinity(0)
    if len(allowed) < 2:
        pytest.skip("one CPU only")
    chosen = plan(read(), PlanSettings(cores=parse_cores(["2"]), unpinned=not pinned))
    run = sidecar(options={"plan": chosen})
    assert run.ask().status == 200
    old = run.pid()
    first = _masks(old)
    cores = {name: mask for name, mask in first.items() if name.startswith("tpc-core")}
    assert len(cores) == 2 and first["main"] == allowed
    assert all(len(mask) == 1 for mask in cores.values()) == pinned
    with _narrowed(run.scheduler):
        if how == "killed":
            os.kill(old, signal.SIGKILL)
        else:
            assert run.server.reload()
        until(lambda: run.server.processes() and run.pid() != old)
        until(lambda: run.server.seats[0].link is not None and run.server.seats[0].link.accepting)
        until(lambda: _masks(run.pid()) == first)


def _masks(pid):
    """The CPUs of a process's threads by name, as the kernel has them."""
    found = {}
    for tid in os.listdir(f"/proc/{pid}/task"):
        name = Path(f"/proc/{pid}/task/{tid}/comm").read_text().strip()
        found["main" if int(tid) == pid else name] = os.sched_getaffinity(int(tid))
    return found


@contextmanager
def _narrowed(scheduler):
    """The scheduler's thread, which restarts children, on one CPU."""
    tid = scheduler._thread.native_id
    before = os.sched_getaffinity(tid)
    os.sched_setaffinity(tid, {min(before)})
    try:
        yield
    finally:
        os.sched_setaffinity(tid, before)


def test_what_the_child_refuses_is_told(model_folder, tmp_path):
    with pytest.raises(ServerError, match=r"neither a tokenizer.json nor a \.gguf"):
        SidecarServer(ServerArgs(model_path=str(tmp_path), port=0, log_level="error"))


def test_keys_reach_the_cores_and_no_process_list(sidecar):
    run = sidecar(options={"api_keys": ("k1-secret",), "cors_origins": ("https://a.b",)})
    key = {"Authorization": "Bearer k1-secret"}
    with Client(run.address) as client:
        for headers, status in (({}, 401), (key, 200), ({**key, "Origin": "https://a.b"}, 200)):
            client.request("GET", "/server_info", None, headers)
            answer = client.answer()
            assert answer.status == status and b"secret" not in answer.body
        assert answer.headers["access-control-allow-origin"] == "https://a.b"
    for pid in run.server.processes():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            assert b"secret" not in file.read()


def test_a_thread_that_reloads_may_end(sidecar):
    """A signal at a parent's death comes at that of the thread that forked: it is no process."""
    run = sidecar()
    before = run.server.processes()

    def operator():
        assert run.server.reload()
        until(lambda: run.ask().status == 200 and run.server.processes()[:1] != before)
        until(lambda: len(run.server.processes()) == 1)

    thread = threading.Thread(target=operator)
    thread.start()
    thread.join()
    pids = run.server.processes()
    assert pids != before
    until(lambda: Path(f"/proc/{pids[0]}/status").read_text().count("State:\tS"))
    for _ in range(20):
        assert run.ask().status == 200
    assert run.server.processes() == pids
    assert [seat.restarts for seat in run.server.seats] == [0]
