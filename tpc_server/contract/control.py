"""The request types of the routes that look after a scheduler: its weights, caches, sessions,
whether it runs. Owner: stateless."""

from __future__ import annotations

from typing import Any, Final

from . import fields as F
from .errors import BadRequest, invalid_type
from .fields import RequestField
from .json_body import check_finite, parse_object
from .values import I64_MAX, I64_MIN, as_float

__all__ = [
    "ATTACH_TABLE", "CLOSE_TABLE", "CONTINUE_TABLE", "MODES", "OPEN_TABLE", "PAUSE_TABLE",
    "SELECTORS", "WEIGHTS_TABLE", "decode_attach", "decode_close", "decode_continue", "decode_open",
    "decode_pause", "decode_weights",
]  # fmt: skip

SELECTORS: Final = ("target", "draft", "all")
MODES: Final = ("abort", "retract", "in_place")


def _row(name: str, kind: int, default: Any, nullable: bool, about: str) -> RequestField:
    return RequestField(name, kind, default, nullable, 0, about)


WEIGHTS_TABLE: Final[tuple[RequestField, ...]] = (
    _row("action", F.STR, "checksum", False, "what the scheduler does: checksum, compare, …"),
    _row("allow_quant_error", F.BOOL, False, False, "of compare"),
    _row("skip_tensor_list", F.STR_ARRAY, None, True, "parts of names of tensors left out"),
    _row("selector", F.STR, "all", False, "target, draft or all: whose weights"),
)
ATTACH_TABLE: Final[tuple[RequestField, ...]] = (
    _row("hicache_storage_backend", F.STR, None, False, "file, mooncake, …"),
    _row("hicache_storage_backend_extra_config_json", F.STR, None, True, "an object, as text"),
    _row("hicache_storage_prefetch_policy", F.STR, None, True, "as --hicache-storage-…"),
    _row("hicache_write_policy", F.STR, None, True, "as --hicache-write-policy"),
)
PAUSE_TABLE: Final[tuple[RequestField, ...]] = (
    _row(
        "mode",
        F.STR,
        "abort",
        False,
        "of running requests: abort ends them, retract puts them back into the queue (their "
        "caches can be flushed), in_place leaves them where they are",
    ),
)
CONTINUE_TABLE: Final[tuple[RequestField, ...]] = (
    _row("torch_empty_cache", F.BOOL, True, False, "the engine gives unused GPU memory back first"),
)
OPEN_TABLE: Final[tuple[RequestField, ...]] = (
    _row("capacity_of_str_len", F.INT, None, False, "how long its text may grow"),
    _row("session_id", F.STR, None, True, "null: one is made"),
    _row(
        "streaming",
        F.BOOL,
        None,
        True,
        "each request goes on from the one before; the server must allow it",
    ),
    _row("timeout", F.NUMBER, None, True, "seconds without a request after which it is closed"),
)
CLOSE_TABLE: Final[tuple[RequestField, ...]] = (
    _row("session_id", F.STR, None, False, "as /open_session told it"),
)


def decode_weights(body: bytes) -> dict[str, Any]:
    """Fields of a CheckWeightsReqInput; no body, or null, asks for checksums. Raises BadRequest."""
    body = bytes(body).strip()
    fields = _fields(body, WEIGHTS_TABLE) if body not in (b"", b"null") else {}
    selector = fields.get("selector", "all")
    if selector not in SELECTORS:
        raise BadRequest(f"selector must be target, draft or all, got {selector[:64]!r}")
    return fields


def decode_attach(body: bytes) -> dict[str, Any]:
    """Fields of an AttachHiCacheStorageReqInput. Raises BadRequest."""
    return _needed(body, ATTACH_TABLE, "hicache_storage_backend")


def decode_pause(body: bytes) -> str:
    """The mode. Raises BadRequest."""
    mode: str = _fields(body, PAUSE_TABLE).get("mode", "abort")
    if mode not in MODES:
        raise BadRequest(f"mode must be abort, retract or in_place, got {mode[:64]!r}")
    return mode


def decode_continue(body: bytes) -> dict[str, Any]:
    """Fields of a ContinueGenerationReqInput. Raises BadRequest."""
    return _fields(body, CONTINUE_TABLE)


def decode_open(body: bytes) -> dict[str, Any]:
    """Fields of an OpenSessionReqInput. Raises BadRequest."""
    fields = _needed(body, OPEN_TABLE, "capacity_of_str_len")
    if fields.get("timeout") is not None:
        fields["timeout"] = as_float(fields["timeout"])
        check_finite(fields["timeout"], "timeout")
    return fields


def decode_close(body: bytes) -> dict[str, Any]:
    """Fields of a CloseSessionReqInput. Raises BadRequest."""
    return _needed(body, CLOSE_TABLE, "session_id")


def _needed(body: bytes, table: tuple[RequestField, ...], name: str) -> dict[str, Any]:
    fields = _fields(body, table)
    if name not in fields:
        raise BadRequest(f"missing field `{name}`")
    return fields


def _fields(body: bytes, table: tuple[RequestField, ...]) -> dict[str, Any]:
    """The declared fields of a body, each of its type; others are ignored."""
    given = parse_object(body)
    fields: dict[str, Any] = {}
    for row in table:
        if row.name not in given:
            continue
        value = given.pop(row.name)
        if not (value is None and row.nullable):
            _check(row, value)
        fields[row.name] = value
    for name, value in given.items():
        check_finite(value, name)
    return fields


def _check(row: RequestField, value: Any) -> None:
    if row.kind == F.BOOL:
        if type(value) is not bool:
            raise invalid_type(value, "a boolean", row.name)
    elif row.kind == F.STR:
        if type(value) is not str:
            raise invalid_type(value, "a string", row.name)
    elif row.kind == F.INT:
        if type(value) is not int or not I64_MIN <= value <= I64_MAX:
            raise invalid_type(value, "an integer", row.name)
    elif row.kind == F.NUMBER:
        if type(value) not in (int, float):
            raise invalid_type(value, "a number", row.name)
    elif type(value) is not list:
        raise invalid_type(value, "an array of strings", row.name)
    else:
        for k, entry in enumerate(value):
            if type(entry) is not str:
                raise invalid_type(entry, "a string", f"{row.name}[{k}]")
