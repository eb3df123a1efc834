"""Reasoning apart from content: every family of tags, cut anywhere. Owner: pytest."""

from __future__ import annotations

import pytest

from tests.parser_helpers import events, parse
from tpc_server.parsers.base import REASONING_PARSERS, make_parser, thinks

BOTH = [("reasoning", "why\n"), ("content", "\n\nbecause")]


def test_output_that_starts_inside():
    assert parse("deepseek-r1", None, "why\n</think>\n\nbecause") == BOTH
    assert parse("qwen3", None, "why\n</think>\n\nbecause", force_reasoning=True) == BOTH
    assert parse("qwen3-thinking", None, "why\n</think>\n\nbecause") == BOTH


@pytest.mark.parametrize("name", sorted(REASONING_PARSERS))
@pytest.mark.parametrize("force", (True, False, None))
def test_opening_tag(name, force):
    form = REASONING_PARSERS[name]
    text = f"{form.open}why\n{form.close}\n\nbecause"
    assert parse(name, None, text, force_reasoning=force) == BOTH
    assert parse(name, None, form.open + text, force_reasoning=force) == BOTH
    blank = parse(name, None, "\n " + text, force_reasoning=force)
    assert blank == [("reasoning", "\n why\n"), ("content", "\n\nbecause")]


def test_no_reasoning():
    for text in ("because", "\n because", "<thin", "<thinking>", "a <think>b</think>", "</think>"):
        assert parse("qwen3", None, text) == [("content", text)]
        assert parse("think", None, text, force_reasoning=False) == [("content", text)]


def test_only_the_first_block_is_reasoning():
    text = "<think>a</think>b<think>c</think>"
    assert parse("think", None, text) == [("reasoning", "a"), ("content", "b<think>c</think>")]


@pytest.mark.parametrize("tail", ("", "</", "</think", "<", "\n", "<think"))
@pytest.mark.parametrize("end", ("stop", "length", "abort"))
@pytest.mark.parametrize("stream", (True, False))
def test_cut_short(tail, end, stream):
    text = "why" + tail
    options = {"end": end, "stream_reasoning": stream}
    assert parse("deepseek-r1", None, text, **options) == [("reasoning", text)]
    assert parse("qwen3", None, "<think>" + text, **options) == [("reasoning", text)]


def test_nothing_at_all():
    assert parse("qwen3", "hermes", "") == []
    assert parse("deepseek-r1", None, "</think>") == []
    assert parse("think", None, "<think>") == []
    assert parse("think", None, "<think></think>x") == [("content", "x")]


def test_reasoning_streams_at_once():
    parser = make_parser("deepseek-r1", None, {})
    assert parser.feed("so ") == [("reasoning", "so ")]
    assert parser.feed("it is <") == [("reasoning", "it is ")]
    assert parser.feed("b>, </thi") == [("reasoning", "<b>, ")]
    assert parser.feed("nk>x") == [("content", "x")]
    assert parser.feed("") == []
    assert parser.end("stop") == []


def test_reasoning_in_one_piece():
    parser = make_parser("qwen3", None, {"stream_reasoning": False})
    for text in ("<think>", "so it", " is", "</"):
        assert parser.feed(text) == []
    assert parser.feed("think>x") == [("reasoning", "so it is"), ("content", "x")]


def test_left_together():
    text = "<think>why</think>x"
    assert parse("qwen3", None, text, separate_reasoning=False) == [("content", text)]


def test_a_call_ends_what_was_never_closed():
    call = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    for stream in (True, False):
        options = {"force_reasoning": True, "stream_reasoning": stream}
        assert parse("qwen3", "hermes", "sum\n" + call, **options) == [
            ("reasoning", "sum\n"),
            ("call", 0, "add"),
            ("arguments", 0, '{"a": 1}'),
        ]
        # It only wrote about one.
        text = f"I could {call} now</think>no"
        assert parse("qwen3", "hermes", text, **options) == [
            ("reasoning", f"I could {call} now"),
            ("content", "no"),
        ]
    assert parse("deepseek-r1", "hermes", "sum" + call) == [("reasoning", "sum" + call)]


def test_reasoning_then_calls():
    text = (
        '<think>a <tool_call></think>\n\nSure.\n<tool_call>{"name":"f","arguments":{}}</tool_call>'
    )
    got, called = events("glm45", "hermes", [text])
    assert called
    assert got == [
        ("reasoning", "a <tool_call>"),
        ("content", "\n\nSure."),
        ("call", 0, "f"),
        ("arguments", 0, "{}"),
    ]


@pytest.mark.parametrize(
    "name, given, prompt, inside",
    (
        ("deepseek-r1", {"enable_thinking": False}, None, True),
        ("qwen3", None, None, True),
        ("qwen3", {"enable_thinking": False}, None, False),
        ("qwen3", {"enable_thinking": False}, "<think>\n\n</think>\n\n", False),
        ("qwen3", None, "<|im_start|>assistant\n<think>\n", True),
        ("qwen3", None, "<|im_start|>assistant\n", False),
        ("kimi_k2", {"thinking": False}, None, False),
        ("deepseek-v3", None, None, False),
        ("deepseek-v3", {"thinking": True}, None, True),
        ("mimo", {"enable_thinking": True}, None, True),
        ("think", {"enable_thinking": True}, None, False),
    ),
)
def test_who_starts_inside(name, given, prompt, inside):
    assert thinks(name, given, prompt) is inside
