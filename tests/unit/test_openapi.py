"""The API's description says what the decoders do."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.contract_corpus import BAD, GOOD
from tests.decoder_corpus import PROBES
from tests.json_schema import parts, valid
from tpc_server.contract.abort import decode_abort
from tpc_server.contract.anthropic import MessagesDecoder
from tpc_server.contract.chat import ChatDecoder
from tpc_server.contract.completion import CompletionDecoder
from tpc_server.contract.control import decode_attach, decode_weights
from tpc_server.contract.errors import BadRequest
from tpc_server.contract.fields import REFUSED, REQUEST_TABLE
from tpc_server.contract.generate import GenerateDecoder
from tpc_server.contract.limits import Limits
from tpc_server.contract.openai import OpenAIFacts
from tpc_server.contract.parse import decode_parse, decode_separate
from tpc_server.contract.sampling_fields import SAMPLING_NAMES, SAMPLING_TABLE
from tpc_server.contract.texts import decode_detokenize, decode_tokenize
from tpc_server.openapi import docs_html
from tpc_server.openapi.document import document
from tpc_server.openapi.markdown import page
from tpc_server.openapi.schema import EXAMPLES
from tpc_server.routes.table import OPEN, ROUTES

DOC = Path(__file__).parents[2] / "docs" / "API.md"
API = document("1.2.3")
TYPES = API["components"]["schemas"]
LIMITS = Limits(
    100, 1000, enable_return_hidden_states=True, enable_strict_thinking=True,
    enable_custom_logit_processor=True, lora_ids={"ada": "1"},
)  # fmt: skip
DECODER = GenerateDecoder(LIMITS)


def test_it_is_an_openapi_document() -> None:
    assert API["openapi"] == "3.1.0" and API["info"]["version"] == "1.2.3" and API["info"]["title"]
    json.dumps(API, allow_nan=False)
    assert set(API["paths"]) == {route.path for route in ROUTES}
    ids = []
    for route in ROUTES:
        operations = API["paths"][route.path]
        assert list(operations) == [method.lower() for method in route.methods]
        for method, operation in operations.items():
            ids.append(operation["operationId"])
            assert operation["summary"] and {"200", "default"} == set(operation["responses"])
            assert ("security" in operation) == (route.access != OPEN)
            sends = method in ("post", "put")
            assert ("requestBody" in operation) == (sends and bool(route.body))
            declared = [p["name"] for p in operation.get("parameters", []) if p["in"] == "path"]
            assert declared == re.findall(r"\{(\w+)\}", route.path)
            for answer in operation["responses"].values():
                assert answer["description"] and answer["content"]
    assert len(set(ids)) == len(ids)


def schemas(value: Any) -> list[Any]:
    """Every schema of the document."""
    found = []
    if isinstance(value, list):
        return [one for entry in value for one in schemas(entry)]
    if isinstance(value, dict):
        for key, entry in value.items():
            found += parts(entry) if key == "schema" else schemas(entry)
    return found


def test_schemas_are_schemas() -> None:
    found = schemas(API["paths"]) + [one for schema in TYPES.values() for one in parts(schema)]
    assert len(found) > 200
    for schema in found:
        if "$ref" in schema:
            assert schema["$ref"].removeprefix("#/components/schemas/") in TYPES
        if "default" in schema:
            assert valid(schema["default"], schema, TYPES), schema


def test_every_declared_field_is_in_it() -> None:
    generate = TYPES["GenerateRequest"]["properties"]
    assert list(generate) == [row.name for row in REQUEST_TABLE] + list(REFUSED)
    for row in REQUEST_TABLE:
        assert generate[row.name].get("default") == row.default
        assert valid(None, generate[row.name], TYPES) == row.nullable
    sampling = TYPES["SamplingParams"]["properties"]
    assert tuple(sampling) == SAMPLING_NAMES
    for field in SAMPLING_TABLE:
        schema = sampling[field.name]
        assert valid(None, schema, TYPES) and schema["description"]
        for bound in (field.low, field.high):
            if bound is not None and field.name != "top_k":
                assert valid(bound, schema, TYPES), (field.name, bound)
        if isinstance(field.low, (int, float)) and field.name != "top_k":
            assert not valid(field.low - 1, schema, TYPES), field.name


@pytest.mark.parametrize("body", GOOD, ids=lambda body: json.dumps(body)[:60])
def test_good_bodies_are_of_the_schema(body: Any) -> None:
    assert valid(body, TYPES["GenerateRequest"], TYPES)


def test_most_bad_bodies_are_not() -> None:
    """Schemas cannot say what depends on the server or on another field."""
    refused = sum([not valid(body, TYPES["GenerateRequest"], TYPES) for body, _ in BAD])
    assert refused > 0.6 * len(BAD)


def taken(decode: Any, body: Any) -> str:
    """The refusal's text, empty when the body is taken."""
    try:
        decode(json.dumps(body).encode())
    except BadRequest as error:
        return error.message
    return ""


# What depends on something beside the field itself.
OTHERS = re.compile(
    "batch|single|top_k must|vocabulary|context|unsupported|not supported|loaded|strict|keys in|"
    r"length|at most|copies|needs logprobs|tools cannot|in \[0, max_(completion_)?tokens|"
    r"min_new_tokens must|leaves no room|generations|\[0, 1000\]|duplicate|HEALTH|missing field|"
    r"is not known",
    re.I,
)


def compare(name: str, make: Any, schema: Any, decode: Any) -> None:
    """The decoder takes what the schema has, and refuses what it has not."""
    for probe in PROBES:
        says = taken(decode, make(probe))
        if not valid(probe, schema, TYPES):
            # An integer that is written as a floating point number is one to a schema.
            assert says, (name, probe, "is taken against its schema")
        elif says and not OTHERS.search(says):
            raise AssertionError((name, probe, "is of the schema", says))


@pytest.mark.parametrize("row", REQUEST_TABLE, ids=lambda row: row.name)
def test_request_fields(row: Any) -> None:
    schema = TYPES["GenerateRequest"]["properties"][row.name]
    base = {} if row.name in ("text", "input_ids") else {"text": "a"}

    def make(probe: Any) -> Any:
        body = {**base, row.name: probe}
        if probe is None and not base:
            body["input_ids" if row.name == "text" else "text"] = [1] if row.name == "text" else "a"
        return body

    compare(row.name, make, schema, DECODER.decode)


@pytest.mark.parametrize("name", SAMPLING_NAMES)
def test_sampling_fields(name: str) -> None:
    schema = TYPES["SamplingParams"]["properties"][name]
    compare(
        name, lambda probe: {"text": "a", "sampling_params": {name: probe}}, schema, DECODER.decode
    )


FACTS = OpenAIFacts("tiny", has_chat_template=True)
MESSAGES = MessagesDecoder(LIMITS, DECODER, FACTS)
OPENAI: dict[str, tuple[Any, dict[str, Any]]] = {
    "ChatCompletionRequest": (
        ChatDecoder(LIMITS, DECODER, FACTS),
        {"messages": [{"role": "user", "content": "a"}], "max_completion_tokens": 5},
    ),
    "CompletionRequest": (CompletionDecoder(LIMITS, DECODER, FACTS), {"prompt": "a"}),
}


@pytest.mark.parametrize(
    ("name", "row"),
    [(n, row) for n, (d, _) in OPENAI.items() for row in d.TABLE],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_openai_fields(name: str, row: Any) -> None:
    decoder, base = OPENAI[name]
    if row.name == "max_tokens":  # the newer name would count before it
        base = {k: v for k, v in base.items() if k != "max_completion_tokens"}
    compare(
        row.name, lambda probe: {**base, row.name: probe}, TYPES[name]["properties"][row.name],
        decoder.decode,
    )  # fmt: skip


def test_small_types() -> None:
    for name, base, decode in (
        ("AbortRequest", {}, decode_abort),
        ("TokenizeRequest", {"prompt": "a"},
         lambda body: decode_tokenize(body, LIMITS, OPENAI["ChatCompletionRequest"][0])),
        ("MessagesRequest", EXAMPLES["MessagesRequest"], MESSAGES.decode),
        ("CountTokensRequest", EXAMPLES["CountTokensRequest"], MESSAGES.conversation),
        ("DetokenizeRequest", {"tokens": [1]},
         lambda body: decode_detokenize(body, LIMITS, 1000)),
        ("ParseRequest", EXAMPLES["ParseRequest"], lambda body: decode_parse(body, FACTS)),
        ("SeparateRequest", EXAMPLES["SeparateRequest"],
         lambda body: decode_separate(body, FACTS)),
        ("CheckWeightsRequest", {}, decode_weights),
        ("AttachRequest", EXAMPLES["AttachRequest"], decode_attach),
    ):  # fmt: skip
        for field, schema in TYPES[name]["properties"].items():
            if field in ("abort_message",) or "only with messages" in schema.get("description", ""):
                continue
            if field in ("messages",) or (name, field) == ("TokenizeRequest", "prompt"):
                continue
            compare(field, lambda probe, f=field, b=base: {**b, f: probe}, schema, decode)


def test_examples_are_good() -> None:
    for name, body in EXAMPLES.items():
        assert valid(body, TYPES[name], TYPES)
    assert not taken(DECODER.decode, EXAMPLES["GenerateRequest"])


def test_the_page_needs_nobody_else() -> None:
    html = docs_html().decode()
    assert "://" not in html and " src=" not in html and "@import" not in html
    assert "openapi.json" in html


def test_the_docs_page_is_fresh() -> None:
    assert DOC.read_text(encoding="utf-8") == page(), "python -m tpc_server.openapi > docs/API.md"
