"""What parsers emit, and the search for markers that chunks cut. Owner: the stream's core."""

from __future__ import annotations

from typing import Any

#: ("content", text) | ("reasoning", text) | ("call", index, id, name, "") |
#: ("arguments", index, fragment)
Event = tuple[Any, ...]


def add(events: list[Event], *event: Any) -> None:
    """Append an event; text that continues the last one is joined to it."""
    if events and event[0] != "call":
        last = events[-1]
        if last[:-1] == event[:-1]:
            events[-1] = (*event[:-1], last[-1] + event[-1])
            return
    events.append(event)


def partial(text: str, marker: str, start: int = 0) -> int:
    """How many characters at the end of `text` could be the beginning of `marker`."""
    size = len(text)
    first = marker[0]
    at = text.find(first, max(start, size - len(marker) + 1))
    while at >= 0:
        if marker.startswith(text[at:]):
            return size - at
        at = text.find(first, at + 1)
    return 0
