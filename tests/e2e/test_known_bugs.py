"""Bugs that other frontends had, as black-box cases: texts, bodies, counts, on every route that
generates. Which test is about which case: `known_bugs.CASES`.
"""

from __future__ import annotations

import json
import select
from typing import Any

import pytest

from tests import stream_rules, tiny_tokenizer
from tests.e2e.known_bugs import APIS, ask, body_of, said, write_model
from tests.http_client import Client, call
from tests.synthetic_server import serving
from tpc_server.engines.synthetic_script import Script

FFFD = "\ufffd"
EOS = tiny_tokenizer.EOS

# case -> (frames of bytes or ids, stop parameters, whole text, finish, what matched)
TEXTS: dict[str, tuple[list[Any], dict[str, Any], str, str, Any]] = {
    "1-cjk-twice": ([b"A", "世".encode() + b"\xf0", b"q\xf0", b"b", b"c"], {},
                    f"A世{FFFD}q{FFFD}bc", "stop", None),
    "2-emoji": ([b"\xf0", b"\x9f", b"\x8e", b"\x89"], {}, "🎉", "stop", None),
    "2-family": ([bytes([b]) for b in "👩‍👩‍👧🇫🇷é你好".encode()], {}, "👩‍👩‍👧🇫🇷é你好", "stop", None),
    "2-cut": ([b" a", b"\xf0\x9f\x8e"], {"max_tokens": 5}, f" a{FFFD}", "length", None),
    "3-cjk-stop": (["你好".encode(), "世界".encode(), "。".encode()],
                   {"stop": ["。\n", "界x"]}, "你好世界。", "stop", None),
    "4-split-stop": ([b"foo", b" ST", b"OP tail"], {"stop": ["STOP"]}, "foo ", "stop", "STOP"),
    "4-twice": ([b"foo", b" ST", b"AR S", b"TO", b"P tail"], {"stop": ["STOP"]},
                "foo STAR ", "stop", "STOP"),
    "6-half-stop": ([b"foo", b" ST"], {"stop": ["STOP"], "max_tokens": 6}, "foo ST", "length",
                    None),
    "6-half-stop-eos": ([b"foo", b" ST", [EOS]], {"stop": ["STOP"]}, "foo ST", "stop", EOS),
    "7-newline": ([b"a", b"\n", b"b"], {"stop": ["\n\n"]}, "a\nb", "stop", None),
    "9-long-stop": ([b"one two", b" three four", b" five six"], {"stop": ["o three four f"]},
                    "one tw", "stop", "o three four f"),
    "9-inside-a-token": ([b"abcdef", b"ghi"], {"stop": ["cd"]}, "ab", "stop", "cd"),
    "S5": ([b"a", b"\n", b"b"], {"stop": ["b", "\n"]}, "a", "stop", "\n"),
    "S11-id-0": ([b"ab", [0]], {"stop_token_ids": [0]}, "ab", "stop", 0),
    "S13": ([b"a"] * 49 + [b"ST", b"OP"], {"stop": ["STOP"]}, "a" * 49, "stop", "STOP"),
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = write_model(tmp_path_factory.mktemp("bugs"))
    scripts = [Script(rid=f"{k}#", frames=v[0]) for k, v in TEXTS.items()]
    scripts.append(Script(rid="slow", frames=[b"a"], repeat=True))
    with serving(folder, scripts=scripts) as running:
        yield running


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("case", TEXTS)
def test_text(run, api, case):
    """1, 2, 3, 4, 6, 7, 9: unary and streamed text are the same, whatever the frames; of a stop
    string no event shows more than what stays."""
    _, params, text, finish, matched = TEXTS[case]
    unary = ask(run, api, rid=case, **params)
    assert unary.status == 200, unary.body
    assert said(api, unary.json()) == (text, finish, matched)
    answer = ask(run, api, stream=True, rid=case, halves=FFFD in text, **params)
    events = answer.events(cumulative=api == "/generate")
    stream_rules.same_as_unary(events, text)


@pytest.mark.parametrize("api", APIS)
def test_11_no_text_waits_for_a_stop_that_does_not_come(start, tmp_path, api):
    """Each step's text is there before the next step, from the first on."""
    steps = [([letter], None) for letter in b"abcdefgh"]
    run = start(lambda *_: steps, True, model_path=str(write_model(tmp_path)))
    watch = stream_rules.Watch()
    with Client(run.address) as client:
        client.request("POST", api, body_of(api, "x", True, stop=["STOP", "x stop"]))
        run.scheduler.wait_for(lambda s: s.live)
        for step in range(5):
            run.scheduler.step()
            if not step:
                assert client.head()[0] == 200
            while len(watch.text.get(0, "")) <= step:  # a role may come before
                watch.feed(client.chunk())
            assert watch.text[0] == "abcdefgh"[: step + 1]
            assert not client.buffer and not select.select([client.sock], [], [], 0)[0]


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stop", ["", [""], ["x", ""]])
def test_51_empty_stop(run, api, stop):
    answer = ask(run, api, stop=stop)
    assert answer.status == 400 and b"stop cannot contain an empty string" in answer.body


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("value", ["NaN", "1e999", '"NaN"', "-0.1", "Infinity", "true"])
def test_25_no_such_temperature(run, api, value):
    raw = json.dumps(body_of(api, temperature=5))
    raw = raw.replace('"temperature": 5', f'"temperature": {value}')
    with Client(run.address) as client:
        assert client.call("POST", api, raw.encode()).status == 400
        assert client.call("POST", api, body_of(api, max_tokens=1)).status == 200


@pytest.mark.parametrize("api", APIS)
def test_26_nulls_are_defaults(run, api):
    params = dict.fromkeys(("top_p", "stop", "n", "temperature", "stop_token_ids", "seed"))
    assert ask(run, api, max_tokens=2, **params).status == 200
    for body in ({"text": "a"}, {"text": "a", "sampling_params": None}):
        assert call(run.address, "POST", "/generate", body).status == 200


@pytest.mark.parametrize(
    "ids", [[-1], [258], [200_000_000], [2147483648], [1.5], [True], [[1], []], [], [None], ["1"]]
)
def test_28_ids_that_are_none(run, ids):
    for api, name in zip(APIS, ("input_ids", "prompt", "input_ids"), strict=True):
        body = body_of(api)
        body.pop("text", None)
        body[name] = ids
        if name == "prompt" and ids == ["1"]:
            continue  # a text
        answer = call(run.address, "POST", api, body)
        assert answer.status == 400, (api, answer.body)
    assert ask(run, "/generate", max_tokens=1).status == 200


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize(
    "raw, status",
    [
        (rb"\ud83d", 400), (rb"\ud83d\ude00", 200), (b"\xff\xfe", 400), (rb"\u0000", 200),
        (rb"\ude00\ud83d", 400),
    ],
)  # fmt: skip
def test_31_half_characters_in_json(run, api, raw, status):
    body = json.dumps(body_of(api, "MARK", max_tokens=2)).encode().replace(b"MARK", raw)
    answer = call(run.address, "POST", api, body)
    assert answer.status == status
    answer.json()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("body", [b"\xef\xbb\xbf{}", b"", b"[1]", b'"x"', b"5", b"null", b"{"])
def test_31_bodies_that_are_no_object(run, api, body):
    answer = call(run.address, "POST", api, body)
    assert answer.status == 400
    answer.json()


@pytest.mark.parametrize("adds", [False, True])
def test_34_one_bos(start, tmp_path, adds):
    """The template's BOS is the only one, also where the tokenizer adds one to every text; usage
    and /tokenize agree on the count."""
    run = start(model_path=str(write_model(tmp_path, adds)))
    body = body_of(APIS[2], "hello", max_tokens=1)
    usage = call(run.address, "POST", APIS[2], body).json()["usage"]
    assert usage["prompt_tokens"] == len("[user]hello[assistant]") + 1
    assert run.scheduler.prompts[0].count(tiny_tokenizer.BOS) == 1
    found = call(run.address, "POST", "/tokenize", {"messages": body["messages"]}).json()
    assert (found["tokens"], found["count"]) == (run.scheduler.prompts[0], usage["prompt_tokens"])


def test_35_stops_without_a_tokenizer(start):
    server = start(skip_tokenizer_init=True)
    body = {"input_ids": [1], "sampling_params": {"stop": "."}}
    answer = call(server.address, "POST", "/generate", body)
    assert answer.status == 400 and b"skip_tokenizer_init" in answer.body
    for api in APIS[1:]:
        answer = call(server.address, "POST", api, body_of(api))
        assert answer.status == 400 and b"tokenizer" in answer.body


@pytest.mark.parametrize("api", APIS[1:])
@pytest.mark.parametrize(
    "options, chunks",
    [({"include_usage": True}, 1), ({"include_usage": False}, 0), ({}, 0), (None, 0)],
)
def test_38_usage_chunks(run, api, options, chunks):
    answer = ask(run, api, stream=True, rid="slow", max_tokens=3, stream_options=options)
    events = answer.events()
    assert len([e for e in events[:-1] if not e["choices"]]) == chunks


@pytest.mark.parametrize("api", APIS[1:])
def test_40_usage_of_samples(run, api):
    body = ask(run, api, n=3, max_tokens=5, ignore_eos=True).json()
    assert len(body["choices"]) == 3 and body["usage"]["completion_tokens"] == 15
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 15
