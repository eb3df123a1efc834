"""A core that dies again and again: its stack in the log, every client told, the server's end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.test_lifecycle import BODY, until
from tests.e2e.test_placements import placed
from tests.http_client import Client
from tpc_server.core import Core

ROOT = Path(__file__).parents[2]
DEATHS = 3  # in half a minute, then no more
SLOW = {"text": "x", "stream": True, "sampling_params": {"max_new_tokens": 100000}}

# Core 1 has a bug that shows once the file is there, and at every turn of its loop from then on.
BUG = """
import os, sys
from tpc_server import __main__, core
real = core.Core._publish
def publish(self, now, words):
    if self.index == 1 and os.path.exists(sys.argv[1]):
        raise ZeroDivisionError("a bug of core 1")
    real(self, now, words)
core.Core._publish = publish
sys.exit(__main__.main(sys.argv[2:]))
"""


def rest_of(client: Client) -> bytes:
    """A stream to its end."""
    body = b""
    while piece := client.chunk():
        body += piece
    return body


def deaths_in(log: str, error: str) -> list[str]:
    """What the log says of each stack of this error, in order; every stack is one record's."""
    entries = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    stacks = [entry for entry in entries if "Traceback" in entry.get("stack", "")]
    assert log.count("Traceback") == len(stacks)
    assert all(error in entry["stack"] and entry["core"] == 1 for entry in stacks), stacks
    return [entry["message"] for entry in stacks]


def test_the_program_ends_with_1_and_every_stream_with_an_error(model_folder, tmp_path):
    socket, bug = str(tmp_path / "socket"), tmp_path / "bug"
    process = subprocess.Popen(
        [sys.executable, "-c", BUG, str(bug), "--engine", "synthetic", "--uds", socket,
         "--model-path", str(model_folder), "--synthetic-tick-ms", "5", "--cores", "2",
         "--unpinned", "--context-length", "1000000", "--log-format", "json"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None and process.stdout.readline().startswith("{")
        streams = [Client(socket) for _ in range(8)]  # more than one core takes
        for client in streams:
            client.request("POST", "/generate", SLOW)
        for client in streams:
            assert client.head()[0] == 200 and client.chunk()
        bug.touch()
        ends = [rest_of(client) for client in streams]
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate(timeout=30)
    assert process.returncode == 1, err
    assert deaths_in(err, "a bug of core 1") == [
        *["core died and is rebuilt"] * (DEATHS - 1), "core died for good",
    ]  # fmt: skip
    assert all(end.endswith(b"data: [DONE]\n\n") for end in ends)
    assert not any(b'"finish_reason":{' in end for end in ends)  # no end of a success
    told = {b"core was restarted" in end: b"shutting down" in end for end in ends}
    # Those of the core that died were told of it, the others that the server stops.
    assert told == {True: False, False: True}


@pytest.mark.parametrize("dead", range(4), ids=["ingress", "tokenize", "detok", "egress"])
def test_whatever_stage_it_was_the_others_end_their_streams(start, monkeypatch, capfd, dead):
    """Four stages on four cores. No request ends as if nothing had happened."""
    broken: list[int] = []
    real = Core._publish

    def publish(core, now, words):
        if core.index in broken:
            raise ZeroDivisionError("a bug")
        real(core, now, words)

    monkeypatch.setattr(Core, "_publish", publish)
    plan = placed(["ingress=0", "tokenize=1", "detok=2", "egress=3"])
    run = start(manual=True, options={"plan": plan})
    stream, unary = Client(run.address), Client(run.address)
    stream.request("POST", "/generate", BODY)
    unary.request("POST", "/generate", {**BODY, "stream": False})
    run.scheduler.wait_for(lambda s: len(s.live) == 2)
    run.scheduler.step()
    assert stream.head()[0] == 200 and stream.chunk()
    broken.append(dead)
    until(run, lambda: run.server.failed)
    assert run.server.counters()[dead]["resets"] == DEATHS
    run.server.shutdown()
    if plan.cores[dead].stages in (("tokenize",), ("detok",)):
        body = rest_of(stream)
        assert b'"error"' in body and body.endswith(b"data: [DONE]\n\n")
        assert unary.answer().status == 503
    else:  # the connection was its own: cut, which no client takes for an end
        for client in (stream, unary):
            with pytest.raises((EOFError, OSError)):
                rest_of(client)
    log = capfd.readouterr().err
    assert log.count("Traceback") == DEATHS and log.count("core died for good") == 1
    assert log.count(f"core={dead}") == DEATHS
