"""Real chat templates, and conversations to render with them. Owner: each test.

The templates are in the source package of llama-cpp-python on PyPI, about seventy of them, fetched
once. The conversations are made up here.
"""

from __future__ import annotations

import shutil
import tarfile
from pathlib import Path
from typing import Any

from tests.vocabularies import PACKAGE, VERSION
from tpc_server.bootstrap.cache import build_once, sub
from tpc_server.bootstrap.fetch import fetch_pypi

SPECIAL_TOKENS = {
    "bos_token": "<|bos|>", "eos_token": "<|eos|>", "unk_token": "<|unk|>", "pad_token": "<|pad|>",
}  # fmt: skip


def templates() -> dict[str, str]:
    """Template texts by file name without its ending."""
    folder = build_once(sub("data"), f"templates-{VERSION}", "unpacking chat templates", _unpack)
    return {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.jinja"))}


def _unpack(target: Path) -> None:
    with tarfile.open(fetch_pypi(PACKAGE, VERSION, "sdist")) as archive:
        for member in archive:
            path = Path(member.name)
            if member.isfile() and "/models/templates/" in member.name and path.suffix == ".jinja":
                source = archive.extractfile(member)
                assert source is not None
                with (target / path.name).open("wb") as file:
                    shutil.copyfileobj(source, file)


def _says(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def _calls(*named: tuple[str, Any], content: Any = "", **more: Any) -> dict[str, Any]:
    calls = [
        {"id": f"call0000{k}", "type": "function", "function": {"name": n, "arguments": arguments}}
        for k, (n, arguments) in enumerate(named)
    ]
    return {"role": "assistant", "content": content, "tool_calls": calls, **more}


def _result(k: int, content: Any) -> dict[str, Any]:
    return {"role": "tool", "content": content, "tool_call_id": f"call0000{k}", "name": "weather"}


def _part(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": 'What the weather is <here> & "there", à l\'heure.',
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Town, e.g. Łódź"},
                "unit": {"type": "string", "enum": ["C", "F"], "default": "C"},
                "days": {"type": "array", "items": {"type": "integer"}},
                "when": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "where": {"type": "object", "properties": {"x": {"type": "number"}}},
            },
            "required": ["place"],
        },
    },
}
CLOCK = {
    "type": "function",
    "function": {"name": "clock", "description": "The time.", "parameters": {
        "type": "object", "properties": {}, "required": []}},
}  # fmt: skip
HELLO = _says("user", "Hello, how are you?")
SYSTEM = _says("system", "You are brief.")
ASKS = _says("user", "And the weather in Łódź?")
PLACE = {"place": "Łódź", "unit": "C", "days": [1, 2], "where": {"x": 1.5}}

#: name -> what `apply_chat_template` is given
CASES: dict[str, dict[str, Any]] = {
    "user": {"messages": [HELLO]},
    "user, no generation prompt": {"messages": [HELLO], "add_generation_prompt": False},
    "system": {"messages": [SYSTEM, HELLO]},
    "developer": {"messages": [_says("developer", "Be terse."), HELLO]},
    "several turns": {
        "messages": [SYSTEM, HELLO, _says("assistant", "Fine."), _says("user", "Why?"),
                     _says("assistant", "No idea. "), _says("user", " Think!\n")],
    },
    "ends with the assistant": {
        "messages": [HELLO, _says("assistant", "Fine, and")], "add_generation_prompt": False,
    },
    "unicode and markup": {
        "messages": [_says("system", "Ünïcödé 世界 🦀 \u200d"),
                     _says("user", "<b>&amp;</b> {{ x }} {% y %} \\n \"q\" 'a'\t\r\n\u2028end")],
    },
    "empty texts": {"messages": [_says("system", ""), _says("user", ""), _says("assistant", ""),
                                 _says("user", "")]},
    "only a system message": {"messages": [SYSTEM]},
    "the same role twice": {"messages": [HELLO, _says("user", "Well?"), _says("assistant", "a"),
                                         _says("assistant", "b"), _says("user", "c")]},
    "starts with the assistant": {"messages": [_says("assistant", "Hi!"), HELLO]},
    "system in the middle": {"messages": [HELLO, _says("assistant", "Fine."), SYSTEM, ASKS]},
    "unknown role": {"messages": [HELLO, _says("critic", "Bad."), ASKS]},
    "no content": {"messages": [HELLO, {"role": "assistant"}, ASKS]},
    "null content": {"messages": [HELLO, _says("assistant", None), ASKS]},
    "parts": {"messages": [_says("user", [_part("Hello, "), _part("how are you?")])]},
    "parts everywhere": {
        "messages": [_says("system", [_part("Be brief.")]), _says("user", [_part("a")]),
                     _says("assistant", [_part("b"), _part("c")]), _says("user", [])],
    },
    "an image": {"messages": [_says("user", [{"type": "image"}, _part("What is it?")])]},
    "reasoning": {
        "messages": [HELLO, _says("assistant", "Fine.", reasoning_content="They ask me."),
                     _says("user", "Why?"),
                     _says("assistant", "So.", reasoning_content="Hm.\n\nWell.\n"),
                     _says("user", "I see.")],
    },
    "reasoning, other names": {
        "messages": [HELLO, _says("assistant", "Fine.", reasoning="They ask.", thinking="Hm."),
                     ASKS],
    },
    "reasoning in the text": {
        "messages": [HELLO, _says("assistant", "<think>\nThey ask.\n</think>\n\nFine."), ASKS],
    },
    "thinking": {"messages": [SYSTEM, HELLO], "kwargs": {
        "enable_thinking": True, "thinking": True, "reasoning_effort": "high"}},
    "no thinking": {"messages": [SYSTEM, HELLO], "kwargs": {
        "enable_thinking": False, "thinking": False, "reasoning_effort": "none"}},
    "tools": {"messages": [ASKS], "tools": [WEATHER, CLOCK]},
    "tools, system": {"messages": [SYSTEM, ASKS], "tools": [WEATHER]},
    "no tools in a list": {"messages": [HELLO], "tools": []},
    "bare tools": {"messages": [ASKS], "tools": [WEATHER["function"]]},
    "a tool call and its result": {
        "messages": [SYSTEM, ASKS, _calls(("weather", PLACE)), _result(0, '{"t": 21}')],
        "tools": [WEATHER],
    },
    "tool calls, null content": {
        "messages": [ASKS, _calls(("weather", PLACE), ("clock", {}), content=None),
                     _result(0, "21 °C"), _result(1, "noon"), _says("assistant", "21 °C at noon."),
                     _says("user", "Thanks.")],
        "tools": [WEATHER, CLOCK],
    },
    "tool calls, text arguments": {
        "messages": [ASKS, _calls(("weather", '{"place": "Łódź"}'), content="Wait."),
                     _result(0, [_part("21 °C")])],
        "tools": [WEATHER],
    },
    "tool calls with reasoning": {
        "messages": [ASKS, _calls(("weather", PLACE), reasoning_content="A call."),
                     _result(0, "21 °C")],
        "tools": [WEATHER],
    },
    "tool calls, no tools": {
        "messages": [ASKS, _calls(("weather", PLACE)), _result(0, {"t": 21, "u": ["<C>", None]})],
    },
    "a result alone": {"messages": [_result(0, "21 °C"), ASKS], "tools": [WEATHER]},
    "documents": {"messages": [HELLO], "kwargs": {
        "documents": [{"title": "One", "text": "A text."}, {"title": "Two", "text": "Zwei"}]}},
    "other special tokens": {"messages": [HELLO], "kwargs": {"bos_token": "<B>", "eos_token": ""}},
    "names of messages": {"messages": [_says("user", "Hi", name="Ann"), _says("assistant", "Yes?"),
                                       _says("user", "Me too", name="Bob")]},
    "many turns": {"messages": [SYSTEM, *[_says(("user", "assistant")[k % 2], f"turn {k}")
                                          for k in range(41)]]},
}  # fmt: skip
