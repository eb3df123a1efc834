"""Length and vocabulary checks that wait for the tokens; abort bodies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tpc_server.boundary.messages import SAMPLING, sampling_template
from tpc_server.contract.abort import decode_abort
from tpc_server.contract.errors import BadRequest
from tpc_server.contract.limits import Limits, check_ids, check_lengths

MAX_NEW, MIN_NEW = SAMPLING["max_new_tokens"], SAMPLING["min_new_tokens"]


def wire(max_new: int | None, min_new: int = 0) -> list[Any]:
    values = sampling_template()
    values[MAX_NEW] = max_new
    values[MIN_NEW] = min_new
    return values


def refused(n_prompt: int, values: list[Any], limits: Limits) -> str:
    with pytest.raises(BadRequest) as caught:
        check_lengths(n_prompt, values, limits)
    return caught.value.message


def test_written_examples() -> None:
    limits = Limits(10, 1000)
    assert refused(10, wire(1), limits) == (
        "The input (10 tokens) is longer than the model's context length (10 tokens)."
    )
    assert check_lengths(9, wire(1), limits) == 9
    assert refused(9, wire(2), limits).startswith(
        "Requested token count exceeds the model's maximum context length of 10 tokens."
    )


def test_recorded_texts() -> None:
    limits = Limits(32768, 129283)
    assert refused(40000, wire(6), limits) == (
        "The input (40000 tokens) is longer than the model's context length (32768 tokens)."
    )
    assert refused(32760, wire(100), limits) == (
        "Requested token count exceeds the model's maximum context length of 32768 tokens. You "
        "requested a total of 32860 tokens: 32760 tokens from the input messages and 100 tokens "
        "for the completion. Please reduce the number of tokens in the input messages or the "
        "completion to fit within the limit."
    )
    with pytest.raises(BadRequest) as caught:
        check_ids([5, 999999], limits)
    assert caught.value.message == (
        "input_ids contains out-of-vocabulary token id 999999; valid range is [0, 129283)"
    )


def test_no_limit_skips_only_the_second_check() -> None:
    limits = Limits(10, 1000)
    assert check_lengths(9, wire(None), limits) == 9
    assert "(10 tokens)" in refused(10, wire(None), limits)


def test_reserved_tokens_count_as_prompt() -> None:
    limits = Limits(20, 1000, num_reserved_tokens=16)
    assert check_lengths(3, wire(1), limits) == 3
    assert refused(4, wire(1), limits).startswith("The input (20 tokens)")
    assert "19 tokens from the input" in refused(3, wire(2), limits)


def test_auto_truncate() -> None:
    limits = Limits(10, 1000, allow_auto_truncate=True)
    values = wire(5)
    assert check_lengths(9, values, limits) == 9 and values[MAX_NEW] == 1
    values = wire(5)
    assert check_lengths(30, values, limits) == 10 and values[MAX_NEW] == 0
    values = wire(None)
    assert check_lengths(30, values, limits) == 10 and values[MAX_NEW] is None
    assert refused(9, wire(5, min_new=2), limits) == (
        "min_new_tokens must be in [0, max_new_tokens(1)], got 2."
    )
    values = wire(5, min_new=1)
    assert check_lengths(9, values, limits) == 9


@pytest.mark.parametrize("ids", [[-1], [1000], [0, 10**30], [999, -5]])
def test_ids_outside_the_vocabulary(ids: list[int]) -> None:
    with pytest.raises(BadRequest, match="out-of-vocabulary"):
        check_ids(ids, Limits(10, 1000))


def test_ids_inside_the_vocabulary() -> None:
    check_ids([], Limits(10, 1000))
    check_ids([0, 999], Limits(10, 1000))


@pytest.mark.parametrize(
    ("body", "rids", "abort_all"),
    [
        ({}, [], False),
        ({"rid": ""}, [], False),
        ({"rid": None}, [], False),
        ({"rid": "x"}, ["x"], False),
        ({"rid": ["x", "", "y"]}, ["x", "y"], False),
        ({"abort_all": True}, [], True),
        ({"rid": "x", "abort_all": None}, ["x"], False),
        ({"rid": "x", "other": {"a": 1}}, ["x"], False),
    ],
)
def test_abort_bodies(body: Any, rids: list[str], abort_all: bool) -> None:
    assert decode_abort(json.dumps(body).encode()) == (rids, abort_all)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "the request body is empty"),
        (b"[]", "the request body must be a JSON object, got an array"),
        (b'{"rid":5}', "invalid type: integer `5`, expected a string or an array of strings"
         " at `rid`"),
        (b'{"rid":["a",5]}', "invalid type: integer `5`, expected a string at `rid[1]`"),
        (b'{"abort_all":1}', "invalid type: integer `1`, expected a boolean at `abort_all`"),
        (b'{"abort_message":"x"}',
         "abort_message is not supported by this server: the scheduler words it"),
        (b'{"x":1e400}', "number out of range at `x`"),
    ],
)  # fmt: skip
def test_bad_abort_bodies(body: bytes, text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        decode_abort(body)
    assert caught.value.message == text


def test_patterns_of_all_items_together_are_bounded():
    from tpc_server.contract.errors import BadRequest
    from tpc_server.contract.generate import GenerateDecoder
    from tpc_server.contract.limits import Limits

    decoder = GenerateDecoder(Limits(1000, 1000))
    many = {"text": ["a"] * 80, "sampling_params": [{"stop_regex": f"a{k}"} for k in range(80)]}
    with pytest.raises(BadRequest, match="at most 64 stop_regex patterns in one request, got 80"):
        decoder.decode_object(many)
    few = {"text": ["a"] * 8, "sampling_params": [{"stop_regex": [f"a{k}", "b"]} for k in range(8)]}
    assert len(decoder.decode_object(few).items) == 8
