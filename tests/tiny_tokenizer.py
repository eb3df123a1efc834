"""A byte-level tokenizer small enough to reason about. Owner: tests.

Ids 0 to 255 are the single bytes, then come the special tokens: `EOS` 256, `BOS` 257.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

EOS: Final = 256
BOS: Final = 257
VOCAB: Final = 258


def byte_symbols() -> list[str]:
    """GPT-2's printable stand-in of each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    symbols = {b: chr(b) for b in plain}
    extra = 0
    for b in range(256):
        if b not in symbols:
            symbols[b] = chr(256 + extra)
            extra += 1
    return [symbols[b] for b in range(256)]


def tokenizer_json() -> dict[str, object]:
    """tokenizer.json of the byte tokenizer."""

    def special(token: int, text: str) -> dict[str, object]:
        return {
            "id": token, "content": text, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True,
        }  # fmt: skip

    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [special(EOS, "<eos>"), special(BOS, "<bos>")],
        "normalizer": None,
        "pre_tokenizer": {**level, "use_regex": False},
        "post_processor": None,
        "decoder": {**level, "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "ignore_merges": False, "vocab": {s: i for i, s in enumerate(byte_symbols())},
            "merges": [],
        },
    }  # fmt: skip


def write(folder: Path) -> Path:
    """A model folder that holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"eos_token": "<eos>", "bos_token": "<bos>"})
    )
    return folder


def ids(text: str | bytes) -> list[int]:
    """Ids of a text: its bytes."""
    return list(text.encode() if isinstance(text, str) else text)
