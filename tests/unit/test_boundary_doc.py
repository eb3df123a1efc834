"""docs/BOUNDARY.md has the tables of the declarations. Owner: pytest."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from tpc_server.boundary import server_args
from tpc_server.boundary.messages import (
    GENERATE,
    GENERATE_FIELDS,
    GENERATE_N_SENT,
    SAMPLING,
    SAMPLING_FIELDS,
)
from tpc_server.engines.synthetic import SyntheticEngine
from tpc_server.server import Server

DOC = Path(__file__).parents[2] / "docs" / "BOUNDARY.md"
TABLE = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.S)


def shown(value: Any) -> str:
    if value is ...:
        return "always sent"
    if value == 1 << 30:
        return "2^30"
    if isinstance(value, server_args._Mode):
        return f"`{value!r}`"
    return f"`{value!r}`" if value is None or isinstance(value, bool) else f"`{json.dumps(value)}`"


def table(name: str) -> str:
    if name in ("generate", "sampling"):
        fields, index = (
            (GENERATE_FIELDS, GENERATE) if name == "generate" else (SAMPLING_FIELDS, SAMPLING)
        )
        lines = ["| index | field | type | default |", "|---|---|---|---|"]
        for place, field in enumerate(fields, 1):
            late = name == "generate" and place > GENERATE_N_SENT
            default = shown(field.default) + (" (not sent)" if late else "")
            kind = field.type.replace("|", "\\|")
            lines.append(f"| {index[field.name]} | `{field.name}` | `{kind}` | {default} |")
    else:
        lines = ["| field | type | default |", "|---|---|---|"]
        for field, kind, default in getattr(server_args, name).FIELDS:
            lines.append(f"| `{field}` | {kind} | {shown(default)} |")
    return "\n".join(lines) + "\n"


def refreshed(text: str) -> str:
    """The page with each table as the declarations have it."""
    return TABLE.sub(lambda m: m[1] + table(m[2]) + m[3], text)


def test_tables_are_fresh() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert len(TABLE.findall(text)) == text.count("<!-- table:") == 6
    assert text == refreshed(text), "run: python -m tests.unit.test_boundary_doc"


def test_what_is_named_is_there() -> None:
    """Methods of the first table; nothing is said of any that is none."""
    text = DOC.read_text(encoding="utf-8")
    methods = text[text.index("## Methods") : text.index("## What must")]
    for name in re.findall(r"`(\w+)(?:\([^`]*\))?`", methods):
        if name not in ("header", "buffers", "with", "False", "True"):
            assert hasattr(Server, name) or name in ("http_port",), name
    assert SyntheticEngine.__module__.replace(".", "/") + ".py" in text


if __name__ == "__main__":
    DOC.write_text(refreshed(DOC.read_text(encoding="utf-8")), encoding="utf-8")
