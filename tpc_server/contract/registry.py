"""The request types of a prefill server's registry: SGLang's own processes send them. Owner:
stateless."""

from __future__ import annotations

from typing import Any, Final

from . import fields as F
from .errors import BadRequest, bad_value, invalid_type
from .fields import RequestField
from .json_body import check_finite, parse_object
from .values import I64_MAX, I64_MIN, decimal

__all__ = [
    "DP_RANK_TABLE",
    "QUERY_TABLE",
    "ROUTE_TABLE",
    "decode_dp_rank",
    "decode_query",
    "decode_route",
]

MOST_ROOMS: Final = 16384  # of one question
_MOST: Final = 1 << 20  # of ranks, ports, tokens of a page
_MOST_CHARS: Final = 256


def _size(name: str) -> RequestField:
    return RequestField(name, F.INT, None, False, 0, "", 1)


def _rank(name: str) -> RequestField:
    return RequestField(name, F.INT, None, False, 0, "", 0)


def _row(name: str, kind: int, default: Any = None, about: str = "") -> RequestField:
    return RequestField(name, kind, default, True, 0, about)


_HOW: Final = "follow_bootstrap_room"
ROUTE_TABLE: Final[tuple[RequestField, ...]] = (
    _size("attn_tp_size"), _rank("attn_tp_rank"), _size("attn_cp_size"), _rank("attn_cp_rank"),
    _size("attn_dp_size"), _rank("attn_dp_rank"), _size("pp_size"), _rank("pp_rank"),
    _size("system_dp_size"), _rank("system_dp_rank"),
    RequestField("rank_ip", F.STR, None, False, 0, "where the rank is to be reached"),
    RequestField("rank_port", F.INT, None, False, 0, "", 0),
    RequestField("page_size", F.INT, None, False, 0, "", 1),
    _row("kv_cache_dtype", F.STR),
    _row("kv_layout", F.STR),
    _row("dsv41_spec_layout", F.OBJECT),
    _row("prefill_http_port", F.INT),
    _row("load_balance_method", F.STR, _HOW),
    _row("enable_dsa_cache_layer_split", F.BOOL, False),
    _row("enable_kv_cache_sharding", F.BOOL, False),
    _row("decode_allocation_policy", F.STR, "early"),
)  # fmt: skip
DP_RANK_TABLE: Final[tuple[RequestField, ...]] = (
    RequestField("bootstrap_room", F.INT, None, False, 0, "the room of a request"),
    RequestField("dp_rank", F.INT, None, False, 0, "the rank that serves it", 0),
)
QUERY_TABLE: Final[tuple[RequestField, ...]] = (
    RequestField("bootstrap_rooms", F.INTS, None, False, 0, "rooms whose ranks are wanted"),
)


def decode_route(body: bytes) -> dict[str, Any]:
    """A rank that registers, as `registry.Registry` takes it. Raises BadRequest."""
    given = _fields(body, ROUTE_TABLE)
    alone = given["system_dp_size"] == 1
    row = {name: given[name] for name in given if not name.endswith("_rank")}
    row |= {
        "dp_size": given["attn_dp_size"] if alone else given["system_dp_size"],
        "dp_rank": given["attn_dp_rank"] if alone else given["system_dp_rank"],
        "cp_rank": given["attn_cp_rank"],
        "tp_rank": given["attn_tp_rank"],
        "pp_rank": given["pp_rank"],
        "follow_bootstrap_room": given["load_balance_method"] == _HOW,
    }
    return row


def decode_dp_rank(body: bytes) -> tuple[int, int]:
    """(room, rank). Raises BadRequest."""
    given = _fields(body, DP_RANK_TABLE)
    return given["bootstrap_room"], given["dp_rank"]


def decode_query(body: bytes) -> list[int]:
    """Rooms. Raises BadRequest."""
    fields = parse_object(body)
    rooms = fields.get("bootstrap_rooms")
    if "bootstrap_rooms" not in fields:
        raise BadRequest("missing field `bootstrap_rooms`")
    if type(rooms) is not list:
        raise invalid_type(rooms, "an array of integers", "bootstrap_rooms")
    if len(rooms) > MOST_ROOMS:
        raise BadRequest(
            f"bootstrap_rooms has {len(rooms)} entries, over the limit of {MOST_ROOMS}"
        )
    return [_integer(room, f"bootstrap_rooms[{k}]") for k, room in enumerate(rooms)]


def _fields(body: bytes, table: tuple[RequestField, ...]) -> dict[str, Any]:
    """Every declared field, checked; others are ignored."""
    given = parse_object(body)
    out: dict[str, Any] = {}
    for row in table:
        value = given.get(row.name)
        if row.name not in given and not row.nullable:
            raise BadRequest(f"missing field `{row.name}`")
        if value is None and row.nullable:
            value = row.default
        elif row.kind == F.INT:
            value = _integer(value, row.name)
            if row.low is not None and not row.low <= value <= _MOST:
                raise bad_value(value, f"{row.low} to {_MOST}", row.name)
        elif row.kind == F.BOOL and type(value) is not bool:
            raise invalid_type(value, "a boolean", row.name)
        elif row.kind == F.OBJECT:
            if type(value) is not dict:
                raise invalid_type(value, "an object", row.name)
            check_finite(value, row.name)
        elif row.kind == F.STR:
            if type(value) is not str:
                raise invalid_type(value, "a string", row.name)
            if len(value) > _MOST_CHARS:
                raise BadRequest(f"{row.name} has more than {_MOST_CHARS} characters")
        out[row.name] = value
    for name, value in given.items():
        if name not in out:
            check_finite(value, name)
    return out


def _integer(value: Any, path: str) -> int:
    """An integer, or one as text: the protocol's other servers take both."""
    number = decimal(value) if type(value) is str else value
    if type(number) is not int or not I64_MIN <= number <= I64_MAX:
        raise invalid_type(value, "an integer", path)
    return number
