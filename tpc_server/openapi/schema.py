"""JSON schemas of the declared request types. Owner: stateless."""

from __future__ import annotations

from typing import Any, Final

from ..contract import fields as F
from ..contract import openai_fields as O
from ..contract import sampling_fields as S
from ..contract.abort import ABORT_TABLE
from ..contract.anthropic_fields import COUNT_TABLE, MESSAGES_TABLE, SCHEMAS
from ..contract.control import (
    ATTACH_TABLE,
    CLOSE_TABLE,
    CONTINUE_TABLE,
    MODES,
    OPEN_TABLE,
    PAUSE_TABLE,
    SELECTORS,
    WEIGHTS_TABLE,
)
from ..contract.fields import REFUSED, REQUEST_TABLE, SESSION_TABLE, RequestField
from ..contract.limits import MAX_RID_BYTES
from ..contract.openai_fields import CHAT_TABLE, COMPLETION_TABLE, OpenAIField
from ..contract.parse import PARSE_TABLE, SEPARATE_TABLE
from ..contract.registry import DP_RANK_TABLE, QUERY_TABLE, ROUTE_TABLE
from ..contract.sampling_fields import SAMPLING_TABLE, SamplingField
from ..contract.texts import DETOKENIZE_TABLE, TOKENIZE_TABLE
from ..contract.values import HUGE, I64_MAX, I64_MIN
from ..contract.vertex import VERTEX_TABLE

__all__ = [
    "EXAMPLES",
    "OPTIONAL_BODIES",
    "Schema",
    "refused",
    "request_field",
    "request_types",
    "sampling_field",
]

Schema = dict[str, Any]

_BOOL: Final[Schema] = {"type": "boolean"}
_STR: Final[Schema] = {"type": "string"}
_NUMBER: Final[Schema] = {"type": "number"}
_I64: Final[Schema] = {"type": "integer", "format": "int64", "minimum": I64_MIN, "maximum": I64_MAX}
_ID: Final[Schema] = {"type": "integer", "minimum": 0}
_NULL: Final[Schema] = {"type": "null"}
_OBJECT: Final[Schema] = {"type": "object"}
_SCALAR: Final[Schema] = {"type": ["null", "boolean", "number", "string"]}


def _list(item: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": item, **more}


def _any(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas]}


def _nullable(schema: Schema) -> Schema:
    """Null too."""
    if not schema:
        return schema
    if isinstance(schema.get("type"), str) and "enum" not in schema:
        return {**schema, "type": [schema["type"], "null"]}
    for word in ("anyOf", "oneOf"):
        if word in schema and _NULL not in schema[word]:
            return {**schema, word: [*schema[word], _NULL]}
    return _any(schema, _NULL)


_ACTION: Final[Schema] = {
    "type": "object",
    "required": ["action_id", "action_type", "action_version"],
    "properties": {"action_id": _STR, "action_type": _STR, "action_version": _STR, "payload": {}},
}
_HINTS: Final[Schema] = {
    "type": "object",
    "required": ["protocol_version", "message_id"],
    "properties": {"protocol_version": _STR, "message_id": _STR, "actions": _list(_ACTION)},
}
_PARAMS: Final[Schema] = {"$ref": "#/components/schemas/SamplingParams"}
_IDS: Final = _list(_ID, minItems=1)
_RID: Final[Schema] = {"type": "string", "maxLength": MAX_RID_BYTES}

# Fields that are decoded by hand.
_CORE: Final[dict[str, Schema]] = {
    "text": _any({**_STR, "minLength": 1}, _list({**_STR, "minLength": 1}, minItems=1)),
    "input_ids": _any(_IDS, _list(_IDS, minItems=1)),
    "sampling_params": _any(_PARAMS, _list(_nullable(_PARAMS))),
    "rid": _any(_RID, _list(_RID)),
    "stream": _BOOL,
}
_KINDS: Final[dict[int, Schema]] = {
    F.BOOL: _BOOL,
    F.INT: _I64,
    F.UINT: {"type": "integer", "format": "int64", "minimum": 0, "maximum": I64_MAX},
    F.STR: _STR,
    F.STR_LIST: _any(_STR, _list(_nullable(_STR))),
    F.LABELS: {"type": "object", "additionalProperties": _STR},
    F.HINTS: _any(_HINTS, _list(_nullable(_HINTS))),
    F.STRINGS: _any(_STR, _list(_STR)),
    F.STR_ARRAY: _list(_STR),
    F.INTS: _list(_I64),
    F.NUMBER: _NUMBER,
    F.OBJECT: _OBJECT,
    F.OBJECTS: _list(_OBJECT),
    F.ANY: {},
}


def _described(schema: Schema, default: Any, about: str) -> Schema:
    out = dict(schema)
    if default is not None:
        out["default"] = default
    if about:
        out["description"] = about
    return out


def _at_least(low: int | None) -> Schema:
    return _I64 if low is None else {**_I64, "minimum": low}


def request_field(row: RequestField) -> Schema:
    """The schema of one row of a request table."""
    if row.kind == F.CORE:
        schema = _CORE[row.name]
    elif row.name == "selector":
        schema = {"type": "string", "enum": [*SELECTORS]}
    elif row.name == "mode":
        schema = {"type": "string", "enum": [*MODES]}
    elif row.kind == F.SESSION:
        schema = {**_object(SESSION_TABLE), "additionalProperties": False}
    elif row.name == "tools":
        schema = _list(O.TOOL)
    elif row.kind == F.BOOL_LIST or row.kind == F.INT_LIST:
        one = _BOOL if row.kind == F.BOOL_LIST else _at_least(row.low)
        # Entries may be null where nothing is asked for by default.
        schema = _any(one, _list(one if row.default is not None else _nullable(one)))
    elif row.kind == F.INT:
        schema = _at_least(row.low)
    elif row.kind == F.IDS_LIST or row.kind == F.IDS:
        ids = _list(_at_least(row.low))
        schema = _any(ids, _list(ids if row.kind == F.IDS else _nullable(ids)))
    else:
        schema = _KINDS[row.kind]
    return _described(_nullable(schema) if row.nullable else schema, row.default, row.about)


_STRINGS: Final = _any({**_STR, "minLength": 1}, _list({**_STR, "minLength": 1}, maxItems=32))
_PATTERN: Final[Schema] = {"type": "string", "minLength": 1, "maxLength": S.MAX_REGEX_BYTES}
_SAMPLING_KINDS: Final[dict[int, Schema]] = {
    S.BOOL: _BOOL,
    S.STR: _STR,
    S.STRINGS: _STRINGS,
    S.INTS: _list(_I64),
    S.BIAS: {
        "type": "object",
        "patternProperties": {"^[0-9]{1,20}$": _NUMBER},
        "additionalProperties": False,
    },
    S.CUSTOM: {
        "type": "object",
        "additionalProperties": _any(
            _SCALAR, _list(_SCALAR), {"type": "object", "additionalProperties": _SCALAR}
        ),
    },
    S.WATERMARK: {
        "type": "object",
        "required": ["enabled"],
        "properties": {"enabled": {"const": False}, "key": {}, "context_window": {}},
        "additionalProperties": False,
    },
    S.CHOICE: _list(_STR, maxItems=0),
}


def sampling_field(row: SamplingField, default: Any = ...) -> Schema:
    """The schema of one sampling parameter; another route may have another default."""
    shown = row.default if default is ... else default
    if row.name == "top_k":
        schema: Schema = {**_I64, "minimum": -1}  # 0 is taken where temperature is 0
        shown = -1 if default is ... else default
    elif row.name == "stop_regex":
        schema = _any(_PATTERN, _list(_PATTERN, maxItems=S.MAX_STOPS))
    elif row.kind == S.INT:
        schema = {**_I64, "minimum": row.low, "maximum": row.high}
    elif row.kind == S.FLOAT:
        schema = dict(_NUMBER)
        if 0 < row.low < 1e-300:  # an open bound
            schema["exclusiveMinimum"] = 0
        else:
            schema["minimum"] = row.low
        if row.high < HUGE:
            schema["maximum"] = row.high
    else:
        schema = _SAMPLING_KINDS[row.kind]
    return _described(_nullable(schema), shown, row.about)


def _object(table: tuple[RequestField, ...], required: tuple[str, ...] = ()) -> Schema:
    out: Schema = {
        "type": "object",
        "properties": {row.name: request_field(row) for row in table},
    }
    if required:
        out["required"] = list(required)
    return out


def _anthropic(table: tuple[RequestField, ...]) -> Schema:
    out = _object(table, _needed(table))
    for row in table:
        schema = SCHEMAS.get(row.name)
        if row.name in ("temperature", "top_p", "top_k"):
            out["properties"][row.name] = sampling_field(_SAMPLING[row.name], None)
        elif schema is not None:
            shown = _nullable(schema) if row.nullable else schema
            out["properties"][row.name] = _described(shown, None, row.about)
    return out


def _needed(table: tuple[RequestField, ...]) -> tuple[str, ...]:
    return tuple([row.name for row in table if not row.nullable])


def _generate() -> Schema:
    out = _object(REQUEST_TABLE)
    out["description"] = (
        "Either `text` or `input_ids`. An unknown field is ignored, as SGLang does: sampling"
        " parameters count inside of `sampling_params` only, where an unknown one is refused."
    )
    for name, why in REFUSED.items():
        out["properties"][name] = refused(why)
    return out


def refused(why: str) -> Schema:
    """A known field that is refused whenever it asks for something."""
    return {"deprecated": True, "description": f"refused: {why}"}


_REQUIRED: Final = ("messages", "prompt")
_NATIVE: Final = {row.name: row for row in REQUEST_TABLE}
_SAMPLING: Final = {row.name: row for row in SAMPLING_TABLE}


def openai_field(row: OpenAIField) -> Schema:
    """The schema of one row of an OpenAI table: often the native field's with another default."""
    if row.kind == O.REFUSED or (row.goes == O.REQUEST and row.target in REFUSED):
        return refused(row.about or REFUSED[row.target])
    if row.kind == O.IGNORED:
        return {"description": row.about or "taken, and of no effect"}
    if row.goes == O.SAMPLING:
        native = _SAMPLING[row.target]
        schema = sampling_field(native._replace(about=row.about or native.about), row.default)
        return {**schema, **(row.schema or {})}
    if row.goes == O.REQUEST:
        field = _NATIVE[row.target]
        about = row.about or field.about
        return request_field(field._replace(about=about, nullable=True))
    schema = row.schema or {}
    if row.name not in _REQUIRED:
        schema = _nullable(schema)
    return _described(schema, row.default, row.about)


_OPENAI_UNKNOWN: Final = (
    "A field that is not below is ignored, as SGLang does: clients send what other servers know."
    " One that is known here and cannot be honoured is refused."
)


def _openai(table: tuple[OpenAIField, ...], required: str) -> Schema:
    return {
        "type": "object",
        "description": _OPENAI_UNKNOWN,
        "properties": {row.name: openai_field(row) for row in table},
        "required": [required],
    }


def _sampling() -> Schema:
    return {
        "type": "object",
        "properties": {row.name: sampling_field(row) for row in SAMPLING_TABLE},
        "additionalProperties": False,
    }


def request_types() -> dict[str, Schema]:
    """Every request type by name."""
    return {
        "GenerateRequest": _generate(),
        "SamplingParams": _sampling(),
        "ChatCompletionRequest": _openai(CHAT_TABLE, "messages"),
        "CompletionRequest": _openai(COMPLETION_TABLE, "prompt"),
        "MessagesRequest": _anthropic(MESSAGES_TABLE),
        "CountTokensRequest": _anthropic(COUNT_TABLE),
        "VertexRequest": _object(VERTEX_TABLE, ("instances",)),
        "AbortRequest": _object(ABORT_TABLE),
        "TokenizeRequest": _object(TOKENIZE_TABLE),
        "DetokenizeRequest": _object(DETOKENIZE_TABLE, ("tokens",)),
        "ParseRequest": _object(PARSE_TABLE, ("text",)),
        "SeparateRequest": _object(SEPARATE_TABLE, ("text",)),
        "CheckWeightsRequest": _object(WEIGHTS_TABLE),
        "AttachRequest": _object(ATTACH_TABLE, ("hicache_storage_backend",)),
        "PauseRequest": _object(PAUSE_TABLE),
        "ContinueRequest": _object(CONTINUE_TABLE),
        "OpenSessionRequest": _object(OPEN_TABLE, ("capacity_of_str_len",)),
        "CloseSessionRequest": _object(CLOSE_TABLE, ("session_id",)),
        "RegisterRequest": _object(ROUTE_TABLE, _needed(ROUTE_TABLE)),
        "RoomRequest": _object(DP_RANK_TABLE, _needed(DP_RANK_TABLE)),
        "RoomsRequest": _object(QUERY_TABLE, _needed(QUERY_TABLE)),
    }


# Types whose routes take no body at all, too.
OPTIONAL_BODIES: Final = ("CheckWeightsRequest",)

# A body of each type to try.
EXAMPLES: Final[dict[str, Any]] = {
    "GenerateRequest": {
        "text": "The capital of France is",
        "sampling_params": {"temperature": 0, "max_new_tokens": 16},
    },
    "ChatCompletionRequest": {
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_completion_tokens": 32,
    },
    "CompletionRequest": {"prompt": "The capital of France is", "max_tokens": 16},
    "MessagesRequest": {
        "model": "default",
        "max_tokens": 32,
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    },
    "CountTokensRequest": {
        "model": "default",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
    },
    "VertexRequest": {
        "instances": [{"text": "The capital of France is"}],
        "parameters": {"sampling_params": {"temperature": 0, "max_new_tokens": 16}},
    },
    "AbortRequest": {"rid": "a request's id"},
    "TokenizeRequest": {"prompt": "Hello world"},
    "DetokenizeRequest": {"tokens": [1, 2, 3]},
    "ParseRequest": {
        "text": '{"name": "now", "arguments": {}}',
        "tools": [{"type": "function", "function": {"name": "now"}}],
        "tool_call_parser": "json",
    },
    "SeparateRequest": {
        "text": "<think>Paris.</think>It is Paris.",
        "reasoning_parser": "deepseek-r1",
    },
    "CheckWeightsRequest": {"action": "checksum"},
    "AttachRequest": {"hicache_storage_backend": "file"},
    "PauseRequest": {"mode": "in_place"},
    "ContinueRequest": {},
    "OpenSessionRequest": {"capacity_of_str_len": 1000},
    "CloseSessionRequest": {"session_id": "a session's id"},
    "RoomRequest": {"bootstrap_room": 1, "dp_rank": 0},
    "RoomsRequest": {"bootstrap_rooms": [1, 2]},
}
