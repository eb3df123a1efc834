"""JSON values that are more than a number or a boolean, checked. Owner: stateless."""

from __future__ import annotations

from typing import Any, Final

from .errors import BadRequest, invalid_type, unknown_field

__all__ = [
    "as_float",
    "check_i64s",
    "choice",
    "custom_params",
    "decimal",
    "stop_ids",
    "strings",
    "watermark",
]

HUGE: Final = 1.7976931348623157e308  # the largest finite number
I64_MIN: Final = -(1 << 63)
I64_MAX: Final = (1 << 63) - 1
_WATERMARK_KEYS: Final = ("enabled", "key", "context_window")


def decimal(text: str, most_digits: int = 19) -> int | None:
    """The integer that a header, a query or a key has; None for anything else, as what Python alone
    would take: digits of other scripts, `1_0`."""
    digits = text.strip(" \t")
    negative = digits.startswith("-")
    digits = digits.removeprefix("-" if negative else "+")
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > most_digits:
        return None
    return -int(digits) if negative else int(digits)


def as_float(value: int) -> float:
    """A JSON integer where a number is wanted."""
    try:
        return float(value)
    except OverflowError:  # JSON numbers are floating point: too large is infinite
        return float("inf") if value > 0 else float("-inf")


def strings(value: Any, path: str) -> list[str]:
    """A string or a list of strings, as a list."""
    if type(value) is str:
        return [value]
    if type(value) is not list:
        raise invalid_type(value, "a string or an array of strings", path)
    for k, entry in enumerate(value):
        if type(entry) is not str:
            raise invalid_type(entry, "a string", f"{path}[{k}]")
    return value


def stop_ids(value: Any, path: str) -> list[int] | None:
    """Token ids without repetition, None for none."""
    if type(value) is not list:
        raise invalid_type(value, "an array of token ids", path)
    check_i64s(value, path)
    return list(dict.fromkeys(value)) or None  # a set on the other side


def check_i64s(value: list[Any], path: str) -> None:
    """Refuse a list that holds anything but 64-bit integers; quick on very many good ones."""
    if not value or (
        set(map(type, value)) == {int} and min(value) >= I64_MIN and max(value) <= I64_MAX
    ):
        return
    for k, entry in enumerate(value):
        if type(entry) is not int or not I64_MIN <= entry <= I64_MAX:
            raise invalid_type(entry, "an integer", f"{path}[{k}]")


_SCALARS: Final = frozenset((type(None), bool, int, float, str))


def custom_params(value: Any, path: str) -> dict[str, Any]:
    """An object of scalars, arrays of scalars and objects of scalars: what a scheduler takes."""
    if type(value) is not dict:
        raise invalid_type(value, "an object", path)
    for key, entry in value.items():
        where = f"{path}.{key}"
        if type(entry) is list:
            for k, inner in enumerate(entry):
                _custom_scalar(inner, f"{where}[{k}]")
        elif type(entry) is dict:
            for name, inner in entry.items():
                _custom_scalar(inner, f"{where}.{name}")
        else:
            _custom_scalar(entry, where)
    return value


def _custom_scalar(value: Any, path: str) -> None:
    if type(value) not in _SCALARS:
        raise invalid_type(value, "a scalar", path)
    if type(value) is int and not I64_MIN <= value < 1 << 64:
        raise invalid_type(value, "a 64-bit integer", path)
    if type(value) is float and not -HUGE <= value <= HUGE:
        raise BadRequest(f"number out of range at `{path}`")


def watermark(value: Any, path: str) -> None:
    """Only the explicit refusal of a watermark can be honoured."""
    if type(value) is not dict:
        raise invalid_type(value, "struct WatermarkRequestConfig", path)
    for key in value:
        if key not in _WATERMARK_KEYS:
            raise unknown_field(key, _WATERMARK_KEYS, path)
    if value.get("enabled") is not False:
        raise BadRequest(f"watermark is not supported by this server at `{path}`")


def choice(value: Any, path: str) -> None:
    """Nothing here can choose among given answers."""
    if strings(value, path):
        raise BadRequest(f"choice is not supported by this server at `{path}`")
