"""Texts and places of tokens in the logprobs of /v1/completions, unary and streamed."""

from __future__ import annotations

import pytest

from tests import tiny_tokenizer
from tests.synthetic_server import serving
from tpc_server.engines.synthetic_script import Script

PATH = "/v1/completions"
BOS, EOS = tiny_tokenizer.BOS, tiny_tokenizer.EOS
SCRIPTS = {
    "words": [b"ab", b" c"],
    "halves": ["🎉é日".encode(), b"x"],
    "byte by byte": [bytes([byte]) for byte in "🎉é日x".encode()],
    "special": [b"a", [BOS], b"b", [BOS, BOS], b"c"],
    "broken": [b"\xf0\x9f", b"a", b"\xf0", b"\xf0\x9f\x8e\x89", b"b"],
    "cut": [b"a", b"\xf0\x9f"],
    "stop": [b"ab", b" ST", b"OP tail"],
    "eos": [b"ab", [EOS]],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tiny_tokenizer.write(tmp_path_factory.mktemp("logprobs"))
    scripts = [Script(rid=f"{name}#", frames=frames) for name, frames in SCRIPTS.items()]
    with serving(folder, scripts=scripts) as running:
        yield running


def ask(run, stream, halves=False, **body):
    """(text, the four lists) of an answer, streamed or not."""
    body.setdefault("max_tokens", 50)
    answer = run.call("POST", PATH, {"stream": stream, **body}, halves)
    assert answer.status == 200, answer.body
    if not stream:
        (choice,) = answer.json()["choices"]
        return choice["text"], choice["logprobs"]
    text, lists = "", {"text_offset": [], "token_logprobs": [], "tokens": [], "top_logprobs": []}
    for event in answer.events()[:-1]:
        (choice,) = event["choices"]
        text += choice["text"]
        for name, entries in (choice["logprobs"] or {}).items():
            lists[name] += entries
    return text, lists


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "script, more, text, offsets",
    [
        ("words", {}, "ab c", [0, 1, 2, 3]),
        ("halves", {}, "🎉é日x", [0, 0, 0, 0, 1, 1, 2, 2, 2, 3]),
        ("byte by byte", {}, "🎉é日x", [0, 0, 0, 0, 1, 1, 2, 2, 2, 3]),
        ("special", {}, "abc", [0, 1, 1, 2, 2, 2]),
        ("special", {"skip_special_tokens": False}, "a<bos>b<bos><bos>c", [0, 1, 6, 7, 12, 17]),
        ("broken", {}, "\ufffda\ufffd🎉b", [0, 0, 1, 2, 3, 3, 3, 3, 4]),
        ("cut", {}, "a\ufffd", [0, 1, 1]),
        ("stop", {"stop": "STOP"}, "ab ", [0, 1, 2, 3, 3, 3, 3, 3, 3, 3, 3, 3]),
        ("stop", {"stop": "STOP", "no_stop_trim": True}, "ab STOP", None),
        ("eos", {}, "ab", [0, 1, 2]),
    ],
)  # fmt: skip
def test_offsets_of_the_answer(run, stream, script, more, text, offsets):
    halves = "\ufffd" in text
    shown, lists = ask(run, stream, halves, prompt="p", rid=script, logprobs=0, **more)
    assert shown == text
    if offsets is None:
        offsets = [*range(8)] + [7] * 10
        offsets = offsets[: len(lists["tokens"])]
    assert lists["text_offset"] == offsets
    assert len(lists["tokens"]) == len(lists["token_logprobs"]) == len(offsets)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("logprobs", [0, 1])
def test_offsets_start_behind_the_echo(run, stream, logprobs):
    text, lists = ask(
        run, stream, prompt="Hello world", rid="words", echo=True, logprobs=logprobs
    )  # fmt: skip
    assert text == "Hello worldab c"
    echoed = list(range(11)) if logprobs else []
    assert lists["text_offset"] == [*echoed, 11, 12, 13, 14]
    assert lists["tokens"] == [*("Hello world"[: len(echoed)]), *"ab c"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    "prompt, shown, offsets",
    [
        # As ids a special token is hidden; written out in a text it is shown.
        ([BOS, 104, BOS, 105], "hi", [0, 0, 1, 1]),
        ("<bos>h<bos>i", "<bos>h<bos>i", [0, 5, 6, 11]),
        ("🎉é", "🎉é", [0, 0, 0, 0, 1, 1]),
        ([0xF0, 0x9F, 104, BOS], "\ufffdh", [0, 0, 1, 2]),
    ],
)  # fmt: skip
def test_offsets_in_the_echo(run, stream, prompt, shown, offsets):
    halves = "\ufffd" in shown
    text, lists = ask(run, stream, halves, prompt=prompt, rid="words", echo=True, logprobs=1)
    assert text == f"{shown}ab c"
    end = len(shown)
    assert lists["text_offset"] == [*offsets, end, end + 1, end + 2, end + 3]


@pytest.mark.parametrize("stream", [False, True])
def test_bytes_that_are_no_text_keep_their_names(run, stream):
    """As SGLang: one character a byte, so that no two alternatives have one key."""
    text, lists = ask(run, stream, prompt="🎉", rid="halves", echo=True, logprobs=3)
    assert text == "🎉🎉é日x"
    data = "🎉🎉é日x".encode()
    assert lists["tokens"] == [chr(byte) for byte in data]
    assert lists["top_logprobs"][0] is None
    for byte, top in zip(data[1:], lists["top_logprobs"][1:], strict=True):
        assert list(top) == [chr(byte + k) for k in range(3)]


def test_alternatives_of_a_prompt_are_bounded(tmp_path):
    """Of texts too, all of a request's together, in the words of the client's route."""
    folder = tiny_tokenizer.write(tmp_path)
    with serving(folder, {"max_logprob_entries": 100}) as run:

        def status(path, **body):
            answer = run.call("POST", path, body)
            return answer.status, answer.json()

        sampling = {"max_new_tokens": 1}
        native = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 10}
        tokens = len(run.call("POST", "/tokenize", {"prompt": "abcdefgh"}).json()["tokens"])
        fits = "abcdefgh" + "h" * (10 - tokens)
        body = {"sampling_params": sampling, **native}
        assert status("/generate", text=fits, **body)[0] == 200
        for text in (fits + "h", [fits, "a"]):
            code, answer = status("/generate", text=text, **body)
            assert code == 400 and answer["error"]["message"].startswith("top_logprobs_num is too")
        code, _ = status("/generate", **{**body, "text": fits, "sampling_params": {"n": 2}})
        assert code == 400
        for stream in (False, True):
            asked = {"max_tokens": 1, "echo": True, "logprobs": 10, "stream": stream}
            code, answer = status(PATH, prompt=fits + "h", **asked)
            assert code == 400 and answer["param"] == "logprobs"
            assert answer["message"].startswith("logprobs is too large: with 10 alternatives at")
