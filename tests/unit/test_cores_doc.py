"""The examples of docs/CORES.md are what the plan says. Owner: pytest."""

from __future__ import annotations

import re
from pathlib import Path

from tests.topology_trees import recorded
from tpc_server.affinity.plan import PlanSettings, parse_cores, plan

DOC = Path(__file__).parents[2] / "docs" / "CORES.md"
EXAMPLE = re.compile(
    r"(<!-- example: (\w+)(?: engine=(\d+))?(?: cores: (.*?))? -->\n)```\n(.*?)```", re.S
)


def described(name: str, engine: str | None, cores: str | None) -> str:
    settings = PlanSettings(
        cores=parse_cores(cores) if cores else None, engine_cpus=int(engine) if engine else None
    )
    return plan(recorded(name), settings).describe()


def refreshed(text: str) -> str:
    """The page with each example's output as the code gives it now."""
    return EXAMPLE.sub(
        lambda m: f"{m.group(1)}```\n{described(m.group(2), m.group(3), m.group(4))}\n```", text
    )


def test_examples_are_fresh() -> None:
    text = DOC.read_text(encoding="utf-8")
    assert len(EXAMPLE.findall(text)) == text.count("<!-- example:") == 6
    assert text == refreshed(text), "run: python -m tests.unit.test_cores_doc"


if __name__ == "__main__":
    DOC.write_text(refreshed(DOC.read_text(encoding="utf-8")), encoding="utf-8")
