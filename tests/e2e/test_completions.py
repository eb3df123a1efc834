"""/v1/completions over real sockets. The scheduler echoes the prompt's bytes."""

from __future__ import annotations

import time

import pytest

from tests.http_client import Client, call
from tpc_server.boundary.messages import GENERATE, SAMPLING

PATH = "/v1/completions"


def ask(run, **fields):
    return call(run.address, "POST", PATH, {"model": "tiny", **fields})


def test_unary(start):
    run = start()
    before = time.time()
    body = ask(run, prompt="abc", max_tokens=5, rid="r1").json()
    assert before - 2 < body.pop("created") < before + 60
    assert body == {
        "id": "r1", "object": "text_completion", "model": "tiny",
        "choices": [
            {
                "index": 0, "text": "abcab", "logprobs": None, "finish_reason": "length",
                "matched_stop": None,
            }
        ],
        "usage": {
            "prompt_tokens": 3, "total_tokens": 8, "completion_tokens": 5,
            "prompt_tokens_details": None, "reasoning_tokens": 0,
            "completion_tokens_details": None,
        },
        "metadata": {"weight_version": "default"},
    }  # fmt: skip


def test_default_max_tokens_is_sixteen(start):
    run = start()
    body = ask(run, prompt="abc").json()
    assert body["usage"]["completion_tokens"] == 16
    assert ask(run, prompt="abc", max_tokens=None).json()["usage"]["completion_tokens"] == 16


def test_all_samples_get_the_seed_and_what_nobody_knows_is_ignored(start):
    seeds = []

    def script(header, ids):
        seeds.append(header[GENERATE["sampling_params"]][SAMPLING["sampling_seed"]])
        return [([97], None), ([], {"type": "length", "length": 1})]

    run = start(script=script)
    body = ask(run, prompt="x", n=3, seed=7, field_of_another_server={"a": 1}).json()
    assert [choice["text"] for choice in body["choices"]] == ["a"] * 3
    assert seeds == [7] * 3


def test_stream(start):
    run = start()
    answer = ask(run, prompt="xyz", max_tokens=4, stream=True, rid="s")
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.events()
    assert events[-1] == "[DONE]"
    assert [e["choices"][0]["text"] for e in events[:-1]] == ["x", "y", "z", "x"]
    assert [e["choices"][0]["finish_reason"] for e in events[:-1]] == [None, None, None, "length"]
    for event in events[:-1]:
        assert event["id"] == "s" and event["object"] == "text_completion"
        assert event["usage"] is None and event["model"] == "tiny"
        assert list(event) == ["id", "object", "created", "model", "choices", "usage"]


@pytest.mark.parametrize("first", [[257], [256, 257], [], [0xE4]])
def test_a_stream_that_begins_without_text(start, first):
    """Special tokens, half characters: the head comes before the first event all the same."""

    def script(header, ids):
        frames = [(first, None)] + ([([0xB8, 0x96], None)] if first == [0xE4] else [])
        return [
            *frames,
            *[([byte], None) for byte in b"abc"],
            ([], {"type": "length", "length": 4}),
        ]

    run = start(script=script)
    with Client(run.address) as client:
        answer = client.call("POST", PATH, {"prompt": "x", "stream": True})
        texts = [e["choices"][0]["text"] for e in answer.events()[:-1]]
        assert "".join(texts) == ("世abc" if first == [0xE4] else "abc")
        assert client.call("GET", "/v1/models").status == 200


@pytest.mark.parametrize(
    "options, chunks", [({"include_usage": True}, 1), ({"include_usage": False}, 0), ({}, 0),
                        (None, 0)],
)  # fmt: skip
def test_usage_chunk(start, options, chunks):
    run = start()
    events = ask(run, prompt="abc", max_tokens=3, stream=True, stream_options=options).events()
    usages = [e for e in events[:-1] if not e["choices"]]
    assert len(usages) == chunks
    if chunks:
        assert events[-2] is usages[0]
        assert usages[0]["usage"] == {
            "prompt_tokens": 3, "total_tokens": 6, "completion_tokens": 3, "reasoning_tokens": 0
        }  # fmt: skip


def test_usage_in_every_chunk(start):
    run = start()
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = ask(run, prompt="ab", max_tokens=3, stream=True, stream_options=options).events()
    counts = [e["usage"]["completion_tokens"] for e in events[:-1]]
    assert counts == [1, 2, 3, 3]


def test_the_server_can_add_usage_by_default(start):
    run = start(stream_response_default_include_usage=True, options={"cache_report": True})
    events = ask(run, prompt="ab", max_tokens=2, stream=True).events()
    assert events[-2]["usage"]["prompt_tokens_details"] == {"cached_tokens": 0}


def test_prompts_times_n(start):
    run = start()
    body = ask(run, prompt=["ab", "xyz"], max_tokens=2, n=2).json()
    assert [(c["index"], c["text"]) for c in body["choices"]] == [
        (0, "ab"), (1, "ab"), (2, "xy"), (3, "xy")
    ]  # fmt: skip
    assert body["usage"]["prompt_tokens"] == 5  # each prompt once
    assert body["usage"]["completion_tokens"] == 8


def test_prompts_times_n_stream(start):
    run = start()
    events = ask(run, prompt=["ab", "xyz"], max_tokens=2, n=2, stream=True).events()
    texts = ["", "", "", ""]
    ends = []
    ids = set()
    for event in events[:-1]:
        ids.add(event["id"])
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
        if choice["finish_reason"]:
            ends.append(choice["index"])
    assert texts == ["ab", "ab", "xy", "xy"]
    assert sorted(ends) == [0, 1, 2, 3] and len(ids) == 1 and events[-1] == "[DONE]"


@pytest.mark.parametrize("prompt, shown", [([97, 98], "ab"), ([[97], [120, 121]], "a")])
def test_token_ids_as_prompt(start, prompt, shown):
    run = start()
    body = ask(run, prompt=prompt, max_tokens=1, echo=True).json()
    assert body["choices"][0]["text"] == shown + "a"


@pytest.mark.parametrize("stream", [False, True])
def test_echo(start, stream):
    run = start()
    answer = ask(run, prompt=['a"b', "xyz"], max_tokens=2, echo=True, stream=stream)
    if stream:
        texts = ["", ""]
        for event in answer.events()[:-1]:
            choice = event["choices"][0]
            texts[choice["index"]] += choice["text"]
    else:
        texts = [choice["text"] for choice in answer.json()["choices"]]
    assert texts == ['a"ba"', "xyzxy"]


@pytest.mark.parametrize("stream", [False, True])
def test_token_ids(start, stream):
    run = start()
    answer = ask(run, prompt="ab", max_tokens=3, return_token_ids=True, stream=stream)
    if stream:
        choices = [e["choices"][0] for e in answer.events()[:-1]]
        assert [c["token_ids"] for c in choices] == [[97], [98], [97]]
        assert [c.get("prompt_token_ids") for c in choices] == [[97, 98], None, None]
    else:
        (choice,) = answer.json()["choices"]
        assert choice["token_ids"] == [97, 98, 97] and choice["prompt_token_ids"] == [97, 98]


def test_matched_stop(start):
    def script(header, ids):
        return [([104], None), ([105, 33], {"type": "stop", "matched": "!"})]

    run = start(script=script)
    (choice,) = ask(run, prompt="x", stop=["!"]).json()["choices"]
    assert (choice["text"], choice["finish_reason"], choice["matched_stop"]) == ("hi", "stop", "!")
    events = ask(run, prompt="x", stop="!", stream=True).events()
    assert "".join(e["choices"][0]["text"] for e in events[:-1]) == "hi"
    assert events[-2]["choices"][0]["matched_stop"] == "!"


def test_half_characters_wait(start):
    def script(header, ids):
        smile = "🎉".encode()
        frames = [([byte], None) for byte in smile]
        return [*frames, ([33], {"type": "length", "length": 5})]

    events = ask(start(script=script), prompt="x", max_tokens=5, stream=True).events()
    assert [e["choices"][0]["text"] for e in events[:-1]] == ["🎉", "!"]


@pytest.mark.parametrize(
    "fields, text",
    [
        ({}, "prompt cannot be empty"),
        ({"prompt": ""}, "prompt cannot be empty"),
        ({"prompt": []}, "prompt cannot be empty"),
        ({"prompt": ["a", ""]}, "prompt[1] cannot be empty"),
        ({"prompt": ["a", 1]}, "`prompt[1]`"),
        ({"prompt": [[1], [True]]}, "`prompt[1][0]`"),
        ({"prompt": [1.5]}, "`prompt[0]`"),
        ({"prompt": [258]}, "prompt contains out-of-vocabulary token id 258"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens must be positive"),
        ({"prompt": "a", "max_tokens": "5"}, "`max_tokens`"),
        ({"prompt": "a", "temperature": -1}, "temperature"),
        ({"prompt": "a", "temperature": "x"}, "`temperature`"),
        ({"prompt": "a", "top_p": 2}, "top_p must be in (0, 1]"),
        ({"prompt": "a", "n": 0}, "n must be at least 1"),
        ({"prompt": "a", "n": True}, "`n`"),
        ({"prompt": "a", "min_tokens": 9, "max_tokens": 2}, "min_tokens must be in [0, max_tokens"),
        ({"prompt": "a", "logit_bias": {"5": "x"}}, "`logit_bias.5`"),
        ({"prompt": "a", "seed": 1.5}, "`seed`"),
        ({"prompt": "a", "stop": [""]}, "stop cannot contain an empty string"),
        ({"prompt": "a", "suffix": "b"}, "suffix is not supported"),
        ({"prompt": "a", "prompt_embeds": "AA=="}, "prompt_embeds is not supported"),
        ({"prompt": "a", "best_of": 3}, "best_of"),
        ({"prompt": "a", "logprobs": -1}, "logprobs must be at least 0"),
        ({"prompt": "a", "logprobs": True}, "`logprobs`"),
        ({"prompt": "a", "logprobs": 2**63}, "`logprobs`"),
        ({"prompt": "a", "logprobs": 259}, "logprobs must be in [0, 258]"),
        ({"prompt": "a", "stream": 1}, "`stream`"),
        ({"prompt": "a", "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"prompt": "a", "model": 5}, "`model`"),
        ({"prompt": "a", "model": "tiny:no"}, "lora_path 'no' names no loaded adapter"),
        ({"prompt": "a", "response_format": {"type": "yaml"}}, "response_format.type"),
        ({"prompt": "a", "response_format": {"type": "json_schema"}}, "json_schema.schema"),
        ({"prompt": "a", "return_spec_tokens_details": True}, "return_spec_tokens_details"),
        ({"prompt": "a", "custom_logit_processor": "x"}, "--enable-custom-logit-processor"),
        ({"prompt": "a", "custom_logit_processor": 1}, "custom_logit_processor"),
    ],
)
def test_bad_requests_name_the_field(start, fields, text):
    run = start()
    with Client(run.address) as client:
        answer = client.call("POST", PATH, {"model": "tiny", **fields})
        assert answer.status == 400
        body = answer.json()
        assert text in body["message"]
        param = body.pop("param")
        assert param is None or param in body["message"]
        assert {**body, "message": ""} == {
            "object": "error", "message": "", "type": "BadRequestError", "code": 400
        }  # fmt: skip
        assert client.call("POST", PATH, {"prompt": "a", "max_tokens": 1}).status == 200


def test_unknown_names_and_models_are_accepted(start):
    run = start()
    assert ask(run, prompt="a", max_tokens=1, store=True, user="u").status == 200
    assert (
        call(run.address, "POST", PATH, {"prompt": "a", "model": "nope"}).json()["model"] == "nope"
    )


@pytest.mark.parametrize("stream", [False, True])
def test_too_long_is_a_real_status(start, stream):
    run = start()
    answer = ask(run, prompt="a" * 5000, stream=stream)
    assert answer.status == 400
    assert "longer than the model's context length" in answer.json()["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_an_abort_with_a_status_before_the_first_token(start, stream):
    def script(header, ids):
        reason = {"type": "abort", "message": "queue full", "status_code": 503, "err_type": "X"}
        return [([], reason)]

    answer = ask(start(script=script), prompt="a", stream=stream)
    assert answer.status == 503
    assert answer.json()["message"] == "queue full"
    assert answer.json()["type"] == "ServiceUnavailableError"


def test_an_error_in_the_middle_of_a_stream(start):
    def script(header, ids):
        reason = {"type": "abort", "message": "went wrong", "status_code": 500, "err_type": "X"}
        return [([97], None), ([], reason)]

    events = ask(start(script=script), prompt="a", stream=True).events()
    assert events[0]["choices"][0]["text"] == "a"
    assert events[1]["error"]["message"] == "went wrong" and events[1]["error"]["code"] == 500
    assert events[2:] == ["[DONE]"]


def test_abort_by_rid_ends_every_choice(start):
    run = start(manual=True)
    with Client(run.address) as client:
        client.request(
            "POST", PATH, {"prompt": ["a", "b"], "n": 2, "rid": "both", "max_tokens": 50}
        )
        run.scheduler.wait_for(lambda s: len(s.live) == 4)
        assert call(run.address, "POST", "/abort_request", {"rid": "both"}).status == 200
        run.scheduler.wait_for(lambda s: len(s.aborted) == 4)


def test_a_disconnect_ends_every_choice(start):
    run = start(manual=True)
    client = Client(run.address)
    client.request("POST", PATH, {"prompt": ["a", "b"], "n": 2, "max_tokens": 50, "stream": True})
    run.scheduler.wait_for(lambda s: len(s.live) == 4)
    client.reset()
    run.scheduler.wait_for(lambda s: len(s.aborted) == 4)
