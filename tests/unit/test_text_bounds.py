"""How many characters a token stands for: never too few, and no bound where there is none."""

from __future__ import annotations

import json
import random

import pytest

from tests import text_samples as samples
from tpc_server.contract.errors import BadRequest
from tpc_server.contract.limits import Limits, fit_text
from tpc_server.text.bounds import chars_per_token

PRE = samples.BYTE_LEVEL | {"add_prefix_space": False}
CHARS = "ab  \n\n\u00e9e\u0301\u4e16\u754c\U0001f389\u03b1\u0313\u0300\u0345<s>\u3000"


def byte_level(**more):
    return samples.byte_level_dict() | {"pre_tokenizer": PRE} | more


def metaspace_replace():
    tokens = [f"<0x{b:02X}>" for b in range(256)] + list("ab\u2581") + ["\u2581\u2581\u2581\u2581"]
    model = samples.bpe(tokens, byte_fallback=True, fuse_unk=True, unk_token="a")
    return samples.tokenizer_dict(model, None) | {
        "normalizer": {
            "type": "Sequence",
            "normalizers": [
                {"type": "Prepend", "prepend": "\u2581"},
                {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
            ],
        }
    }


@pytest.mark.parametrize(
    "data",
    [
        byte_level(),
        byte_level(normalizer={"type": "NFC"}),
        byte_level(
            pre_tokenizer={
                "type": "Sequence",
                "pretokenizers": [
                    {
                        "type": "Split", "pattern": {"Regex": "\\s+"}, "behavior": "Isolated",
                        "invert": False,
                    },
                    PRE,
                ],
            }
        ),
        metaspace_replace(),
    ],
    ids=["byte level", "NFC", "split", "byte fallback"],
)  # fmt: skip
def test_no_token_stands_for_more(data):
    most = chars_per_token(data)
    assert most is not None
    real = samples.tokenizer(data)
    seed = random.randrange(1 << 30)
    rng = random.Random(seed)
    for _ in range(300):
        text = "".join(rng.choices(CHARS, k=rng.randrange(1, 200)))
        count = len(real.encode(text, add_special_tokens=False).ids)
        assert count * most >= len(text), (seed, text)


def test_the_longest_token_counts():
    tokens = byte_level()
    plain = chars_per_token(tokens)
    tokens["model"]["vocab"]["x" * 500] = len(tokens["model"]["vocab"])
    assert plain is not None and plain < 500
    assert chars_per_token(tokens) == 500
    assert chars_per_token(tokens | {"normalizer": {"type": "NFKC"}}) == 2000


@pytest.mark.parametrize(
    "change",
    [
        {"normalizer": {"type": "Strip", "strip_left": True, "strip_right": True}},
        {"normalizer": {"type": "BertNormalizer"}},
        {"normalizer": {"type": "Replace", "pattern": {"Regex": " +"}, "content": " "}},
        {"normalizer": {"type": "Replace", "pattern": {"String": "ab"}, "content": ""}},
        {"pre_tokenizer": {"type": "WhitespaceSplit"}},
        {"pre_tokenizer": {"type": "Split", "behavior": "Removed", "pattern": {"String": " "}}},
        {"pre_tokenizer": None},  # a character beyond the vocabulary gives nothing
        {"added_tokens": [{"id": 300, "content": "<x>", "rstrip": True}]},
        {"model": {"type": "Unigram", "vocab": [["a", 0.0]]}},
        {"model": {"type": "WordPiece", "vocab": {"a": 0}}},
    ],
    ids=lambda change: json.dumps(change)[:50],
)
def test_what_may_drop_characters_has_no_bound(change):
    assert chars_per_token(byte_level(**change)) is None


def test_a_text_is_refused_or_cut_by_its_length_alone():
    limits = Limits(10, 1000, num_reserved_tokens=2, token_chars=4)
    assert fit_text("x" * 28, limits) == "x" * 28  # perhaps 7 tokens: with 2 less than 10
    with pytest.raises(BadRequest) as caught:
        fit_text("x" * 29, limits)
    assert caught.value.message == (
        "The input (at least 10 tokens) is longer than the model's context length (10 tokens)."
    )
    assert fit_text("x" * 1000, Limits(10, 1000)) == "x" * 1000  # no bound is known
    cutting = Limits(10, 1000, token_chars=4, allow_auto_truncate=True)
    assert len(fit_text("x" * 1000, cutting)) == 4 * 74
