"""JSON of request bodies: both readers alike, numbers of any length, what is refused early."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.contract_corpus import all_bodies
from tests.unit.test_contract_generate import limits
from tpc_server.contract import json_body
from tpc_server.contract.errors import BadRequest
from tpc_server.contract.generate import GenerateDecoder


@pytest.fixture(scope="module")
def decoder() -> GenerateDecoder:
    return GenerateDecoder(limits())


def test_both_json_readers_answer_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = GenerateDecoder(limits())
    # Fresh ids differ from one decoding to the next; everything else may not.
    monkeypatch.setattr(decoder, "new_rid", lambda: "fresh")
    for body in all_bodies():
        answers = []
        for parse in (json_body.parse_object_jiter, json_body.parse_object_stdlib):
            try:
                request = decoder.decode_object(parse(body))
            except BadRequest as error:
                answers.append(error.message)
            else:
                answers.append(repr([item.to_tuple() for item in request.items]))
        assert answers[0] == answers[1], body[:80]


def test_texts_of_broken_bodies() -> None:
    for parse in (json_body.parse_object_jiter, json_body.parse_object_stdlib):
        for body, text in (
            (b"", "the request body is empty"),
            (b"\xef\xbb\xbf{}", "the request body starts with a byte order mark"),
            (b'{"a":"\xff"}', "the request body is not valid UTF-8 at byte 6"),
            (b'{"a":"\\ud800"}', "the request body is not valid JSON"),
            (b"{", "the request body is not valid JSON"),
            (b"[" * 129 + b"]" * 129, "the request body nests deeper than 128 levels"),
            (b"[" * 9999, "the request body nests deeper than 128 levels"),
            (b"[1]", "the request body must be a JSON object, got an array"),
            (b'"x"', "the request body must be a JSON object, got a string"),
            (b"1.5", "the request body must be a JSON object, got a number"),
            (b"null", "the request body must be a JSON object, got null"),
            (b"true", "the request body must be a JSON object, got a boolean"),
        ):
            with pytest.raises(BadRequest) as caught:
                parse(body)
            assert caught.value.message == text


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"temperature": "N"}, "temperature must be a non-negative finite number, got inf."),
        ({"top_k": "-N"}, "invalid type: floating point `-inf`, expected i64"
         " at `sampling_params.top_k`"),
        ({"logit_bias": {"5": "-N"}}, "number out of range at `sampling_params.logit_bias.5`"),
        ({"stop_token_ids": [1, "N"]}, "invalid type: floating point `inf`, expected i64"
         " at `sampling_params.stop_token_ids[1]`"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("digits", [400, 4300, 4301, 20000])
def test_a_number_of_any_length_is_out_of_range_at_its_field(
    decoder: GenerateDecoder, body: dict[str, Any], text: str, digits: int
) -> None:
    raw = json.dumps({"text": "a", "sampling_params": body})
    raw = raw.replace('"-N"', "-" + "9" * digits).replace('"N"', "9" * digits)
    for parse in (json_body.parse_object_jiter, json_body.parse_object_stdlib):
        with pytest.raises(BadRequest) as caught:
            decoder.decode_object(parse(raw.encode()))
        assert caught.value.message == text


def test_a_prompt_of_too_many_ids_is_refused_before_they_are_read(
    decoder: GenerateDecoder,
) -> None:
    """However long the list, nobody looks at its entries: here they would be refused."""
    for ids in (["x"] * 5000, [[1], ["x"] * 5000]):
        with pytest.raises(BadRequest, match="longer than the model's context length"):
            decoder.decode_object({"input_ids": ids})


def test_deep_nesting_below_the_limit_is_taken() -> None:
    for parse in (json_body.parse_object_jiter, json_body.parse_object_stdlib):
        assert parse(b'{"a":' * 128 + b"1" + b"}" * 128)
