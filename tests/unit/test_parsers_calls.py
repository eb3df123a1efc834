"""Tool calls in JSON, bare and between markers, cut anywhere. Owner: pytest."""

from __future__ import annotations

import json

import pytest

from tests.parser_helpers import events, parse
from tpc_server.parsers import answers
from tpc_server.parsers.base import TOOL_PARSERS, check_names, make_parser

#: Arguments that must come out exactly as they were written.
WRITTEN = (
    "{}",
    "{ }",
    '{"a": 1}',
    '{"city": "Zürich", "n": 1.50, "big": 1e400, "huge": 12345678901234567890123}',
    '{"s": "he said \\"no\\" \\\\", "u": "\\u00e9\\ud83d\\ude00", "t": "7"}',
    '{"deep": [{"a": [1, [2, {}]]}, null, true], "e": ""}',
    '{\n  "spaced" :\t[ 1 ,2 ]\r\n}',
    '{"code": "if (x) { return [1]; } // </tool_call> <tool_call> }}"}',
    '{"json": "{\\"name\\": \\"f\\", \\"arguments\\": {}}"}',
    '{"line": "one\ntwo\tthree"}',
    '{"😀": "👩‍👩‍👧", "nul": "\\u0000"}',
)


def call(arguments: str, name: str = "f", index: int = 0) -> list[tuple[object, ...]]:
    return [("call", index, name), ("arguments", index, arguments)]


@pytest.mark.parametrize("arguments", WRITTEN)
@pytest.mark.parametrize("key", ("arguments", "parameters"))
def test_arguments_as_written(arguments, key):
    for text in (
        f'{{"name": "f", "{key}": {arguments}}}',
        f'{{"{key}": {arguments}, "name": "f"}}',
        f' \n{{ "id": 7, "type": "function", "name":"f" , "{key}" :{arguments} , "x": [{{}}] }}\n',
        f'[{{"name": "f", "{key}": {arguments}}}]',
    ):
        assert parse(None, "json", text) == call(arguments), text
        for name in ("hermes", "qwen", "qwen25"):
            assert parse(None, name, f"<tool_call>\n{text}\n</tool_call>") == call(arguments)


def test_names_with_escapes():
    assert parse(None, "json", '{"n\\u0061me": "get\\u005fweather", "arguments": {}}') == call(
        "{}", "get_weather"
    )


def test_no_arguments():
    for text in (
        '{"name": "f"}',
        '{"name":"f","arguments":null}',
        '{"parameters":null,"name":"f"}',
    ):
        assert parse(None, "json", text) == call("{}")


def test_arguments_in_a_string():
    text = '{"name": "f", "arguments": "{\\"a\\": 1.0}"}'
    assert parse(None, "json", text) == call('{"a": 1.0}')
    assert parse(None, "json", '{"arguments": "{}", "name": "f"}') == call("{}")


def test_several_calls():
    two = '{"name": "f", "arguments": {"a": 1}}', '{"name": "add", "parameters": {"b": []}}'
    expected = call('{"a": 1}') + call('{"b": []}', "add", 1)
    for text in ("[%s, %s]", " [ %s\n,\n%s ] ", "%s\n%s", "%s; %s"):
        assert parse(None, "json", text % two) == expected
    for text in (
        "<tool_call>\n%s\n</tool_call>\n<tool_call>\n%s\n</tool_call>\n",
        "<tool_call>[%s, %s]</tool_call>",
        "<tool_call>%s\n%s</tool_call>",
        "<tool_call>%s\n<tool_call>%s",
    ):
        assert parse(None, "hermes", text % two) == expected


def test_content_around():
    block = '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    assert parse(None, "hermes", f"One moment.\n\n{block}\n\nDone, 1 < 2.\n") == [
        ("content", "One moment."),
        *call("{}"),
        ("content", "\n\nDone, 1 < 2.\n"),
    ]
    assert parse(None, "json", '{"name": "f"} is it') == [*call("{}"), ("content", " is it")]
    assert parse(None, "json", '[{"name": "f"}], is it') == [*call("{}"), ("content", ", is it")]


@pytest.mark.parametrize(
    "text",
    (
        "", "plain", "  spaced  ", '{"answer": 42}', '{"name": "Bob", "age": 3}', "[1, 2]", "[]",
        '{"name": {"first": "f"}}', '{"name": 3, "arguments": {}}', '{"arguments": {}}', "{}",
        '{"name": "f", "arguments": [1]}', '{"name": "f", "arguments": "text"}',
        '{"name": "f", "arguments": 3}', '{"name": "f", "arguments": {...}}', "{ not json",
        '{"name": "unknown", "arguments": {"a": "<tool_call>"}}', '{"name": "f", "argum', '{"name',
        'see {"name": "f", "arguments": {}}', "[[", "[{]", '{"name" "f"}', '{"name": "f"]', "{'a'}",
        '{"name": "f\\', '{"a": nul', '[{"name": "unknown"}, {"name": "other"}]', '{"a": {"b": ]}}',
        '["name", "f"]', "```json\n{}\n```", '{"name": "", "arguments": {}}',
        '{"a": "\\x", "b": 1}',
    ),
)  # fmt: skip
def test_what_is_no_call_stays_content(text):
    for end in ("stop", "length", "abort"):
        expected = [("content", text)] if text else []
        assert parse(None, "json", text, end=end) == expected
    for form in ("<tool_call>%s", "<tool_call>%s</tool_call>", "a <tool_call>\n%s\n</tool_call> b"):
        assert parse(None, "hermes", form % text) == [("content", form % text)]


@pytest.mark.parametrize("text", ("<tool_cal", "a < b", "<<tool_call", "</tool_call>", "x \n<to"))
def test_half_markers_are_text(text):
    assert parse(None, "hermes", text) == [("content", text)]


def test_a_marker_in_a_marker():
    text = 'use <tool_call> so: <tool_call><tool_call>{"name": "f"}</tool_call>'
    assert parse(None, "hermes", text) == [
        ("content", "use <tool_call> so: <tool_call>"),
        *call("{}"),
    ]


def test_strings_of_an_unknown_function_hold_no_calls():
    inner = '<tool_call>{\\"name\\": \\"f\\"}</tool_call><tool_call>{}'
    text = f'<tool_call>{{"name": "write", "arguments": {{"text": "{inner}"}}}}</tool_call>'
    block = '<tool_call>{"name": "f"}</tool_call>'
    assert parse(None, "hermes", text + block) == [("content", text), *call("{}")]


def test_unknown_beside_known():
    text = '[{"name": "write"}, {"name": "f"}, {"name": "read", "arguments": {}}]'
    assert parse(None, "json", text) == [
        ("content", '[{"name": "write"}'),
        *call("{}"),
        ("content", ', {"name": "read", "arguments": {}}]'),
    ]


@pytest.mark.parametrize("name", ("json", "hermes"))
def test_cut_by_the_length(name):
    begin = "" if name == "json" else "<tool_call>"
    text = begin + '{"name": "f", "arguments": {"a": "two\\u00'
    got, called = events(None, name, list(text), end="length")
    assert got == call('{"a": "two\\u00') and not called
    got, called = events(None, name, list(text + 'e9"}'), end="length")
    assert got == call('{"a": "two\\u00e9"}') and called


@pytest.mark.parametrize(
    "name, tail, content",
    (
        ("json", " ", ""),
        ("json", ', {"name": "ad', ', {"name": "ad'),
        ("hermes", "\n", ""),
        ("hermes", "</tool_c", ""),
        ("hermes", "</tool_call>\n", ""),
        ("hermes", "</tool_call>\n<tool_", "\n<tool_"),
        ("hermes", '</tool_call>\n<tool_call>{"name": "ad', '\n<tool_call>{"name": "ad'),
        ("hermes", '\n{"arguments": {}', '\n{"arguments": {}'),
    ),
)
def test_cut_behind_a_call(name, tail, content):
    begin = "" if name == "json" else "<tool_call>"
    text = begin + '{"name": "f", "arguments": {}}' + tail
    expected = call("{}") + ([("content", content)] if content else [])
    for chunks in ([text], list(text)):
        assert events(None, name, chunks, end="length") == (expected, True)


def test_brackets_too_few_and_too_many():
    for tail in ("", "}}", "]", "}\n"):
        text = '<tool_call>{"name": "f", "arguments": {"a": 1}' + tail + "</tool_call>"
        assert parse(None, "hermes", text) == call('{"a": 1}')
    text = '<tool_call>{"name": "f", "arguments": {"a": [1}</tool_call> x'
    got, called = events(None, "hermes", [text])
    assert got == [*call('{"a": [1'), ("content", "}</tool_call> x")] and not called


def test_one_call_only():
    first, second = '{"name": "f", "arguments": {}}', '{"name": "add", "arguments": {"a": 1}}'
    text = f"<tool_call>{first}</tool_call>\n<tool_call>{second}</tool_call>"
    assert parse(None, "hermes", text, parallel=False) == [
        *call("{}"),
        ("content", f"\n<tool_call>{second}</tool_call>"),
    ]
    assert parse(None, "json", f"[{first}, {second}]", parallel=False) == [
        *call("{}"),
        ("content", f", {second}]"),
    ]


def test_choices():
    array = '[{"name": "f", "parameters": {"a": 1}}]'
    block = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
    for choice in ("required", "f"):
        for text in (array, block):
            assert parse(None, "hermes", text, tool_choice=choice) == call('{"a": 1}')
        assert parse("deepseek-r1", "hermes", "so</think>" + array, tool_choice=choice) == [
            ("reasoning", "so"),
            *call('{"a": 1}'),
        ]
    assert parse(None, "hermes", array) == [("content", array)]
    for text in (array, block):
        assert parse(None, "hermes", text, tool_choice="add") == [("content", text)]


def test_without_functions_nothing_is_a_call():
    text = '{"name": "f", "arguments": {}}'
    assert parse(None, "json", text, tool_names=[]) == [("content", text)]
    assert parse(None, None, text) == [("content", text)]


def test_arguments_stream():
    parser = make_parser(None, "hermes", {"tool_names": ["f"]})
    assert parser.feed('Hm.\n<tool_call>{"name": "f"') == [("content", "Hm.")]
    first, second = parser.feed(', "arguments": {"a": "x')
    assert first[:2] == ("call", 0) and first[3:] == ("f", "")
    assert second == ("arguments", 0, '{"a": "x')
    assert parser.feed("yz") == [("arguments", 0, "yz")]
    assert not parser.called
    assert parser.feed('"}}') == [("arguments", 0, '"}')]
    assert parser.called
    assert parser.feed("\n</tool_call>\n") == [] == parser.end("stop")


def test_content_streams():
    parser = make_parser(None, "hermes", {"tool_names": ["f"]})
    assert parser.feed("a b") == [("content", "a b")]
    assert parser.feed(" ") == []
    assert parser.feed("c <") == [("content", " c")]
    assert parser.feed("b>") == [("content", " <b>")]
    parser = make_parser(None, "json", {"tool_names": ["f"]})
    assert parser.feed("\n") == []
    assert parser.feed("a ") == [("content", "\na ")]


def test_known_names():
    check_names(None, None)
    check_names("", "")
    for name in TOOL_PARSERS:
        check_names("qwen3", name)
    with pytest.raises(ValueError, match=r"reasoning_parser 'nope' .*deepseek-r1.*qwen3"):
        check_names("nope", None)
    with pytest.raises(ValueError, match=r"tool_call_parser 'nope' .*hermes.*json"):
        check_names(None, "nope")


def test_options_are_plain_data():
    options = json.loads(json.dumps({"tool_names": ["f"], "parallel": True, "tool_choice": "auto"}))
    parser = make_parser("think", "json", options)
    assert parser.feed("<think>a</think>") == [("reasoning", "a")]
    assert [event[0] for event in parser.feed('{"name":"f"}')] == ["call", "arguments"]
    assert parser.called


def test_a_calls_tool_is_found_without_a_search():
    """Many calls of many tools took minutes."""

    class Names(list[str]):
        def index(self, *args: object) -> int:
            raise AssertionError("a search")

    text = "".join(
        f'<tool_call>{{"name": "{name}", "arguments": {{}}}}</tool_call>' for name in "bab"
    )
    found = answers.function_calls(text, "hermes", Names(["a", "b", "a", "b"]))
    assert [(call["tool_index"], call["name"]) for call in found["calls"]] == [
        (1, "b"), (0, "a"), (1, "b"),
    ]  # fmt: skip
