"""A JSON Schema checker for the words our own schemas use; another word is an error. Owner: tests.

In the way of jsonschema, which does not install on every build the tests run on.
"""

from __future__ import annotations

import re
from typing import Any

_TYPES: dict[str, Any] = {
    "null": lambda v: v is None,
    "boolean": lambda v: isinstance(v, bool),
    "integer": lambda v: (
        isinstance(v, int) or (isinstance(v, float) and v == int(v))
    ) and not isinstance(v, bool),
    "number": lambda v: isinstance(v, (int, float)) and not isinstance(v, bool),
    "string": lambda v: isinstance(v, str),
    "array": lambda v: isinstance(v, list),
    "object": lambda v: isinstance(v, dict),
}  # fmt: skip
_SAID = {"description", "default", "deprecated", "format", "example"}
_WORDS = {
    "$ref", "type", "anyOf", "oneOf", "const", "enum", "not", "minimum", "exclusiveMinimum",
    "maximum", "minLength", "maxLength", "minItems", "maxItems", "items", "properties",
    "required", "additionalProperties", "patternProperties",
}  # fmt: skip


def parts(schema: Any) -> list[Any]:
    """The schema and every schema in it; AssertionError for a word it may not hold."""
    if isinstance(schema, bool):
        return []
    assert set(schema) <= _WORDS | _SAID, set(schema) - _WORDS - _SAID
    for name in [schema["type"]] if isinstance(schema.get("type"), str) else schema.get("type", []):
        assert name in _TYPES
    inner = [*schema.get("anyOf", []), *schema.get("oneOf", [])]
    inner += [schema[word] for word in ("not", "items", "additionalProperties") if word in schema]
    for word in ("properties", "patternProperties"):
        inner += schema.get(word, {}).values()
    return [schema, *[found for one in inner for found in parts(one)]]


def valid(value: Any, schema: Any, types: dict[str, Any]) -> bool:
    """Whether `value` is of `schema`; `types` holds what `$ref` names."""
    if isinstance(schema, bool):
        return schema
    if "$ref" in schema:
        return valid(value, types[schema["$ref"].rpartition("/")[2]], types)
    kinds = schema.get("type")
    if kinds is not None:
        names = [kinds] if isinstance(kinds, str) else kinds
        if not any(_TYPES[name](value) for name in names):
            return False
    checks = [
        "const" not in schema
        or (value == schema["const"] and type(value) is type(schema["const"])),
        "enum" not in schema or value in schema["enum"],
        "not" not in schema or not valid(value, schema["not"], types),
        "anyOf" not in schema or any(valid(value, one, types) for one in schema["anyOf"]),
        "oneOf" not in schema or sum(valid(value, one, types) for one in schema["oneOf"]) == 1,
    ]
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        checks += [
            value >= schema.get("minimum", value),
            value <= schema.get("maximum", value),
            "exclusiveMinimum" not in schema or value > schema["exclusiveMinimum"],
        ]
    elif isinstance(value, str):
        checks.append(schema.get("minLength", 0) <= len(value) <= schema.get("maxLength", 1 << 62))
    elif isinstance(value, list):
        checks.append(schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 62))
        if "items" in schema:
            checks += [valid(entry, schema["items"], types) for entry in value]
    elif isinstance(value, dict):
        checks.append(all(name in value for name in schema.get("required", ())))
        named = schema.get("properties", {})
        patterns = schema.get("patternProperties", {})
        for name, entry in value.items():
            of = [named[name]] if name in named else []
            of += [one for pattern, one in patterns.items() if re.search(pattern, name)]
            for one in of or [schema.get("additionalProperties", True)]:
                checks.append(valid(entry, one, types))
    return all(checks)
