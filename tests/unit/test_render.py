"""Response bytes: JSON that clients can split and parse, HTTP that they can frame."""

from __future__ import annotations

import json
from email.utils import formatdate
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tpc_server.render import http, native
from tpc_server.render.completion import CompletionShape
from tpc_server.render.logprobs import INPUT, OUTPUT, LogprobBuffers
from tpc_server.render.openai import Spec
from tpc_server.render.openai_logprobs import OpenAILogprobs


@given(st.text())
def test_a_json_string_is_the_text(text):
    raw = native.json_string(text)
    assert json.loads(raw) == text
    assert len(raw.decode().splitlines()) == 1


@given(st.dictionaries(st.text(), st.text() | st.integers() | st.none() | st.booleans()))
def test_json_is_one_line(value):
    raw = native.to_json(value)
    assert json.loads(raw) == value
    assert len(raw.decode().splitlines()) == 1


JSON = st.recursive(
    st.text() | st.integers() | st.none() | st.booleans() | st.floats(allow_nan=False,
                                                                     allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
    max_leaves=20,
)  # fmt: skip


@given(JSON)
@pytest.mark.parametrize("c_part", [True, False])
def test_json_is_what_the_standard_library_makes_of_it(c_part, value):
    made = native._make_encoder
    try:
        native._make_encoder = made if c_part else None
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        assert native._dump(value) == text
    finally:
        native._make_encoder = made


@pytest.mark.parametrize("value", [object(), {1, 2}, b"x", {"a": [b"x"]}])
def test_what_is_no_json_is_a_type_error(value):
    with pytest.raises(TypeError):
        native.to_json(value)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {"a": [float("-inf")]}])
def test_no_nan(value):
    with pytest.raises(ValueError):
        native.to_json(value)


@pytest.mark.parametrize(
    "finish",
    [
        None,
        {"type": "length", "length": 3},
        {"type": "stop", "matched": 0},
        {"type": "stop", "matched": "a\u2028b"},
        {"type": "stop", "matched": True},
        {"type": "abort", "message": "x", "status_code": None, "err_type": None},
        {"type": "length", "length": 3, "more": 1},
        {"new": "shape"},
    ],
)
def test_finish_reasons_are_what_json_says(finish):
    assert json.loads(native.finish_json(finish)) == finish


def test_error_frames():
    frame = native.error_frame("no\nroom", 503, 2)
    assert frame.startswith(b"data: ") and frame.endswith(b"\n\n") and frame.count(b"\n") == 2
    error = json.loads(frame[6:])
    assert error["index"] == 2
    assert error["error"]["code"] == 503 and error["error"]["retryable"] is True
    assert "index" not in json.loads(native.error_frame("x", 400, None)[6:])


def test_answers():
    full = http.answer(200, b"{}", http.JSON, False, False, b"X: y\r\n")
    assert full == (
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\nX: y\r\n\r\n{}"
    )
    head = http.answer(503, b"abc", http.TEXT, True, True)
    assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    assert b"Content-Length: 3\r\nConnection: close\r\n\r\n" in head and head.endswith(b"\r\n\r\n")
    assert http.chunk(b"x" * 17, True) == b"11\r\n" + b"x" * 17 + b"\r\n"
    assert http.chunk(b"abc", False) == b"abc"
    ok = http.dated(784111777)
    assert ok == b"200 OK\r\nDate: Sun, 06 Nov 1994 08:49:37 GMT"
    for second in (0, 1e9, 1709210096, 1767225599):
        shown = formatdate(second, usegmt=True).encode()
        assert http.dated(int(second)).endswith(b": " + shown)
    for status, line in ((200, b"200 OK"), (404, b"404 Not Found")):
        dated = http.answer(status, b"{}", http.JSON, False, False, b"", ok)
        plain = http.answer(status, b"{}", http.JSON, False, False)
        assert dated == plain.replace(line, line + ok[6:])
    assert http.stream_head(True, False, b"", ok).startswith(b"HTTP/1.1 " + ok + b"\r\nContent")
    assert b"chunked" in http.stream_head(True, False)
    assert b"close" in http.stream_head(False, False)


def test_logprob_families_grow_and_are_cut():
    buffers = LogprobBuffers(None, int)
    buffers.add_pairs(INPUT[0], [None, -0.5], [7, 8])
    buffers.add_pairs(OUTPUT[0], [-1.0], [9])
    buffers.add_positions(OUTPUT[1], [([-1.0, -2.0], [9, 4]), None])

    def members():
        return json.loads(b'{"a":0%b}' % b"".join(buffers.members()))

    first = members()
    assert first["input_token_logprobs"] == [[None, 7, None], [-0.5, 8, None]]
    assert first["output_token_logprobs"] == [[-1.0, 9, None]]
    assert first["output_top_logprobs"] == [[[-1.0, 9, None], [-2.0, 4, None]], None]
    assert first["output_token_logprobs_length"] == 1
    buffers.add_pairs(OUTPUT[0], [-3.0], [5])
    assert members()["output_token_logprobs"] == [[-1.0, 9, None], [-3.0, 5, None]]
    buffers.shown()
    buffers.add_pairs(OUTPUT[0], [-4.0], [6])
    cut = members()
    assert cut["output_token_logprobs"] == [[-4.0, 6, None]]
    assert cut["output_token_logprobs_length"] == 1
    assert cut["input_token_logprobs"] == first["input_token_logprobs"]
    texts = LogprobBuffers(chr, int)
    texts.add_pairs(OUTPUT[0], [-1.0], [97])
    assert b'"a"' in b"".join(texts.members())


def test_the_core_lives_while_many_logprobs_are_rendered():
    """Native and OpenAI answers alike, and the slices make one array."""
    beats: list[None] = []

    def beat():
        beats.append(None)

    positions = [None, *[([-1.0, -2.0], [9, k]) for k in range(999)]]
    buffers = LogprobBuffers(None, beat)
    buffers.add_positions(INPUT[1], positions)
    shown = json.loads(b'{"a":0%b}' % b"".join(buffers.members()))["input_top_logprobs"]
    assert shown == [None, *[[[-1.0, 9, None], [-2.0, k, None]] for k in range(999)]]
    assert len(beats) == 16

    texts = SimpleNamespace(
        setup=SimpleNamespace(beat=beat), text_of=str, label_of=str, bytes_of=lambda token: b"x",
        offsets_of=lambda stream: SimpleNamespace(add=lambda token: 0),
    )  # fmt: skip
    stream = SimpleNamespace(text=b"", finish=None)
    beats.clear()
    kept = OpenAILogprobs(texts)
    kept.add_pairs(OUTPUT[0], [-1.0] * 1000, range(1000))
    kept.add_positions(OUTPUT[1], positions)
    completion = json.loads(kept.completion(stream, False))
    assert completion["top_logprobs"] == [None, *[{"9": -1.0, str(k): -2.0} for k in range(999)]]
    assert completion["tokens"] == [str(k) for k in range(1000)] and len(beats) == 15
    content = json.loads(kept.chat())["content"]
    assert [entry["token"] for entry in content] == completion["tokens"] and len(beats) == 30
    assert content[0]["top_logprobs"] == [] and content[5]["top_logprobs"][1] == {
        "token": "4", "bytes": [120], "logprob": -2.0
    }  # fmt: skip


def test_hidden_states_of_a_streamed_choice_keep_no_more_than_is_shown():
    """`true` shows the last token's: those before it need not wait with it."""
    shape = CompletionShape(Spec("a", "m", 0, hidden="all"), b'"v"', str)
    stream = SimpleNamespace(index=0, hidden=bytearray(), finish=None)
    for k in range(100):
        stream.hidden[:] = b"[%d,1.5],[%d,2.5]" % (k, k)
        if k == 99:
            stream.finish = {"type": "stop"}
        shape.keep_hidden(stream)
        assert all(len(kept) < 40 for kept in shape._hidden.values())
    assert shape.hidden_states(stream) == b"[99,2.5]" and not shape._hidden
