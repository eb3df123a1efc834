"""Where tokens begin in the text, for every kind of detokenizer."""

from __future__ import annotations

import pytest

from tests import text_samples as samples
from tests.unit.test_text_windowed import decode
from tpc_server.text.detok import Detok
from tpc_server.text.escape import json_escape
from tpc_server.text.offsets import Offsets, characters, prompt_offsets
from tpc_server.text.pieces import compile_pieces
from tpc_server.text.windowed import WindowedDetok


def places(detok, ids):
    offsets = Offsets(detok)
    return [offsets.add(token) for token in ids], offsets.at


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        ("🎉é日".encode(), ([0, 0, 0, 0, 1, 1, 2, 2, 2], 3)),
        (b"\xf0\xf0A", ([0, 1, 2], 3)),
        (b"\xe4\xb8A", ([0, 0, 2], 3)),
        (b"A\xff", ([0, 1], 2)),
    ],
)
def test_byte_fallback(data, expected):
    """A byte of an unfinished character is a character of its own."""
    table = compile_pieces(samples.fallback_dict(False))
    assert table is not None
    ids = [264 if byte == 0x41 else 1 + byte for byte in data]
    assert places(Detok(table, True, True, False, False), ids) == expected


def test_a_first_token_that_loses_its_space():
    table = compile_pieces(samples.fallback_dict(True))
    assert table is not None
    bos, hello = 268, 259
    assert places(Detok(table, True, True, False, False), [bos, hello, hello]) == ([0, 0, 5], 11)


def test_windows():
    data = "a 🎉é日 x".encode()
    detok = WindowedDetok(decode, True, [], False)
    ids = [*data[:2], 256, *data[2:]]
    assert places(detok, ids)[0] == [0, 1, 2, 2, 2, 2, 2, 3, 3, 4, 4, 4, 5, 6]


def test_a_prompt_shows_what_was_written_in_it():
    table = samples.table_of(b"a", b"<s>", b"b", special=(1,))
    names = {0: "a", 1: "<s>", 2: "b"}

    def offsets(ids, shown):
        return prompt_offsets(
            ids, shown, Offsets(Detok(table, True, True, False, False)), names.get
        )

    assert offsets([1, 0, 1, 2], "a<s>b") == [0, 0, 1, 4]
    assert offsets([1, 0, 1, 2], "ab") == [0, 0, 1, 1]
    assert offsets([0, 2, 2], "a") == [0, 1, 1]  # never behind what is shown


def test_characters_of_escaped_text():
    for text in ("", 'a"b\\', "🎉\n\x01é", "\u2028"):
        assert characters(json_escape(text)) == len(text)
