"""Ends of connections that met something unusual on their way. Each was a bug once."""

from __future__ import annotations

import json
import socket

from tests.http_client import Client

BODY = {"text": "abc", "sampling_params": {"max_new_tokens": 6}}


def raw(body, method="POST", path="/generate"):
    """Bytes of a request."""
    data = json.dumps(body).encode()
    return b"%b %b HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (
        method.encode(), path.encode(), len(data), data,
    )  # fmt: skip


def test_pipelined_requests_before_a_half_close_are_all_answered(start):
    """The descriptor was watched for input again after its end had been read."""
    run = start(manual=True)
    with Client(run.address) as client:
        client.send(raw(BODY) * 3)
        client.sock.shutdown(socket.SHUT_WR)
        for _ in range(3):
            run.scheduler.wait_for(lambda s: s.live)
            run.scheduler.step(6)
            assert client.answer().json()["text"] == "abcabc"
        assert not client.fill()
    assert run.total("resets") == 0
