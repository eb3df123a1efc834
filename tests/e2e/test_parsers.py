"""Parsers: at a server's start, and as routes of their own."""

from __future__ import annotations

import json
import re

import pytest

from tests.e2e.test_placements import placed
from tests.http_client import Client
from tpc_server.contract.parse import MOST_CHARS

pytestmark = pytest.mark.timeout(60)
TOOLS = [
    {"type": "function", "function": {"name": "other"}},
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}},
]


@pytest.mark.parametrize("field", ("tool_call_parser", "reasoning_parser"))
def test_an_unknown_parser_ends_the_start(start, field):
    known = "hermes, json, qwen" if field == "tool_call_parser" else "deepseek-r1.*qwen3"
    with pytest.raises(TypeError, match=f"ServerArgs: {field} 'nope' .*{known}"):
        start(**{field: "nope"})


@pytest.fixture(params=["1", "ingress=0 tokenize=1 detok=2 egress=3"])
def cores(request):
    """All stages on one core, and each on its own."""
    return {"plan": placed(request.param.split())}


@pytest.mark.parametrize("tokenizer", (True, False))
def test_parse_function_call(start, cores, tokenizer):
    run = start(options=cores, tool_call_parser="qwen25", skip_tokenizer_init=not tokenizer)
    with Client(run.address) as client:
        for long in ("", "x" * 20_000):  # inline, and on the helper
            arguments = json.dumps({"a": 1.0, "b": ['<tool_call>"', long]})
            call = f'{{"name": "add", "arguments": {arguments}}}'
            block = f"Hm.\n<tool_call>\n{call}\n</tool_call>"
            called = [{"tool_index": 1, "name": "add", "parameters": arguments}]
            for name, text, normal in (
                (None, block, "Hm."), ("hermes", block, "Hm."), ("json", f"[{call}]", ""),
            ):  # fmt: skip
                body = {"text": text, "tools": TOOLS, "tool_call_parser": name}
                answer = client.call("POST", "/parse_function_call", body)
                assert answer.status == 200
                assert answer.json() == {"normal_text": normal, "calls": called}
            answer = client.call("POST", "/parse_function_call", {"text": block})
            assert answer.json() == {"normal_text": block, "calls": []}


@pytest.mark.parametrize("tokenizer", (True, False))
def test_separate_reasoning(start, cores, tokenizer):
    run = start(options=cores, reasoning_parser="qwen3", skip_tokenizer_init=not tokenizer)
    with Client(run.address) as client:
        for long in ("why\n", "x" * 20_000):
            for name, text in (
                (None, f"<think>{long}</think>\n\nyes"), ("deepseek-r1", f"{long}</think>\n\nyes"),
                ("DeepSeek-R1", f"<think>{long}</think>\n\nyes"),
            ):  # fmt: skip
                body: dict[str, object] = {"text": text, "reasoning_parser": name}
                answer = client.call("POST", "/separate_reasoning", body)
                expected = {"reasoning_text": long, "text": "\n\nyes"}
                assert answer.status == 200
                assert answer.json() == expected
                body["return_blocks"] = True
                assert client.call("POST", "/separate_reasoning", body).json() == {
                    **expected,
                    "reasoning_blocks": [long],
                    "text_blocks": ["\n\nyes"],
                    "blocks": [
                        {"type": "reasoning", "text": long},
                        {"type": "text", "text": "\n\nyes"},
                    ],
                }
        body = {"text": "yes", "return_blocks": True}
        assert client.call("POST", "/separate_reasoning", body).json() == {
            "reasoning_text": "", "text": "yes", "reasoning_blocks": [], "text_blocks": ["yes"],
            "blocks": [{"type": "text", "text": "yes"}],
        }  # fmt: skip


GOOD = {"text": "a", "tool_call_parser": "json", "reasoning_parser": "think"}
CALLS, REASONING = "/parse_function_call", "/separate_reasoning"


@pytest.mark.parametrize(
    ("path", "body", "told"),
    (
        (CALLS, {"tool_call_parser": "json"}, "text"),
        (CALLS, {"text": 3, "tool_call_parser": "json"}, "text"),
        (CALLS, {"text": "a"}, "tool_call_parser.*hermes, json"),
        (CALLS, {"text": "a", "tool_call_parser": "nope"}, "tool_call_parser.*hermes, json"),
        (CALLS, {"text": "a", "tool_call_parser": 3}, "tool_call_parser"),
        (CALLS, {"text": "a", "tool_call_parser": "json", "tools": {}}, "tools"),
        (CALLS, {"text": "a", "tool_call_parser": "json", "tools": [{}]}, r"tools\[0\].function"),
        (CALLS, [], "JSON object"),
        (REASONING, {"reasoning_parser": "qwen3"}, "text"),
        (REASONING, {"text": None, "reasoning_parser": "qwen3"}, "text"),
        (REASONING, {"text": "a"}, "reasoning_parser.*qwen3"),
        (REASONING, {"text": "a", "reasoning_parser": "nope"}, "reasoning_parser.*qwen3"),
        (
            REASONING,
            {"text": "a", "reasoning_parser": "qwen3", "return_blocks": 1},
            "return_blocks",
        ),
        (REASONING, {"text": "a" * (MOST_CHARS + 1), "reasoning_parser": "qwen3"}, "text has"),
    ),
)
def test_bad_bodies(start, path, body, told):
    run = start()
    with Client(run.address) as client:
        assert client.call("POST", path, {**GOOD, "rid": "a", "of no type": 1}).status == 200
        answer = client.call("POST", path, body)
        assert answer.status == 400
        assert re.search(told, answer.json()["message"]), answer.json()
        assert client.call("GET", path).status == 405
