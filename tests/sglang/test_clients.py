"""Generated requests, SGLang's sampler and benchmark at our port. Owner: pytest.

`tests/data/sglang/` holds what SGLang's own frontends did with the same (`record.py`).
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.e2e.parity_replay import differences
from tests.sglang import generated, programs
from tests.sglang.allowed import ALLOWED
from tests.sglang.record import DATA, answers
from tests.sglang.test_answers import same

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(1200)]

SIDES = ("python", "rust")


@pytest.fixture(scope="module")
def recorded() -> dict[str, dict[str, Any]]:
    return {side: json.loads((DATA / f"{side}.json").read_text("utf-8")) for side in SIDES}


@pytest.fixture(scope="module")
def ours(sglang) -> list[dict[str, Any]]:
    return answers(sglang)


@pytest.mark.parametrize("side", SIDES)
def test_generated_requests_have_the_same_answers(recorded, ours, side):
    wrong = []
    used = set()
    theirs = recorded[side]["generated"]
    for body, own, their in zip(generated.generated(), ours, theirs, strict=True):
        for path, a, b in differences(own, their):
            if same(a, b):
                continue
            rows = [row for row in ALLOWED if row.covers(side, body, path, a, b, own, their)]
            used.update(row.key for row in rows)
            if len(rows) != 1:
                wrong.append((body["rid"], path, a, b, [row.key for row in rows]))
    assert wrong == []
    assert used == {row.key for row in ALLOWED if side in row.sides}


def test_the_sampler_gets_the_same_answers(sglang, recorded):
    found = programs.answers_of_sampler(sglang)
    assert found == recorded["python"]["sampler"] == recorded["rust"]["sampler"]


@pytest.mark.parametrize("backend", ["sglang", "sglang-oai", "sglang-oai-chat"])
def test_the_benchmark_finishes(sglang, tmp_path, backend):
    figures = programs.bench_serving(sglang, tmp_path, backend)
    assert figures["completed"] == 24 and figures["total_output_tokens"] == 24 * 8
