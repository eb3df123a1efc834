"""Windowed detokenization over a decode function."""

from __future__ import annotations

import json
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tests import text_samples as samples
from tests import tiny_tokenizer
from tpc_server.setup import CoreSetup
from tpc_server.text.windowed import CONTEXT_IDS, MAX_PENDING, WindowedDetok

FFFD = "\ufffd"
BYTES = [bytes([b]) for b in range(256)]


def decode(ids: Sequence[int], skip: bool) -> str:
    """A byte-level decoder: ids are bytes, 256 is a special token without a byte."""
    shown = [b"<s>" if i == 256 else BYTES[i] for i in ids if i < 256 or not skip]
    return b"".join(shown).decode("utf-8", "replace")


def run(data: list[bytes], **finish) -> list[str]:
    state = WindowedDetok(decode, True, [], isinstance(finish.get("matched"), str))
    deltas = [state.step(frame) for frame in data[:-1]]
    return [*deltas, state.finish(data[-1], **finish)]


@pytest.mark.parametrize(
    ("frames", "deltas"),
    [
        ([b"\xf0", b"\x9f", b"\x8e", b"\x89", b" ok"], ["", "", "", "🎉", " ok"]),
        ([b" party \xf0\x9f", b"\x8e\x89", b"!"], [" party ", "🎉", "!"]),
        ([b" a", b"\xf0\x9f\x8e"], [" a", FFFD]),
        ([b"A ", "世".encode() + b"\xe7", b"\x95\x8c", b"."], ["A ", "世", "界", "."]),
        (
            [b"A", "世".encode() + b"\xf0", b"q\xf0", b"b", b"c"],
            ["A", "世", "", f"{FFFD}q{FFFD}b", "c"],
        ),
        ([b"", b"a", b""], ["", "a", ""]),
    ],
)
def test_frame_by_frame_as_the_table_path(frames, deltas):
    assert run(frames) == deltas


def test_stops_are_trimmed_as_on_the_table_path():
    assert run([b"foo", b" STOP tail"], matched="STOP") == ["foo", " "]
    assert run([b"foo", b" STOP tail"], matched="STOP", no_stop_trim=True) == ["foo", " STOP"]
    assert run([b"foo", b" ST", b"OP"], matched="STOP") == ["foo", " ST", ""]
    assert run([b"ab", b"\x00"], matched=0) == ["ab", ""]
    assert run([b"ab", b"c"], matched=99, no_stop_trim=True) == ["ab", "c"]
    state = WindowedDetok(decode, True, [], False)
    assert state.step(b"foo") == "foo"
    assert state.finish(b" STOP", "STOP") == " "
    state = WindowedDetok(decode, True, [], False)
    assert state.step(b"foo ST") == "foo ST"
    assert state.finish(b"x STOP", "ST", history=b"foo ST") == ""


def test_left_context_decides_how_the_first_token_looks():
    real = samples.tokenizer(samples.fallback_dict(True))

    def sp(ids: Sequence[int], skip: bool) -> str:
        return str(real.decode(list(ids), skip_special_tokens=skip))

    hello, bos = 259, 268
    assert WindowedDetok(sp, True, [], False).step([hello]) == "hello"
    assert WindowedDetok(sp, True, [bos], False).step([hello]) == "hello"
    assert WindowedDetok(sp, True, [hello], False).step([hello]) == " hello"


def test_only_the_last_prompt_ids_are_context():
    seen: list[int] = []

    def spy(ids: Sequence[int], skip: bool) -> str:
        seen.append(len(ids))
        return decode(ids, skip)

    WindowedDetok(spy, True, [65] * 1000, False).step([66])
    assert max(seen) == CONTEXT_IDS + 1


@pytest.mark.parametrize(
    "token", [0xF0, 0x80, 256, 0xFF], ids=["lead byte", "continuation", "hidden", "bad byte"]
)
def test_a_window_that_never_settles_is_cut(token):
    sizes: list[int] = []

    def spy(ids: Sequence[int], skip: bool) -> str:
        sizes.append(len(ids))
        return decode(ids, skip)

    state = WindowedDetok(spy, True, [], True)
    count = 2000
    text = "".join(state.step([token]) for _ in range(count)) + state.finish([])
    assert text == decode([token] * count, True)
    # The prefix can be a whole cut window, the pending ids another.
    assert max(sizes) <= 2 * MAX_PENDING + 2


def test_text_after_an_endless_run_is_whole():
    state = WindowedDetok(decode, True, [], False)
    data = b"\xf0" * 150 + "é ok 🎉".encode() + b"\xe4" * 70 + b"end"
    text = "".join(state.step([byte]) for byte in data) + state.finish([])
    assert text == data.decode("utf-8", "replace")


@pytest.mark.parametrize("token", [-1, 1 << 20, 1 << 40])
def test_an_id_that_no_tokenizer_takes_has_no_text(token):
    """As in a piece table: it is the scheduler's fault, and must cost no core its streams."""
    owner: Any = SimpleNamespace(tokenizer_json=json.dumps(tiny_tokenizer.tokenizer_json()))
    decode = CoreSetup.decode(owner)
    assert decode([token], False) == ""
    assert decode([97, token, 98], True) == "ab"
    assert WindowedDetok(decode, True, [], False).step([token, 97]) == "a"
