"""Decoder of /abort_request bodies. Owner: stateless."""

from __future__ import annotations

from typing import Final, NamedTuple

from . import fields as F
from .errors import BadRequest, invalid_type
from .fields import RequestField
from .json_body import check_finite, parse_object

__all__ = ["ABORT_TABLE", "AbortBody", "decode_abort"]

ABORT_TABLE: Final[tuple[RequestField, ...]] = (
    RequestField("rid", F.STRINGS, None, about="the request's id, or several"),
    RequestField("abort_all", F.BOOL, False, about="end all requests"),
    RequestField("abort_message", F.ANY, None, about="refused: the scheduler words it"),
)
_FIELDS: Final = tuple([field.name for field in ABORT_TABLE])


class AbortBody(NamedTuple):
    """What is to end: everything, or the requests whose id or group id is in `rids` (exactly).

    No ids without `abort_all` is a no-op: an empty id must never end everything, although a
    scheduler, which matches by prefix, would take it so.
    """

    rids: list[str]
    abort_all: bool


def decode_abort(body: bytes) -> AbortBody:
    """Decode one body. Raises BadRequest."""
    fields = parse_object(body)
    rid = fields.get("rid")
    abort_all = fields.get("abort_all")
    if rid is None:
        rids = []
    elif type(rid) is str:
        rids = [rid]
    elif type(rid) is list:
        for k, entry in enumerate(rid):
            if type(entry) is not str:
                raise invalid_type(entry, "a string", f"rid[{k}]")
        rids = rid
    else:
        raise invalid_type(rid, "a string or an array of strings", "rid")
    if abort_all is not None and type(abort_all) is not bool:
        raise invalid_type(abort_all, "a boolean", "abort_all")
    if fields.get("abort_message"):
        raise BadRequest("abort_message is not supported by this server: the scheduler words it")
    for name, value in fields.items():
        if name not in _FIELDS:
            check_finite(value, name)
    return AbortBody([entry for entry in rids if entry], bool(abort_all))
