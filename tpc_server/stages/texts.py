"""What /tokenize, /detokenize and the parsers' routes answer. Owner: the tokenize core, or its
helper threads (nothing here is kept)."""

from __future__ import annotations

from typing import Any, Final

from ..render import native
from ..text.encode import LONG_TEXT_CHARS, Encoder

MOST_INLINE: Final = 64  # entries; more belong to the helper thread
LONG_IDS: Final = LONG_TEXT_CHARS // 4
LONG_PARSE_CHARS: Final = 8 * 1024


def is_long(items: list[Any], encode: bool) -> bool:
    """Whether a call would hold up the core that does it."""
    size = sum([len(item) for item in items])
    return len(items) > MOST_INLINE or size > (LONG_TEXT_CHARS if encode else LONG_IDS)


def answer(
    encoder: Encoder, encode: bool, items: list[Any], is_list: bool, special: bool, max_len: int
) -> bytes:
    """Body of the answer: ids and counts of texts, or the texts of ids."""
    if encode:
        ids = [encoder.encode(text, special) for text in items]
        counts = [len(one) for one in ids]
        return native.to_json(
            {
                "tokens": ids if is_list else ids[0],
                "count": counts if is_list else counts[0],
                "max_model_len": max_len,
            }
        )
    texts = [encoder.decode(one, special) for one in items]
    return native.to_json({"text": texts if is_list else texts[0]})


def parsed(calls: bool, text: str, parser: str, wanted: Any) -> bytes:
    """Body of the answer: the calls in a text, or its reasoning."""
    from ..parsers import answers  # few servers need it

    if calls:
        return native.to_json(answers.function_calls(text, parser, wanted))
    return native.to_json(answers.separated(text, parser, wanted))
