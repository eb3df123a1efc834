"""What the synthetic engine answers to a request, worked out again. Owner: stateless.

The engine emits the bytes of `TEXT`, one token a step, from a place that depends on the prompt, or
(in a program of its own) pseudo-random ids; the tokenizer has one token per byte, then two special
ones. Nothing here is imported from the product: the same ids are made by the rule that it promises
for the same seed, the text by `bytes.decode`.
"""

from __future__ import annotations

import zlib
from typing import Any, Final

SEED: Final = 20_26
TEXT: Final = (
    "The quick brown fox — jumps «over» the lazy dog.\n你好，世界。こんにちは 🎉👩‍👩‍👧🇫🇷 "
    "naïve café; "
    'a "quoted" back\\slash\ttab\u2028line € ½ ﷽ Ελληνικά русский عربى हिन्दी 한국어 end STOP here. '
)
TEXT_IDS: Final = list(TEXT.encode())
# Substrings that the engine will meet, and some that it never does.
STOPS: Final = ("STOP", "fox", "世界", "🎉", "dog.\n", "lazy cat", "end STOP", "русский", "zzz")
STOP_IDS: Final = (ord("q"), ord(";"), ord("\\"), 0x9F, ord("Z"))
EOS: Final = 256
VOCAB: Final = 258
_MASK: Final = (1 << 64) - 1
_A: Final = 6364136223846793005
_C: Final = 1442695040888963407


class Expected:
    """One generation's whole answer."""

    __slots__ = ("finish", "ids", "prompt_tokens", "text", "whole")

    def __init__(
        self, ids: list[int], text: str, finish: dict[str, Any], prompt_tokens: int, whole: str
    ) -> None:
        self.ids = ids
        self.text = text  # what the client sees
        self.whole = whole  # stop included
        self.finish = finish
        self.prompt_tokens = prompt_tokens


def stream_of(prompt: bytes, seed: int | None, count: int, at_random: bool) -> list[int]:
    """The first `count` ids for a prompt of these bytes (or token ids below 256)."""
    if seed is None:
        words = b"".join([bytes([b]) + b"\0" * 7 for b in prompt])
        seed = zlib.crc32(words, SEED)
    state = (seed * _A + _C) & _MASK
    if not at_random:
        at = state % len(TEXT_IDS)
        return [TEXT_IDS[(at + 1 + k) % len(TEXT_IDS)] for k in range(count)]
    ids = []
    for _ in range(count):
        state = (state * _A + _C) & _MASK
        ids.append((state >> 33) % VOCAB)
    return ids


def text_of(ids: list[int]) -> str:
    """The text of ids; special ones have none."""
    return bytes([token for token in ids if token < EOS]).decode("utf-8", "replace")


def answer(prompt: bytes, params: dict[str, Any], at_random: bool = False) -> Expected:
    """The answer to a prompt with these sampling parameters (as the client wrote them)."""
    limit = params["max_new_tokens"]
    ids = stream_of(prompt, params.get("sampling_seed"), limit, at_random)
    stops = params.get("stop") or []
    stop_ids = [*(params.get("stop_token_ids") or []), EOS]
    keep = params.get("no_stop_trim", False)
    finish: dict[str, Any] = {"type": "length", "length": limit}
    window = max([len(stop.encode()) for stop in stops], default=0) + 1
    for k, token in enumerate(ids):
        tail = text_of(ids[max(0, k - window) : k + 1])
        found = [stop for stop in stops if stop in tail]
        if found:
            finish = {"type": "stop", "matched": found[0]}
        elif token in stop_ids:
            finish = {"type": "stop", "matched": token}
        else:
            continue
        ids = ids[: k + 1]
        break
    whole = text_of(ids)
    matched = finish.get("matched")
    text = whole
    if type(matched) is str:
        cut = whole.index(matched)
        text = whole[: cut + len(matched)] if keep else whole[:cut]
    elif type(matched) is int and not keep:
        text = text_of(ids[:-1])
    return Expected(ids, text, finish, len(prompt), whole)


def without(expected: Expected, at: int) -> Expected:
    """The answer when the frame with token number `at` was lost."""
    return _spliced(expected, expected.ids[:at] + expected.ids[at + 1 :])


def doubled(expected: Expected, at: int) -> Expected:
    """The answer when the frame with token number `at` came twice."""
    return _spliced(expected, expected.ids[: at + 1] + expected.ids[at:])


def _spliced(expected: Expected, ids: list[int]) -> Expected:
    text = text_of(ids)
    return Expected(ids, text, expected.finish, expected.prompt_tokens, text)


def logprob(token: int) -> float:
    """What the engine says of a token."""
    return -((token % 64) + 1) / 8
