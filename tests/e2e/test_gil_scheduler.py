"""A scheduler on an ordinary Python: its frontend is a child without a GIL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_sidecar import until
from tests.gil_env import clean_env, gil_env
from tests.http_client import Client, call

pytestmark = [pytest.mark.network, pytest.mark.timeout(180)]
ROOT = Path(__file__).parents[2]


class Program:
    """The running scheduler."""

    def __init__(self, model: Path, command: str = "") -> None:
        env = clean_env() | {"TPC_PYTHON": sys.executable}
        self.process = subprocess.Popen(
            [str(gil_env("scheduler", command)), str(Path(__file__).with_name("gil_scheduler.py")),
             str(ROOT), str(model)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env,
        )  # fmt: skip
        assert self.process.stdin is not None and self.process.stdout is not None
        self._in, self._out = self.process.stdin, self.process.stdout
        self.about = self.read()
        self.address = ("127.0.0.1", self.about["port"])

    def read(self):
        line = self._out.readline()
        assert line, f"it ended with {self.process.wait(20)}"
        return json.loads(line)

    def ask(self, command):
        self._in.write(json.dumps(command) + "\n")
        self._in.flush()
        return self.read()

    def generate(self, text="abc", **more):
        body = {"text": text, "sampling_params": {"max_new_tokens": 4}, **more}
        return call(self.address, "POST", "/generate", body)


@pytest.fixture
def program(request, model_folder):
    made = Program(model_folder, getattr(request, "param", ""))
    yield made
    if made.process.poll() is None:
        made.process.kill()
    made.process.wait()
    made._in.close()
    made._out.close()


@pytest.mark.parametrize("program", ["", "python3.11"], indirect=True)
def test_served_from_a_process_with_a_gil(request, program):
    about = program.about
    assert f"python{about['python']}".startswith(request.node.callspec.params["program"])
    assert about["mode"] == "SidecarServer" and about["threads"] == ["MainThread"]
    # What only the child needs is not imported here.
    assert not {"tokenizers", "httptools", "jinja2", "jiter"} & set(about["modules"])
    until(lambda: call(program.address, "GET", "/health").status == 200)
    assert program.generate().json()["text"] == "abca"
    info = call(program.address, "GET", "/server_info").json()
    assert info["gil_enabled"] is False and info["mode"] == "sidecar"
    events = program.generate(stream=True).events()
    assert events[-2]["text"] == "abca"


def test_another_thread_goes_on_during_a_large_push(program):
    answer = program.ask("large")
    assert answer["taken"] is True and answer["counted"] > 20
    assert program.generate().status == 200


def test_a_killed_child_costs_its_scheduler_nothing(program):
    (pid,) = program.about["pids"]
    os.kill(pid, signal.SIGKILL)
    assert program.generate().status == 200
    (other,) = program.ask("pids")["pids"]
    assert other != pid


def test_a_killed_scheduler_ends_every_stream_and_the_child(program):
    (pid,) = program.about["pids"]
    with Client(program.address) as client:
        client.request("POST", "/generate", {"text": "abc", "stream": True, "sampling_params":
                                             {"max_new_tokens": 4000}})  # fmt: skip
        assert client.head()[0] == 200
        client.chunk()
        program.process.kill()
        program.process.wait()
        body = b""
        while chunk := client.chunk():
            body += chunk
        assert body.endswith(b"data: [DONE]\n\n")
        assert b'"error"' in body or b'"finish_reason":{' in body
    until(lambda: not _alive(pid))


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False


def test_shutdown(program):
    (pid,) = program.about["pids"]
    assert program.ask("stop") == {"stopped": True}
    until(lambda: not _alive(pid))
    program._in.close()  # its program ends, and with 0: no thread of ours is left behind
    assert program.process.wait(20) == 0
