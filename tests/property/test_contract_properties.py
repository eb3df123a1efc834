"""Random bodies: a request or a refusal, never anything else, the same on both JSON readers."""

from __future__ import annotations

import json
import marshal
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.contract_corpus import GOOD, all_bodies
from tpc_server.boundary import codec
from tpc_server.boundary.messages import GENERATE, decode_ingress
from tpc_server.contract import json_body
from tpc_server.contract.errors import BadRequest
from tpc_server.contract.fields import REFUSED, REQUEST_TABLE
from tpc_server.contract.generate import GenerateDecoder
from tpc_server.contract.limits import Limits
from tpc_server.contract.sampling_fields import SAMPLING_NAMES

PACK = codec.make_packer()
LIMITS = Limits(100, 1000, enable_return_hidden_states=True, lora_ids={"ada": "1"}, max_batch=64)
DECODER = GenerateDecoder(LIMITS)
# Fresh ids would differ from one reading to the other.
DECODER.new_rid = lambda: "fresh"  # type: ignore[method-assign]

PIECES = (b"\\", b'"', b"{", b"]", b",", b"1e9", b"\xc3", b"NaN", b"\\ud83d", b"-", b" ", b"\0")

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 1001),
    st.sampled_from([2**31, 2**63 - 1, 2**63, 2**64, -(2**63) - 1, 10**30]),
    st.floats(-3, 3),
    st.sampled_from(["", "a", "stop", "1", "x" * 129, "é😀", "\x00", "HEALTH_CHECK"]),
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["1", "a", "enabled", "id"]), inner, max_size=2)
    ),
    max_leaves=6,
)
names = [field.name for field in REQUEST_TABLE] + list(REFUSED) + ["unknown"]
sampling = st.dictionaries(st.sampled_from([*SAMPLING_NAMES, "unknown"]), values, max_size=3)


@st.composite
def bodies(draw: Any) -> dict[str, Any]:
    body: dict[str, Any] = draw(st.dictionaries(st.sampled_from(names), values, max_size=3))
    if draw(st.booleans()):
        body["text"] = draw(st.sampled_from(["a", ["a"], ["a", "b"]]))
        body.pop("input_ids", None)
    if draw(st.booleans()):
        body["sampling_params"] = draw(sampling | st.lists(sampling, max_size=2))
    return body


def outcome(parse: Any, body: bytes) -> Any:
    """The items of a body as plain data, or the text of its refusal."""
    try:
        request = DECODER.decode_object(parse(body))
    except BadRequest as error:
        assert error.status == 400 and error.message
        return error.message
    assert request.items and (request.is_batch or len(request.items) == 1)
    plain = [item.to_tuple() for item in request.items]
    for item in request.items:
        item.wire[GENERATE["rid"]] = "r"
        header = PACK(item.wire)
        assert decode_ingress(header)[: len(item.wire)] == item.wire
    assert marshal.loads(marshal.dumps(plain)) == plain
    return repr((request.stream, request.is_batch, plain))


@given(bodies())
@settings(max_examples=120, deadline=None)
def test_any_object_is_a_request_or_a_refusal(body: dict[str, Any]) -> None:
    raw = json.dumps(body).encode()
    assert outcome(json_body.parse_object_jiter, raw) == outcome(json_body.parse_object_stdlib, raw)


@given(st.sampled_from(all_bodies()), st.data())
@settings(max_examples=150, deadline=None)
def test_damaged_bodies_are_read_alike(body: bytes, data: st.DataObject) -> None:
    if len(body) > 2000:
        body = body[:2000]
    spoilt = bytearray(body)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(spoilt) - 1)))
        kind = data.draw(st.integers(0, 2))
        if kind == 0:
            spoilt[at:at] = data.draw(st.sampled_from(PIECES))
        elif kind == 1:
            del spoilt[at : at + 1]
        elif spoilt:
            spoilt[at] = data.draw(st.integers(0, 255))
    raw = bytes(spoilt)
    assert outcome(json_body.parse_object_jiter, raw) == outcome(json_body.parse_object_stdlib, raw)


@given(st.sampled_from(GOOD), st.sampled_from(GOOD))
@settings(max_examples=60, deadline=None)
def test_good_bodies_laid_over_each_other(one: dict[str, Any], two: dict[str, Any]) -> None:
    raw = json.dumps({**one, **two}).encode()
    assert outcome(json_body.parse_object_jiter, raw) == outcome(json_body.parse_object_stdlib, raw)
