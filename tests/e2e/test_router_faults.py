"""A handler that throws costs its own request alone, while it has begun nothing."""

from __future__ import annotations

import pytest

from tests.http_client import Client, call
from tpc_server.routes.router import Router


@pytest.mark.parametrize("name", ["model_info", "models"])
def test_a_handler_that_throws(start, monkeypatch, name):
    def broken(self, conn, request, close):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(Router, name, broken)
    run = start()
    path = {"model_info": "/model_info", "models": "/v1/models"}[name]
    with Client(run.address) as client:
        for _ in range(4):  # three deaths of a core would end the server
            answer = client.call("GET", path)
            assert answer.status == 500
            told = answer.json()
            told = told["error"] if name == "model_info" else told  # OpenAI's shape is flat
            assert told["message"] == "the server failed to handle this request"
    assert call(run.address, "GET", "/live").status == 200
    assert run.total("resets") == 0


def test_headers_that_throw(start, monkeypatch):
    def broken(self, conn, request, close):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(Router, "admit", broken)
    run = start(options={"api_keys": ("k",)})
    assert call(run.address, "GET", "/v1/models").status == 500
    assert run.total("resets") == 0
