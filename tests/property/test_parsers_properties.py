"""Parsers: any cut gives the same events, nothing is lost or sent twice, the work is linear."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.parser_helpers import NAMES, events
from tpc_server.parsers.base import REASONING_PARSERS, TOOL_PARSERS, make_parser

#: What the formats are made of, whole and in halves, and what else models write.
FRAGMENTS = (
    "<think>", "</think>", "<thi", "nk>", "</", "<tool_call>", "</tool_call>", "<tool", "_call>",
    "{", "}", "[", "]", ",", ":", '"', "\\", " ", "\n", ";", '"name"', '"f"', '"unknown"', "null",
    '"arguments"', '"parameters"', "1.50", "{}", '{"a": 1}', '{"name": "f", "arguments": {',
    '{"name": "add", "parameters": {"x": "</tool_call>"}}', "[THINK]", "<", "é", "😀", "plain text",
    "<|tool_calls_section_begin|>", "call_", "\\u00e9", "true", "-", "null",
)  # fmt: skip

soup = st.lists(st.sampled_from(FRAGMENTS), max_size=25).map("".join)
cuts = st.lists(st.integers(0, 200), max_size=12)
options = st.fixed_dictionaries(
    {
        "force_reasoning": st.sampled_from((None, True, False)),
        "stream_reasoning": st.booleans(),
        "tool_choice": st.sampled_from(("auto", "required", "f")),
        "parallel": st.booleans(),
    }
)
parsers = st.tuples(
    st.sampled_from((None, *REASONING_PARSERS)), st.sampled_from((None, *TOOL_PARSERS))
)


def cut(text: str, at: list[int]) -> list[str]:
    """Empty chunks too: a step may bring no text."""
    edges = [0, *sorted(min(edge, len(text)) for edge in at), len(text)]
    return [text[start:stop] for start, stop in itertools.pairwise(edges)]


@given(soup, cuts, parsers, options)
@settings(max_examples=600, deadline=None)
def test_any_cut(text: str, at: list[int], names: Any, given_options: dict[str, Any]) -> None:
    reasoning, tools = names
    whole = events(reasoning, tools, [text], **given_options)
    assert events(reasoning, tools, cut(text, at), **given_options) == whole
    assert events(reasoning, tools, list(text), **given_options) == whole

    got, called = whole
    calls = [event for event in got if event[0] == "call"]
    assert [event[1] for event in calls] == list(range(len(calls)))
    assert {event[2] for event in calls} <= set(NAMES)
    assert not called or calls
    if not given_options["parallel"]:
        assert len(calls) < 2
    # In the order of the text, and nothing but marks is missing; without a mark nothing is.
    rest = iter(text)
    loose = "".join(event[-1] for event in got if event[0] in ("content", "reasoning"))
    assert all(char in rest for char in loose)
    if not calls and reasoning is None:
        assert loose == text


plain = st.text(st.sampled_from("abc é😀\n.!'\"{}[]:,<"), max_size=12)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8)
    | st.sampled_from(("</tool_call>", "<tool_call>", "<think>", '"}', "\\", "{", "]")),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
arguments = st.builds(
    lambda value, spaced, ascii_only: json.dumps(
        value, ensure_ascii=ascii_only, indent=spaced, separators=(",", ":")
    ),
    st.dictionaries(st.text(max_size=6), values, max_size=4),
    st.sampled_from((None, 1)),
    st.booleans(),
)
call_parts = st.tuples(
    st.sampled_from(NAMES), arguments, st.sampled_from(("arguments", "parameters")), st.booleans()
)


def written(part: Any) -> str:
    name, text, key, name_first = part
    pairs = [f'"name": "{name}"', f'"{key}": {text}']
    return "{" + ", ".join(pairs if name_first else pairs[::-1]) + "}"


@given(plain, plain, st.lists(call_parts, min_size=1, max_size=4), cuts, st.booleans())
@settings(max_examples=60, deadline=None)
def test_composed(thought: str, said: str, parts: Any, at: list[int], bare: bool) -> None:
    """Reasoning, content and calls put together come apart again."""
    if bare:
        said = ""
        text = "[" + ", ".join(written(part) for part in parts) + "]"
    else:
        text = said + "\n".join(f"<tool_call>\n{written(part)}\n</tool_call>" for part in parts)
    expected: list[tuple[Any, ...]] = [("reasoning", thought)] if thought else []
    if said.rstrip():
        expected.append(("content", said.rstrip()))
    for index, (name, text_of, _, _) in enumerate(parts):
        expected += [("call", index, name), ("arguments", index, text_of)]
    chunks = cut(f"{thought}</think>{text}", at)
    assert events("deepseek-r1", "json" if bare else "hermes", chunks) == (expected, True)


def work(reasoning: str | None, tools: str | None, chunks: list[str]) -> int:
    """Lines of Python executed."""
    lines = 0

    def count(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        lines += event == "line"
        return count

    parser = make_parser(reasoning, tools, {"tool_names": NAMES})
    before = sys.gettrace()
    sys.settrace(count)
    try:
        for chunk in chunks:
            parser.feed(chunk)
        parser.end("stop")
    finally:
        sys.settrace(before)
    return lines


SHAPES = {
    "content": ("", "word ", ""),
    "blank": ("", "\n", ""),
    "half markers": ("", "<tool_cal", ""),
    "markers": ("", "<tool_call>", ""),
    "markers with a bracket": ("", "<tool_call>{", ""),
    "opening tags": ("", "<think>", ""),
    "closing tags": ("<think>", "</thin", ""),
    "a call that was not closed before": ("<think><tool_call>", "x</thin", ""),
    "arguments": ('<tool_call>{"name": "f", "arguments": {"a": "', 'x\\" ', ""),
    "arguments before the name": ('<tool_call>{"arguments": {"a": "', 'x\\" ', '"}, "name": "f"}'),
    "an unknown function": ('<tool_call>{"name": "unknown"', ', "a": {}', ""),
    "other keys": ("<tool_call>{", '"a": 1, ', '"name": "f"}'),
    "a long key": ('<tool_call>{"', "k\\n", ""),
    "depth": ('<tool_call>{"name": "f", "arguments": {"a":', "[", ""),
    "calls": ("", '<tool_call>{"name": "f"}</tool_call>', ""),
    "an array": ("<tool_call>[", '{"name": "unknown"}, ', "]"),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_work_is_linear(shape: str) -> None:
    """Twice the text costs twice the work, whole and by character, and what waits is in pieces."""
    head, body, tail = SHAPES[shape]
    whole, by_character = [], []
    for times in (100, 200):
        text = head + body * times + tail
        whole.append(work("think", "hermes", [text]))
        by_character.append(work("think", "hermes", list(text)))
    assert whole[1] <= 2.2 * whole[0] + 50
    assert by_character[1] <= 2.2 * by_character[0] + 50


@pytest.mark.timeout(30)
@pytest.mark.parametrize("shape", SHAPES)
def test_long_texts(shape: str) -> None:
    """What counting lines does not see, copying, would take long here."""
    head, body, tail = SHAPES[shape]
    text = head + body * (200_000 // len(body)) + tail
    for chunks in ([text], [text[at : at + 8] for at in range(0, len(text), 8)]):
        parser = make_parser("think", "hermes", {"tool_names": NAMES})
        got = [event for chunk in chunks for event in parser.feed(chunk)] + parser.end("stop")
        assert sum(len(event[-1]) for event in got) <= len(text) + 2 * len(got)
