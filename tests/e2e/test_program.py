"""The server as a program: start, banner, signals, exit status."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import shlex
import signal
import socket
import struct
import subprocess
import sys
import termios
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.http_client import Client, call
from tests.stress.clock import until

ROOT = Path(__file__).parents[2]
SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP]
SLOW = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 100000}}


class Program:
    """One `python -m tpc_server` on a socket of its own: synthetic engine, or the real model."""

    def __init__(self, folder: Path | None, where: Path, *words: str, wait: bool = True) -> None:
        self.path = str(where / "socket")
        command = [sys.executable, "-m", "tpc_server", "--uds", self.path, *words]
        if folder is not None:
            command += [
                "--engine", "synthetic", "--model-path", str(folder), "--synthetic-tick-ms", "5",
                "--context-length", "1000000",
            ]  # fmt: skip
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        self.banner = ""
        if wait:
            self.await_banner()

    def await_banner(self) -> None:
        """Returns when it is ready."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.banner += line
            if line.strip().startswith(("try", "{")):
                break

    def end(self) -> tuple[int, str]:
        """Exit status and what it said on standard error."""
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err


pytestmark = pytest.mark.usefixtures("hangups")


@pytest.fixture
def program(model_folder, tmp_path):
    made = []

    def begin(*words, wait=True):
        made.append(Program(model_folder, tmp_path, *words, wait=wait))
        return made[-1]

    yield begin
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate(timeout=30)


def test_banner_and_health(program):
    one = program()
    for word in ("ready in", one.path, "model", "CPython", "cores", "curl -N --unix-socket"):
        assert word in one.banner
    assert call(one.path, "GET", "/health").status == 200
    assert call(one.path, "GET", "/server_info").json()["frontend"] == "tpc"


def test_keys_are_nowhere_to_be_read(program, tmp_path, monkeypatch):
    keys = tmp_path / "keys"
    keys.write_text("k1-secret\nk2-secret\n")
    monkeypatch.setenv("SGLANG_API_KEY", "k3-secret")  # a key that is given goes before it
    monkeypatch.setenv("TPC_ADMIN_API_KEY", "k4-secret")
    one = program("--api-key-file", str(keys), "--log-level", "debug")
    assert "secret" not in one.banner and "-H 'Authorization: Bearer" in one.banner
    statuses = []
    with Client(one.path) as client:
        for n in range(5):
            client.request("GET", "/server_info", None, {"Authorization": f"Bearer k{n}-secret"})
            answer = client.answer()
            assert b"secret" not in answer.body
            statuses.append(answer.status)
        assert statuses == [401, 200, 200, 401, 401]
        client.request("POST", "/abort_request", {}, {"Authorization": "Bearer k4-secret"})
        assert client.answer().status == 200
    assert b"secret" not in Path(f"/proc/{one.process.pid}/cmdline").read_bytes()
    one.process.send_signal(signal.SIGTERM)
    status, err = one.end()
    assert status == 0 and "secret" not in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--api-key", " bad-secret"], "--api-key: a key must be"),
        (["--admin-api-key-file", "/nowhere"], "--admin-api-key-file /nowhere: No such file"),
        (["--cors-allow-origin", "example.com"], "--cors-allow-origin example.com: not an origin"),
    ],
)
def test_access_flags_that_cannot_be(words, told, model_folder):
    command = [sys.executable, "-m", "tpc_server", "--model-path", str(model_folder), *words]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 1 and not done.stdout
    assert done.stderr.startswith(f"tpc-server: error: {told}") and "secret" not in done.stderr


def test_metrics_flags(program):
    one = program(
        "--enable-metrics", "--bucket-e2e-request-latency", "5", "50", "--extra-metric-labels",
        '{"zone": "a"}', "--generation-tokens-buckets", "custom", "3",
        "--served-model-name", "tiny",
    )  # fmt: skip
    page = call(one.path, "GET", "/metrics").body.decode()
    labels = 'engine_type="unified",{}model_name="tiny",zone="a"'
    waits = labels.format('is_streaming="false",le="50.0",')
    assert f"sglang:e2e_request_latency_seconds_bucket{{{waits}}}" in page
    sizes = labels.format('le="3.0",')
    assert f"sglang:generation_tokens_histogram_bucket{{{sizes}}}" in page


def test_a_bad_metrics_flag_is_told_before_anything_is_loaded(program):
    one = program("--prompt-tokens-buckets", "steps", wait=False)
    status, said = one.end()
    assert status == 1 and "--prompt-tokens-buckets: the rule is" in said


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_drains_and_exits_with_0(program, number):
    one = program("--log-format", "json")
    with Client(one.path) as client:
        client.request("POST", "/generate", {**SLOW, "sampling_params": {"max_new_tokens": 200}})
        client.head()
        client.chunk()
        os.kill(one.process.pid, number)
        body = b""
        while piece := client.chunk():
            body += piece
    assert body.endswith(b"data: [DONE]\n\n")
    last = json.loads(body.split(b"\n\n")[-3].removeprefix(b"data: "))
    assert last["meta_info"]["finish_reason"] == {"type": "length", "length": 200}
    status, err = one.end()
    assert status == 0
    ready = json.loads(one.banner)
    assert ready["message"] == "ready" and ready["address"] == one.path
    lines = [json.loads(line) for line in err.splitlines()]  # all of them are JSON
    told = [line["message"] for line in lines if line["level"] == "info"]
    assert told[0] == "stopping" and lines[0]["signal"] == signal.Signals(number).name
    assert told[1].startswith("draining: 1 request left,") and told[-1] == "stopped"
    assert not os.path.exists(one.path)


def test_what_does_not_finish_in_time_gets_an_error_and_done(program):
    one = program("--drain-timeout", "0.5")
    with Client(one.path) as client:
        client.request("POST", "/generate", SLOW)
        client.head()
        client.chunk()
        one.process.terminate()
        body = b""
        while piece := client.chunk():
            body += piece
    assert body.endswith(b"data: [DONE]\n\n") and b"shutting down" in body
    status, err = one.end()
    assert status == 0 and "--drain-timeout is over: 1 request cut" in err


@pytest.mark.parametrize("number", SIGNALS)
def test_a_second_signal_ends_at_once(program, number):
    one = program("--drain-timeout", "600")
    with Client(one.path) as client:
        client.request("POST", "/generate", SLOW)
        client.head()
        client.chunk()
        one.process.send_signal(number)
        assert one.process.stderr is not None
        assert "stopping signal=" in one.process.stderr.readline()
        assert "draining" in one.process.stderr.readline()
        # Two hang-ups within two seconds are one: until it takes one for the second.
        reader = threading.Thread(target=lambda: [*iter(client.chunk, b"")])
        reader.start()
        while reader.is_alive():
            one.process.send_signal(number)
            reader.join(2.5 if number == signal.SIGHUP else 60)
    assert one.end()[0] == 0


def _on_a_terminal(words, where):
    """A program whose controlling terminal this is the other end of."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        words, cwd=ROOT, stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(slave, termios.TIOCSCTTY, 0),
        env={**os.environ, "HOME": str(where)},
    )  # fmt: skip
    os.close(slave)
    return process, master


@pytest.mark.parametrize("shell", [False, True])
def test_a_closed_terminal_cuts_no_stream(model_folder, tmp_path, shell):
    """Nothing can be written to it any more, and the end is as orderly as any other.

    From a shell the signal comes twice: the shell passes on its own, the kernel adds another.
    """
    path = str(tmp_path / "socket")
    command = [
        sys.executable, "-m", "tpc_server", "--uds", path, "--engine", "synthetic",
        "--model-path", str(model_folder), "--synthetic-tick-ms", "5",
    ]  # fmt: skip
    process, master = _on_a_terminal(["bash", "-i"] if shell else command, tmp_path)
    served = 0
    try:
        if shell:
            os.write(master, f"{shlex.join(command)}\n".encode())
        said = b""
        while b"curl -N" not in said:
            said += os.read(master, 65536)
        with Client(path) as client:
            sampling = {"max_new_tokens": 400}
            client.request("POST", "/generate", {**SLOW, "sampling_params": sampling})
            client.head()
            client.chunk()
            asked = client.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            served = struct.unpack("3i", asked)[0]
            os.close(master)  # the kernel tells the session's leader
            master = -1
            body = b""
            while piece := client.chunk():
                body += piece
        assert body.endswith(b"data: [DONE]\n\n") and b"shutting down" not in body
        status = process.wait(60)
        assert shell or status == 0
        assert until(lambda: not os.path.exists(path), 60)
        served = 0
    finally:
        if master >= 0:
            os.close(master)
        if served:
            os.kill(served, signal.SIGKILL)
        if process.poll() is None:
            process.kill()
            process.wait(30)


def test_nohup_is_left_alone(model_folder, tmp_path):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # inherited, as from `nohup`
    try:
        one = Program(model_folder, tmp_path)
    finally:
        signal.signal(signal.SIGHUP, before)
    try:
        one.process.send_signal(signal.SIGHUP)
        assert call(one.path, "GET", "/health").status == 200
        one.process.terminate()
        status, err = one.end()
        assert status == 0 and "signal=SIGTERM" in err and "SIGHUP" not in err
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate(timeout=30)


def test_operators_ask_a_program(model_folder, tmp_path):
    """Its cores are threads of its own: it says how it is, and that it cannot be reloaded."""
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path)}
    command = [
        sys.executable, "-m", "tpc_server", "--port", "0", "--engine", "synthetic",
        "--model-path", str(model_folder), "--log-format", "json",
    ]  # fmt: skip
    process = subprocess.Popen(
        command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    try:
        assert process.stdout is not None
        port = json.loads(process.stdout.readline())["address"].rpartition(":")[2]

        def ask(*words: str) -> Any:
            done = subprocess.run(
                [str(ROOT / "tpc"), *words, "--port", port], env=env, capture_output=True,
                text=True, timeout=50, check=False,
            )  # fmt: skip
            return done.returncode, json.loads(done.stdout)

        status, said = ask("status")
        assert status == 0 and said["mode"] == "in-process" and said["ready"] is True
        assert said["pids"] == [process.pid] and said["draining"] is False
        status, said = ask("reload")
        assert status == 1 and "runs in-process" in said["error"]
    finally:
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert not list((tmp_path / "tpc_server").iterdir())


@pytest.fixture
def never(tmp_path):
    """A script that takes for ever to read: a program that is given it stays loading."""
    path = tmp_path / "script.json"
    os.mkfifo(path)
    return path


def at_the_door(one: Program, *request: object) -> Any:
    """The answer of a program that is loading; waits until it listens at all."""
    while one.process.poll() is None:
        try:
            return call(one.path, *request)
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.01)
    raise AssertionError(one.end())


def test_not_yet_is_the_answer_while_the_model_is_loaded(program, never):
    one = program("--synthetic-script", str(never), wait=False)
    answer = at_the_door(one, "GET", "/health")
    assert answer.status == 503 and answer.headers["retry-after"] == "1"
    assert "not loaded yet" in answer.json()["error"]["message"]
    # A body that is larger than what anybody buffers does not cost it the answer.
    body = {"text": "x" * (4 << 20)}
    assert call(one.path, "POST", "/generate", body).status == 503
    with Client(one.path) as idle:  # says nothing, and holds nothing up
        idle.sock.sendall(b"GET /heal")
        assert call(one.path, "HEAD", "/health").body == b""
        never.write_text('{"scripts": []}')
        one.await_banner()
        assert idle.sock.recv(1) == b""
    assert call(one.path, "GET", "/health").status == 200
    one.process.terminate()
    assert one.end()[0] == 0


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_while_loading_ends_at_once(program, never, number):
    one = program("--synthetic-script", str(never), wait=False)
    at_the_door(one, "GET", "/health")
    os.kill(one.process.pid, number)
    status, err = one.end()
    assert status == 128 + number and "Traceback" not in err
    assert not os.path.exists(one.path)


def test_a_script_that_cannot_be_is_told_once_with_its_path(program, tmp_path):
    path = tmp_path / "script.json"
    path.write_text('{"scripts": [{"prompt": 5}]}')
    status, err = program("--synthetic-script", str(path), wait=False).end()
    assert status == 1 and err.count(str(path)) == 1 and "scripts[0].prompt" in err


def test_a_model_that_cannot_be_loaded_leaves_no_socket(program, tmp_path):
    one = program("--synthetic-script", str(tmp_path / "none.json"), wait=False)
    status, err = one.end()
    assert status == 1 and err.count("none.json") == 1
    assert not os.path.exists(one.path)


def test_a_taken_port_is_one_clear_line_before_anything_is_loaded(start, model_folder, never):
    run = start()
    done = subprocess.run(
        [sys.executable, "-m", "tpc_server", "--engine", "synthetic", "--model-path",
         str(model_folder), "--port", str(run.address[1]), "--synthetic-script", str(never)],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert f"cannot listen on 127.0.0.1:{run.address[1]}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.network
@pytest.mark.timeout(400)
def test_the_default_model_answers_streams_and_stops(tmp_path):
    """What a newcomer gets: nothing but the command."""
    one = Program(None, tmp_path)
    try:
        prompt = (
            "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
        )
        sampling = {"temperature": 0, "max_new_tokens": 32}
        body: dict[str, object] = {"text": prompt, "sampling_params": sampling}
        with Client(one.path, timeout=200) as client:
            events = client.call("POST", "/generate", {**body, "stream": True}).events()
            assert events[-1] == "[DONE]"
            assert events[-2]["text"] == "The capital of France is Paris."
            assert len(events) > 5
            stopping: dict[str, object] = {**sampling, "stop": ["France"]}
            body = {"text": prompt, "sampling_params": stopping}
            stopped = client.call("POST", "/generate", body).json()
            assert stopped["text"] == "The capital of "
            assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": "France"}
            # What fits into its cache: all that may be asked for at once, or what memory allows.
            assert client.call("GET", "/server_info").json()["max_total_num_tokens"] >= 8192
        assert "SmolLM2-135M-Instruct" in one.banner
        one.process.terminate()
        assert one.end()[0] == 0
    finally:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate(timeout=30)


@pytest.mark.parametrize("most", [5, 6, 7, 8, 9, 10])
def test_out_of_descriptors_at_the_start_is_clear_lines(model_folder, tmp_path, most):
    done = subprocess.run(
        [sys.executable, "-c",
         "import os, resource, sys; n = int(sys.argv[1]);"
         "resource.setrlimit(resource.RLIMIT_NOFILE, (n, n));"
         "os.execv(sys.executable, [sys.executable, '-m', 'tpc_server', *sys.argv[2:]])",
         str(most), "--engine", "synthetic", "--model-path", str(model_folder),
         "--uds", str(tmp_path / "socket")],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "file descriptors" in done.stderr or "Too many open files" in done.stderr
    assert len(done.stderr.splitlines()) <= 2 and "Traceback" not in done.stderr


LOGS = """
import sys
from tpc_server import __main__
from tpc_server.engines import registry
real = registry.create
def create(*args):
    engine = real(*args)
    def run(server, stopping):
        for level in ("debug", "info", "warning", "error"):
            server.setup.log(level, "it is said", why="a b", core=3)
        raise RuntimeError("and that was it")
    engine.run = run
    return engine
registry.create = create
sys.exit(__main__.main(sys.argv[1:]))
"""
LEVELS = ["debug", "info", "warning", "error"]


@pytest.mark.parametrize(
    ("level", "style"), [(None, "text"), ("debug", "json"), ("warning", "text"), ("error", "json")]
)
def test_log_lines_by_level_and_format(model_folder, tmp_path, level, style):
    words = ["--log-format", style, *(["--log-level", level] if level else [])]
    done = subprocess.run(
        [sys.executable, "-c", LOGS, "--engine", "synthetic", "--model-path", str(model_folder),
         "--uds", str(tmp_path / "socket"), *words],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "error: the engine ended: RuntimeError('and that was it')" in done.stderr
    told = [line for line in done.stderr.splitlines() if "it is said" in line]
    expected = LEVELS[LEVELS.index(level or "info") :]
    if style == "json":
        entries = [json.loads(line) for line in told]
        assert [e["level"] for e in entries] == expected
        assert {(e["message"], e["why"], e["core"]) for e in entries} == {("it is said", "a b", 3)}
        (died,) = [json.loads(x) for x in done.stderr.splitlines() if "engine died" in x]
        assert "Traceback" in died["stack"]  # in its one line
    else:
        form = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3} ([A-Z]+) +it is said why=\"a b\" core=3"
        found = [re.fullmatch(form, line) for line in told]
        assert [match and match[1].lower() for match in found] == expected
        assert "ERROR   engine died\nTraceback" in done.stderr


STUCK = """
import sys, time
from tpc_server import __main__, launch
from tpc_server.engines import registry
launch._ENGINE_JOIN_S = 600
real = registry.create
def create(*args):
    engine = real(*args)
    engine.run = lambda server, stopping: time.sleep(600)
    return engine
registry.create = create
sys.exit(__main__.main(sys.argv[1:]))
"""


def test_a_second_signal_waits_for_no_thread(model_folder, tmp_path):
    """An engine in the middle of a long computation, say."""
    process = subprocess.Popen(
        [sys.executable, "-c", STUCK, "--engine", "synthetic", "--model-path", str(model_folder),
         "--uds", str(tmp_path / "socket"), "--skip-server-warmup"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        while not process.stdout.readline().strip().startswith("try"):
            pass
        process.terminate()
        while os.path.exists(tmp_path / "socket"):  # the cores have ended
            time.sleep(0.01)
        process.terminate()
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate(timeout=30)
