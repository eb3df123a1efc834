"""The interface of the parsers: one per stream, fed with its text. Owner: the stream's core.

    parser = make_parser("qwen3", "hermes", {"tool_names": ["get_weather"]})
    events = parser.feed(text)          # as often as there is new text
    events += parser.end("stop")        # what was held back

The events of a text are the same for every way of cutting it, up to joining neighbours. Text that
could become a marker or a call is held back until that is decided; none is lost, none sent twice.

Decisions where families and frontends differ:

- The opening tag counts at the start of the output only (after white space); a later one is text.
- A call counts when its name is known and its arguments begin as an object; until then it is held,
  and otherwise it stays content, markers included. So do unknown names.
- With `parallel` false the first call counts; the text of further ones stays content.
- White space beside a call belongs to the call; beside other text it is content.
- A call the length cut keeps the fragments that came. `called` tells of complete calls only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from .calls import CallParser
from .choice import json_schema_for_choice
from .events import Event
from .formats import REASONING_PARSERS, TOOL_PARSERS, check_names, thinks
from .think import ThinkParser

__all__ = [
    "REASONING_PARSERS",
    "TOOL_PARSERS",
    "Event",
    "TextParser",
    "check_names",
    "json_schema_for_choice",
    "make_parser",
    "thinks",
]


class TextParser(Protocol):
    """Splits the text of one stream into content, reasoning and calls."""

    @property
    def called(self) -> bool:
        """Whether a complete tool call was emitted."""

    def feed(self, text: str) -> list[Event]:
        """Events of a step's text, which may be empty."""

    def end(self, finish_type: str) -> list[Event]:
        """What was held back; nothing is fed afterwards."""


class _Plain:
    """Everything is content."""

    __slots__ = ()
    called = False

    def feed(self, text: str) -> list[Event]:
        return [("content", text)] if text else []

    def end(self, finish_type: str) -> list[Event]:
        return []


class _Chain:
    """Reasoning first; what it leaves as content goes to the tool parser."""

    __slots__ = ("_calls", "_think")

    def __init__(self, think: ThinkParser, calls: CallParser) -> None:
        self._think = think
        self._calls = calls

    @property
    def called(self) -> bool:
        return self._calls.called

    def feed(self, text: str) -> list[Event]:
        if self._think.done:
            return self._calls.feed(text)
        return self._pass(self._think.feed(text))

    def end(self, finish_type: str) -> list[Event]:
        events = self._pass(self._think.end(finish_type))
        events += self._calls.end(finish_type)
        return events

    def _pass(self, events: list[Event]) -> list[Event]:
        result: list[Event] = []
        for event in events:
            if event[0] == "content":
                result += self._calls.feed(event[1])
            else:
                result.append(event)
        return result


def make_parser(reasoning: str | None, tools: str | None, options: Mapping[str, Any]) -> TextParser:
    """A parser for one stream. `options` is plain data; what is absent has its usual value:

    `stream_reasoning` (true), `separate_reasoning` (true), `force_reasoning` (None, which is false;
    `thinks` tells), `tool_names` (none: nothing is a call), `tool_choice` ("auto", "required" or a
    name; beyond "auto" the JSON of `json_schema_for_choice` counts beside the family's own format),
    `parallel` (true).
    """
    think = calls = None
    if reasoning and options.get("separate_reasoning", True):
        think = ThinkParser(
            REASONING_PARSERS[reasoning],
            bool(options.get("force_reasoning")),
            bool(options.get("stream_reasoning", True)),
        )
    names = options.get("tool_names")
    if tools and names:
        form = TOOL_PARSERS[tools]
        choice = options.get("tool_choice") or "auto"
        if choice != "auto":
            form = form._replace(bare=True)
            if choice != "required":
                names = [name for name in names if name == choice]
        calls = CallParser(form, names, bool(options.get("parallel", True)))
    if think and calls:
        return _Chain(think, calls)
    return think or calls or _Plain()
