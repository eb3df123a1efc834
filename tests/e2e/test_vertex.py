"""/vertex_generate: /generate in Vertex AI's envelope."""

from __future__ import annotations

import pytest

from tests.e2e.test_access import ask as ask_with
from tests.http_client import Client, call
from tpc_server.boundary.messages import GENERATE

PATH = "/vertex_generate"


def ask(run, body, path=PATH):
    return call(run.address, "POST", path, body)


def test_the_answers_are_predictions(start):
    run = start()
    params = {"sampling_params": {"max_new_tokens": 3}, "return_prompt_token_ids": True}
    for instances in (
        [{"text": "ab"}, {"text": "xyz", "input_ids": None}],
        [{"input_ids": [97, 98]}, {"input_ids": [120, 121, 122], "text": "not looked at"}],
    ):
        answer = ask(run, {"instances": instances, "parameters": params})
        assert answer.status == 200 and list(answer.json()) == ["predictions"]
        shown = answer.json()["predictions"]
        assert [one["text"] for one in shown] == ["aba", "xyz"]
        assert [one["prompt_token_ids"] for one in shown] == [[97, 98], [120, 121, 122]]
    one = {"instances": [{"text": "ab"}]}
    assert len(ask(run, {**one, "parameters": None}).json()["predictions"]) == 1
    twice = {"sampling_params": {"n": 2, "max_new_tokens": 1}}
    assert len(ask(run, {**one, "parameters": twice}).json()["predictions"]) == 2


def test_no_instances(start):
    run = start()
    answer = ask(run, {"instances": []})
    assert answer.status == 200 and answer.json() == [] and not run.scheduler.received


def test_a_stream_is_the_native_one(start):
    run = start()
    params = {"sampling_params": {"max_new_tokens": 2}, "stream": True}
    events = ask(run, {"instances": [{"text": "ab"}], "parameters": params}).events(True)
    assert [e["text"] for e in events[:-1]] == ["a", "ab"] and events[0]["index"] == 0


def test_a_large_body_is_decoded_beside_the_core(start):
    run = start(options={"max_body_bytes": 30_000_000})
    body = {"instances": [{"text": "a" * 100}] * 600, "parameters": {"sampling_params": {
        "max_new_tokens": 1}}}  # fmt: skip
    assert len(ask(run, body).json()["predictions"]) == 600
    assert ask(run, {"instances": [{"input_ids": [97] * 300_000}]}).status == 400


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({}, "missing field `instances`"),
        ({"instances": {}}, "`instances`"),
        ({"instances": [5]}, "`instances[0]`"),
        ({"instances": [{}]}, "text or input_ids should be provided at `instances[0]`"),
        ({"instances": [{"text": ""}]}, "text or input_ids"),
        ({"instances": [{"text": "a"}, {}]}, "missing field `text` at `instances[1]`"),
        ({"instances": [{"text": "a"}, {"input_ids": [1]}]}, "missing field `text`"),
        ({"instances": [{"text": "a", "image_data": "x"}]}, "instances[0].image_data is not"),
        ({"instances": [{"input_embeds": [[1.0]]}]}, "instances[0].input_embeds is not supported"),
        ({"instances": [{"text": "a"}, {"text": 5}]}, "`instances[1].text`"),
        ({"instances": [{"input_ids": [1, 258]}]}, "input_ids contains out-of-voc"),
        ({"instances": [{"text": "a", "prompt": "b"}]}, "unknown field `prompt`"),
        ({"instances": [{"text": "a"}], "parameters": []}, "`parameters`"),
        ({"instances": [{"text": "a"}], "parameters": {"text": "b"}}, "unknown field `text`"),
        ({"instances": [{"text": "a"}], "parameters": {"x": 1}}, "unknown field `x`"),
        ({"instances": [{"text": "a"}], "stream": True}, "unknown field `stream`"),
        (
            {"instances": [{"text": "a"}], "parameters": {"sampling_params": {"top_p": 2}}},
            "top_p must be in (0, 1]",
        ),
    ],
)  # fmt: skip
def test_refused(start, body, told):
    run = start()
    answer = ask(run, body)
    assert answer.status == 400 and told in answer.json()["error"]["message"], answer.body
    assert not run.scheduler.received


def test_a_route_of_another_name(start, monkeypatch):
    monkeypatch.setenv("AIP_PREDICT_ROUTE", "/predict")
    run = start(options={"api_keys": ("k",)})
    body = {"instances": [{"text": "ab"}]}
    for path in ("/predict", PATH):
        assert ask(run, body, path).status == 401
        with Client(run.address) as client:
            answer = client.call("POST", path, body, Authorization="Bearer k")
            assert answer.json()["predictions"][0]["text"].startswith("ab")


def test_headers_take_the_place_of_fields(start):
    run = start(options={"header_overrides": True})
    body = {"instances": [{"text": "ab"}], "parameters": {"priority": 1}}
    with Client(run.address) as client:
        assert ask_with(client, "POST", PATH, body, {"x-override-priority": "7"}).status == 200
    assert run.scheduler.received[-1][GENERATE["priority"]] == 7
