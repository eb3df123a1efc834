"""A handler that throws costs its own request alone, while it has begun nothing."""

from __future__ import annotations

import pytest

from tests.http_client import Client, call
from tpc_server.render import native
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


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["meta_middle", "plain_result"])
def test_an_answer_that_cannot_be_rendered(start, monkeypatch, capfd, stream, where):
    """It ends its own request with an error; who shares the core notices nothing."""
    real = getattr(native, where)

    def broken(*args):
        if any(b"unlucky" in arg for arg in args if type(arg) is bytes):
            raise ZeroDivisionError("on purpose")
        return real(*args)

    monkeypatch.setattr(native, where, broken)
    run = start(manual=True)
    with Client(run.address) as other, Client(run.address) as client:
        long = {"text": "x" * 60, "stream": True, "sampling_params": {"max_new_tokens": 60}}
        other.request("POST", "/generate", long)
        run.scheduler.wait_for(lambda s: len(s.live) == 1)
        run.scheduler.step()
        assert other.head()[0] == 200 and other.chunk()
        wanted = {"max_new_tokens": 2}
        body = {"text": "ab", "rid": "unlucky", "stream": stream, "sampling_params": wanted}
        for _ in range(4):  # three deaths of a core would end the server
            live = len(run.scheduler.live)
            client.request("POST", "/generate", body)
            run.scheduler.wait_for(lambda s, live=live: len(s.live) == live + 1)
            for _ in range(2):
                run.scheduler.step()
                assert other.chunk()
            answer = client.answer()
            if (where == "plain_result") == stream:  # has no part in it
                assert answer.status == 200 and b'"error"' not in answer.body
            elif stream and answer.status == 200:
                assert b"could not be rendered" in answer.body
            else:
                assert answer.status == 500 and b"could not be rendered" in answer.body
            run.scheduler.wait_for(lambda s: len(s.live) == 1)
    assert run.total("resets") == 0
    assert "core died" not in capfd.readouterr().err


def test_headers_that_throw(start, monkeypatch):
    def broken(self, conn, request, close):
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(Router, "admit", broken)
    run = start(options={"api_keys": ("k",)})
    assert call(run.address, "GET", "/v1/models").status == 500
    assert run.total("resets") == 0
