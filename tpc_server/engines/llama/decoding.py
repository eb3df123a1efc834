"""Ids to text for stop strings, special tokens shown. Owner: the engine thread."""

from __future__ import annotations

from functools import partial

from .stops import Decode


def make_decode(tokenizer_json: str) -> Decode:
    """A decoder of the engine's own from the text of a tokenizer.json."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(tokenizer_json)
    return partial(tokenizer.decode, skip_special_tokens=False)
