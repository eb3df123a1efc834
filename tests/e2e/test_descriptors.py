"""Out of descriptors while serving: who came before is served, who comes waits, nothing spins."""

from __future__ import annotations

import os
import resource
import time

import pytest

from tests.e2e.test_program import Program
from tests.http_client import Client
from tests.stress.clock import until

SHORT = {"text": "ab", "sampling_params": {"max_new_tokens": 2}}
LONG = {"text": "x" * 20_000, "sampling_params": {"max_new_tokens": 2}}  # asks for a helper thread
STREAM = {"text": "ab", "stream": True, "sampling_params": {"max_new_tokens": 100_000}}
COMERS = 12


def descriptors(pid: int) -> list[int]:
    return [int(fd) for fd in os.listdir(f"/proc/{pid}/fd")]


def counted(client: Client, name: str) -> list[int]:
    """A counter of each core."""
    cores = client.call("GET", "/server_info").json()["cores"]
    return [core[name] for core in cores.values()]


@pytest.fixture(params=["1", "2", "ingress=0 tokenize=1 detok=2 egress=3"])
def program(request, model_folder, tmp_path):
    words = ["--unpinned", "--cores", *request.param.split(), "--drain-timeout", "1"]
    one = Program(model_folder, tmp_path, *words)
    yield one
    if one.process.poll() is None:
        one.process.kill()
        one.process.communicate(timeout=30)


def test_who_comes_is_served_later(program):
    one = program
    pid = one.process.pid
    asking, streaming = Client(one.path), Client(one.path)
    assert asking.call("POST", "/generate", SHORT).status == 200
    streaming.request("POST", "/generate", STREAM)
    assert streaming.head()[0] == 200 and streaming.chunk()
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    most = max(descriptors(pid)) + 1
    holes = most - len(descriptors(pid))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most + 4, before[1]))
    comers = [Client(one.path, timeout=60) for _ in range(COMERS + holes)]
    for client in comers:
        client.request("POST", "/generate", SHORT)
    # All are taken, and then none is left: some connections wait in the queue.
    full = most + 4
    assert until(lambda: len(descriptors(pid)) >= full - 1, 30), descriptors(pid)
    # Those there are are served, a long prompt too although there is no helper to be had.
    assert asking.call("POST", "/generate", SHORT).status == 200
    assert asking.call("POST", "/generate", LONG).status == 200
    assert streaming.chunk() and streaming.chunk()
    streaming.reset()  # makes room for one, which is taken at once by a comer
    # Nothing spins over what it cannot accept: turns of the loop, in a time of the cores' own.
    loops, beats = counted(asking, "loops"), counted(asking, "heartbeat_ns")
    time.sleep(1.0)  # a period to count in, not a wait for something
    seconds = (max(counted(asking, "heartbeat_ns")) - max(beats)) / 1e9
    for more, first in zip(counted(asking, "loops"), loops, strict=True):
        assert more - first < 300 * (seconds + 1)
    # Every one of them is answered as descriptors come back, or told at once to come again.
    statuses = []
    for client in comers:
        answer = client.answer()
        statuses.append(answer.status)
        assert answer.status == 200 or answer.headers["connection"] == "close"
        client.close()
    assert set(statuses) <= {200, 503} and statuses.count(200) >= len(comers) // 2, statuses
    resource.prlimit(pid, resource.RLIMIT_NOFILE, before)
    with Client(one.path) as fresh:
        assert fresh.call("POST", "/generate", LONG).status == 200
    assert not any(counted(asking, "resets"))
    asking.close()
    one.process.terminate()
    status, err = one.end()
    assert status == 0 and "Traceback" not in err
    assert "out of descriptors: accepting pauses" in err
    # A line a minute and core, not one a pause, connection or turn.
    assert err.count("accepting pauses") <= 8
