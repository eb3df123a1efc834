"""Bodies that take long to decode: a helper thread does it, everybody else is served meanwhile."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.e2e.test_lifecycle import until
from tests.http_client import Client, call
from tpc_server.helper import Helper
from tpc_server.routes import beside

LARGE = {"input_ids": [65] * 200_000}  # 800 KB
SHORT = {"text": "ab", "sampling_params": {"max_new_tokens": 2}}


class Gate:
    """Holds up the helper until it is opened; counts what it was given."""

    def __init__(self, monkeypatch: Any) -> None:
        self.begun = threading.Semaphore(0)
        self.opened = threading.Event()
        self.sizes: list[int] = []
        real = beside._decoded

        def decoded(decode: Any, body: bytes) -> Any:
            self.sizes.append(len(body))
            self.begun.release()
            assert self.opened.wait(30)
            return real(decode, body)

        monkeypatch.setattr(beside, "_decoded", decoded)


@pytest.fixture
def gate(monkeypatch):
    one = Gate(monkeypatch)
    yield one
    one.opened.set()


ROUTES: list[tuple[str, Any]] = [
    ("/generate", LARGE),
    ("/generate", {"text": "x" * 300_000}),
    ("/generate", {"text": ["x"] * 1500}),
    ("/generate", {"text": "x", "sampling_params": {"n": 300}}),
    ("/v1/completions", {"model": "tiny", "prompt": ["x"] * 300}),
    ("/tokenize", {"prompt": "x" * 300_000}),
    ("/detokenize", {"tokens": [65] * 100_000}),
    ("/abort_request", {"rid": ["x" * 10] * 30_000}),
]


@pytest.mark.parametrize(("path", "body"), ROUTES, ids=[f"{p} {len(str(b))}" for p, b in ROUTES])
def test_others_are_served_while_a_large_body_is_decoded(start, gate, path, body):
    run = start()
    with Client(run.address) as client:
        client.request("POST", path, body)
        client.request("POST", "/generate", SHORT)  # in order, behind it
        assert gate.begun.acquire(timeout=30)
        assert call(run.address, "POST", "/generate", SHORT).json()["text"] == "ab"
        assert not client.buffer
        gate.opened.set()
        first = client.answer()
        assert client.answer().json()["text"] == "ab"
    fits = path != "/generate" or len(str(body)) < 100_000
    assert first.status == (200 if fits else 400), first.body[:200]
    if not fits:
        assert (
            "longer than the model's context length (4096 tokens)"
            in first.json()["error"]["message"]
        )
    assert len(gate.sizes) == 1


def test_small_bodies_are_decoded_at_once(start, gate):
    run = start()
    text = "some words, and more, " * 150
    assert call(run.address, "POST", "/generate", {**SHORT, "text": text}).status == 200
    assert call(run.address, "POST", "/generate", {"text": ["a"] * 200}).status == 200
    assert not gate.sizes


def test_the_answer_is_the_same_as_of_a_small_body(start):
    """Ids, batches and errors, beside and at once."""
    run = start(options={})
    padding = {"nonsense": "x" * 300_000}
    bodies: list[dict[str, Any]] = [
        {"input_ids": list(range(65, 91)) * 20, "sampling_params": {"max_new_tokens": 3}},
        {"input_ids": [[65, 66], [67]], "rid": "r", "return_prompt_token_ids": True},
        {"input_ids": [65] * 600, "rid": "r", "return_prompt_token_ids": True},
        {"text": ["a", "bc"], "rid": ["p", "q"], "sampling_params": {"n": 2}},
        {"text": ["a", ""]}, {"text": 5}, {"input_ids": [70000]},
    ]  # fmt: skip
    for body in bodies:
        answers = []
        for given in (body, {**body, **padding}):
            answer = call(run.address, "POST", "/generate", given)
            found = answer.json()
            for one in found if isinstance(found, list) else [found]:
                one.get("meta_info", {}).pop("e2e_latency", None)
                one.get("meta_info", {}).pop("id", None)
            answers.append((answer.status, found))
        assert answers[0] == answers[1]


def test_a_client_that_goes_leaves_nothing(start, gate):
    run = start()
    client = Client(run.address)
    client.request("POST", "/generate", {"input_ids": [65] * 3000, "x": "x" * 300_000})
    assert gate.begun.acquire(timeout=30)
    until(run, lambda: run.total("inflight") == 1)
    waits = Client(run.address)
    waits.request("POST", "/generate", {"input_ids": [65] * 3000, "x": "x" * 300_000})
    until(run, lambda: run.total("inflight") == 2)
    waits.reset()
    client.reset()
    until(run, lambda: run.total("inflight") == 0)
    gate.opened.set()
    assert call(run.address, "POST", "/generate", SHORT).status == 200
    assert not any(header[1].startswith("HEALTH") for header in run.scheduler.received)
    assert len(run.scheduler.received) == 1
    assert len(gate.sizes) == 1  # what waited was never begun


def test_a_server_that_stops_does_not_wait(start, gate):
    run = start()
    with Client(run.address) as client:
        client.request("POST", "/v1/completions", {"model": "tiny", "prompt": "x" * 300_000})
        assert gate.begun.acquire(timeout=30)
        run.server.shutdown()
        answer = client.answer()
    assert answer.status == 503
    assert "shutting down" in json.loads(answer.body)["message"]


def test_too_much_that_waits_is_refused(start, gate, monkeypatch):
    monkeypatch.setattr(beside, "MOST_BYTES", 500_000)
    run = start()
    body = {"text": "x" * 3000, "x": "x" * 300_000}
    with Client(run.address) as first, Client(run.address) as second:
        first.request("POST", "/generate", body)
        assert gate.begun.acquire(timeout=30)
        refused = second.call("POST", "/generate", body)
        assert refused.status == 503 and "overloaded" in refused.json()["error"]["message"]
        gate.opened.set()
        assert first.answer().status == 200


def test_without_threads_the_core_decodes(start, monkeypatch):
    def none(*args):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Helper, "call", none)
    run = start()
    body = {**SHORT, "x": "x" * 300_000}
    assert call(run.address, "POST", "/generate", body).json()["text"] == "ab"
    assert call(run.address, "POST", "/generate", {**body, "text": 5}).status == 400
