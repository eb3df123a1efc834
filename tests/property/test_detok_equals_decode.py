"""Any ids in any frames: joined deltas equal one-shot decode, and nothing sent is taken back."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import text_samples as samples
from tpc_server.text.detok import MAX_HELD, Detok, decode_all, stop_cut
from tpc_server.text.escape import EscapedTable
from tpc_server.text.pieces import BYTE, MISSING, SPECIAL, PieceTable, compile_pieces
from tpc_server.text.windowed import MAX_PENDING, WindowedDetok

FFFD = "\ufffd"


class Case:
    """A tokenizer, its table, and ids worth drawing often."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.real = samples.tokenizer(data)
        table = compile_pieces(data)
        assert table is not None
        self.table: PieceTable = table

    def decode(self, ids: Sequence[int], skip: bool) -> str:
        known = [i for i in ids if i >= 0]
        text: str = self.real.decode(known, skip_special_tokens=skip)
        return text


EXACT = {name: Case(data) for name, data in samples.EXACT.items()}
FALLBACK = {strip: Case(samples.fallback_dict(strip)) for strip in (False, True)}


def ids_of(table: PieceTable, blob: bytes) -> list[int]:
    """Ids from drawn bytes (which hypothesis draws fastest).

    Mostly the last of the vocabulary (words, cut characters, added tokens), else any, some outside.
    """
    size = table.vocab_size
    last = max(size - 24, 0)
    ids = []
    for at, byte in enumerate(blob):
        if byte < 192:
            ids.append(last + byte % (size - last))
        elif byte < 250:
            ids.append((byte * 7 + at * 31) % size)
        else:
            ids.append(size + byte - 252)  # from size - 2 to size + 3
    return ids


def byte_ids(blob: bytes) -> list[int]:
    """For the byte-fallback samples: drawn bytes as byte tokens, with words between."""
    ids: list[int] = []
    for byte in blob:
        if byte < 0x20:
            ids += [1 + b for b in "世é🎉\u0416"[byte % 4].encode()]
        elif byte < 0x30:
            ids.append(257 + byte % 15)
        else:
            ids.append(1 + byte)
    return ids


def frames_of(ids: list[int], cuts: bytes) -> list[list[int]]:
    """Ids cut at these places (empty frames included)."""
    places = sorted(cut % (len(ids) + 1) for cut in cuts)
    return [ids[a:b] for a, b in zip([0, *places], [*places, len(ids)], strict=True)]


BLOB = st.binary(max_size=24)
CUTS = st.binary(max_size=12)


def streamed(state: Any, frames: list[list[int]], **finish: Any) -> list[str]:
    deltas = [state.step(frame) for frame in frames[:-1]]
    return [*deltas, state.finish(frames[-1], **finish)]


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=90, deadline=None)
@given(blob=BLOB, skip=st.booleans(), cuts=CUTS)
def test_joined_deltas_equal_decode(name, blob, skip, cuts):
    case = EXACT[name]
    ids = ids_of(case.table, blob)
    whole = case.decode(ids, skip)
    assert decode_all(case.table, ids, skip) == whole
    deltas = streamed(Detok(case.table, skip, True, False, False), frames_of(ids, cuts))
    assert "".join(deltas) == whole


@pytest.mark.parametrize("name", EXACT)
@settings(max_examples=60, deadline=None)
@given(blob=BLOB, skip=st.booleans(), cuts=CUTS)
def test_behind_a_prompt(name, blob, skip, cuts):
    case = EXACT[name]
    prompt = ids_of(case.table, cuts)[-5:]
    ids = ids_of(case.table, blob)
    before = case.decode(prompt, skip)
    if before.endswith(FFFD):
        return  # an unfinished character of a prompt is not finished by what follows
    whole = case.decode(prompt + ids, skip)[len(before) :]
    context = case.table.gives_context([i for i in prompt if 0 <= i < case.table.vocab_size], skip)
    deltas = streamed(Detok(case.table, skip, True, context, False), frames_of(ids, cuts))
    assert "".join(deltas) == whole


def ours_of_fallback(case: Case, ids: Sequence[int], skip: bool) -> tuple[str, bool]:
    """(text by the documented rule, whether one-shot decode says the same), independently.

    surrogateescape marks every byte that is not part of a character, one by one.
    """
    table = case.table
    text = ""
    agrees = True
    run = b""
    for i in [*ids, None]:
        if i is not None:
            if not 0 <= i < table.vocab_size or table.kinds[i] & (SPECIAL if skip else 0):
                continue
            if table.kinds[i] & MISSING:
                continue
            if table.kinds[i] & BYTE:
                run += table.pieces[i]
                continue
        marked = run.decode("utf-8", "surrogateescape")
        bad = [c for c in marked if 0xDC80 <= ord(c) <= 0xDCFF]
        agrees = agrees and len(bad) in (0, len(marked))
        text += "".join(FFFD if 0xDC80 <= ord(c) <= 0xDCFF else c for c in marked)
        run = b""
        if i is not None:
            text += table.pieces[i].decode()
    if table.strip_first is not None and text.startswith(" "):
        text = text[1:]
    return text, agrees


@pytest.mark.parametrize("strip", [False, True])
@settings(max_examples=300, deadline=None)
@given(blob=BLOB, skip=st.booleans(), cuts=CUTS)
def test_byte_fallback(strip, blob, skip, cuts):
    case = FALLBACK[strip]
    ids = byte_ids(blob)
    expected, agrees = ours_of_fallback(case, ids, skip)
    unary = decode_all(case.table, ids, skip)
    assert unary == expected
    if agrees:
        assert unary == case.decode(ids, skip)
    deltas = streamed(Detok(case.table, skip, True, False, False), frames_of(ids, cuts))
    assert "".join(deltas) == unary


STOPPED = {**EXACT, "fallback": FALLBACK[True]}


@pytest.mark.parametrize("name", ["byte-level", "fallback", "wordpiece"])
@settings(max_examples=90, deadline=None)
@given(blob=BLOB, skip=st.booleans(), cuts=CUTS, keep_stop=st.booleans(), pick=st.integers(0, 999))
def test_stop_trim(name, blob, skip, cuts, keep_stop, pick):
    """The text ends at the first occurrence of the stop, or where it had already been sent to."""
    case = STOPPED[name]
    ids = ids_of(case.table, blob)
    whole = decode_all(case.table, ids, skip)
    if whole and pick % 4:
        start = pick % len(whole)
        stop = whole[start : start + 1 + pick % 5]
    else:
        stop = ["STOP", " ", FFFD, "l"][pick % 13 % 4]
    trimmed = whole[: stop_cut(whole, stop, keep_stop)]
    assert decode_all(case.table, ids, skip, matched=stop, no_stop_trim=keep_stop) == trimmed
    frames = frames_of(ids, cuts)
    state = Detok(case.table, skip, True, False, True)
    deltas = streamed(state, frames, matched=stop, no_stop_trim=keep_stop)
    plain = Detok(case.table, skip, True, False, False)
    again = [plain.step(frame) for frame in frames[:-1]]
    history = [i for frame in frames[:-1] for i in frame]
    assert deltas == [*again, plain.finish(frames[-1], stop, keep_stop, history)]
    sent = "".join(deltas[:-1])
    assert whole.startswith(sent)
    assert sent + deltas[-1] == (trimmed if len(trimmed) > len(sent) else sent)


@pytest.mark.parametrize("name", ["byte-level", "fallback"])
@settings(max_examples=60, deadline=None)
@given(blob=BLOB, skip=st.booleans(), cuts=CUTS)
def test_matched_ids_are_dropped(name, blob, skip, cuts):
    case = STOPPED[name]
    ids = ids_of(case.table, blob + b"x")
    assert decode_all(case.table, ids, skip, matched=ids[-1]) == decode_all(
        case.table, ids[:-1], skip
    )
    frames = [*frames_of(ids[:-1], cuts), ids[-1:]]
    deltas = streamed(Detok(case.table, skip, True, False, False), frames, matched=ids[-1])
    assert "".join(deltas) == decode_all(case.table, ids[:-1], skip)


@pytest.mark.parametrize("name", STOPPED)
@settings(max_examples=60, deadline=None)
@given(blob=BLOB, skip=st.booleans(), cuts=CUTS)
def test_every_sent_prefix_is_a_prefix_and_state_is_bounded(name, blob, skip, cuts):
    case = STOPPED[name]
    ids = ids_of(case.table, blob) * 4
    whole = decode_all(case.table, ids, skip)
    state = Detok(case.table, skip, True, False, False)
    sent = ""
    for frame in frames_of(ids, cuts)[:-1]:
        sent += state.step(frame)
        assert whole.startswith(sent)
        assert len(state.held) <= MAX_HELD + 1
        assert len(state._tail) <= 3
        assert not (state.clean and (state.held or state._tail))


@pytest.mark.parametrize("name", STOPPED)
@settings(max_examples=90, deadline=None)
@given(blob=BLOB, skip=st.booleans())
def test_the_fast_path_may_be_taken_whenever_clean(name, blob, skip):
    """As the step loop does it: escaped pieces without a call while clean, else ``step``."""
    case = STOPPED[name]
    ids = ids_of(case.table, blob)
    frags = EscapedTable(case.table, skip)
    state = Detok(case.table, skip, True, False, False)
    out = []
    for i in ids:
        piece = frags.fill(i) if state.clean else None
        if piece is None:
            out.append(state.step([i]))
        else:
            out.append(json.loads(b'"' + piece + b'"'))
    out.append(state.finish([]))
    assert "".join(out) == decode_all(case.table, ids, skip)


def decoder_of(case: Any) -> Callable[[Sequence[int], bool], str]:
    return lambda ids, skip: str(case.decode([i for i in ids if i >= 0], skip_special_tokens=skip))


def last_ids(real: Any, blob: bytes) -> list[int]:
    """Ids among the last 24, where the samples keep what is not plain bytes."""
    size = real.get_vocab_size()
    last = max(size - 24, 0)
    return [last + byte % (size - last) for byte in blob]


WINDOWED = {**samples.EXACT, "suffix": samples.suffix_dict()}
WINDOWED_REAL = {name: samples.tokenizer(data) for name, data in WINDOWED.items()}


@pytest.mark.parametrize("name", WINDOWED)
@settings(max_examples=40, deadline=None)
@given(blob=BLOB, skip=st.booleans(), cuts=CUTS)
def test_windowed_joined_deltas_equal_decode(name, blob, skip, cuts):
    real = WINDOWED_REAL[name]
    decode = decoder_of(real)
    ids = last_ids(real, blob)
    deltas = streamed(WindowedDetok(decode, skip, [], False), frames_of(ids, cuts))
    assert "".join(deltas) == decode(ids, skip)


@pytest.mark.parametrize("name", ["byte-level", "suffix"])
@settings(max_examples=15, deadline=None)
@given(blob=st.binary(min_size=1, max_size=3))
def test_windowed_windows_are_bounded(name, blob):
    real = WINDOWED_REAL[name]
    sizes: list[int] = []

    def decode(ids: Sequence[int], skip: bool) -> str:
        sizes.append(len(ids))
        return str(real.decode(list(ids), skip_special_tokens=skip))

    few = last_ids(real, blob)
    state = WindowedDetok(decode, True, [], False)
    sent = ""
    for n in range(300):
        sent += state.step([few[n % len(few)]])
    sent += state.finish([])
    assert sent == str(real.decode([few[n % len(few)] for n in range(300)]))
    assert max(sizes) <= 3 * MAX_PENDING
    assert len(sizes) <= 300 * 8
