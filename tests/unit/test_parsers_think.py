"""Reasoning apart from content: every family of tags, cut anywhere. Owner: pytest."""

from __future__ import annotations

import pytest

from tests.parser_helpers import events, parse
from tpc_server.parsers.base import REASONING_PARSERS, make_parser, thinks
from tpc_server.parsers.formats import CLOSED, NEITHER, OPEN
from tpc_server.text.chat_source import ChatSource
from tpc_server.text.chat_thinking import prompt_opens

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
    ("name", "given", "inside"),
    (
        ("deepseek-r1", {"enable_thinking": False}, True),
        ("qwen3", None, True),
        ("qwen3", {"enable_thinking": False}, False),
        ("kimi_k2", {"thinking": False}, False),
        ("deepseek-v3", None, False),
        ("deepseek-v3", {"thinking": True}, True),
        ("mimo", {"enable_thinking": True}, True),
        ("think", {"enable_thinking": True}, False),
    ),
)
def test_families_start_inside(name, given, inside):
    assert thinks(name, given) == (inside, inside)


HEAD = "{{ messages[-1].content }}<|im_start|>assistant\n"
THINKING_2507 = HEAD + "<think>\n"
OFF = "{% if enable_thinking is defined and enable_thinking is false %}"
QWEN3 = HEAD + OFF + "<think>\n\n</think>\n\n{% endif %}"
QWEN35 = QWEN3.replace("{% endif %}", "{% else %}<think>\n{% endif %}")
DEEPSEEK = HEAD + "{% if thinking %}<think>{% else %}</think>{% endif %}"
FAILS = "{{ raise_exception('no') }}"


@pytest.mark.parametrize(
    ("name", "template", "opens", "given", "expected"),
    (
        ("qwen3", THINKING_2507, (OPEN, OPEN, OPEN), {"enable_thinking": False}, (True, True)),
        ("qwen3", QWEN3, (NEITHER, NEITHER, CLOSED), {}, (False, True)),
        ("qwen3", QWEN3, (NEITHER, NEITHER, CLOSED), {"enable_thinking": False}, (False, False)),
        ("qwen3", QWEN35, (OPEN, OPEN, CLOSED), {}, (True, True)),
        ("qwen3", QWEN35, (OPEN, OPEN, CLOSED), {"enable_thinking": False}, (False, False)),
        ("qwen3", HEAD, (NEITHER,) * 3, {}, (False, True)),
        ("qwen3", FAILS, (NEITHER,) * 3, {}, (False, True)),
        ("deepseek-v3", DEEPSEEK, (CLOSED, OPEN, CLOSED), {}, (False, False)),
        ("deepseek-v3", DEEPSEEK, (CLOSED, OPEN, CLOSED), {"thinking": True}, (True, True)),
        ("qwen3", DEEPSEEK, (CLOSED, OPEN, CLOSED), {"thinking": True}, (True, True)),
        ("deepseek-r1", HEAD, (NEITHER,) * 3, {}, (True, True)),
        ("deepseek-r1", DEEPSEEK, (CLOSED, OPEN, CLOSED), {}, (False, False)),
    ),
)
def test_the_template_says_who_starts_inside(name, template, opens, given, expected):
    assert prompt_opens(ChatSource({"default": template}, {}), name) == opens
    assert thinks(name, given, opens) == expected


def test_an_answer_that_is_continued():
    for opens in (None, (NEITHER,) * 3, (OPEN,) * 3):
        assert thinks("qwen3", {}, opens, "<think>\nOkay")[0]
        assert not thinks("qwen3", {}, opens, "<think>\nOkay</think>\n\nIt")[0]
        assert thinks("deepseek-r1", {}, opens, "<think>\nOkay")[0]
    assert thinks("qwen3", {}, (OPEN,) * 3, "Okay") == (True, True)
