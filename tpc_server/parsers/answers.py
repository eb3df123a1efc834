"""What /parse_function_call and /separate_reasoning answer. Owner: the tokenize core, or its helper
threads (nothing is kept)."""

from __future__ import annotations

from typing import Any

from .base import make_parser
from .events import Event


def function_calls(text: str, parser: str, names: list[str]) -> dict[str, Any]:
    """The calls in a text, and the text around them."""
    events = _events(None, parser, text, {"tool_names": names})
    # Of equal names the first; a search a call would take minutes where both are many.
    indices = {name: k for k, name in reversed([*enumerate(names)])}
    calls: list[dict[str, Any]] = []
    pieces: list[str] = []
    content: list[str] = []
    for event in events:
        if event[0] == "content":
            content.append(event[1])
        elif event[0] == "call":
            pieces = []
            name = event[3]
            calls.append({"tool_index": indices[name], "name": name, "parameters": pieces})
        else:
            pieces.append(event[2])
    for call in calls:
        call["parameters"] = "".join(call["parameters"])
    return {"normal_text": "".join(content), "calls": calls}


def separated(text: str, parser: str, blocks: bool) -> dict[str, Any]:
    """Reasoning and the rest of a text."""
    found = {"reasoning": "", "content": ""}
    for event in _events(parser, None, text, {"stream_reasoning": False}):
        found[event[0]] += event[1]
    reasoning, content = found["reasoning"], found["content"]
    answer: dict[str, Any] = {"reasoning_text": reasoning, "text": content}
    if blocks:
        thoughts = [reasoning] if reasoning else []
        answer["reasoning_blocks"] = thoughts
        answer["text_blocks"] = [content]
        answer["blocks"] = [
            *[{"type": "reasoning", "text": one} for one in thoughts],
            {"type": "text", "text": content},
        ]
    return answer


def _events(
    reasoning: str | None, tools: str | None, text: str, options: dict[str, Any]
) -> list[Event]:
    parser = make_parser(reasoning, tools, options)
    return parser.feed(text) + parser.end("stop")
