"""Every recorded request, asked again: a live SGLang gives the recorded answers. Owner: pytest.

As in tests/e2e/test_parity.py, which plays SGLang's recorded frames; here SGLang makes them.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.e2e import parity_choices as table
from tests.e2e.parity_replay import (
    NATIVE,
    OPENAI,
    Exchange,
    body_of,
    differences,
    exchanges,
    is_auto,
    masked,
    parse_body,
)
from tests.e2e.test_parity import ANSWERS, INFO, PAIRS, REFUSED
from tests.http_client import call

pytestmark = [pytest.mark.sglang, pytest.mark.network, pytest.mark.timeout(400)]

SAMPLED = "badmodel"  # at random, and its answer was recorded
LOGPROB = 1e-5
ASKED = {*NATIVE, *OPENAI, *REFUSED, *INFO, "n2"} - {SAMPLED}


@pytest.fixture(scope="module")
def answered(sglang) -> dict[str, Exchange]:
    """All of them, one after the other, in the recorded order: what is cached depends on it."""
    call(sglang.address, "POST", "/flush_cache")
    done = {}
    for exchange in exchanges():
        if exchange.name in ASKED:
            done[exchange.name] = exchange
    for name in (*REFUSED, *INFO, "n2"):
        request = ANSWERS[name]["request"]
        path = ANSWERS[name]["path"] or name
        body = body_of(ANSWERS[name]) if request else None
        done[name] = Exchange(name, "POST" if request else "GET", path, body)
    for exchange in done.values():
        exchange.answer = call(sglang.address, exchange.method, exchange.path, exchange.body)
    return done


def same(ours: Any, theirs: Any) -> bool:
    """Whether two numbers are one logprob."""
    floats = isinstance(ours, float) and isinstance(theirs, float)
    return floats and abs(ours - theirs) <= LOGPROB


@pytest.mark.parametrize(("name", "side"), [pair for pair in PAIRS if pair[0] in ASKED])
def test_answers_are_the_recorded_ones(answered, name, side):
    exchange, recorded = answered[name], ANSWERS[name][side]
    theirs = masked(parse_body(recorded["body"]), is_auto)
    ours = masked(exchange.events, is_auto)
    if name == "stream_top" and side == table.PYTHON:
        ours = ours[:4]  # the rest of it was cut off
    if name == "/model_info":  # where the model lies: a path of the machine
        for made in (ours[0], theirs[0]):
            made["model_path"] = made["tokenizer_path"] = "masked"
    found = [d for d in differences(ours, theirs) if not same(*d[1:])]
    if exchange.answer.status != recorded["status"]:
        found.append(("status", exchange.answer.status, recorded["status"]))
    wrong = [d for d in found if len(table.rows_for(side, name, *d)) != 1]
    assert wrong == []
