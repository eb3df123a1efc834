"""Request fields beside prompt, parameters, rid and stream. Owner: the ingress core (per request).

Read once into `Options` as they come, values of a batch still as lists; `batch.expand` deals them
out to the items.
"""

from __future__ import annotations

from typing import Any

from . import fields as F
from .errors import BadRequest, bad_value, invalid_type
from .json_body import check_finite
from .values import check_i64s

__all__ = ["Options", "read_option"]

_I64_MIN = -(1 << 63)
_I64_MAX = (1 << 63) - 1


class Options:
    """What a body says beside the core fields. `given` holds non-default values by name."""

    __slots__ = ("custom_labels", "given", "log_metrics")

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}
        self.log_metrics = True
        self.custom_labels: dict[str, str] | None = None


def read_option(options: Options, field: F.RequestField, value: Any) -> None:
    """Check one field's JSON type and keep it. Raises BadRequest."""
    name = field.name
    if value is None and field.nullable:
        return
    kind = field.kind
    if kind in (F.BOOL_LIST, F.INT_LIST, F.STR_LIST) and type(value) is list:
        # Entries may be null where nothing is asked for by default.
        for k, entry in enumerate(value):
            if entry is not None or field.default is not None:
                _scalar(kind, entry, f"{name}[{k}]")
    elif kind == F.IDS_LIST:
        _ids(value, name)
    elif kind == F.LABELS:
        if type(value) is not dict:
            raise invalid_type(value, "an object", name)
        for key, entry in value.items():
            if type(entry) is not str:
                raise invalid_type(entry, "a string", f"{name}.{key}")
        options.custom_labels = value or None
        return
    elif kind == F.HINTS:
        _hints(value, name)
    elif kind == F.SESSION:
        value = _session(value, name)
        if value is None:
            return
    else:
        _scalar(kind, value, name)
    if name == "log_metrics":
        options.log_metrics = value
    elif name == "data_parallel_rank":
        options.given.setdefault("routed_dp_rank", value)
    else:
        options.given[name] = value


def _scalar(kind: int, value: Any, path: str) -> None:
    if kind == F.BOOL or kind == F.BOOL_LIST:
        if type(value) is not bool:
            raise invalid_type(value, "a boolean", path)
    elif kind == F.STR or kind == F.STR_LIST:
        if type(value) is not str:
            raise invalid_type(value, "a string", path)
    elif type(value) is not int or not _I64_MIN <= value <= _I64_MAX:
        raise invalid_type(
            value, "an integer of at least 0" if kind == F.UINT else "an integer", path
        )
    elif kind == F.UINT and value < 0:
        raise bad_value(value, "an integer of at least 0", path)


def _ids(value: Any, path: str) -> None:
    """A list of token ids, or a list of such lists or nulls."""
    if type(value) is not list:
        raise invalid_type(value, "an array of token ids", path)
    if not value or not (type(value[0]) is list or value[0] is None):
        check_i64s(value, path)
        return
    for k, entry in enumerate(value):
        where = f"{path}[{k}]"
        if type(entry) is list:
            check_i64s(entry, where)
        elif entry is not None:
            raise invalid_type(entry, "an array of token ids", where)


def _session(value: Any, path: str) -> list[Any] | None:
    """The scheduler's record of it; None for an object that says nothing."""
    if type(value) is not dict:
        raise invalid_type(value, "an object", path)
    unknown = value.keys() - {row.name for row in F.SESSION_TABLE}
    if unknown:
        raise BadRequest(f"unknown field `{sorted(unknown)[0]}` at `{path}`")
    for row in F.SESSION_TABLE:
        entry = value.get(row.name)
        if entry is not None:
            _scalar(row.kind, entry, f"{path}.{row.name}")
    return [value.get(row.name) for row in F.SESSION_TABLE] if value else None


_ENVELOPE = (("protocol_version", str), ("message_id", str))
_ACTION = ("action_id", "action_type", "action_version")


def _hints(value: Any, path: str) -> None:
    """A KV hint envelope, or one (or null) a prompt. Its actions' payloads pass through."""
    if type(value) is list:
        for k, entry in enumerate(value):
            if entry is not None:
                _envelope(entry, f"{path}[{k}]")
    else:
        _envelope(value, path)


def _envelope(value: Any, path: str) -> None:
    if type(value) is not dict:
        raise invalid_type(value, "struct KvHintsEnvelope", path)
    for key, expected in _ENVELOPE:
        if key not in value:
            raise BadRequest(f"missing field `{key}` at `{path}`")
        if type(value[key]) is not expected:
            raise invalid_type(value[key], "a string", f"{path}.{key}")
    actions = value.get("actions", [])
    if type(actions) is not list:
        raise invalid_type(actions, "an array", f"{path}.actions")
    for k, action in enumerate(actions):
        where = f"{path}.actions[{k}]"
        if type(action) is not dict:
            raise invalid_type(action, "struct KvHintAction", where)
        for key in _ACTION:
            if type(action.get(key)) is not str:
                raise invalid_type(action.get(key), "a string", f"{where}.{key}")
    check_finite(value, path)
