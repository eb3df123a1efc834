"""Tokenizers from small GGUF vocabularies: every kind, the added tokens, the refusals."""

from __future__ import annotations

from typing import Any
from unicodedata import normalize

import pytest

from tests import text_samples as samples
from tpc_server.text.gguf_vocab import (
    VocabError,
    bos_eos,
    merges_of_scores,
    tokenizer_json,
)
from tpc_server.text.pretokenizers import BYTE_LEVEL

MARK = "\u2581"


def meta(
    model: str, tokens: list[str], types: list[int] | None = None, **more: Any
) -> dict[str, Any]:
    found: dict[str, Any] = {"tokenizer.ggml.model": model, "tokenizer.ggml.tokens": tokens}
    if types is not None:
        found["tokenizer.ggml.token_type"] = types
    return found | {f"tokenizer.ggml.{key}": value for key, value in more.items()}


def byte_level(pre: str | None = "gpt-2", **more: Any) -> dict[str, Any]:
    tokens = [*samples.ALPHABET, "he", "ll", "hell", "Ġw", "<|end|>", "  "]
    types = [1] * 260 + [3, 4]
    named = {} if pre is None else {"pre": pre}
    merges = ["h e", "l l", "he ll", "Ġ w"]
    return meta("gpt2", tokens, types, merges=merges, **(named | more))


def spm(**more: Any) -> dict[str, Any]:
    letters = [MARK, "a", "b", "c"]
    joined = [f"{MARK}a", "ab", "abc", f"{MARK}abc", "bc", MARK * 2]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *letters, *joined]
    types = [2, 3, 3, *[6] * 256, *[1] * (len(letters) + len(joined))]
    scores = [0.0] * 259 + [-20.0] * 4 + [-3.0, -2.0, -4.0, -5.0, -1.0, -6.0]
    base = {"scores": scores, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    return meta("llama", tokens, types, **(base | more))


def encode(data: dict[str, Any], text: str, special: bool = False) -> list[str]:
    real = samples.tokenizer(tokenizer_json(data))
    return list(real.encode(text, add_special_tokens=special).tokens)


def ids_of(data: dict[str, Any], text: str) -> list[int]:
    real = samples.tokenizer(tokenizer_json(data))
    return list(real.encode(text, add_special_tokens=False).ids)


def test_byte_level():
    assert encode(byte_level(), "hell we") == ["hell", "Ġw", "e"]
    assert encode(byte_level(), "hé") == ["h", "Ã", "©"]
    assert encode(byte_level(), "h<|end|>  h") == ["h", "<|end|>", "  ", "h"]


def test_control_tokens_are_special_and_user_defined_ones_are_not():
    real = samples.tokenizer(tokenizer_json(byte_level()))
    assert real.decode([104, 260, 261, 104]) == "h  h"
    assert real.decode([104, 260], skip_special_tokens=False) == "h<|end|>"


def test_bos_and_eos_as_the_file_says_or_as_the_pre_tokenizer_wants():
    assert encode(byte_level(bos_token_id=260), "h", True) == ["h"]
    both = byte_level(bos_token_id=260, add_bos_token=True, eos_token_id=260, add_eos_token=True)
    assert encode(both, "h", True) == ["<|end|>", "h", "<|end|>"]
    assert encode(both, "h", False) == ["h"]
    assert encode(byte_level("llama-bpe", bos_token_id=260), "h", True) == ["<|end|>", "h"]
    assert encode(byte_level("llama-bpe", bos_token_id=260, add_bos_token=False), "h", True) == [
        "h"
    ]
    assert bos_eos(both) == (260, [260], True, True)
    ends = byte_level(eos_token_id=5, eot_token_id=6, eom_token_id=5)
    assert bos_eos(ends) == (None, [5, 6], False, False)


def test_every_listed_pre_tokenizer_builds_and_splits():
    for name in BYTE_LEVEL:
        data = byte_level(name, bos_token_id=260)
        text = "I'LL say: 世界 12345\r\n\n  e\u0301\t!?_ é"
        real = samples.tokenizer(tokenizer_json(data))
        shown = real.decode(real.encode(text, add_special_tokens=False).ids)
        assert shown == (normalize("NFC", text) if BYTE_LEVEL[name].nfc else text), name


@pytest.mark.parametrize(
    ("name", "text", "pieces"),
    [
        ("gpt-2", "a12 b3!", ["a", "12", "Ġb", "3", "!"]),
        ("smollm", "a12 b3!", ["a", "1", "2", "Ġb", "3", "!"]),
        ("llama-bpe", "a1234\n\nb", ["a", "123", "4", "ĊĊ", "b"]),
        ("qwen2", "a12 'S", ["a", "1", "2", "Ġ'", "S"]),
        ("deepseek-llm", " a\n世b1", ["Ġa", "Ċ", "ä¸ĸ", "b", "1"]),
        ("falcon", "12345!!a", ["123", "45", "!!", "a"]),
        ("tekken", "FooBar12", ["Foo", "Bar", "1", "2"]),
    ],
)
def test_pre_tokenizers_split_as_described(name, text, pieces):
    real = samples.tokenizer(tokenizer_json(byte_level(name, bos_token_id=260)))
    assert [piece for piece, _ in real.pre_tokenizer.pre_tokenize_str(text)] == pieces


@pytest.mark.parametrize("pre", ["gpt-5", "", "default", "GPT-2"])
def test_an_unknown_pre_tokenizer_is_refused_by_name(pre):
    with pytest.raises(VocabError, match=f"pre-tokenizer '{pre}' is not known"):
        tokenizer_json(byte_level(pre))


def test_a_missing_pre_tokenizer_is_refused():
    with pytest.raises(VocabError, match=r"tokenizer\.ggml\.pre is missing"):
        tokenizer_json(byte_level(None))


def test_sentencepiece_joins_best_scores_first():
    assert encode(spm(), "ab") == [MARK, "ab"]  # "ab" scores better than the mark and "a"
    assert encode(spm(), "abc") == [f"{MARK}abc"]  # "bc" first, then both joins up to the whole
    assert encode(spm(), "abca") == [f"{MARK}abc", "a"]
    assert encode(spm(), "é") == [MARK, "<0xC3>", "<0xA9>"]
    assert encode(spm(), "a", True) == ["<s>", f"{MARK}a"]
    assert encode(spm(add_bos_token=False), "a", True) == [f"{MARK}a"]
    assert encode(spm(add_space_prefix=False), "bc  a") == ["bc", MARK, f"{MARK}a"]


def test_sentencepiece_decodes_as_it_was():
    for prefix, text in ((True, "abc  é\n"), (False, "  abc")):
        real = samples.tokenizer(tokenizer_json(spm(add_space_prefix=prefix)))
        assert real.decode(real.encode(text).ids) == text


def test_merges_are_ordered_by_score_then_by_longer_sides():
    tokens = ["a", "b", "ab", "aa", "aab", "aaa", "<s>", "aa<s>"]
    types = [1, 1, 1, 1, 1, 1, 3, 1]
    scores = [0.0, 0.0, -2.0, -1.0, -3.0, -3.0, 0.0, -9.0]
    assert merges_of_scores(tokens, types, scores) == [
        ("a", "a"),
        ("a", "b"),
        ("aa", "b"),
        ("aa", "a"),
        ("a", "ab"),
        ("a", "aa"),
    ]


def test_user_defined_sentencepiece_tokens_match_plain_text():
    data = spm()
    data["tokenizer.ggml.token_type"] = [*data["tokenizer.ggml.token_type"][:-1], 4]
    assert encode(data, "a  a") == [f"{MARK}a", "  ", f"{MARK}a"]


def test_phi3_chat_tokens_swallow_what_follows():
    data = spm()
    for name, value in (("tokens", "<|user|>"), ("scores", 0.0), ("token_type", 3)):
        data[f"tokenizer.ggml.{name}"] = [*data[f"tokenizer.ggml.{name}"], value]
    user = len(data["tokenizer.ggml.tokens"]) - 1
    assert ids_of(data, "<|user|>\na") == [user, *ids_of(data, "\na")]
    data["general.name"] = "Phi-3 mini"
    assert ids_of(data, "<|user|>\na") == [user, *ids_of(data, "a")]


def test_bpe_on_marked_text():
    tokens = ["<unk>", "<bos>", *(f"<0x{b:02X}>" for b in range(256)), MARK, "a", f"{MARK}a"]
    types = [3, 3, *[6] * 256, 1, 1, 1]
    data = meta("gemma4", tokens, types, merges=[f"{MARK} a"], unknown_token_id=0)
    assert encode(data, "a aé") == ["a", f"{MARK}a", "<0xC3>", "<0xA9>"]


def test_wordpiece():
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", f"{MARK}hello", "s", f"{MARK}a"]
    data = meta(
        "bert", tokens, [3, 3, 3, 3, 1, 1, 1],
        pre="bert-bge", unknown_token_id=1, cls_token_id=2, seperator_token_id=3,
    )  # fmt: skip
    assert encode(data, "Hellos A", True) == ["[CLS]", "hello", "##s", "a", "[SEP]"]
    with pytest.raises(VocabError, match="cased"):
        tokenizer_json(data | {"tokenizer.ggml.pre": "cased"})


def test_merges_of_tokens_that_are_spaces():
    tokens = [*samples.ALPHABET, " ", "  ", " a"]
    for merges in (["    "], ["   a"], ["  a", "a b"]):
        data = meta("gpt2", [*tokens, "ab"], pre="gpt-2", merges=merges)
        pairs = tokenizer_json(data)["model"]["merges"]
        assert all(len(pair) == 2 and " ".join(pair) in merges for pair in pairs)
    plain = tokenizer_json(meta("gpt2", [*tokens, "ab"], pre="gpt-2", merges=["a b"]))
    assert plain["model"]["merges"] == ["a b"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        ({}, "tokens is missing"),
        ({"tokenizer.ggml.tokens": ["a"]}, "no tokenizer"),
        (meta("rwkv", ["a"]), "'rwkv' is not known"),
        (meta("t5", ["a"]), "'t5' is not known"),
        (meta("gpt2", []), "tokens is missing"),
        (meta("gpt2", ["a"], [1, 1], pre="gpt-2"), "1 tokens but 2 token types"),
        (meta("gpt2", ["a"], pre="gpt-2"), "merges is missing"),
        (meta("gpt2", ["a"], pre="gpt-2", merges=["ab"]), "merge without two sides"),
        (meta("gpt2", ["a"], pre="gpt-2", merges=["a "]), "merge without two sides"),
        (meta("gpt2", ["a"], pre="gpt-2", merges=[""]), "merge without two sides"),
        (meta("llama", ["a"]), "scores is missing"),
        (meta("llama", ["a"], scores=[0.0, 1.0]), "1 tokens but 2 scores"),
        (meta("llama", ["a"], scores=[0.0], precompiled_charsmap=[1]), "normalizer"),
        (meta("llama", ["a"], scores=[0.0], bos_token_id=7), "outside 1 tokens"),
        (meta("llama", ["a"], scores=[0.0]), "bos_token_id is missing"),
    ],
)
def test_refusals(data, reason):
    with pytest.raises(VocabError, match=reason):
        tokenizer_json(data)
