"""JSON of request bodies: all readers alike, numbers of any length, what is refused early."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.decoder_corpus import corpus
from tests.decoder_outcomes import MODULES, decoders, outcomes
from tests.gil_env import clean_env, gil_env
from tests.unit.test_contract_generate import limits
from tpc_server.contract import json_body
from tpc_server.contract.errors import BadRequest, openai_error_body
from tpc_server.contract.generate import GenerateDecoder


@pytest.fixture(scope="module")
def decoder() -> GenerateDecoder:
    return GenerateDecoder(limits())


BODIES = corpus()


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """Of each body of the corpus, read by the standard library."""
    return outcomes(json_body.PARSERS["stdlib"], BODIES)


def differences(found: list[str], expected: list[str]) -> list[tuple[bytes, str, str]]:
    """The first few bodies that are told otherwise."""
    assert len(found) == len(expected) == len(BODIES)
    wrong = [k for k, text in enumerate(found) if text != expected[k]]
    return [(BODIES[k][1][:200], found[k], expected[k]) for k in wrong[:5]]


def test_the_corpus_is_large_and_both_good_and_bad(expected: list[str]) -> None:
    refused = sum([text.startswith("refused: ") for text in expected])
    assert len(BODIES) > 10_000 and 1000 < len(BODIES) - refused < refused
    assert "jiter" in json_body.PARSERS  # what serves here


def test_every_decoder_that_reads_json_is_in_the_corpus() -> None:
    folder = Path(json_body.__file__).parent
    reading = {
        path.stem for path in folder.glob("*.py")
        if re.search(r"import .*\bparse_object\b", path.read_text())
    }  # fmt: skip
    assert reading == {module.__name__.rpartition(".")[2] for module in MODULES}
    assert {kind for kind, _ in BODIES} == set(decoders())


@pytest.mark.parametrize("name", json_body.PARSERS)
def test_every_reader_here_decodes_alike(expected: list[str], name: str) -> None:
    assert differences(outcomes(json_body.PARSERS[name], BODIES), expected) == []


@pytest.mark.network
@pytest.mark.timeout(600)
def test_every_reader_of_another_build_decodes_alike(expected: list[str]) -> None:
    """msgspec's, on a build with a GIL: the same requests, the same words."""
    done = subprocess.run(
        [gil_env("json-parsers"), "-I", str(Path(__file__).parents[1] / "decoder_outcomes.py")],
        env=clean_env(), capture_output=True, timeout=120, check=True,
    )  # fmt: skip
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert list(found) == ["msgspec", "jiter", "stdlib"]
    for name, told in found.items():
        assert differences(told, expected) == [], name


def test_texts_of_broken_bodies() -> None:
    for parse in json_body.PARSERS.values():
        for body, text in (
            (b"", "the request body is empty"),
            (b"\xef\xbb\xbf{}", "the request body starts with a byte order mark"),
            (b'{"a":"\xff"}', "the request body is not valid UTF-8 at byte 6"),
            (b'{"a":"\\ud800"}', "the request body is not valid JSON: half of a surrogate pair"),
            (b"{", "the request body is not valid JSON at byte 1: it ends too soon"),
            (b" \n", "the request body is not valid JSON at byte 2: it ends too soon"),
            (b'{"a":1 , }', "the request body is not valid JSON at byte 7"),
            (
                b'{"a":"b',
                "the request body is not valid JSON at byte 5: a string that does not end",
            ),
            ('{"\u00e9\u20ac":x}'.encode(), "the request body is not valid JSON at byte 9"),
            (b'{"a":1}{', "the request body is not valid JSON at byte 7"),
            (b"{'a':1}", "the request body is not valid JSON at byte 1"),
            (b'{"a":NaN}', "the request body is not valid JSON: NaN is no number of JSON"),
            (b'{"a":"\t"}', "the request body is not valid JSON at byte 6"),
            (b'{"a":"' + b"x" * 99999, "the request body is not valid JSON"),
            (b'{"a":tru' + b" " * 99999, "the request body is not valid JSON at byte 5"),
            (b'{"a":"' + b"x" * 99999 + b'",}', "the request body is not valid JSON"),
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
        ({"top_k": "-N"}, "invalid type: floating point `-inf`, expected a 64-bit integer"
         " at `sampling_params.top_k`"),
        ({"logit_bias": {"5": "-N"}}, "number out of range at `sampling_params.logit_bias.5`"),
        ({"stop_token_ids": [1, "N"]},
         "invalid type: floating point `inf`, expected a 64-bit integer"
         " at `sampling_params.stop_token_ids[1]`"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("digits", [400, 4300, 4301, 20000])
def test_a_number_of_any_length_is_out_of_range_at_its_field(
    decoder: GenerateDecoder, body: dict[str, Any], text: str, digits: int
) -> None:
    raw = json.dumps({"text": "a", "sampling_params": body})
    raw = raw.replace('"-N"', "-" + "9" * digits).replace('"N"', "9" * digits)
    for parse in json_body.PARSERS.values():
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
    for parse in json_body.PARSERS.values():
        assert parse(b'{"a":' * 128 + b"1" + b"}" * 128)


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ("invalid type: null, expected a string at `messages[0].content`", "messages[0].content"),
        ("missing field `messages`", "messages"),
        ("unknown field `x`, expected one of `a`, `b` at `tools[0]`", "tools[0]"),
        ("unknown field `x`, expected one of `a`, `b`", "x"),
        ("top_p must be in (0, 1], got 7.", "top_p"),
        ("prompt[1] cannot be empty", "prompt[1]"),
        ("tools[0].type must be function, got x", "tools[0].type"),
        ("response_format.json_schema.schema is required for type json_schema",
         "response_format.json_schema.schema"),
        ("tool_choice.function.name: 'x' is not among the tools.", "tool_choice.function.name"),
        ("the text could not be tokenized: x.y: z", None),
        ("min_new_tokens=3 is unavailable", None),
        ("max_completion_tokens is too large", "max_completion_tokens"),
        ("response_format of type json_object is not supported by this engine", "response_format"),
        ("response_format.type must be text, got x", "response_format.type"),
        ("the request body is not valid JSON at byte 5", None),
        ("The input (5 tokens) is longer", None),
        ("this route needs a tokenizer: this server has none", None),
    ],
)  # fmt: skip
def test_the_field_that_a_text_names(message: str, param: str | None) -> None:
    assert json.loads(openai_error_body(message))["param"] == param
    assert json.loads(openai_error_body(message, 503))["param"] is None
