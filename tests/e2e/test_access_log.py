"""The access log: a line a request, with what was sent. Owner: pytest."""

from __future__ import annotations

import json
import re

import pytest

from tests.http_client import Client
from tpc_server.affinity import topology
from tpc_server.affinity.plan import PlanSettings, parse_cores, plan


def lines_of(err: str) -> list[dict]:
    told = [json.loads(line) for line in err.splitlines()]
    return [line for line in told if line["message"] == "request"]


def test_a_line_a_request(start, capfd):
    options = {"access_log": True, "log_format": "json", "request_id_headers": True}
    run = start(options=options, log_level="info")
    with Client(run.address) as client:
        names = []
        for method, path, body, headers in (
            ("POST", "/generate", {"text": "ab"}, {"X-Request-Id": "mine 1"}),
            ("POST", "/generate", {"text": "ab", "stream": True}, {}),
            ("GET", "/nope?key=secret", None, {}),
            ("POST", "/generate", {"text": 1}, {}),
        ):
            client.request(method, path, body, headers)
            names.append(client.answer().headers["x-request-id"])
        client.sock.sendall(b"nonsense\r\n\r\n")
        assert client.answer().status == 400
    with Client(run.address) as client:  # a reader that goes away
        client.request("POST", "/generate", {
            "text": "ab", "stream": True, "sampling_params": {"max_new_tokens": 4000},
        })  # fmt: skip
        client.head()
        client.chunk()
    run.scheduler.wait_for(lambda s: s.aborted)
    run.server.shutdown()
    lines = lines_of(capfd.readouterr().err)
    assert [(line["method"], line["path"], line["status"]) for line in lines] == [
        ("POST", "/generate", 200), ("POST", "/generate", 200), ("GET", "/nope", 404),
        ("POST", "/generate", 400), ("-", "-", 400), ("POST", "/generate", 200),
    ]  # fmt: skip
    assert [line["id"] for line in lines[:4]] == names
    assert lines[0]["id"] == "mine 1" and re.fullmatch("[0-9a-f]{32}", lines[1]["id"])
    assert all(line["ms"] >= 0 and line["bytes"] > 100 for line in lines)
    assert [line.get("cut", False) for line in lines] == [False] * 5 + [True]


@pytest.mark.parametrize("off", [{}, {"access_log": False}])
def test_no_line_unless_asked_for(start, capfd, off):
    run = start(options={"log_format": "json", **off}, log_level="info")
    with Client(run.address) as client:
        assert client.call("POST", "/generate", {"text": "ab"}).status == 200
    run.server.shutdown()
    assert lines_of(capfd.readouterr().err) == []


def test_where_another_core_writes_the_answer(start, capfd):
    """What went into the socket is not known there; the line says the rest."""
    wanted = parse_cores(["ingress=0", "tokenize=1", "detok=2", "egress=3"])
    placed = plan(topology.read(), PlanSettings(cores=wanted, unpinned=True))
    options = {"access_log": True, "log_format": "json", "plan": placed}
    run = start(options=options, log_level="info")
    with Client(run.address) as client:
        assert client.call("POST", "/generate", {"text": "ab"}).status == 200
        assert client.call("GET", "/health").status == 200
        assert client.call("GET", "/live").status == 200  # by now the first two have ended
    run.server.shutdown()
    lines = lines_of(capfd.readouterr().err)
    assert [line["path"] for line in lines[:2]] == ["/generate", "/health"]
    assert all("status" not in line and line["ms"] >= 0 for line in lines)
