"""A standalone API server joined to a running scheduler, and operators' commands."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests import tiny_tokenizer
from tests.e2e.test_metrics import UNARY, at, config, scrape
from tests.e2e.test_sidecar import until
from tests.fake_scheduler import FakeScheduler
from tests.http_client import Client, call
from tpc_server import DisaggregationMode, ModelConfig, Options, ServerArgs
from tpc_server.link.server import ServerError, SidecarServer

pytestmark = pytest.mark.timeout(180)
ROOT = Path(__file__).parents[2]


class Outside:
    """The API server, as a program."""

    def __init__(self, path: Path, *more: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tpc_server", "--attach", str(path), "--port", "0", *more],
            cwd=ROOT, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self._out = self.process.stdout
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self._out.readline())
        assert found is not None
        self.address = ("127.0.0.1", int(found[1]))
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        for line in self._out:
            self.lines.append(line)

    def ask(self, **more):
        body = {"text": "abc", "sampling_params": {"max_new_tokens": 4}, **more}
        return call(self.address, "POST", "/generate", body)

    def status(self, path="/health"):
        """0 while one who answers there gives way to another."""
        try:
            return call(self.address, "GET", path).status
        except (OSError, EOFError):
            return 0

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(30)
        self._reader.join(10)
        self._out.close()
        return status


@pytest.fixture
def scheduler(model_folder, tmp_path):
    """`scheduler()`: a scheduler that lets frontends in, and starts none."""
    running = []

    def begin(manual=False, **more):
        server = SidecarServer(
            ServerArgs(
                model_path=str(model_folder), served_model_name="tiny", port=0, log_level="error",
                skip_server_warmup=True,
                model_config=ModelConfig(context_len=4096, vocab_size=tiny_tokenizer.VOCAB), **more,
            ),
            options=Options(attach=str(tmp_path / "attach.sock")), frontends=0,
        )  # fmt: skip
        one = FakeScheduler(server, manual=manual)
        running.append(one)
        return one

    yield begin
    for one in running:
        one.stop()
        one.server.shutdown()


def test_each_side_may_start_first_and_be_restarted(scheduler, tmp_path):
    outside = Outside(tmp_path / "attach.sock")
    try:
        # No scheduler yet: who asks is told so.
        until(lambda: outside.status() == 503)
        first = scheduler()
        until(lambda: outside.status() == 200)
        assert outside.ask().json()["text"] == "abca"
        info = call(outside.address, "GET", "/server_info").json()
        assert info["mode"] == "attached" and info["port"] == outside.address[1]
        # The scheduler ends: the frontend stays and serves the next one.
        first.stop()
        first.server.shutdown()
        until(lambda: outside.status() == 503)
        second = scheduler()
        until(lambda: outside.status() == 200)
        assert outside.ask().status == 200
        # Another frontend beside it, on a port of its own; the first leaves.
        other = Outside(tmp_path / "attach.sock")
        until(lambda: other.status() == 200)
        assert len(second.server.guests.links) == 2
        assert outside.end() == 0
        until(lambda: len(second.server.guests.links) == 1)
        assert other.ask().status == 200
        assert other.end() == 0
    finally:
        if outside.process.poll() is None:
            outside.process.kill()
            outside.process.wait()


def test_there_is_nothing_to_reload_where_all_frontends_are_attached(scheduler):
    answer = scheduler().server._command("reload")
    assert answer["ok"] is False and "attached" in answer["error"]


def test_each_leader_has_a_socket_of_its_own(model_folder, tmp_path):
    """And none takes that of another."""
    args = ServerArgs(model_path=str(model_folder), port=0, log_level="error")
    more = {"options": Options(attach=str(tmp_path / "a")), "frontends": 0}
    with SidecarServer(args, 0, **more), SidecarServer(args, 1, **more):
        assert {path.name for path in tmp_path.iterdir()} == {"a", "a.1"}
        with pytest.raises(ServerError, match="another process listens there"):
            SidecarServer(args, 1, **more)
    assert not list(tmp_path.iterdir())


def test_attached_frontends_share_the_registry(scheduler, tmp_path):
    """Of a prefill server: what one was told another knows, and the next."""
    scheduler(disaggregation_mode=DisaggregationMode.Prefill)
    first, second = Outside(tmp_path / "attach.sock"), Outside(tmp_path / "attach.sock")
    try:
        for one in (first, second):
            until(lambda one=one: one.status() == 200)
        body = {"bootstrap_room": 5, "dp_rank": 2}
        assert call(first.address, "POST", "/register_dp_rank", body).status == 200
        assert first.end() == 0
        wanted = {"bootstrap_rooms": [5]}
        assert call(second.address, "POST", "/query_dp_ranks", wanted).json() == {"5": 2}
        assert second.end() == 0
    finally:
        for one in (first, second):
            if one.process.poll() is None:
                one.process.kill()
                one.process.wait()


def test_a_drain_waits_for_attached_frontends(scheduler, tmp_path):
    """They finish what they have, turn others away, and wait for the next scheduler."""
    one = scheduler(manual=True)
    outside = Outside(tmp_path / "attach.sock")
    until(lambda: outside.status("/model_info") == 200)
    drained = threading.Thread(target=one.server.drain, args=(60.0,))
    with Client(outside.address) as client:
        body = {"text": "abc", "stream": True, "sampling_params": {"max_new_tokens": 3}}
        client.request("POST", "/generate", body)
        one.wait_for(lambda s: s.live)
        one.step()
        assert client.head()[0] == 200
        client.chunk()
        drained.start()
        until(lambda: outside.status("/model_info") == 503)
        assert drained.is_alive()
        late = Outside(tmp_path / "attach.sock")  # nobody comes in any more
        one.manual = False
        one.step()
        text = b"".join(iter(client.chunk, b""))
    assert text.rstrip().endswith(b"data: [DONE]") and b'"length":3' in text
    drained.join(30)
    assert not drained.is_alive() and not one.server.guests.links
    assert one.server.push_health_ack() is True  # the scheduler's calls still answer
    one.stop()
    one.server.shutdown()
    scheduler()
    for program in (outside, late):
        until(lambda program=program: program.status() == 200)
        assert program.ask().status == 200
        assert program.end() == 0


def test_attached_frontends_count_together(scheduler, tmp_path):
    """Whichever is asked shows all, and what one counted outlives it."""
    one = scheduler(metrics=config())
    first, second = (Outside(tmp_path / "attach.sock", "--io-cores", n) for n in ("1", "2"))
    try:
        for program in (first, second):
            until(lambda program=program: program.status() == 200)
            for _ in range(3):
                assert program.ask().status == 200
        for program in (first, second):
            assert at(scrape(program), "num_requests_total", UNARY) == 6
        first.process.kill()
        first.process.wait()
        until(lambda: len(one.server.guests.links) == 1)
        assert second.ask().status == 200
        assert at(scrape(second), "num_requests_total", UNARY) == 7
        third = Outside(tmp_path / "attach.sock")
        until(lambda: third.status() == 200)
        assert third.ask().status == 200
        assert at(scrape(third), "num_requests_total", UNARY) == 8
        assert third.end() == 0
    finally:
        for program in (first, second):
            if program.process.poll() is None:
                program.process.kill()
                program.process.wait()


def test_an_attached_frontend_that_is_killed_frees_its_requests(scheduler, tmp_path):
    one = scheduler(manual=True)
    outside = Outside(tmp_path / "attach.sock")
    until(lambda: outside.status("/model_info") == 200)
    with Client(outside.address) as client:
        client.request("POST", "/generate", {"text": "abc", "rid": "lost"})
        one.wait_for(lambda s: any(rid.startswith("lost#") for rid in s.live))
        outside.process.kill()
        outside.process.wait()
        one.wait_for(lambda s: any(rid.startswith("lost#") for rid in s.aborted))


def test_streams_end_when_the_scheduler_does(scheduler, tmp_path):
    one = scheduler(manual=True)
    outside = Outside(tmp_path / "attach.sock")
    until(lambda: outside.status("/model_info") == 200)
    with Client(outside.address) as client:
        client.request("POST", "/generate", {"text": "abc", "stream": True})
        one.wait_for(lambda s: s.live)
        one.step()
        assert client.head()[0] == 200
        client.chunk()
        one.stop()
        one.server.shutdown()
        body = b""
        while chunk := client.chunk():
            body += chunk
        assert b'"code":503' in body and body.endswith(b"data: [DONE]\n\n")
    assert outside.end() == 0


def test_operators_commands(model_folder, tmp_path):
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    os.environ["XDG_RUNTIME_DIR"] = str(tmp_path)
    try:
        server = SidecarServer(
            ServerArgs(model_path=str(model_folder), port=0, log_level="error",
                       skip_server_warmup=True,
                       model_config=ModelConfig(context_len=4096, vocab_size=258))
        )  # fmt: skip
    finally:
        del os.environ["XDG_RUNTIME_DIR"]
    one = FakeScheduler(server)
    try:

        def command(*words):
            done = subprocess.run(
                [sys.executable, "-m", "tpc_server", *words], cwd=ROOT, env=env,
                capture_output=True, text=True, timeout=60, check=False,
            )  # fmt: skip
            return done.returncode, done.stdout, done.stderr

        port = str(server.http_port)
        status, out, _ = command("status", "--port", port)
        (pid,) = server.processes()
        assert status == 0 and json.loads(out)["pids"] == [pid]
        status, out, _ = command("reload", "--port", port)
        assert status == 0 and json.loads(out)["ok"] is True
        seat = server.seats[0]  # it has said so once the new process serves
        link = seat.link
        assert link is not None and link.accepting and not seat.reloading
        assert link.process.pid != pid
        until(lambda: server.processes() and pid not in server.processes(), 60)
        assert (tmp_path / "tpc_server").stat().st_mode & 0o777 == 0o700
        status, _, err = command("reload", "--port", "1")
        assert status == 1 and "no server answers" in err
    finally:
        one.stop()
        server.shutdown()
    assert not list((tmp_path / "tpc_server").iterdir())
