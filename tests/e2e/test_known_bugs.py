"""Bugs that other frontends had, as black-box cases on every route that generates.

The numbers are those of the project's list of public reports. Where a case belongs to a layer of
its own it is tested there: 13 in test_text_detok.py, 22 in test_backpressure.py, 23 in
test_lifecycle.py, 42 and 43 in the tests of access, 45 in test_http.py, 46 in test_http.py and
test_http1.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from tests import stream_rules, tiny_tokenizer
from tests.e2e.test_chat import TEMPLATE
from tests.http_client import Client, call
from tpc_server import ModelConfig, Server, ServerArgs
from tpc_server.engines.synthetic import SyntheticEngine, SyntheticSettings
from tpc_server.engines.synthetic_script import Script

FFFD = "\ufffd"
PIECES = [bytes([value]) for value in range(256)] + [b"<eos>", b"<bos>"]
APIS = ("/generate", "/v1/completions", "/v1/chat/completions")

# case -> (frames of bytes or ids, stop parameters, whole text, finish)
TEXTS: dict[str, tuple[list[Any], dict[str, Any], str, str]] = {
    "1-cjk-twice": ([b"A", "世".encode() + b"\xf0", b"q\xf0", b"b", b"c"], {},
                    f"A世{FFFD}q{FFFD}bc", "stop"),
    "2-emoji": ([b"\xf0", b"\x9f", b"\x8e", b"\x89"], {}, "🎉", "stop"),
    "2-family": ([bytes([b]) for b in "👩‍👩‍👧🇫🇷é你好".encode()], {}, "👩‍👩‍👧🇫🇷é你好", "stop"),
    "2-cut": ([b" a", b"\xf0\x9f\x8e"], {"max_tokens": 5}, f" a{FFFD}", "length"),
    "3-cjk-stop": (["你好".encode(), "世界".encode(), "。".encode()],
                   {"stop": ["。\n", "界x"]}, "你好世界。", "stop"),
    "4-split-stop": ([b"foo", b" ST", b"OP tail"], {"stop": ["STOP"]}, "foo ", "stop"),
    "6-half-stop": ([b"foo", b" ST"], {"stop": ["STOP"], "max_tokens": 6}, "foo ST", "length"),
    "6-half-stop-eos": ([b"foo", b" ST", [256]], {"stop": ["STOP"]}, "foo ST", "stop"),
    "7-newline": ([b"a", b"\n", b"b"], {"stop": ["\n\n"]}, "a\nb", "stop"),
    "9-long-stop": ([b"one two", b" three four", b" five six"], {"stop": ["o three four f"]},
                    "one tw", "stop"),
    "9-inside-a-token": ([b"abcdef", b"ghi"], {"stop": ["cd"]}, "ab", "stop"),
    "S5": ([b"a", b"\n", b"b"], {"stop": ["b", "\n"]}, "a", "stop"),
    "S11-id-0": ([b"ab", [0]], {"stop_token_ids": [0]}, "ab", "stop"),
    "S13": ([b"a"] * 49 + [b"ST", b"OP"], {"stop": ["STOP"]}, "a" * 49, "stop"),
}  # fmt: skip


class Running:
    """A server with the synthetic engine behind it."""

    def __init__(self, server, engine):
        self.engine = engine
        self.address = ("127.0.0.1", server.http_port)

    def ask(self, api, text="x", stream=False, **params):
        """One request in the words of the route; `params` in OpenAI's."""
        return call(self.address, "POST", api, body_of(api, text, stream, **params))

    def until_idle(self, seconds=20.0):
        """The engine has no request left."""
        deadline = time.monotonic() + seconds
        pause = threading.Event()
        while self.engine.running or self.engine.waiting:
            assert time.monotonic() < deadline, list(self.engine.running)
            pause.wait(0.01)


def body_of(api, text="x", stream=False, **params):
    rid = {"rid": params.pop("rid")} if "rid" in params else {}
    if api == "/generate":
        names = {"max_tokens": "max_new_tokens", "seed": "sampling_seed"}
        sampling = {names.get(k, k): v for k, v in params.items()}
        if "max_new_tokens" not in sampling:
            sampling["max_new_tokens"] = 200
        return {"text": text, "stream": stream, "sampling_params": sampling, **rid}
    params.setdefault("max_tokens", 200)
    prompt = {"prompt": text} if api == APIS[1] else {
        "messages": [{"role": "user", "content": text}]
    }  # fmt: skip
    return {**prompt, "stream": stream, **params, **rid}


def said(api, body):
    """(text, finish reason) of an unary answer."""
    if api == "/generate":
        return body["text"], body["meta_info"]["finish_reason"]["type"]
    choice = body["choices"][0]
    text = choice["text"] if api == APIS[1] else choice["message"]["content"]
    return text, choice["finish_reason"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tiny_tokenizer.write(tmp_path_factory.mktemp("bugs"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    (folder / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<bos>"}))
    server = Server(
        ServerArgs(
            model_path=str(folder), served_model_name="tiny", port=0, log_level="error",
            skip_server_warmup=True,
            model_config=ModelConfig(context_len=100_000, vocab_size=tiny_tokenizer.VOCAB),
        )
    )  # fmt: skip
    engine = SyntheticEngine(
        SyntheticSettings(
            vocab_size=tiny_tokenizer.VOCAB, token_bytes=PIECES, tick_ms=1,
            eos_ids=(tiny_tokenizer.EOS,),
            scripts=[Script(rid=f"{k}#", frames=v[0]) for k, v in TEXTS.items()]
            + [Script(rid="slow", frames=[b"a"], repeat=True)],
        )
    )  # fmt: skip
    stopping = threading.Event()
    thread = threading.Thread(target=engine.run, args=(server, stopping), daemon=True)
    thread.start()
    yield Running(server, engine)
    stopping.set()
    thread.join(10)
    server.shutdown()


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("case", TEXTS)
def test_text(run, api, case):
    """1, 2, 3, 4, 6, 7, 9, 11: unary and streamed text are the same, whatever the frames."""
    _, params, text, finish = TEXTS[case]
    unary = run.ask(api, rid=case, **params)
    assert unary.status == 200, unary.body
    assert said(api, unary.json()) == (text, finish)
    events = run.ask(api, stream=True, rid=case, **params).events(cumulative=api == "/generate")
    stream_rules.same_as_unary(events, text)
    if "stop" in params and finish == "stop" and "STOP" in params["stop"]:
        shown = stream_rules.joined(events)
        assert "STOP" not in shown


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stop", ["", [""], ["x", ""]])
def test_51_empty_stop(run, api, stop):
    answer = run.ask(api, stop=stop)
    assert answer.status == 400 and b"stop cannot contain an empty string" in answer.body


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("kind", ["stream", "unary", "n"])
def test_15_a_client_that_is_gone_is_aborted(run, api, kind):
    run.until_idle()
    client = Client(run.address)
    more = {"n": 4} if kind == "n" else {}
    body = body_of(api, stream=kind != "unary", rid="slow", max_tokens=50_000, **more)
    if kind == "n":
        del body["rid"]
        body["ignore_eos"] = True
        if api == "/generate":
            body["sampling_params"]["ignore_eos"] = True
            del body["ignore_eos"]
    client.request("POST", api, body)
    pause = threading.Event()
    for _ in range(2000):
        if len(run.engine.running) == (4 if kind == "n" else 1):
            break
        pause.wait(0.01)
    client.reset()
    run.until_idle()


@pytest.mark.parametrize("api", APIS[:2])
def test_15_prompt_lists(run, api):
    run.until_idle()
    client = Client(run.address)
    body = body_of(api, stream=True, max_tokens=50_000, ignore_eos=True)
    body["prompt" if api == APIS[1] else "text"] = ["a", "b", "c"]
    client.request("POST", api, body)
    client.head()
    client.reset()
    run.until_idle()


@pytest.mark.parametrize("api", APIS)
def test_17_one_rid_twice(run, api):
    """Both are served, each with its own text; an abort of the rid ends both."""
    with Client(run.address) as one, Client(run.address) as two:
        for client in (one, two):
            client.request("POST", api, body_of(api, rid="slow", max_tokens=50_000))
        pause = threading.Event()
        for _ in range(2000):
            if len(run.engine.running) == 2:
                break
            pause.wait(0.01)
        assert call(run.address, "POST", "/abort_request", {"rid": "slow"}).status == 200
        for client in (one, two):
            answer = client.answer()
            assert answer.status == 200 and said(api, answer.json())[1] == "abort"
    run.until_idle()


@pytest.mark.parametrize("body", [{"rid": ""}, {}, {"rid": None}])
def test_19_an_empty_abort_ends_nobody(run, body):
    with Client(run.address) as client:
        client.request("POST", APIS[2], body_of(APIS[2], rid="slow", max_tokens=300))
        assert call(run.address, "POST", "/abort_request", body).status == 200
        answer = client.answer().json()
        assert answer["choices"][0]["finish_reason"] == "length"


def test_24_a_huge_prompt_disturbs_nobody(run):
    """5 MB of prompt: refused, and meanwhile health answers and a stream goes on."""
    with Client(run.address) as big, Client(run.address) as stream:
        stream.request("POST", APIS[2], body_of(APIS[2], stream=True, rid="slow", max_tokens=400))
        stream.head()
        big.request("POST", APIS[2], body_of(APIS[2], "word " * 1_000_000))
        for _ in range(20):
            assert call(run.address, "GET", "/health").status == 200
        answer = big.answer()
        assert answer.status == 400 and b"longer than the model's context" in answer.body
        while stream.chunk():
            pass


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
    assert run.ask(api, max_tokens=2, **params).status == 200
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
        if api == APIS[2] and ids == [[1], []]:
            continue
        if name == "prompt" and ids == ["1"]:
            continue  # a text
        answer = call(run.address, "POST", api, body)
        assert answer.status == 400, (api, answer.body)
    assert run.ask("/generate", max_tokens=1).status == 200


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


def test_34_one_bos(run):
    """The template's BOS is the only one; usage and /tokenize agree on the count."""
    usage = run.ask(APIS[2], "hello", max_tokens=1).json()["usage"]
    assert usage["prompt_tokens"] == len("[user]hello[assistant]") + 1


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
    events = run.ask(api, stream=True, max_tokens=3, stream_options=options).events()
    assert len([e for e in events[:-1] if not e["choices"]]) == chunks


@pytest.mark.parametrize("api", APIS[1:])
def test_40_usage_of_samples(run, api):
    body = run.ask(api, n=3, max_tokens=5, ignore_eos=True).json()
    assert len(body["choices"]) == 3 and body["usage"]["completion_tokens"] == 15
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 15


def test_49_one_tokenizer_per_thread(run):
    """Short and long texts from many clients at once: no error, and counts as from one thread."""
    texts = [("word " * (1 + 37 * k % 600)) + str(k) for k in range(64)]
    counts: list[int] = [0] * len(texts)

    def client(k):
        with Client(run.address) as one:
            for api in APIS[:2]:
                answer = one.call("POST", api, body_of(api, texts[k], max_tokens=1))
                assert answer.status == 200
            counts[k] = answer.json()["usage"]["prompt_tokens"]

    threads = [threading.Thread(target=client, args=(k,)) for k in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert counts == [len(text) for text in texts]


def test_50_no_event_loop_of_the_standard_library():
    """Races of asyncio between threads cannot happen: the server does not import it."""
    code = (
        "import sys, tpc_server.server, tpc_server.core, tpc_server.build, tpc_server.launch;"
        "print('asyncio' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
