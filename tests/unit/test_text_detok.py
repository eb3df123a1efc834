"""Incremental detokenization: the printable rule, frame by frame examples, stops, bounded state."""

from __future__ import annotations

from typing import Any

import pytest

from tests import text_samples as samples
from tpc_server.text.detok import (
    MAX_HELD,
    Detok,
    decode_all,
    find_printable,
    is_cjk,
    stop_cut,
)
from tpc_server.text.pieces import compile_pieces

FFFD = "\ufffd"
# Matched values that are not set: distinguishes "no finish reason" from None in examples.


def run(frames: list[list[bytes]], **finish: Any) -> list[str]:
    """Deltas of frames of tokens given as bytes; the last frame finishes."""
    tokens = list(dict.fromkeys(token for frame in frames for token in frame))
    table = samples.table_of(*tokens)
    keep = isinstance(finish.get("matched"), str)
    state = Detok(table, True, True, False, keep)
    ids = [[tokens.index(token) for token in frame] for frame in frames]
    deltas = [state.step(frame) for frame in ids[:-1]]
    deltas.append(state.finish(ids[-1], **finish))
    return deltas


@pytest.mark.parametrize(
    ("text", "printable"),
    [
        ("", ""),
        ("hello", ""),
        ("你好", "你好"),
        ("你a", "你"),
        (f"a{FFFD}", ""),
        (f"世界x{FFFD}", ""),
        (f"あ{FFFD}", ""),
        ("hello wor", "hello "),
        ("hi\n", "hi\n"),
        (f"你好{FFFD}", "你好"),
        ("a你", "a你"),
        (f"a b{FFFD}", "a "),
        ("ok 🎉", "ok "),
        (f" {FFFD}", " "),
    ],
)
def test_find_printable(text, printable):
    assert find_printable(text) == printable


def test_cjk_is_ideographs_only():
    ranges = [
        (0x4E00, 0x9FFF),
        (0x3400, 0x4DBF),
        (0x20000, 0x2A6DF),
        (0x2A700, 0x2B73F),
        (0x2B740, 0x2B81F),
        (0x2B820, 0x2CEAF),
        (0xF900, 0xFAFF),
        (0x2F800, 0x2FA1F),
    ]
    near = {edge + step for pair in ranges for edge in pair for step in range(-3, 4)}
    for code in [*near, *range(0x3500), *range(0xFA00, 0x10000), 0x10FFFF]:
        if not 0xD800 <= code <= 0xDFFF:
            assert is_cjk(chr(code)) == any(a <= code <= b for a, b in ranges), hex(code)


@pytest.mark.parametrize(
    ("name", "frames", "deltas"),
    [
        ("D1", [[b"\xf0"], [b"\x9f"], [b"\x8e"], [b"\x89"], [b" ok"]], ["", "", "", "🎉", " ok"]),
        ("D2", [[b" party ", b"\xf0\x9f"], [b"\x8e\x89"], [b"!"]], [" party ", "🎉", "!"]),
        ("D3", [[b" a"], [b"\xf0\x9f\x8e"]], [" a", FFFD]),
        (
            "D4",
            [[b"A "], ["世".encode(), b"\xe7"], [b"\x95\x8c"], [b"."]],
            ["A ", "世", "界", "."],
        ),
        (
            "D5",
            [[b"A"], ["世".encode(), b"\xf0"], [b"q\xf0"], [b"b"], [b"c"]],
            ["A", "世", "", f"{FFFD}q{FFFD}b", "c"],
        ),
        ("D5 as one token", [[b"A"], ["世".encode() + b"\xf0"], [b"q", b"\xf0"], [b"b"], [b"c"]],
         ["A", "世", "", f"{FFFD}q{FFFD}b", "c"]),
    ],
)  # fmt: skip
def test_frame_by_frame(name, frames, deltas):
    assert run(frames) == deltas


def test_characters_of_many_bytes_over_any_frames():
    text = "🎉👩‍👩‍👧🇫🇷é你好"
    data = text.encode()
    table = samples.table_of(*(bytes([b]) for b in range(256)))
    for size in range(1, 12):
        state = Detok(table, True, True, False, False)
        deltas = [state.step(data[at : at + size]) for at in range(0, len(data), size)]
        deltas.append(state.finish([]))
        assert "".join(deltas) == text
        assert not any(FFFD in delta for delta in deltas)


def test_the_real_replacement_character_is_text_like_any_other():
    assert run([["\ufffd".encode()], [b"x"], [b"y"]]) == ["", f"{FFFD}x", "y"]
    assert run([[b"a ", "\ufffd".encode()], [b"x"]]) == ["a ", f"{FFFD}x"]
    assert run([["你".encode(), "\ufffd".encode()], ["\ufffd".encode()], [b""]]) == [
        "你", "", f"{FFFD}{FFFD}",
    ]  # fmt: skip


def test_empty_frames_and_empty_tokens_send_nothing():
    assert run([[], [b""], [b"a"], [], [b""], []]) == ["", "", "a", "", "", ""]
    assert run([[b"\xe4"], [], [b""], [b"\xb8\x96"], []]) == ["", "", "", "世", ""]


def test_clean_says_when_the_fast_path_may_be_taken():
    table = samples.table_of(b"a", b"\xe4", b"\xb8\x96", "\ufffd".encode())
    state = Detok(table, True, True, False, False)
    assert state.clean
    seen = []
    for token in (0, 1, 2, 3, 0, 1, 1):
        state.step([token])
        seen.append(state.clean)
    assert seen == [True, False, True, False, True, False, False]
    assert not Detok(table, True, True, False, True).clean


def test_clean_only_after_the_first_token_where_that_is_different():
    table = compile_pieces(samples.fallback_dict(True))
    assert table is not None
    hello, bos = 259, 268
    state = Detok(table, True, True, False, False)
    assert not state.clean
    assert state.step([bos]) == ""
    assert not state.clean
    assert state.step([hello]) == "hello"
    assert state.clean
    assert state.step([hello]) == " hello"
    with_context = Detok(table, True, True, True, False)
    assert with_context.clean
    assert with_context.step([hello]) == " hello"


def test_leading_space_is_stripped_once_however_it_arrives():
    table = compile_pieces(samples.fallback_dict(True))
    assert table is not None
    mark, two, x, space_byte = 257, 258, 264, 1 + 0x20
    for ids, text in (
        ([mark, x], "x"),
        ([two, x], " x"),
        ([mark, mark, x], " x"),
        ([space_byte, x], "x"),
        ([x, mark], "x "),
    ):
        state = Detok(table, True, True, False, False)
        assert "".join(state.step([i]) for i in ids) + state.finish([]) == text
        assert decode_all(table, ids) == text
        behind = text if ids[0] == x else " " + text
        assert decode_all(table, ids, has_context=True) == behind


def test_spaces_between_special_tokens_has_no_effect():
    table = samples.table_of(b"a", b"<eos>", special=(1,))
    for spaces in (False, True):
        assert decode_all(table, [0, 1, 0], False, spaces) == "a<eos>a"
        assert Detok(table, True, spaces, False, False).finish([0, 1, 0]) == "aa"


# -- byte fallback ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "frames", "final"),
    [
        (b"\xe4\xb8\x96", ["", "", "世"], ""),
        (b"\xf0\x9f", ["", ""], FFFD * 2),
        (b"\xf0\xf0A", ["", "", f"{FFFD}{FFFD}A"], ""),
        (b"\xe4\xb8A", ["", "", f"{FFFD}{FFFD}A"], ""),
        (b"\xff", [""], FFFD),
        (b"\xe4\xb8\x96\xff", ["", "", "世", ""], FFFD),
        (b"\xef\xbf\xbd", ["", "", ""], FFFD),
        (b"\xef\xbf\xbf", ["", "", "\uffff"], ""),
        (b"\xed\xa0\x80", ["", "", ""], FFFD * 3),
    ],
)
def test_runs_of_byte_tokens(data, frames, final):
    table = compile_pieces(samples.fallback_dict(False))
    assert table is not None
    state = Detok(table, True, True, False, False)
    assert [state.step([1 + byte]) for byte in data] == frames
    assert state.finish([]) == final
    assert decode_all(table, [1 + byte for byte in data]) == "".join(frames) + final


def test_a_run_ends_at_the_next_shown_token_and_not_at_a_hidden_one():
    data = samples.fallback_dict(False)
    table = compile_pieces(data)
    assert table is not None
    real = samples.tokenizer(data)
    cut, bos, x = [1 + 0xE4, 1 + 0xB8], 268, 264
    rest = 1 + 0x96
    assert decode_all(table, [*cut, bos, rest]) == "世" == real.decode([*cut, bos, rest])
    shown = [*cut, bos, rest]
    assert decode_all(table, shown, False) == f"{FFFD * 2}<s>{FFFD}"
    assert real.decode(shown, skip_special_tokens=False) == f"{FFFD * 2}<s>{FFFD}"
    assert decode_all(table, [*cut, x, rest]) == f"{FFFD * 2}x{FFFD}"


def test_where_one_shot_decode_differs_it_is_a_run_with_good_and_bad_bytes():
    data = samples.fallback_dict(False)
    table = compile_pieces(data)
    assert table is not None
    real = samples.tokenizer(data)
    mixed = [1 + byte for byte in "世".encode() + b"\xff"]
    assert real.decode(mixed) == FFFD * 4
    assert decode_all(table, mixed) == f"世{FFFD}"


# -- stops --------------------------------------------------------------------------

PLAIN = [b"foo", b" ST", b"OP tail", b"AR", b"a", b"\n", b"b", b"x\nb", b"12", b"3", b";x", b"ST",
         b"OP", b"<eos>"]  # fmt: skip
STOPS = samples.table_of(*PLAIN, special=(13,))


def ids_of(*tokens: bytes) -> list[int]:
    return [PLAIN.index(token) for token in tokens]


def stream(frames: list[list[int]], matched: Any, no_stop_trim: bool = False) -> list[str]:
    state = Detok(STOPS, True, True, False, True)
    deltas = [state.step(frame) for frame in frames[:-1]]
    return [*deltas, state.finish(frames[-1], matched, no_stop_trim)]


def unary(ids: list[int], matched: Any, no_stop_trim: bool = False, skip: bool = True) -> str:
    return decode_all(STOPS, ids, skip, True, False, matched, no_stop_trim)


def test_s1_stop_over_two_tokens_is_cut():
    foo, st, op = ids_of(b"foo", b" ST", b"OP tail")
    # The scheduler withholds " ST": it rides in the last frame.
    assert stream([[foo], [st, op]], "STOP") == ["foo", " "]
    assert unary([foo, st, op], "STOP") == "foo "


def test_s2_no_stop_trim_keeps_the_stop_and_drops_what_follows():
    foo, st, op = ids_of(b"foo", b" ST", b"OP tail")
    assert stream([[foo], [st, op]], "STOP", True) == ["foo", " STOP"]
    assert unary([foo, st, op], "STOP", True) == "foo STOP"


def test_s3_s4_a_partial_stop_is_flushed_at_the_end():
    foo, st, ar = ids_of(b"foo", b" ST", b"AR")
    assert stream([[foo], [st, ar]], None) == ["foo", " STAR"]
    assert stream([[foo], [st]], None) == ["foo", " ST"]
    assert unary([foo, st, ar], None) == "foo STAR"


def test_s5_s6_first_occurrence_of_the_matched_stop():
    assert unary(ids_of(b"a", b"\n"), "\n") == "a"
    assert stream([ids_of(b"a"), ids_of(b"\n")], "\n") == ["a", ""]
    assert unary(ids_of(b"x\nb"), "b") == "x\n"
    assert stream([ids_of(b"x\nb")], "b") == ["x\n"]


def test_s7_s8_a_matched_id_is_dropped_before_decoding():
    foo, eos = ids_of(b"foo", b"<eos>")
    assert unary([foo, eos], 13) == "foo"
    assert unary([foo, eos], 13, skip=False) == "foo"
    assert unary([foo, eos], 13, no_stop_trim=True, skip=False) == "foo<eos>"
    assert stream([[foo], [eos]], 13) == ["foo", ""]
    state = Detok(STOPS, False, True, False, False)
    assert [state.step([foo]), state.finish([eos], 13, True)] == ["foo", "<eos>"]


def test_s9_without_a_match_nothing_is_dropped():
    foo, eos, st = ids_of(b"foo", b"<eos>", b" ST")
    assert unary([foo, eos, st], None) == "foo ST"
    assert unary([foo, eos, st], [13], skip=False) == "foo<eos> ST"


def test_s10_a_matched_pattern_is_cut_only_where_it_is_literal_text():
    ids = ids_of(b"12", b"3", b";x")
    assert unary(ids, "[0-9]+;") == "123;x"
    assert stream([[i] for i in ids], "[0-9]+;") == ["12", "3", ";x"]
    assert unary(ids, "3;") == "12"


def test_s11_id_zero_is_an_id():
    foo = 0
    st = PLAIN.index(b" ST")
    assert unary([st, foo], 0) == " ST"
    assert stream([[st], [foo]], 0) == [" ST", ""]
    assert unary([st, foo], False) == " STfoo"  # a bool is no id


def test_s12_an_empty_stop_cuts_everything():
    assert unary(ids_of(b"foo"), "") == ""


def test_s13_a_unary_answer_is_trimmed_as_a_whole():
    ids = [PLAIN.index(b"a")] * 49 + ids_of(b"ST", b"OP")
    assert unary(ids, "STOP") == "a" * 49


def test_what_was_sent_is_never_taken_back():
    foo, st, op = ids_of(b"foo", b" ST", b"OP tail")
    # Without the scheduler's holdback " ST" went out already: the delta is empty, not negative.
    assert stream([[foo], [st], [op]], "STOP") == ["foo", " ST", ""]
    # An earlier occurrence in sent text: nothing more may follow it.
    assert stream([[foo], [st], [foo]], "foo") == ["foo", " ST", ""]
    assert stream([[foo], [st], [foo]], "ST", True) == ["foo", " ST", ""]


def test_a_stop_that_begins_in_held_text():
    table = samples.table_of(b"ab", b"\xe4", b"STOP", b" c")
    state = Detok(table, True, True, False, True)
    assert state.step([0, 1]) == ""
    assert state.finish([2, 3], f"{FFFD}ST") == "ab"


def test_stops_of_several_bytes_a_character():
    tokens = ["你好".encode(), "世界".encode(), "。".encode()]
    table = samples.table_of(*tokens)
    state = Detok(table, True, True, False, True)
    assert [state.step([0]), state.step([1]), state.finish([2])] == ["你好", "世界", "。"]
    assert decode_all(table, [0, 1, 2], matched="界。") == "你好世"
    assert decode_all(table, [0, 1, 2], matched="。\n") == "你好世界。"


def test_without_kept_text_a_string_match_cuts_what_is_not_sent():
    foo, st, op = ids_of(b"foo", b" ST", b"OP tail")
    state = Detok(STOPS, True, True, False, False)
    assert state.step([foo]) == "foo"
    assert state.finish([st, op], "STOP") == " "


def test_finish_with_no_ids_and_a_matched_id():
    assert stream([ids_of(b"foo"), []], 13) == ["foo", ""]


@pytest.mark.parametrize(
    ("text", "stop", "keep", "end"),
    [
        ("abcabc", "bc", False, 1),
        ("abcabc", "bc", True, 3),
        ("abc", "x", False, 3),
        ("", "x", True, 0),
    ],
)
def test_stop_cut(text, stop, keep, end):
    assert stop_cut(text, stop, keep) == end


# -- cost ---------------------------------------------------------------------------


class CountingList(list[bytes]):
    """Pieces that count how often they are read."""

    reads = 0

    def __getitem__(self, index: Any) -> Any:
        self.reads += 1
        return super().__getitem__(index)


@pytest.mark.parametrize("keep_text", [False, True])
@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("half characters", [b"\xf0"]),
        ("half characters in pairs", [b"\xf0\x9f", b"\xf0"]),
        ("no text", [b""]),
        ("the replacement character", ["\ufffd".encode()]),
        ("words that never settle", [b"word\xf0", b"x\xe4\xb8"]),
        ("a letter each, unsettled", [b"a\xf0"]),
    ],
)
def test_a_token_costs_the_same_whatever_came_before(name, tokens, keep_text):
    table = samples.table_of(*tokens)
    pieces = CountingList(table.pieces)
    table.pieces = pieces
    state = Detok(table, True, True, False, keep_text)
    sent = []
    for n in range(20_000):
        before = pieces.reads
        sent.append(state.step([n % len(tokens)]))
        assert pieces.reads - before == 1
        assert len(state.held) <= MAX_HELD + 1
        assert len(state._tail) <= 3
        # Held text is the only old text a step touches: a delta is bounded by it.
        assert len(sent[-1]) <= MAX_HELD + 8
    sent.append(state.finish([]))
    expected = b"".join(tokens[n % len(tokens)] for n in range(20_000)).decode("utf-8", "replace")
    assert "".join(sent) == expected


def test_fallback_half_characters_cost_the_same_too():
    table = compile_pieces(samples.fallback_dict(False))
    assert table is not None
    state = Detok(table, True, True, False, False)
    sent = []
    for _ in range(20_000):
        sent.append(state.step([1 + 0xF0]))
        assert len(state.held) <= MAX_HELD + 1
        assert len(state._tail) <= 3
    sent.append(state.finish([]))
    assert "".join(sent) == FFFD * 20_000
