"""How many characters of a text one token can stand for. Owner: stateless.

A prompt of more characters than the context has tokens, times this, is too long: that is known
before it is tokenized, which takes seconds and gigabytes for the largest bodies. The bound is exact
or there is none: a tokenizer that drops characters (white space between words, unknown ones, what a
normalizer deletes) may make one token of any number of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from .pieces import byte_alphabet

#: Normalizers, and how many characters may become one. Four is the longest canonical composition.
_NORMALIZERS: Final = {
    "NFD": 1, "NFKD": 1, "Lowercase": 1, "Prepend": 1, "ByteLevel": 1, "NFC": 4, "NFKC": 4,
}  # fmt: skip
_PRE_TOKENIZERS: Final = frozenset(("ByteLevel", "Digits", "Metaspace", "Split", "Punctuation"))


def chars_per_token(tokenizer_json: Mapping[str, Any]) -> int | None:
    """Characters of a text that one token stands for at most; None where there is no bound."""
    model = tokenizer_json["model"]
    vocab = model.get("vocab") or {}
    if model.get("type", "BPE") != "BPE" or not isinstance(vocab, Mapping):
        return None
    factor = _factor(tokenizer_json.get("normalizer"))
    pre = tokenizer_json.get("pre_tokenizer")
    if factor is None or not _keeps_all(pre):
        return None
    if _has(pre, "ByteLevel") or _has(tokenizer_json.get("normalizer"), "ByteLevel"):
        known = all(char in vocab for char in byte_alphabet())
    else:
        known = bool(model.get("byte_fallback")) and all(
            f"<0x{b:02X}>" in vocab for b in range(256)
        )
    if not known:
        return None
    added = tokenizer_json.get("added_tokens") or ()
    if any(entry.get("lstrip") or entry.get("rstrip") for entry in added):
        return None  # they take all the white space beside them
    longest = max(map(len, vocab), default=0)
    longest = max([longest, *[len(entry["content"]) for entry in added]])
    return longest * factor or None


def _stages(stage: Any, inner: str) -> list[Any]:
    """A stage, or those of a sequence, as a flat list."""
    if stage is None:
        return []
    if stage.get("type") == "Sequence":
        return [one for entry in stage.get(inner) or () for one in _stages(entry, inner)]
    return [stage]


def _has(stage: Any, name: str) -> bool:
    both = [*_stages(stage, "pretokenizers"), *_stages(stage, "normalizers")]
    return any(one.get("type") == name for one in both)


def _factor(normalizer: Any) -> int | None:
    factor = 1
    for stage in _stages(normalizer, "normalizers"):
        name = stage.get("type")
        if name == "Replace":
            found = (stage.get("pattern") or {}).get("String")
            if not found or len(stage.get("content", "")) < len(found):
                return None
        elif name in _NORMALIZERS:
            factor *= _NORMALIZERS[name]
        else:
            return None
    return factor


def _keeps_all(pre_tokenizer: Any) -> bool:
    for stage in _stages(pre_tokenizer, "pretokenizers"):
        if stage.get("type") not in _PRE_TOKENIZERS or stage.get("behavior") == "Removed":
            return False
    return True
