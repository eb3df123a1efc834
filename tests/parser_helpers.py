"""Run a parser over a text, cut as told, and compare what came out. Owner: pytest."""

from __future__ import annotations

import re
from typing import Any

from tpc_server.parsers.base import make_parser

NAMES = ["get_weather", "add", "f"]


def events(
    reasoning: str | None, tools: str | None, chunks: list[str], end: str = "stop", **options: Any
) -> tuple[list[tuple[Any, ...]], bool]:
    """Events with neighbours joined and ids checked and left out, and `called`."""
    parser = make_parser(reasoning, tools, {"tool_names": NAMES, **options})
    raw = [event for chunk in chunks for event in parser.feed(chunk)]
    raw += parser.end(end)
    joined: list[tuple[Any, ...]] = []
    ids = set()
    for event in raw:
        assert event[0] == "call" or event[-1], event
        if event[0] == "call":
            assert re.fullmatch("call_[0-9a-f]{24}", event[2]) and event[4] == ""
            assert event[2] not in ids
            ids.add(event[2])
            joined.append(("call", event[1], event[3]))
        elif joined and joined[-1][0] == event[0] and joined[-1][:-1] == event[:-1]:
            joined[-1] = (*event[:-1], joined[-1][-1] + event[-1])
        else:
            joined.append(event)
    return joined, parser.called


def parse(
    reasoning: str | None, tools: str | None, text: str, **options: Any
) -> list[tuple[Any, ...]]:
    """The events of a text: whole, by character, and in pieces of a few sizes they are the same."""
    result = events(reasoning, tools, [text], **options)
    for size in (1, 2, 3, 7):
        chunks = [text[at : at + size] for at in range(0, len(text), size)]
        assert events(reasoning, tools, chunks, **options) == result, size
    calls = [event for event in result[0] if event[0] == "call"]
    assert [event[1] for event in calls] == list(range(len(calls)))
    return result[0]
