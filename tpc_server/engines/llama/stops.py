"""Whether an answer ends with the token just added, and whether its text may go out. Owner: the
engine thread (stateless)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .request import Request

Decode = Callable[[list[int]], str]


def finish_after_token(request: Request, decode: Decode | None) -> dict[str, Any] | None:
    """finish_reason after the last output id, or None. Keeps `request.tail` up to date.

    Order: stop strings (the first of the request that is in the window), patterns, ids, length.
    """
    rules = request.stops
    output = request.output
    if rules.strings or rules.patterns:
        assert decode is not None  # refused on arrival otherwise
        request.tail = tail = decode(output[-rules.window :])
        for string in rules.strings:
            if string in tail:
                return {"type": "stop", "matched": string}
        for source, pattern in rules.patterns:
            if pattern.search(tail) is not None:
                return {"type": "stop", "matched": source}
    if output[-1] in rules.ids:
        return {"type": "stop", "matched": output[-1]}
    if len(output) >= rules.max_new_tokens:
        return {"type": "length", "length": rules.max_new_tokens}
    return None


def is_held_back(request: Request) -> bool:
    """Whether the text ends in what may become a stop string: then no frame may go out yet."""
    tail = request.tail
    if not tail:
        return False
    # The first bytes of a character may be those of the stop's next one.
    whole = tail.rstrip("\ufffd")
    return any(_may_go_on(tail, s) or _may_go_on(whole, s) for s in request.stops.strings)


def _may_go_on(text: str, string: str) -> bool:
    """Whether `text` ends in a beginning of `string`."""
    at = text.find(string[0], max(0, len(text) - len(string)))
    while at >= 0:
        if string.startswith(text[at:]):
            return True
        at = text.find(string[0], at + 1)
    return False
