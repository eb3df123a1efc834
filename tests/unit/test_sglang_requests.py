"""What the real SGLang is asked for comparison is of all kinds. Owner: pytest."""

from __future__ import annotations

import json
from collections import Counter

from tests.sglang import generated


def kind_of(body):
    if "custom_logit_processor" in body:
        return "processors"
    if "input_ids" in body:
        return "ids"
    return "batch" if isinstance(body["text"], list) else "text"


def test_the_recorded_requests():
    bodies = generated.generated()
    assert Counter(map(kind_of, bodies)) == generated.KINDS
    said = json.dumps(bodies, ensure_ascii=False)
    assert len({json.dumps({**b, "rid": ""}) for b in bodies}) > 150, "hardly two are the same"
    scripts = {"latin": "q", "cyrillic": "ё", "arabic": "ل", "han": "春", "hangul": "오"}
    assert [name for name, letter in scripts.items() if letter not in said] == []
    for name in (
        "stop", "stop_regex", "stop_token_ids", "no_stop_trim", "min_new_tokens", "logit_bias",
        "repetition_penalty", "frequency_penalty", "return_logprob", "token_ids_logprob", "stream",
    ):  # fmt: skip
        assert said.count(f'"{name}": ') >= 3, name
    mixed = [b["custom_logit_processor"] for b in bodies if "custom_logit_processor" in b]
    assert sum(None in processors for processors in mixed) >= 5, "some items with, some without"


def test_they_are_drawn_by_hypothesis():
    """The same ones twice in one process; those of another version are others."""
    drawn = generated.draw()
    assert Counter(map(kind_of, drawn)) == generated.KINDS
    assert drawn == generated.draw()
