"""The piece table against the real decoder, id by id, and its refusals."""

from __future__ import annotations

from typing import Any

import pytest

from tests import text_samples as samples
from tpc_server.text.detok import decode_all
from tpc_server.text.pieces import BYTE, SPECIAL, PieceTable, byte_alphabet, compile_pieces

COMPILABLE = samples.EXACT | {
    "fallback-strip": samples.fallback_dict(True),
    "fallback": samples.fallback_dict(False),
}


def compiled(data: dict[str, Any]) -> PieceTable:
    table = compile_pieces(data)
    assert table is not None
    return table


def ids_of(table: PieceTable, kind: int) -> list[int]:
    return [i for i, has in enumerate(table.kinds) if has & kind]


@pytest.mark.parametrize("name", COMPILABLE)
@pytest.mark.parametrize("skip", [False, True])
def test_every_id_alone_and_behind_every_other(name, skip):
    data = COMPILABLE[name]
    table = compiled(data)
    real = samples.tokenizer(data)
    ids = range(table.vocab_size + 2)
    firsts = ids if table.vocab_size < 60 else range(250, table.vocab_size)
    for first in ids:
        assert decode_all(table, [first], skip) == real.decode([first], skip_special_tokens=skip)
    for first in firsts:
        for second in firsts:
            if table.kinds[min(second, table.vocab_size - 1)] & BYTE:
                continue  # runs of byte tokens: see the property tests
            pair = [first, second]
            assert decode_all(table, pair, skip) == real.decode(pair, skip_special_tokens=skip), (
                f"{pair}"
            )


def test_vocabulary_size_special_and_byte_tokens():
    table = compiled(samples.fallback_dict(True))
    assert table.vocab_size == len(table.pieces) == 257 + 11 + 4
    assert ids_of(table, BYTE) == list(range(1, 257))
    assert ids_of(table, SPECIAL) == [268, 269]
    assert table.strip_first == b" "
    assert table.fallback
    assert compiled(samples.fallback_dict(False)).strip_first is None
    assert not compiled(samples.byte_level_dict()).fallback


def test_ids_without_a_token_are_empty():
    data = samples.tokenizer_dict(
        samples.bpe(["a"]) | {"vocab": {"a": 0, "b": 3}}, samples.BYTE_LEVEL
    )
    table = compiled(data)
    assert table.pieces == [b"a", b"", b"", b"b"]
    assert decode_all(table, [0, 1, 2, 3, 4, -1, 1 << 40], False) == "ab"


def test_an_added_token_of_the_model_keeps_the_models_id_whatever_the_file_says():
    data = samples.tokenizer_dict(
        samples.bpe(["a", "b"]), samples.BYTE_LEVEL, (("b", True), ("<new>", True))
    )
    for wrong in (0, 7):
        for entry in data["added_tokens"]:
            entry["id"] = wrong
        real = samples.tokenizer(data)
        table = compiled(data)
        assert real.token_to_id("b") == 1
        assert real.token_to_id("<new>") == 2
        assert table.pieces == [b"a", b"b", b"<new>"]
        assert decode_all(table, [0, 1, 2], True) == "a" == real.decode([0, 1, 2])


def test_a_byte_token_may_be_written_with_a_plus_sign_as_rust_reads_numbers():
    tokens = ["<0x+A>", "<0x0a>", "<0x-1>", "<0x 1>", "<0x\u00e9>"]
    data = samples.tokenizer_dict(samples.bpe(tokens), {"type": "ByteFallback"})
    table = compiled(data)
    real = samples.tokenizer(data)
    for i in range(len(tokens)):
        assert decode_all(table, [i], False) == real.decode([i]), tokens[i]
    assert ids_of(table, BYTE) == [0, 1]


@pytest.mark.parametrize(
    "decoder",
    [
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True},
        {"type": "Replace", "pattern": {"Regex": "a+"}, "content": "b"},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteLevel"}]},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 0, "stop": 1},
            ],
        },
        {
            "type": "Sequence",
            "decoders": [
                {"type": "Fuse"},
                {"type": "Replace", "pattern": {"String": "ab"}, "content": "c"},
            ],
        },
        {"type": "SomethingNew"},
    ],
)
def test_what_does_not_compile_exactly_is_refused(decoder):
    assert compile_pieces(samples.tokenizer_dict(samples.bpe(["a", "b"]), decoder)) is None


def test_strip_per_token_before_tokens_are_joined():
    decoder = {"type": "Strip", "content": "_", "start": 2, "stop": 1}
    tokens = ["___a__", "_", "a", "_b_", "c__"]
    data = samples.tokenizer_dict(samples.bpe(tokens), decoder)
    table = compiled(data)
    real = samples.tokenizer(data)
    for pair in ([0, 3], [2, 4], [3, 0], [4, 2, 0]):
        assert decode_all(table, pair, False) == real.decode(pair)


def test_context_is_given_by_text_that_comes_before():
    strip = compiled(samples.fallback_dict(True))
    hello, mark, bos = 259, 257, 268
    assert strip.gives_context([hello], True)
    assert strip.gives_context([mark], True)
    assert not strip.gives_context([bos, bos], True)
    assert strip.gives_context([bos], False)
    assert not strip.gives_context([], True)
    # Placeholders outside the vocabulary count as id 0, whose text is "<unk>" here.
    assert strip.gives_context([-5], True)
    assert strip.gives_context([1 << 50], True)
    words = compiled(samples.wordpiece_dict(True))
    assert words.gives_context([1], True)
    assert not words.gives_context([words.vocab_size - 4], True)


def test_byte_alphabet_is_the_decoders():
    real = samples.tokenizer(
        samples.tokenizer_dict(samples.bpe(list(byte_alphabet())), samples.BYTE_LEVEL)
    )
    assert len(set(byte_alphabet())) == 256
    assert "".join(real.decode([b]) for b in range(128)) == "".join(map(chr, range(128)))
    assert real.decode(list("é\U0001f600".encode())) == "é\U0001f600"
