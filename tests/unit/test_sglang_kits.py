"""The list of SGLang's kits is whole, and docs/SGLANG_KITS.md is made of it. Owner: pytest."""

from __future__ import annotations

import json

from tests.sglang import kits
from tests.sglang.allowed import KITS_NOT_YET
from tests.sglang.kits_page import PAGE, page
from tests.sglang.record import DATA

RECORDED = json.loads((DATA / "python.json").read_text("utf-8"))


def test_every_test_has_an_outcome_or_a_reason():
    how = RECORDED["kits"]
    assert {*how, *kits.NOT_RUN} == set(RECORDED["kit_modules"])
    assert {test for test in how if how[test] != "passed"} == set(kits.FAILS)
    assert "TooLong" not in how.values()
    passed = {test for test in how if how[test] == "passed"}
    assert set(KITS_NOT_YET) <= passed and set(kits.LONG) <= passed
    classes = {test.partition(".")[0] for test in RECORDED["kit_modules"]}
    assert {*kits.ON, *kits.GIVEN} <= {*classes, *RECORDED["kit_modules"]} and set(
        kits.ON.values()
    ) < set(kits.SERVERS)


def test_the_page_is_fresh():
    assert PAGE.read_text("utf-8") == page(), "run: python -m tests.sglang.kits_page"
