"""docs/API.md: routes and request types as tables. Owner: stateless."""

from __future__ import annotations

import json
from typing import Any, Final

from ..contract.values import I64_MAX, I64_MIN
from ..routes.table import ADMIN, ADMIN_OPTIONAL, KEY, OPEN, ROUTES
from .schema import Schema, request_types

__all__ = ["page"]

_ACCESS: Final = {
    OPEN: "anybody",
    KEY: "API key",
    ADMIN_OPTIONAL: "admin key if there is one, else API key",
    ADMIN: "admin key",
}
_HEAD: Final = """# HTTP API

Printed from the declarations (`tpc_server/routes/table.py`, `tpc_server/contract/`) by
`python -m tpc_server.openapi > docs/API.md`; a running server serves the same as `/openapi.json`,
and as a page to try requests on, `/docs` (both hidden by `DISABLE_OPENAPI_DOC=1`). What each
field does where SGLang's frontends differ is in [COMPATIBILITY.md](COMPATIBILITY.md).

## Routes

"Who" is where keys are set; without them it is anybody.

"""


def type_of(schema: Schema) -> str:
    """A JSON type in few words."""
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return " or ".join(dict.fromkeys([type_of(one) for one in schema[word]]))
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return ", ".join([json.dumps(one) for one in schema["enum"]])
    kinds = schema.get("type", "any")
    names = [kinds] if isinstance(kinds, str) else list(kinds)
    if "array" in names and schema.get("items"):
        names[names.index("array")] = f"[{type_of(schema['items'])}]"
    return " or ".join(names)


def bounds_of(schema: Schema) -> str:
    """Bounds of a number, length of a string or list."""
    out = []
    if schema.get("minimum", I64_MIN) > I64_MIN:
        out.append(f"≥ {schema['minimum']:g}")
    if "exclusiveMinimum" in schema:
        out.append(f"> {schema['exclusiveMinimum']:g}")
    if schema.get("maximum", I64_MAX) < I64_MAX:
        out.append(f"≤ {schema['maximum']:g}")
    for one in schema.get("anyOf", ()):
        if "maxLength" in one:
            out.append(f"≤ {one['maxLength']} bytes")
        if "maxItems" in one:
            out.append(f"≤ {one['maxItems']} entries")
    return ", ".join(out)


def _row(*cells: str) -> str:
    return "| " + " | ".join([cell.replace("|", "\\|") for cell in cells]) + " |\n"


def _fields(schema: Schema) -> str:
    lines = [_row("Field", "Type", "Default", "Bounds", ""), "|---|---|---|---|---|\n"]
    refused: dict[str, list[str]] = {}
    for name, field in schema["properties"].items():
        about: str = field.get("description", "")
        if field.get("deprecated"):
            refused.setdefault(about.removeprefix("refused: "), []).append(f"`{name}`")
            continue
        default = json.dumps(field["default"]) if "default" in field else ""
        lines.append(_row(f"`{name}`", type_of(field), default, bounds_of(field), about))
    if refused:
        lines.append("\nRefused with a 400 whenever they ask for something:\n\n")
        lines += [f"- {', '.join(names)}: {why}\n" for why, names in refused.items()]
    return "".join(lines)


def page() -> str:
    """The whole page."""
    parts = [_HEAD, _row("Path", "Methods", "Who", "Body", ""), "|---|---|---|---|---|\n"]
    for route in ROUTES:
        about = route.summary
        for query in route.query:
            about += f"; `?{query.name}=`: {query.about}"
        parts.append(
            _row(
                f"`{route.path}`", ", ".join(route.methods), _ACCESS[route.access],
                route.body, about,
            )
        )  # fmt: skip
    types: dict[str, Any] = request_types()
    for name, schema in types.items():
        parts.append(f"\n## {name}\n\n")
        if "description" in schema:
            parts.append(f"{schema['description']}\n\n")
        if schema.get("additionalProperties") is False:
            parts.append("An unknown field is refused.\n\n")
        parts.append(_fields(schema))
    return "".join(parts)
