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
    for string in request.stops.strings:
        for size in range(1, min(len(tail), len(string)) + 1):
            if tail.endswith(string[:size]) or whole.endswith(string[:size]):
                return True
    return False
