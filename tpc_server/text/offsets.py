"""Where each token begins in the text that is shown. Owner: the detok core of the stream.

A token's text alone says little of that: special tokens may be hidden, a character may be several
tokens, the first token may lose its space. So the tokens are decoded once more, one by one, each
behind those before it.

Standard library only: runs in a subinterpreter too.
"""

from __future__ import annotations

import json
from codecs import utf_8_decode
from collections.abc import Callable, Sequence
from typing import Any

from .detok import Detok
from .windowed import WindowedDetok


class Offsets:
    """Characters before each token of one text."""

    __slots__ = ("_detok", "_sent", "at")

    def __init__(self, detok: Detok | WindowedDetok) -> None:
        self._detok = detok  # nobody else's
        self.at = 0  # characters that are complete
        self._sent = 0  # of those, what a windowed detokenizer let go

    def add(self, token: int) -> int:
        """The character at which the token begins; a later token of one character begins at it."""
        detok = self._detok
        at = self.at
        if isinstance(detok, WindowedDetok):
            self._sent += len(detok.step((token,)))
            self.at = max(at, self._sent + detok.waiting())
            return at
        tail = detok.tail
        text = detok.take((token,))
        self.at += len(text)
        if tail and text[:1] == "\ufffd" and not b"\xef\xbf\xbd".startswith(tail):
            # Bytes that the token does not complete are characters before it.
            at += len(tail) if detok.fallback else len(utf_8_decode(tail, "replace", True)[0])
        return at


def prompt_offsets(
    ids: Sequence[int], shown: str, offsets: Offsets, text_of: Callable[[int], str]
) -> list[int]:
    """Of the tokens of a prompt whose text `shown` is; what it does not show takes no room.

    A special token that was written out in a prompt is shown: `offsets` knows none of those.
    """
    extra = 0
    found: list[int] = []
    for token in ids:
        at = offsets.add(token) + extra
        found.append(min(at, len(shown)))
        if offsets.at + extra == at:
            text = text_of(token)
            if text and "\ufffd" not in text and shown.startswith(text, at):
                extra += len(text)
    return found


def characters(escaped: Any) -> int:
    """How many characters a piece of JSON-escaped text shows."""
    return len(json.loads(b'"%b"' % escaped))
