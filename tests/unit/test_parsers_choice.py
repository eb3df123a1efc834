"""The schema behind a forced tool choice. Owner: pytest."""

from __future__ import annotations

import json

import pytest

from tpc_server.parsers.base import json_schema_for_choice

PLACE = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def tool(name, parameters=None):
    function = {"name": name} if parameters is None else {"name": name, "parameters": parameters}
    return {"type": "function", "function": function}


def test_required():
    schema = json.loads(json_schema_for_choice([tool("a", PLACE), tool("b")], "required"))
    assert schema == {
        "type": "array",
        "minItems": 1,
        "items": {
            "type": "object",
            "anyOf": [
                {
                    "properties": {
                        "name": {"type": "string", "enum": [name]},
                        "parameters": parameters,
                    },
                    "required": ["name", "parameters"],
                }
                for name, parameters in (("a", PLACE), ("b", {"type": "object", "properties": {}}))
            ],
        },
    }


def test_named():
    expected = {
        "type": "array",
        "minItems": 1,
        "maxItems": 1,
        "items": {
            "type": "object",
            "properties": {"name": {"type": "string", "enum": ["a"]}, "parameters": PLACE},
            "required": ["name", "parameters"],
        },
    }
    tools = [tool("b"), tool("a", PLACE)]
    for choice in ("a", {"type": "function", "function": {"name": "a"}}):
        assert json.loads(json_schema_for_choice(tools, choice, False)) == expected


def test_a_function_called_required():
    choice = {"type": "function", "function": {"name": "required"}}
    schema = json.loads(json_schema_for_choice([tool("a"), tool("required")], choice))
    assert schema["items"]["properties"]["name"]["enum"] == ["required"]


def test_definitions_move_to_the_root():
    first = {"type": "object", "$defs": {"P": PLACE}, "properties": {"p": {"$ref": "#/$defs/P"}}}
    tools = [tool("a", first), tool("b", {**first, "$defs": {"P": PLACE, "Q": {}}})]
    assert json.loads(json_schema_for_choice(tools, "required"))["$defs"] == {"P": PLACE, "Q": {}}
    assert json.loads(json_schema_for_choice(tools, "a"))["$defs"] == {"P": PLACE}
    tools.append(tool("c", {"$defs": {"P": {}}}))
    assert json.loads(json_schema_for_choice(tools, "a"))["$defs"] == {"P": PLACE}
    with pytest.raises(ValueError, match=r"tools: .*'P'"):
        json_schema_for_choice(tools, "required")


def test_impossible():
    with pytest.raises(ValueError, match=r"tool_choice: .*'x'"):
        json_schema_for_choice([tool("a")], "x")
    with pytest.raises(ValueError, match="tool_choice"):
        json_schema_for_choice([], "required")
