"""A prefill server's registry over sockets: who may, and what outlives a frontend's process."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest

from tests.e2e.test_placements import placed
from tests.e2e.test_sidecar import sidecar, until  # noqa: F401  (a fixture)
from tests.http_client import Client, call
from tests.unit.test_registry import payload
from tpc_server import DisaggregationMode
from tpc_server.boundary.messages import GENERATE

pytestmark = pytest.mark.timeout(120)
PREFILL = {"disaggregation_mode": DisaggregationMode.Prefill}
WHOLE = "/route?prefill_dp_rank=-1&prefill_cp_rank=-1&target_tp_rank=-1&target_pp_rank=-1"


def place(dp, cp, tp, pp):
    return (
        f"/route?prefill_dp_rank={dp}&prefill_cp_rank={cp}&target_tp_rank={tp}&target_pp_rank={pp}"
    )


def register(address, **fields):
    answer = call(address, "PUT", "/route", payload(**fields))
    assert (answer.status, answer.body) == (200, b"OK"), answer.body


def note(address, room, rank):
    body = {"bootstrap_room": room, "dp_rank": rank}
    answer = call(address, "POST", "/register_dp_rank", body)
    assert (answer.status, answer.body) == (200, b"OK"), answer.body


def rooms(address, *wanted):
    return call(address, "POST", "/query_dp_ranks", {"bootstrap_rooms": list(wanted)}).json()


def test_only_a_prefill_server_has_one(start):
    for mode in (DisaggregationMode.Null, DisaggregationMode.Decode):
        run = start(disaggregation_mode=mode)
        for method, path in (
            ("GET", WHOLE), ("PUT", "/route"), ("POST", "/register_dp_rank"),
            ("POST", "/query_dp_ranks"),
        ):  # fmt: skip
            assert call(run.address, method, path, payload()).status == 404


@pytest.mark.parametrize("cores", ["1", "ingress=0,1 tokenize=0 detok=0 egress=0,1"])
def test_ranks_and_rooms(start, cores):
    run = start(options={"plan": placed(cores.split()), "api_keys": ("user-key",)}, **PREFILL)
    address = run.address  # no key: SGLang's ranks have none
    answer = call(address, "GET", WHOLE)
    assert answer.status == 503 and "0 have" in answer.json()["error"]["message"]
    register(address)
    assert (
        call(address, "GET", WHOLE).status == call(address, "GET", place(0, 0, 0, 0)).status == 503
    )
    register(address, attn_tp_rank=1, rank_ip="fe80::1", rank_port="17001")
    for _ in range(4):  # whichever core has it
        told = call(address, "GET", WHOLE).json()
        assert (told["attn_tp_size"], told["dp_size"], told["page_size"]) == (2, 1, 64)
    found = call(address, "GET", place(0, 0, 1, 0)).json()
    assert found == {"rank_ip": "fe80::1", "rank_port": 17001}
    assert call(address, "GET", place(0, 0, 2, 0)).status == 404
    for path in ("/route", "/route?prefill_dp_rank=0", place("x", 0, 0, 0), place("", 0, 0, 0)):
        answer = call(address, "GET", path)
        assert answer.status == 400 and "rank" in answer.json()["error"]["message"], path
    answer = call(address, "PUT", "/route", payload(decode_allocation_policy="other"))
    assert answer.status == 400 and "decode_allocation_policy" in answer.json()["error"]["message"]
    assert call(address, "PUT", "/route", payload(rank_ip=None)).status == 400
    assert call(address, "DELETE", "/route").status == 405
    room = (1 << 63) - 1
    note(address, room, 3)
    note(address, "17", 0)
    assert rooms(address, room, "17", 18) == {str(room): 3, "17": 0}
    assert rooms(address) == {}
    assert call(address, "POST", "/query_dp_ranks", {"bootstrap_rooms": 1}).status == 400
    assert call(address, "POST", "/generate", {"text": "ab"}).status == 401


def test_the_schedulers_thread_has_no_part_in_it(sidecar):  # noqa: F811
    """SGLang's registers itself from there, and waits for the answer: nobody tends the link."""
    run = sidecar(**PREFILL)
    run.scheduler.stop()
    register(run.address, attn_tp_size=1)
    assert call(run.address, "GET", WHOLE).status == 200


def test_it_outlives_a_frontend(sidecar):  # noqa: F811
    run = sidecar(**PREFILL)
    register(run.address, attn_tp_size=1)
    note(run.address, 5, 2)
    first = run.pid()
    os.kill(first, signal.SIGKILL)
    until(lambda: run.server.processes()[-1:] not in ([], [first]))
    assert call(run.address, "GET", place(0, 0, 0, 0)).json()["rank_port"] == 17000
    assert rooms(run.address, 5) == {"5": 2}
    second = run.pid()
    until(run.server.reload)
    with Client(run.address) as client:  # said to the old one while the new one starts
        body = {"bootstrap_room": 6, "dp_rank": 1}
        assert client.call("POST", "/register_dp_rank", body).status == 200
        until(lambda: run.server.processes()[-1:] != [second])
    until(lambda: second not in run.server.processes())
    assert rooms(run.address, 5, 6) == {"5": 2, "6": 1}
    assert call(run.address, "GET", WHOLE).status == 200


def test_frontends_share_it(sidecar):  # noqa: F811
    run = sidecar(frontends=2, **PREFILL)
    register(run.address, attn_tp_size=1)
    pause = threading.Event()
    deadline = time.monotonic() + 20
    cores = run.server.counters
    while min(c["requests"] for c in cores()) == 0 and time.monotonic() < deadline:
        assert call(run.address, "GET", WHOLE).status == 200  # by either of them
        pause.wait(0.01)
    assert min(c["requests"] for c in cores()) > 0


@pytest.mark.parametrize("mode", ["Prefill", "Decode", "Null"])
def test_requests_of_the_servers_own(start, mode):
    """The other half has no part in them: SGLang knows that host to be none."""
    run = start(skip_server_warmup=False, disaggregation_mode=getattr(DisaggregationMode, mode))
    until(lambda: run.server.ready)
    assert call(run.address, "GET", "/health").status == 200
    wanted = (None, None) if mode == "Null" else ("2.2.2.2", 0)
    sent = [m for m in run.scheduler.received if m[0] == "TokenizedGenerateReqInput"]
    assert len(sent) == 2
    for message in sent:
        found = (message[GENERATE["bootstrap_host"]], message[GENERATE["bootstrap_room"]])
        assert found == wanted
