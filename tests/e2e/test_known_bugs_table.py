"""Each case of the list of known bugs has its tests, and these are there."""

from __future__ import annotations

import importlib

import pytest

from tests.e2e.known_bugs import CASES

NUMBERS = {
    *(1, 2, 3, 4, 6, 7, 9, 11, 13),  # texts and stops
    *(15, 16, 17, 19, 22, 23, 24),  # lives of requests
    *(25, 26, 28, 31, 34, 35, 51),  # what comes in
    *(38, 40, 42, 43),  # what goes out
    *(45, 46),  # HTTP
    *(49, 50),  # threads
}


def test_no_case_is_left_out() -> None:
    assert set(CASES) == NUMBERS and len(NUMBERS) == 31


@pytest.mark.parametrize("name", sorted({name for names in CASES.values() for name in names}))
def test_the_named_test_is_there(name: str) -> None:
    module, _, function = name.partition("::")
    assert callable(getattr(importlib.import_module(module), function))
