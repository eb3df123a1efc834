"""Keys on every route, what is refused, the scheduler's end, the environment. Owner: pytest."""

from __future__ import annotations

import json
import signal
import socket

import psutil
import pytest

from tests.http_client import Client
from tests.sglang import families
from tests.sglang.serving import Ended, until
from tests.sglang.test_life import LONG
from tpc_server.routes.table import ADMIN, ADMIN_OPTIONAL, KEY, OPEN, REGISTRY, ROUTES

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(400)]

IDLE_FLAG = "--enable-tokenizer-batch-encode"
KEY_TEXT, ADMIN_TEXT = "opens-the-api", "opens-it-all"


@pytest.fixture(scope="module")
def locked(serve):
    """An SGLang with keys, warmed up without them."""
    flags = ("--api-key", KEY_TEXT, "--admin-api-key", ADMIN_TEXT, *families.FLAGS, IDLE_FLAG)
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


def test_flags_that_do_nothing_are_told_once(locked):
    lines = [x for x in locked.log.read_text("utf-8").splitlines() if "without effect" in x]
    assert len(lines) == 1 and lines[0].endswith(f"without effect here: {IDLE_FLAG}")


@pytest.fixture(scope="module")
def shown(locked):
    """Our families, after the requests that theirs were recorded after."""
    return families.shown(locked, KEY_TEXT, ADMIN_TEXT)


@pytest.mark.parametrize("side", ["python", "rust"])
def test_metrics_are_those_that_operators_graph(shown, side):
    """The scheduler's families and the frontend's, from SGLang's one directory."""
    recorded = json.loads(families.RECORDED.read_text("utf-8"))[side]
    assert families.differences(shown, recorded, side) == []
    assert len(recorded.keys() & shown.keys()) > 70


def test_no_row_allows_what_is_not_there(shown):
    recorded = json.loads(families.RECORDED.read_text("utf-8"))
    for row in families.ALLOWED:
        for name in row.families:
            for side in row.sides:
                found = families.different(shown.get(name), recorded[side].get(name))
                assert row.what in found, (name, side, row)


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


def test_a_port_that_is_taken(serve):
    """Found by the scheduler, whose frontend it is: no other one is tried."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        one = serve("tpc", "--port", str(port))
        tree = []
        with pytest.raises(Ended) as found:
            one.wait(watch=lambda: tree.extend(one.tree()))
    status, *said = str(found.value).splitlines()
    assert status == "status 1" and "Traceback" not in str(found.value)
    (line,) = [line for line in said if line.startswith("tpc-server: error: ")]
    assert f"cannot listen on 127.0.0.1:{port}" in line
    assert len({process.pid for process in tree}) > 1  # a scheduler was there
    until(lambda: not [p for p in tree if p.is_running() and p.status() != psutil.STATUS_ZOMBIE])
