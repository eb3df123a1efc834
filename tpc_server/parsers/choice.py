"""The grammar of a forced tool choice, as a JSON schema. Owner: any thread (no state)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def json_schema_for_choice(
    tools: Sequence[Mapping[str, Any]], tool_choice: str | Mapping[str, Any], parallel: bool = True
) -> str:
    """The schema that lets only calls through: `[{"name": …, "parameters": {…}}, …]`.

    `tools` and `tool_choice` as in a chat request: "required", or one function by its name or by
    the request's object. ValueError names the field that makes it impossible.
    """
    functions = [tool["function"] for tool in tools]
    chosen = tool_choice
    if not isinstance(chosen, str):
        chosen = str(chosen["function"]["name"])
    if isinstance(tool_choice, str) and chosen == "required":
        if not functions:
            raise ValueError("tool_choice: required needs `tools`")
        items: dict[str, Any] = {
            "type": "object",
            "anyOf": [_call(function) for function in functions],
        }
    else:
        functions = [function for function in functions if function["name"] == chosen]
        if not functions:
            raise ValueError(f"tool_choice: there is no function {chosen!r} in `tools`")
        functions = functions[:1]
        items = {"type": "object", **_call(functions[0])}
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": items}
    if not parallel:
        schema["maxItems"] = 1
    definitions = _definitions(functions)
    if definitions:
        schema["$defs"] = definitions
    return json.dumps(schema, ensure_ascii=False)


def _call(function: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "properties": {
            "name": {"type": "string", "enum": [function["name"]]},
            "parameters": function.get("parameters") or {"type": "object", "properties": {}},
        },
        "required": ["name", "parameters"],
    }


def _definitions(functions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """All `$defs`, where references to `#/$defs/…` find them: at the root."""
    found: dict[str, Any] = {}
    for function in functions:
        parameters = function.get("parameters") or {}
        for name, schema in (parameters.get("$defs") or {}).items():
            if found.setdefault(name, schema) != schema:
                raise ValueError(f"tools: $defs {name!r} has two meanings in the tools' parameters")
    return found
