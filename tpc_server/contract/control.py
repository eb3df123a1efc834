"""The request types of the routes that look after a scheduler's weights and caches. Owner:
stateless."""

from __future__ import annotations

from typing import Any, Final

from . import fields as F
from .errors import BadRequest, invalid_type
from .fields import RequestField
from .json_body import check_finite, parse_object

__all__ = ["ATTACH_TABLE", "SELECTORS", "WEIGHTS_TABLE", "decode_attach", "decode_weights"]

SELECTORS: Final = ("target", "draft", "all")


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
    fields = _fields(body, ATTACH_TABLE)
    if "hicache_storage_backend" not in fields:
        raise BadRequest("missing field `hicache_storage_backend`")
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
    elif type(value) is not list:
        raise invalid_type(value, "an array of strings", row.name)
    else:
        for k, entry in enumerate(value):
            if type(entry) is not str:
                raise invalid_type(entry, "a string", f"{row.name}[{k}]")
