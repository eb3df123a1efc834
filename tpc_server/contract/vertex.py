"""The request type of /vertex_generate: /generate's in Vertex AI's envelope. Owner: stateless."""

from __future__ import annotations

import re
from typing import Any, Final

from . import fields as F
from .errors import BadRequest, invalid_type, unknown_field
from .fields import REFUSED, REQUEST_TABLE, RequestField
from .generate import GenerateDecoder, GenerateRequest
from .json_body import parse_object

__all__ = ["VERTEX_TABLE", "decode_vertex"]

VERTEX_TABLE: Final[tuple[RequestField, ...]] = (
    RequestField(
        "instances", F.OBJECTS, None, False, 0,
        "the prompts, each {text} or {input_ids}, all of one kind; none: an empty list",
    ),
    RequestField(
        "parameters", F.OBJECT, None, True, 0,
        "the other fields of a GenerateRequest, for all instances",
    ),
)  # fmt: skip
_PROMPTS: Final = ("text", "input_ids", "input_embeds")
_INSTANCE: Final = (*_PROMPTS, "image_data")
_PARAMETERS: Final = tuple(
    [row.name for row in REQUEST_TABLE if row.name not in _PROMPTS] + sorted(REFUSED)
)
#: What request headers may put beside the two (routes/admission.py).
_FROM_HEADERS: Final = (
    "rid", "bootstrap_host", "bootstrap_port", "bootstrap_room", "routed_dp_rank",
    "disagg_prefill_dp_rank", "priority",
)  # fmt: skip


def decode_vertex(decoder: GenerateDecoder, body: bytes) -> GenerateRequest | None:
    """One body; None where there are no instances. Raises BadRequest."""
    fields = parse_object(body)
    given = fields.get("parameters")
    if given is not None and type(given) is not dict:
        raise invalid_type(given, "an object", "parameters")
    request: dict[str, Any] = dict(given or {})
    for name in request:
        if name not in _PARAMETERS:
            raise unknown_field(name, _PARAMETERS, "parameters")
    for name in fields:
        if name in _FROM_HEADERS:
            request[name] = fields[name]
        elif name not in ("instances", "parameters"):
            raise unknown_field(name, ("instances", "parameters"))
    if "instances" not in fields:
        raise BadRequest("missing field `instances`")
    instances = fields["instances"]
    if type(instances) is not list:
        raise invalid_type(instances, "an array of objects", "instances")
    if not instances:
        return None
    kind = _kind(instances)
    prompts = []
    for k, instance in enumerate(instances):
        if instance.get(kind) is None:
            raise BadRequest(f"missing field `{kind}` at `instances[{k}]`: the first one has it")
        prompts.append(instance[kind])
    request[kind] = prompts
    try:
        return decoder.decode_object(request)
    except BadRequest as error:  # as the client wrote it
        message = re.sub(rf"\b{kind}\[(\d+)\]", rf"instances[\1].{kind}", error.message)
        raise BadRequest(message, error.status) from None


def _kind(instances: list[Any]) -> str:
    """Which kind of prompt they are."""
    for k, instance in enumerate(instances):
        if type(instance) is not dict:
            raise invalid_type(instance, "an object", f"instances[{k}]")
        for name, value in instance.items():
            if name not in _INSTANCE:
                raise unknown_field(name, _INSTANCE, f"instances[{k}]")
            if name in REFUSED and value is not None:
                raise BadRequest(
                    f"instances[{k}].{name} is not supported by this server: {REFUSED[name]}"
                )
    for name in _PROMPTS:
        if instances[0].get(name):
            return name
    raise BadRequest("Either text or input_ids should be provided at `instances[0]`.")
