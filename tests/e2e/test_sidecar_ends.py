"""Frontend processes that stop or end at the worst of times: nobody waits for them without end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests import tiny_tokenizer
from tests.e2e.test_attach import ROOT, Outside
from tests.e2e.test_sidecar import ended, sidecar, stream, until  # noqa: F401
from tests.http_client import Client
from tests.unit.test_port import plan_of
from tpc_server import ModelConfig, ServerArgs
from tpc_server.boundary import codec, messages, wire
from tpc_server.link import children, control, protocol
from tpc_server.link import server as link_server
from tpc_server.link.attached import describe
from tpc_server.link.children import Seat
from tpc_server.link.messages import Channel
from tpc_server.link.server import ServerError, SidecarServer
from tpc_server.mesh import PUSHES_BLOCKED, SCHEDULER, Ends, Mesh

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def hurt(monkeypatch):
    """`hurt(signal, times)`: so many of the next processes get it before their first word."""
    begin = Seat.start
    left: list[int] = []

    def start(self):
        begin(self)
        if left:
            os.kill(self._starting.process.pid, left.pop())

    monkeypatch.setattr(Seat, "start", start)
    yield lambda number, times=1: left.extend([number] * times)
    assert not left


@pytest.mark.parametrize("cores", [None, "ingress=0 tokenize=0 detok=0,1 egress=0"])
def test_a_push_that_waits_returns_when_its_process_dies(sidecar, cores):  # noqa: F811
    options = {"stall_s": 60.0}
    if cores:
        from tests.e2e.test_placements import placed

        options["plan"] = placed(cores.split())
    run = sidecar(manual=True, options=options)
    with Client(run.address) as client:
        stream(run, client, "full")
        run.scheduler.stop()
        (link,) = run.server.hub.links
        os.kill(run.pid(), signal.SIGSTOP)
        done: list[object] = []

        def push():
            big = [bytes(1 << 20)]
            while not link.gone:
                done.append(run.server.push_batch(b"\x96" + b"\x90" * 6, big))

        thread = threading.Thread(target=push)
        thread.start()
        until(lambda: link.words[PUSHES_BLOCKED] > 2)
        assert thread.is_alive()
        began = time.monotonic()
        os.kill(run.pid(), signal.SIGKILL)
        thread.join(60)
        assert time.monotonic() - began < 10  # one second is promised
        assert done and all(done)


def test_a_process_that_dies_before_its_first_word_is_replaced(
    sidecar, hurt, capfd  # noqa: F811
):  # fmt: skip
    run = sidecar()
    hurt(signal.SIGKILL, 3)
    os.kill(run.pid(), signal.SIGKILL)
    assert run.ask().status == 200
    assert run.server.seats[0].restarts == 4
    assert capfd.readouterr().err.count("did not start: killed by SIGKILL") == 3


def test_the_first_process_that_dies_so_is_told(model_folder, hurt):
    hurt(signal.SIGKILL)
    with pytest.raises(ServerError, match="killed by SIGKILL"):
        SidecarServer(ServerArgs(model_path=str(model_folder), port=0, log_level="error"))


def test_a_process_that_stops_before_its_first_word_is_given_up(
    sidecar, hurt, monkeypatch  # noqa: F811
):  # fmt: skip
    """Meanwhile another one serves."""
    run = sidecar(frontends=2)
    hurt(signal.SIGSTOP)
    first, second = run.server.processes()
    seat = run.server.seats[0]
    os.kill(first, signal.SIGKILL)
    until(lambda: seat._starting is not None)
    stuck = seat._starting.process.pid
    for _ in range(20):
        assert run.ask().status == 200
    assert run.server.processes() == [stuck, second]
    monkeypatch.setattr(children, "START_S", 0.0)
    until(lambda: stuck not in run.server.processes())
    monkeypatch.undo()
    until(lambda: seat.link is not None and seat.link.accepting)
    assert seat.failure == "it did not answer"


def test_reload_while_a_process_starts_is_refused(sidecar):  # noqa: F811
    run = sidecar()
    seat = run.server.seats[0]
    os.kill(run.pid(), signal.SIGKILL)
    until(lambda: seat._starting is not None)
    answer = run.server._command("reload")
    assert answer["ok"] is False and answer["error"] == "a process is starting already"
    until(lambda: seat.link is not None and seat.link.accepting)
    assert run.server.reload() and not run.server.reload()  # while another reload runs
    assert len(run.server.processes()) == 2
    until(lambda: not seat.reloading)
    until(lambda: len(run.server.processes()) == 1)
    assert run.ask().status == 200 and seat.restarts == 1


def test_the_new_process_dies_during_a_reload(sidecar, hurt):  # noqa: F811
    """The old one has not been told to leave: nobody notices."""
    run = sidecar(manual=True)
    seat = run.server.seats[0]
    old = run.pid()
    with Client(run.address) as client:
        stream(run, client, "goes on", tokens=6)
        hurt(signal.SIGKILL)
        assert run.server.reload()
        until(lambda: not seat.reloading)
        assert run.server.processes() == [old] and not seat.restarts
        told = run.server._command("reloading")
        assert told.pop("error").startswith("the new process does not serve")
        assert told == {"ok": False, "running": False, "pids": [old]}
        run.scheduler.manual = False
        run.scheduler.step()
        body = b"".join(iter(client.chunk, b""))
        assert body.endswith(b"data: [DONE]\n\n") and b'"length":6' in body
        assert run.server.reload()
        client.close()
        until(lambda: run.server.processes() and old not in run.server.processes())
    assert run.ask().status == 200


def test_a_new_process_that_says_nothing_is_given_up_whoever_asked_for_it(
    sidecar, hurt, monkeypatch,  # noqa: F811
):  # fmt: skip
    """An operator who does not wait for it, and a scheduler that only ever takes requests in."""
    run = sidecar()
    seat = run.server.seats[0]
    old = run.pid()
    run.scheduler.stop()
    monkeypatch.setattr(children, "START_S", 1.0)
    hurt(signal.SIGSTOP)
    with socket.socket(socket.AF_UNIX) as operator:
        operator.connect(str(control.folder() / f"{run.server.http_port}.sock"))
        operator.sendall(b"reload\n")
        until(lambda: (run.server.recv_requests(), seat.reloading)[1])
        assert b'"ok": true' in operator.recv(4096)
    until(lambda: (run.server.recv_requests(), not seat.reloading)[1])
    assert "did not answer" in seat.not_reloaded
    assert seat.link is not None and seat.link.process.pid == old and not seat.link.retired


@pytest.mark.parametrize("how", ["shutdown", "drain"])
def test_the_server_ends_during_a_reload(model_folder, hurt, how):
    server = SidecarServer(
        ServerArgs(model_path=str(model_folder), port=0, log_level="error",
                   skip_server_warmup=True,
                   model_config=ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB))
    )  # fmt: skip
    hurt(signal.SIGSTOP)  # it is reloading until it ends
    assert server.reload()
    pids = server.processes()
    assert len(pids) == 2
    if how == "drain":
        drained = threading.Thread(target=server.drain, args=(5.0,))
        drained.start()
        until(lambda: (server.recv_requests(), server.wait_request(10), not drained.is_alive())[2])
        drained.join()
        assert not server.processes() and not server.reload()
    server.shutdown()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
    assert not server.processes() and server.push_health_ack() is False


def test_ends_of_several_processes_are_waited_for_together(model_folder, monkeypatch):
    """Who does not listen is ended in two seconds, all of them in the same two."""
    monkeypatch.setattr(children, "_KILL_S", 0.5)
    said: list[int] = []
    tell = Seat.tell_stop
    stop = Seat.stop

    def noted(number, call):
        def noting(seat):
            said.append(number)
            call(seat)

        return noting

    monkeypatch.setattr(Seat, "tell_stop", noted(1, tell))
    monkeypatch.setattr(Seat, "stop", noted(2, stop))
    server = link_server.SidecarServer(
        ServerArgs(model_path=str(model_folder), port=0, log_level="error",
                   model_config=ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB)),
        frontends=2,
    )  # fmt: skip
    for pid in server.processes():
        os.kill(pid, signal.SIGSTOP)
    server.shutdown()
    assert said == [1, 1, 2, 2] and not server.processes()


_SCHEDULER = """
import os, sys, warnings
warnings.simplefilter("ignore")
from tests.fake_scheduler import FakeScheduler
from tpc_server import ModelConfig, Options, ServerArgs
from tpc_server.link.server import SidecarServer
model, attach = sys.argv[1:]
server = SidecarServer(
    ServerArgs(model_path=model, port=0, log_level="error", skip_server_warmup=True,
               model_config=ModelConfig(context_len=4096, vocab_size=258)),
    options=Options(attach=attach),
)
scheduler = FakeScheduler(server, manual=True)
print(server.http_port, *server.processes(), flush=True)
for line in sys.stdin:
    if line == "step\\n":
        scheduler.step()
    elif line == "fork\\n" and not os.fork():  # a helper, which inherits all
        while os.read(0, 100):
            pass
        os._exit(0)
    print(len(scheduler.live), flush=True)
"""


def test_a_scheduler_is_dead_although_a_child_of_its_lives(model_folder, tmp_path):
    """Which has inherited its ends of all links: the processes tell, not the sockets."""
    attach = tmp_path / "attach.sock"
    process = subprocess.Popen(
        [sys.executable, "-c", _SCHEDULER, str(model_folder), str(attach)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    write, read = process.stdin, process.stdout

    def order(line):
        write.write(line + "\n")
        write.flush()
        return int(read.readline())

    outside = None
    try:
        port, pid = [int(word) for word in process.stdout.readline().split()]
        outside = Outside(attach)
        until(lambda: outside.status("/model_info") == 200)
        addresses = [("127.0.0.1", port), outside.address]
        clients = [Client(address) for address in addresses]
        for client in clients:
            client.request("POST", "/generate", {"text": "abc", "stream": True})
        until(lambda: order("look") == 2)
        order("step")
        for client in clients:
            assert client.head()[0] == 200
            client.chunk()
        order("fork")
        process.kill()
        process.wait()
        for client in clients:
            body = b"".join(iter(client.chunk, b""))
            assert b'"code":503' in body and body.endswith(b"data: [DONE]\n\n")
            client.close()
        until(lambda: ended(pid))
        until(lambda: outside.status() == 503)
        assert outside.end() == 0
    finally:
        if outside is not None and outside.process.poll() is None:
            outside.process.kill()
            outside.process.wait()
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()


def test_a_child_is_dead_although_a_child_of_its_lives(sidecar, monkeypatch):  # noqa: F811
    """Which keeps its end of the link open."""
    run = sidecar()
    seat = run.server.seats[0]
    spawn = subprocess.Popen
    reading, writing = os.pipe()

    def popen(command, pass_fds=(), **more):
        # A shell leaves one behind that holds everything, and becomes the frontend.
        shell = ["bash", "-c", f'cat <&{reading} >/dev/null & exec "$@"', "bash", *command]
        return spawn(shell, pass_fds=[*pass_fds, reading], **more)

    monkeypatch.setattr(subprocess, "Popen", popen)
    try:
        os.kill(run.pid(), signal.SIGKILL)
        assert run.ask().status == 200
        monkeypatch.undo()
        pid = run.pid()
        os.kill(pid, signal.SIGKILL)
        until(lambda: run.server.processes() and run.pid() != pid)
        assert run.ask().status == 200 and seat.restarts == 2
    finally:
        os.close(reading)
        os.close(writing)


def test_another_version_is_refused_in_one_line_on_both_sides(
    sidecar, model_folder, tmp_path, monkeypatch, capfd  # noqa: F811
):  # fmt: skip
    """A package that was replaced under a running scheduler; an attached frontend of its own."""
    attach = tmp_path / "attach.sock"
    run = sidecar(options={"attach": str(attach)})
    old = run.pid()
    facts = protocol.facts()
    monkeypatch.setattr(protocol, "facts", lambda: [*facts, "option new"])
    capfd.readouterr()
    said = ""

    def told(*texts):
        nonlocal said
        said += capfd.readouterr().err
        return all(text in said for text in texts)

    assert run.server.reload()
    until(lambda: told("did not start: it speaks protocol", "process is refused: it speaks"))
    assert run.server.processes() == [old] and run.ask().status == 200
    outside = Outside(attach)
    until(lambda: told("could not be attached: it speaks", "not attached: it speaks protocol"))
    assert outside.status() == 503
    monkeypatch.setattr(protocol, "facts", lambda: facts)  # the scheduler is restarted
    until(lambda: outside.status() == 200)
    assert outside.end() == 0
    monkeypatch.setattr(protocol, "facts", lambda: [*facts, "option new"])
    with pytest.raises(ServerError, match="both must be of one version"):
        SidecarServer(ServerArgs(model_path=str(model_folder), port=0, log_level="error"))


def test_a_first_start_that_stops_is_told(model_folder, hurt, monkeypatch):
    """Of several: the others are ended with it."""
    monkeypatch.setattr(children, "START_S", 1.0)
    hurt(signal.SIGSTOP)
    with pytest.raises(ServerError, match="it did not answer"):
        SidecarServer(
            ServerArgs(model_path=str(model_folder), port=0, log_level="error"), frontends=2
        )


class Stranger:
    """A frontend that joined, had a request, and turns, but does not read what is pushed."""

    def __init__(self, path: Path) -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(path))
        self.channel = Channel(sock)
        self.channel.send({"hello": protocol.hello()})
        assert "config" in self.channel.wait(20)
        self.mesh = Mesh(plan_of("1"), 8192, 8192, 64)
        about, fds = describe(self.mesh)
        self.channel.send({"mesh": about}, fds)
        self.channel.send({"accepting": True})
        self.ends = Ends(self.mesh)
        header = messages.pack_abort(codec.make_packer(), "nobody")  # any message will do
        self.ends.sender(0, SCHEDULER).post(
            wire.REQUEST, b"strange#1", wire.request_parts(header, [])
        )
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._turn)
        self._thread.start()

    def _turn(self) -> None:
        while not self._over.wait(0.01):
            self.ends.words[self.mesh.counters_at(0)] = time.monotonic_ns()

    def end(self) -> None:
        self._over.set()
        self._thread.join()
        self.channel.close()
        self.mesh.close()


def test_one_that_joined_and_does_not_read_is_given_up(sidecar, tmp_path):  # noqa: F811
    """Its request is aborted; clients of the others wait for that at most, and lose nothing."""
    attach = tmp_path / "attach.sock"
    run = sidecar(options={"attach": str(attach), "stall_s": 1.0})
    stranger = Stranger(attach)
    run.scheduler.wait_for(lambda s: ["AbortReq", "nobody"] in [m[:2] for m in s.received])
    (link,) = run.server.guests.links
    # More than its ring has room for, while it lasts.
    for _ in range(3):
        answer = run.ask(sampling_params={"max_new_tokens": 4000}, text="abcd" * 20)
        assert answer.status == 200 and answer.json()["meta_info"]["completion_tokens"] == 4000
    until(lambda: not run.server.guests.links)
    assert link.failure == "it does not read what is pushed"
    run.scheduler.wait_for(lambda s: "strange#1" in s.aborted)
    assert run.ask().status == 200 and run.server.seats[0].restarts == 0
    stranger.end()
