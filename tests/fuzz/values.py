"""JSON values out of JSON schemas: of the schema, nearly of it, or of nothing. Owner: stateless.

Everything comes from one `random.Random`, so that a seed gives the same values again.
"""

from __future__ import annotations

import re
from random import Random
from typing import Any, Final

from tests.json_schema import valid

Schema = dict[str, Any]

STRINGS: Final = (
    "", "a", "the", "x y", "stop", "1", "-1", "null", "true", "é", "世界", "🎉", "a\u2028b", "\x00",
    "\\", '"', "{}", "[", "</think>", "<tool_call>", "z" * 129, "z" * 300, "last", "tiny",
    "{{ x }}", "\ufffd", "<eos>", "%s%n", "../..",
)  # fmt: skip
PATTERNS: Final = ("[a-z]{2}", r"\d", "o", "fox|dog", "x{3}", r"\s\S", "[", "(a+)+$", "(?i)the")
INTS: Final = (
    0, 1, -1, 2, 3, 7, 33, 64, 257, 258, 300, 1000, 5000, 2**31, 2**63 - 1, 2**63, -(2**63),
    -(2**63) - 1, 2**64, 10**30,
)  # fmt: skip
FLOATS: Final = (0.0, -0.0, 0.5, 1.0, 1.5, -0.5, 2.5, 1e-9, 1e308, -1e308, 5e-324)
KEYS: Final = ("a", "1", "257", "258", "type", "text", "role", "content", "name", "", "é", "x" * 40)


def scalar(rng: Random) -> Any:
    """Any value that holds no other."""
    return rng.choice(
        (None, True, False, rng.choice(INTS), rng.choice(FLOATS), rng.choice(STRINGS),
         rng.choice(STRINGS))
    )  # fmt: skip


def wild(rng: Random, depth: int = 3) -> Any:
    """Any value."""
    kind = rng.random()
    if depth and kind < 0.15:
        return [wild(rng, depth - 1) for _ in range(rng.randint(0, 3))]
    if depth and kind < 0.3:
        return {rng.choice(KEYS): wild(rng, depth - 1) for _ in range(rng.randint(0, 3))}
    return scalar(rng)


def good(rng: Random, schema: Any, types: dict[str, Schema]) -> Any:
    """A value of the schema, by preference a small one."""
    for _ in range(8):
        value = _made(rng, schema, types)
        if valid(value, schema, types):
            return value
    return value


def near(rng: Random, schema: Any, types: dict[str, Schema]) -> Any:
    """A value that is often just not of the schema."""
    value = good(rng, schema, types)
    kind = rng.randrange(8)
    if kind == 0:
        return wild(rng)
    if kind == 1:
        return [value]
    if kind == 2:
        return str(value)
    if kind == 3 and _bounds(schema):
        bound = rng.choice(_bounds(schema))
        return rng.choice((bound, bound - 1, bound + 1))
    if kind == 4 and isinstance(value, int):
        return value + 0.5
    if isinstance(value, list) and value:
        spoilt = list(value)
        at = rng.randrange(len(spoilt))
        spoilt[at] = near(rng, {}, types) if kind < 7 else [spoilt[at]]
        return spoilt
    if isinstance(value, dict) and value:
        spoilt = dict(value)
        name = rng.choice(list(spoilt))
        if kind < 7:
            spoilt[name] = wild(rng, 2)
        else:
            del spoilt[name]
        return spoilt
    return scalar(rng)


def _bounds(schema: Any) -> list[Any]:
    if not isinstance(schema, dict):
        return []
    found = [schema[word] for word in ("minimum", "maximum", "exclusiveMinimum") if word in schema]
    for inner in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        found += _bounds(inner)
    return found


def _made(rng: Random, schema: Any, types: dict[str, Schema]) -> Any:
    if not isinstance(schema, dict):
        return scalar(rng)
    if "$ref" in schema:
        return good(rng, types[schema["$ref"].rpartition("/")[2]], types)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return good(rng, rng.choice(schema[word]), types)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = rng.choice(kind)
    if kind == "integer":
        return _number(rng, schema, INTS[:10])
    if kind == "number":
        return _number(rng, schema, (*FLOATS, 1, 2))
    if kind == "string":
        least = schema.get("minLength", 0)
        return rng.choice([s for s in (*STRINGS, *PATTERNS) if len(s) >= least])
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "array":
        least = schema.get("minItems", 0)
        count = rng.randint(least, max(least, min(schema.get("maxItems", 3), least + 3)))
        return [good(rng, schema.get("items", True), types) for _ in range(count)]
    if kind == "object":
        return _object(rng, schema, types)
    return None if kind == "null" else wild(rng, 2)


def _number(rng: Random, schema: Schema, known: tuple[Any, ...]) -> Any:
    low, high = schema.get("minimum"), schema.get("maximum")
    inside = [n for n in known if (low is None or n >= low) and (high is None or n <= high)]
    edges = [edge for edge in (low, high) if edge is not None]
    return rng.choice(inside * 3 + edges if inside else edges or [0])


def _object(rng: Random, schema: Schema, types: dict[str, Schema]) -> dict[str, Any]:
    named = schema.get("properties", {})
    out = {}
    for name, inner in named.items():
        if name in schema.get("required", ()) or rng.random() < 0.4:
            out[name] = good(rng, inner, types)
    patterns = schema.get("patternProperties")
    for _ in range(rng.randint(0, 2)):
        if patterns:
            pattern, inner = rng.choice(list(patterns.items()))
            out.update({k: good(rng, inner, types) for k in KEYS if re.search(pattern, k)})
        elif schema.get("additionalProperties", True) is not False:
            out[rng.choice(KEYS)] = good(rng, schema.get("additionalProperties", True), types)
    return out
