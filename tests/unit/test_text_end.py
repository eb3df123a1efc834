"""What the end of a text shows of bytes that are no character: as `bytes.decode` does."""

from __future__ import annotations

import itertools

import pytest

from tests import tiny_tokenizer
from tpc_server.text.detok import Detok, decode_all
from tpc_server.text.pieces import compile_pieces

# A start byte of every kind, then bytes that continue, end, or spoil what it began.
STARTS = (0x41, 0x80, 0xC1, 0xC3, 0xE0, 0xE4, 0xED, 0xEF, 0xF0, 0xF4, 0xF5)
NEXT = (0x7F, 0x80, 0x9F, 0xA0, 0xB3, 0xBF, 0xC0, 0xED)


@pytest.mark.parametrize("first", STARTS, ids=hex)
def test_all_ends_of_up_to_four_bytes(first):
    table = compile_pieces(tiny_tokenizer.tokenizer_json())
    for count in range(4):
        for rest in itertools.product(NEXT, repeat=count):
            ids = [first, *rest]
            want = bytes(ids).decode("utf-8", "replace")
            assert decode_all(table, ids, has_context=True) == want
            state = Detok(table, True, True, True, False)
            shown = "".join([state.step([token]) for token in ids[:-1]])
            assert shown + state.finish(ids[-1:]) == want
