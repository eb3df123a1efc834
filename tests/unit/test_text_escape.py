"""JSON escaping and the table of escaped pieces."""

from __future__ import annotations

import json

import pytest

from tests import text_samples as samples
from tpc_server.text.escape import EscapedTable, json_escape
from tpc_server.text.pieces import compile_pieces


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("", b""),
        ("plain", b"plain"),
        ('a"b\\c', b'a\\"b\\\\c'),
        ("\b\t\n\f\r", b"\\b\\t\\n\\f\\r"),
        ("\x00\x1f\x7f", b"\\u0000\\u001f\x7f"),
        ("é\u4e16\U0001f389\ufffd", "é\u4e16\U0001f389\ufffd".encode()),
        ("\u0085\u2028\u2029", b"\\u0085\\u2028\\u2029"),
        ("\u2027\u202a\u201c\u00c2\u0084", "\u2027\u202a\u201c\u00c2\u0084".encode()),
        ("x\u2028\ny", b"x\\u2028\\ny"),
    ],
)
def test_escape(text, escaped):
    assert json_escape(text) == escaped
    assert json.loads(b'"' + escaped + b'"') == text


def test_every_character_comes_back_and_no_line_breaks_stay():
    for start in (*range(0, 0x1_2000, 0x1000), *range(0x1_F000, 0x11_0000, 0x2_0000)):
        text = "".join(chr(c) for c in range(start, start + 0x1000) if not 0xD800 <= c <= 0xDFFF)
        body = json_escape(text)
        assert json.loads(b'"' + body + b'"') == text
        assert len(body.decode().splitlines()) <= 1


def test_fragments_are_the_escaped_pieces_that_need_no_state():
    data = samples.byte_level_dict()
    table = compile_pieces(data)
    assert table is not None
    frags = EscapedTable(table, True)
    assert frags.frag[:] == [None] * (table.vocab_size + 1)
    for i, piece in enumerate(table.pieces):
        got = frags.fill(i)
        assert frags.frag[i] is got
        if table.kinds[i] & 1:
            assert got == b""
            continue
        try:
            text = piece.decode()
        except UnicodeDecodeError:
            assert got is None
        else:
            assert got == (None if text.endswith("\ufffd") else json_escape(text))


def test_special_tokens_are_shown_when_asked_for():
    table = compile_pieces(samples.byte_level_dict())
    assert table is not None
    bos = table.vocab_size - 4
    assert EscapedTable(table, True).fill(bos) == b""
    assert EscapedTable(table, False).fill(bos) == b"<s>"


def test_byte_fallback_bytes_are_fragments_only_where_one_byte_is_a_character():
    table = compile_pieces(samples.fallback_dict(True))
    assert table is not None
    frags = EscapedTable(table, True)
    assert frags.fill(1 + 0x0A) == b"\\n"
    assert frags.fill(1 + 0x41) == b"A"
    assert all(frags.fill(1 + b) is None for b in range(0x80, 0x100))
    assert frags.fill(257) == b" "


def test_ids_outside_take_the_slow_path_and_padded_ids_are_empty():
    table = samples.table_of(b"a", b"b")
    frags = EscapedTable(table, True, size=10)
    assert len(frags.frag) == 11
    assert frags.fill(9) == b""
    assert frags.fill(10) is None
    assert frags.fill(-1) is None
    assert frags.frag[-1] is None
    assert frags.fill(1 << 70) is None
    assert frags.fill(1) == b"b" == frags.fill(1)
