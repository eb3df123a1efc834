"""What is recorded of SGLang is true of the one installed, and whatever moves there is named.
Owner: pytest."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.sglang.serving import environ
from tpc_server.integrations.sglang import facts

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(400)]
MOVED = Path(__file__).with_name("moved.py")


@pytest.fixture(scope="module")
def found(prepared):
    done = subprocess.run(
        [prepared.python, MOVED], env=environ(prepared, ""), capture_output=True, text=True,
        timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_what_is_recorded_is_true(found):
    assert facts.differences(found["facts"], facts.recorded()) == []
    told = json.dumps(found["facts"], indent=1, sort_keys=True) + "\n"
    assert told == facts.RECORDED.read_text(encoding="utf-8")


@pytest.mark.parametrize("section", facts.recorded())
def test_what_moves_in_sglang_is_named(found, section):
    """All that a section's facts are read from is another: each of them is told."""
    names = [name.rpartition(":")[2] for name in facts.recorded()[section]]
    lines = [line for line in found["said"][section] if line.startswith(f"{section} ")]
    told = sorted(line.partition(": ")[0] for line in lines)
    assert told == sorted(f"{section} {name}" for name in names)


def test_a_start_ends_with_one_line(found):
    assert len(found["lines"]) == len(facts.recorded())
    for line in found["lines"]:
        assert line.startswith("SGLang 0.5.23 is not as 0.5.23, ") and "\n" not in line
