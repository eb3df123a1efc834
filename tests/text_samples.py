"""Small tokenizers of every decoder kind, and tables of given bytes. Owner: each test."""

from __future__ import annotations

import json
from typing import Any

from tokenizers import Tokenizer

from tpc_server.text.pieces import SPECIAL, PieceTable, byte_alphabet

MARK = "\u2581"
ALPHABET = byte_alphabet()


def table_of(*pieces: bytes, special: tuple[int, ...] = ()) -> PieceTable:
    """A byte-level table of just these pieces."""
    kinds = bytearray(SPECIAL if i in special else 0 for i in range(len(pieces)))
    return PieceTable(list(pieces), kinds, {}, None, 0, False)


def tokenizer_dict(
    model: dict[str, Any], decoder: Any, added: tuple[tuple[str, bool], ...] = ()
) -> dict[str, Any]:
    """A tokenizer.json; ``added``: (content, special), ids following the model's."""
    size = len(model["vocab"])
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": size + at,
                "content": content,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": special,
            }
            for at, (content, special) in enumerate(added)
        ],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": decoder,
        "model": model,
    }


def bpe(tokens: list[str], **more: Any) -> dict[str, Any]:
    """A BPE model without merges: enough to decode."""
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [],
    } | more


def on_bytes(data: bytes) -> str:
    """A byte-level token of these bytes."""
    return "".join(ALPHABET[byte] for byte in data)


BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": True,
    "trim_offsets": True,
    "use_regex": True,
}
_SPECIALS = (("<s>", True), ("</s>", True), ("<\uff5ctool\u2581call\uff5c>", False), ("  ", False))


def byte_level_dict() -> dict[str, Any]:
    """All 256 bytes, words, cut characters, the real U+FFFD, special and other added tokens."""
    chunks = [bytes([b]) for b in range(256)]
    chunks += [b" hello", b"world", b"\n\n", b" a b", "你好".encode(), "世".encode() + b"\xf0"]
    chunks += [b"\xf0\x9f", b"\x8e\x89", b"\xe7", b"\x95\x8c", b"q\xf0", "\ufffd".encode()]
    chunks += ["é".encode() + b"\xe2\x80", b"\xa8 x", b"\x80\x80\x80", b"\xed\xa0\x80"]
    return tokenizer_dict(bpe([on_bytes(c) for c in chunks]), BYTE_LEVEL, _SPECIALS)


def _mark_stages(strip: bool) -> dict[str, Any]:
    stages: list[dict[str, Any]] = [
        {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if strip:
        stages.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    return {"type": "Sequence", "decoders": stages}


def fallback_dict(strip: bool) -> dict[str, Any]:
    """SentencePiece with byte fallback; ``strip`` as Llama 2, without as Gemma."""
    tokens = ["<unk>", *(f"<0x{b:02X}>" for b in range(256))]
    tokens += [MARK, MARK * 2, f"{MARK}hello", "world", f"{MARK}a{MARK}b", "\u4f60\u597d", "é", "x"]
    tokens += ["\ufffd", "\n", "<0xZZ>"]
    return tokenizer_dict(bpe(tokens, byte_fallback=True), _mark_stages(strip), _SPECIALS)


def metaspace_dict(scheme: str) -> dict[str, Any]:
    """Unigram with Metaspace, as T5 and XLM-R."""
    tokens = ["<unk>", MARK, f"{MARK}hello", "world", f"{MARK}a{MARK}b", "\u4f60", "x", MARK * 3]
    model = {"type": "Unigram", "unk_id": 0, "vocab": [[token, -1.0] for token in tokens]}
    decoder = {"type": "Metaspace", "replacement": MARK, "prepend_scheme": scheme, "split": True}
    return tokenizer_dict(model | {"byte_fallback": False}, decoder, _SPECIALS)


def wordpiece_dict(cleanup: bool) -> dict[str, Any]:
    """WordPiece, as BERT."""
    tokens = ["[UNK]", "hello", "##world", "##s", ".", ",", "'", "n't", "##n't", "do", "not", "!"]
    tokens += ["##", "a", "##.", "'s", "ein ' x", "\u4f60", "do not"]
    model = {
        "type": "WordPiece",
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": {token: i for i, token in enumerate(tokens)},
    }
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": cleanup}
    return tokenizer_dict(model, decoder, _SPECIALS)


def no_decoder_dict() -> dict[str, Any]:
    """Tokens joined with spaces."""
    return tokenizer_dict(bpe(["hello", "world", " x", "\u4f60"]), None, _SPECIALS)


def suffix_dict() -> dict[str, Any]:
    """A decoder whose text of a token depends on whether another follows: does not compile."""
    decoder = {"type": "BPEDecoder", "suffix": "</w>"}
    return tokenizer_dict(bpe(["a</w>", "b", "c</w>", "\ufffd", "\u4f60"]), decoder, _SPECIALS)


#: Name -> tokenizer.json, every one compilable and without byte fallback.
EXACT: dict[str, dict[str, Any]] = {
    "byte-level": byte_level_dict(),
    "metaspace-always": metaspace_dict("always"),
    "metaspace-first": metaspace_dict("first"),
    "metaspace-never": metaspace_dict("never"),
    "wordpiece": wordpiece_dict(False),
    "wordpiece-cleanup": wordpiece_dict(True),
    "no-decoder": no_decoder_dict(),
}


def tokenizer(data: dict[str, Any]) -> Any:
    """The real tokenizer of this file."""
    return Tokenizer.from_str(json.dumps(data))
