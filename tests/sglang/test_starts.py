"""Keys on every route, what is refused, the scheduler's end, the environment. Owner: pytest."""

from __future__ import annotations

import json
import signal
import subprocess

import psutil
import pytest

from tests.http_client import Client
from tests.sglang.serving import Ended, environ
from tests.sglang.test_life import LONG, until
from tpc_server.integrations.sglang import facts
from tpc_server.routes.table import ADMIN, ADMIN_OPTIONAL, KEY, OPEN, REGISTRY, ROUTES

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(400)]

KEY_TEXT, ADMIN_TEXT = "opens-the-api", "opens-it-all"


@pytest.fixture(scope="module")
def locked(serve):
    """An SGLang with keys, warmed up without them."""
    flags = ("--api-key", KEY_TEXT, "--admin-api-key", ADMIN_TEXT, "--enable-metrics")
    return serve("tpc", *flags).wait()


def status(sglang, method, path, key=None):
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    with Client(sglang.address) as client:
        return client.call(method, path, None, **headers).status


SERVED = [route for route in ROUTES if route.handler not in REGISTRY]


@pytest.mark.parametrize("route", SERVED, ids=lambda route: route.path)
def test_keys_are_asked_on_every_route(locked, route):
    path = route.path.replace("{model}", "tiny-model")
    for method in route.methods:
        without, wrong = status(locked, method, path), status(locked, method, path, "other")
        if route.access == OPEN:
            assert 401 not in (without, wrong)
            continue
        assert (without, wrong) == (401, 401)
        right = ADMIN_TEXT if route.access in (ADMIN, ADMIN_OPTIONAL) else KEY_TEXT
        assert route.access in (KEY, ADMIN, ADMIN_OPTIONAL)
        if not path.startswith(("/flush", "/abort")):
            assert status(locked, method, path, right) not in (401, 403)


def test_the_storage_behind_the_cache(locked):
    """The scheduler has none, and says so; what it is comes from the scheduler's state."""
    admin = {"Authorization": f"Bearer {ADMIN_TEXT}"}
    body = {"hicache_storage_backend": "file"}
    with Client(locked.address) as client:
        answer = client.call("GET", "/hicache/storage-backend", None, **admin)
        assert answer.status == 200 and answer.json()["hicache_storage_backend"] is None
        assert answer.json()["hicache_write_policy"] in ("write_through", "write_back")
        for method in ("PUT", "DELETE"):
            answer = client.call(method, "/hicache/storage-backend", body, **admin)
            assert answer.status == 400 and b"not enabled" in answer.body


def test_unknown_paths_want_a_key_and_no_key_is_shown(locked):
    assert status(locked, "GET", "/nothing") == 401
    for process in locked.frontends():
        assert KEY_TEXT not in " ".join(process.cmdline())
    with Client(locked.address) as client:
        shown = client.call("GET", "/server_info", None, Authorization=f"Bearer {KEY_TEXT}")
    assert KEY_TEXT.encode() not in shown.body and ADMIN_TEXT.encode() not in shown.body


def test_metrics_are_those_that_operators_graph(locked):
    """The scheduler's families and the frontend's, from SGLang's one directory."""
    body = {"text": "Hello world", "sampling_params": {"temperature": 0, "max_new_tokens": 4}}
    bearer = {"Authorization": f"Bearer {KEY_TEXT}"}
    with Client(locked.address, timeout=60) as client:
        assert client.call("POST", "/generate", body, **bearer).status == 200
        text = client.call("GET", "/metrics", None, **bearer).body.decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    values = {line.partition("{")[0] for line in lines}
    ours = ("prompt_tokens_total", "generation_tokens_total", "num_requests_total",
            "time_to_first_token_seconds_count", "e2e_request_latency_seconds_count")  # fmt: skip
    theirs = ("num_running_reqs", "num_queue_reqs", "token_usage", "cache_hit_rate")
    assert {f"sglang:{name}" for name in (*ours, *theirs)} <= values
    named = [line for line in lines if line.startswith(tuple(f"sglang:{name}" for name in ours))]
    assert named and all('model_name="tiny-model"' in line for line in named)


def test_the_weights_are_checked(locked):
    bearer = {"Authorization": f"Bearer {ADMIN_TEXT}"}
    with Client(locked.address, timeout=60) as client:
        found = client.call("POST", "/weights_checker", {"action": "checksum"}, **bearer)
    assert found.status == 200, found.body
    assert found.json()


def test_zz_the_scheduler_is_killed_in_mid_stream(locked):
    """The last of this instance."""
    (scheduler,), (frontend,) = locked.schedulers(), locked.frontends()
    body = {"text": "Hello world", "stream": True, "sampling_params": LONG}
    with Client(locked.address, timeout=30) as client:
        client.request("POST", "/generate", body, {"Authorization": f"Bearer {KEY_TEXT}"})
        assert client.head()[0] == 200
        client.chunk()
        scheduler.send_signal(signal.SIGKILL)
        text = b"".join(iter(client.chunk, b"")).decode()
    events = [part for part in text.split("\n\n") if part]
    assert events[-1] == "data: [DONE]"
    assert "error" in json.loads(events[-2].removeprefix("data: "))
    until(lambda: not psutil.pid_exists(frontend.pid))
    locked.process.wait(60)


def test_what_is_recorded_of_sglang_is_true(prepared):
    done = subprocess.run(
        [prepared.python, "-m", "tpc_server.integrations.sglang.facts"],
        env=environ(prepared, ""), capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert facts.differences(json.loads(done.stdout), facts.recorded()) == []
    assert done.stdout == facts.RECORDED.read_text(encoding="utf-8")


def test_a_refused_flag_ends_the_start_with_one_line(serve, tmp_path):
    for name in ("cert", "key"):
        (tmp_path / name).touch()  # SGLang wants them to be there
    files = ("--ssl-certfile", str(tmp_path / "cert"), "--ssl-keyfile", str(tmp_path / "key"))
    one = serve("tpc", *files)
    with pytest.raises(Ended) as found:
        one.wait()
    text = str(found.value)
    assert text.startswith("status 1\n") and "Traceback" not in text
    assert text.splitlines()[-1].startswith("tpc-server: error: --ssl-")


def test_without_a_prepared_interpreter(serve, tmp_path):
    one = serve("tpc", XDG_CACHE_HOME=str(tmp_path), TPC_PYTHON="", PATH="/usr/bin:/bin")
    with pytest.raises(Ended) as found:
        one.wait()
    assert "run `tpc-server setup`" in str(found.value) and "Traceback" not in str(found.value)


def test_a_port_that_is_taken(serve):
    import socket

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        one = serve("tpc", "--port", str(other.getsockname()[1]))
        with pytest.raises(Ended) as found:
            one.wait()
    assert "tpc-server: error:" in str(found.value) or "in use" in str(found.value)
