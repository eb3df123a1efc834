"""Texts of single tokens: each is made once on a core, and only those that can be."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests import text_samples as samples
from tests import tiny_tokenizer
from tpc_server.setup import CoreSetup
from tpc_server.stages import token_texts
from tpc_server.stages.token_texts import TokenTexts
from tpc_server.text.detok import decode_all


def texts(table: Any) -> tuple[TokenTexts, list[int]]:
    """Those of a core, and the ids that were decoded since."""
    decoded: list[int] = []
    owner: Any = SimpleNamespace(tokenizer_json=json.dumps(tiny_tokenizer.tokenizer_json()))
    real = CoreSetup.decode(owner)

    def decode() -> Any:
        def one(ids: list[int], skip: bool) -> str:
            decoded.extend(ids)
            return str(real(ids, skip))

        return one

    setup = SimpleNamespace(pieces=table, needs_context=False, vocab_size=258, decode=decode)
    return TokenTexts(setup), decoded


def test_a_text_is_made_once() -> None:
    made, decoded = texts(None)
    for _ in range(3):
        assert [made.text_of(i) for i in (97, 0xF0, tiny_tokenizer.EOS)] == ["a", "\ufffd", "<eos>"]
        assert made.label_of(97) == "a"
    assert decoded == [97, 0xF0, tiny_tokenizer.EOS]


@pytest.mark.parametrize("token", [-1, 258, 1 << 40])
def test_what_is_no_token_is_not_kept(token: int) -> None:
    made, _ = texts(None)
    for _ in range(2):
        assert made.text_of(token) == made.label_of(token) == ""
    kept: list[Any] = [made.text_of, made.label_of]
    assert [len(texts.__self__) for texts in kept] == [0, 0]


def test_with_a_table_of_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes that are no text are keys of their own, and the tokenizer is not asked."""
    calls: list[Any] = []
    real = decode_all

    def counting(table: Any, ids: Any, **more: Any) -> str:
        calls.append(ids)
        return real(table, ids, **more)

    monkeypatch.setattr(token_texts, "decode_all", counting)
    table = samples.table_of(b"a", b"\xf0", b"\x9f", "é".encode())
    made, decoded = texts(table)
    for _ in range(3):
        assert [made.text_of(i) for i in range(4)] == ["a", "\ufffd", "\ufffd", "é"]
        assert [made.label_of(i) for i in range(4)] == ["a", "ð", "\x9f", "é"]
    assert len(calls) == 4 and not decoded
