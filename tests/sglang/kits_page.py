"""docs/SGLANG_KITS.md: every test of SGLang's kits, and what came of it. Owner: stateless.

usage: python -m tests.sglang.kits_page      writes the page
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.sglang import kits
from tests.sglang.allowed import KITS_NOT_YET
from tests.sglang.record import DATA

PAGE = Path(__file__).parents[2] / "docs" / "SGLANG_KITS.md"
HEAD = """# SGLang's test kits

Every test of `sglang/test/kits` of SGLang 0.5.23, printed by `python -m tests.sglang.kits_page`
from `tests/sglang/kits.py` and what is recorded of SGLang's Python frontend
(`python -m tests.sglang.record kits`). What passes with that frontend on these models is run with
ours by `./tpc test --sglang` and has to pass; a test compares this list with the package's folder.

"Server": `plain` is the one of all tests, `timeouts` has SGLang's time-outs of requests,
`answering` a model that thinks, answers and ends, with a reasoning parser and streaming sessions.
What takes minutes runs with `--full` only. Anthropic's client, `datasets` and `tabulate` are not
installed: stand-ins take their place, and texts from the network are token ids drawn with a seed.

"""


def rows(recorded: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """(kit, test, server, Python, ours) of each test."""
    out = []
    for test, module in sorted(recorded["kit_modules"].items(), key=lambda pair: pair[::-1]):
        how = recorded["kits"].get(test)
        if how is None:
            out.append((module, test, "", "not run", f"not run: {kits.NOT_RUN[test]}"))
        elif how != "passed":
            out.append((module, test, kits.server_of(test), "fails", kits.FAILS[test]))
        else:
            ours = KITS_NOT_YET.get(test, "passes" + " (`--full`)" * (test in kits.LONG))
            out.append((module, test, kits.server_of(test), "passes", ours))
    return out


def page() -> str:
    """The whole page."""
    recorded = json.loads((DATA / "python.json").read_text("utf-8"))
    found = rows(recorded)
    passes = [row for row in found if row[3] == "passes"]
    ours = [row for row in passes if row[4].startswith("passes")]
    failing = sum(row[3] == "fails" for row in found)
    text = HEAD + (
        f"Of {len(found)} tests {len(passes)} pass with SGLang's Python frontend, {len(ours)} of"
        f" these with ours; {failing} fail with SGLang's own here, and"
        f" {len(found) - len(passes) - failing} are not run.\n\n"
        "| Kit | Test | Server | Python frontend | Ours, or why not |\n|---|---|---|---|---|\n"
    )
    for module, test, server, python, last in found:
        text += f"| {module} | {test} | {server} | {python} | {last} |\n"
    text += "\nModules without such tests:\n\n| Module | What it is |\n|---|---|\n"
    return text + "".join([f"| {name} | {what} |\n" for name, what in kits.HELPERS.items()])


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
