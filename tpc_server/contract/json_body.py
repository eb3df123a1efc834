"""JSON request bodies, read alike by every build. Owner: stateless.

`msgspec` where it is installed, else `jiter`, else the standard library. All are held to one
language: UTF-8 without a mark, no NaN or infinity, no half of a surrogate pair, no nesting beyond
MAX_DEPTH, an object on top, the last of two equal keys. What is refused is told in words of our
own, because the parsers' differ.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from math import isinf
from typing import Any, Final

from .errors import BadRequest

try:
    import jiter
except ImportError:
    _jiter: Any = None
else:
    _jiter = jiter

try:
    import msgspec
except ImportError:
    _msgspec: Any = None
else:
    _msgspec = msgspec

__all__ = ["MAX_DEPTH", "PARSERS", "check_finite", "parse_object"]

MAX_DEPTH: Final = 128  # of nested arrays and objects

# Readers take no longer integers (Python 4300 digits, jiter a character less for the sign).
_TOO_LONG: Final = re.compile(rb"[0-9]{4300}")
_SURROGATE: Final = re.compile(rb"\\u[dD][89abAB]|\\u[dD][c-fC-F]")


def parse_object_jiter(body: bytes) -> dict[str, Any]:
    """The object in `body`. Raises BadRequest. Floats may be infinite: see `check_finite`."""
    try:
        # Its string cache is shared by all threads and costs more than it saves there.
        value = _jiter.from_json(body, allow_inf_nan=False, cache_mode="none")
    except ValueError:
        if _TOO_LONG.search(body) is None:
            raise _refused(body) from None
        return _parse_stdlib(body, _LONG_DECODER)
    return _object(value, body)


def parse_object_msgspec(body: bytes) -> dict[str, Any]:
    """The object in `body`. Raises BadRequest. Floats may be infinite: see `check_finite`."""
    try:
        value = _msgspec_decode(body)
    except (ValueError, RecursionError):
        # It refuses some that the others take, `1e400` for one.
        return parse_object_stdlib(body)
    return _object(value, body)


def parse_object_stdlib(body: bytes) -> dict[str, Any]:
    """The object in `body`. Raises BadRequest. Floats may be infinite: see `check_finite`."""
    try:
        return _parse_stdlib(body, _DECODER)
    except BadRequest:
        if _TOO_LONG.search(body) is None:
            raise
        return _parse_stdlib(body, _LONG_DECODER)


def _parse_stdlib(body: bytes, decoder: json.JSONDecoder) -> dict[str, Any]:
    try:
        value = decoder.decode(str(body, "utf-8"))
    except (ValueError, RecursionError):
        raise _refused(body) from None
    if _SURROGATE.search(body) is not None and not _all_strings_encode(value):
        raise _refused(body)
    return _object(value, body)


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def _any_int(digits: str) -> int | float:
    """An integer of any length; one that Python would not read is as infinite as `1e400`."""
    return int(digits) if len(digits) - digits.startswith("-") <= 4300 else float(digits)


_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant)
_LONG_DECODER: Final = json.JSONDecoder(parse_constant=_no_constant, parse_int=_any_int)

_msgspec_decode: Any = _msgspec.json.Decoder().decode if _msgspec is not None else None

# Those this build has, by name; the first is used.
PARSERS: Final[dict[str, Callable[[bytes], dict[str, Any]]]] = {
    **({"msgspec": parse_object_msgspec} if _msgspec is not None else {}),
    **({"jiter": parse_object_jiter} if _jiter is not None else {}),
    "stdlib": parse_object_stdlib,
}
parse_object: Callable[[bytes], dict[str, Any]] = next(iter(PARSERS.values()))


def _object(value: Any, body: bytes) -> dict[str, Any]:
    # Fewer brackets than the limit cannot nest beyond it, so most bodies are not walked at all.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise _refused(body)
    if type(value) is not dict:
        kind = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
        got = kind.get(type(value), "a number")
        raise BadRequest(f"the request body must be a JSON object, got {got}")
    return value


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        inner: list[Any] = []
        for entry in level:
            if type(entry) is dict:
                inner.extend(entry.values())
            elif type(entry) is list:
                inner.extend(entry)
        level = [entry for entry in inner if type(entry) is dict or type(entry) is list]
        if not level:
            return False
    return True


def _all_strings_encode(value: Any) -> bool:
    level = [value]
    while level:
        inner: list[Any] = []
        for entry in level:
            if type(entry) is str:
                try:
                    entry.encode()
                except UnicodeEncodeError:
                    return False
            elif type(entry) is dict:
                inner.extend(entry)
                inner.extend(entry.values())
            elif type(entry) is list:
                inner.extend(entry)
        level = inner
    return True


# A string (one that never ends is taken to the end, so that no byte is looked at twice), a bracket,
# or anything between.
_TOKENS: Final = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)|[\[\]{}]|[^"\[\]{}]+', re.S)
_LOOKED_AT: Final = 65536  # bytes of a refused body that are searched for what is wrong
_MARGIN: Final = 16  # characters: a literal or an escape that is cut


def _refused(body: bytes) -> BadRequest:
    """Why `body` is refused, found from the body alone so that both parsers say the same."""
    if not body:
        return BadRequest("the request body is empty")
    if body.startswith(b"\xef\xbb\xbf"):
        return BadRequest("the request body starts with a byte order mark")
    try:
        str(body, "utf-8")
    except UnicodeDecodeError as error:
        return BadRequest(f"the request body is not valid UTF-8 at byte {error.start}")
    depth = 0
    for token in _TOKENS.finditer(body[:_LOOKED_AT]):
        lead = token[0][:1]
        if lead == b"[" or lead == b"{":
            depth += 1
            if depth > MAX_DEPTH:
                return BadRequest(f"the request body nests deeper than {MAX_DEPTH} levels")
        elif lead == b"]" or lead == b"}":
            depth -= 1
    return BadRequest(f"the request body is not valid JSON{_place(body)}")


def _place(body: bytes) -> str:
    """Where a body of good UTF-8 stops being JSON, as the standard library's reader finds it."""
    whole = len(body) <= _LOOKED_AT
    text = str(body[:_LOOKED_AT], "utf-8", "ignore")
    try:
        _LONG_DECODER.decode(text)
    except json.JSONDecodeError as error:
        string = error.msg.startswith("Unterminated string")
        # What is looked at may end in the middle of something.
        if not whole and (string or error.pos > len(text) - _MARGIN):
            return ""
        before = text[: error.pos].rstrip(" \t\r\n")
        if before.endswith(",") and text[error.pos : error.pos + 1] in ("]", "}"):
            before = before[:-1]  # a comma too many; readers before 3.13 blame what follows
        else:
            before = text[: error.pos]
        at = len(before.encode())
        if string:
            return f" at byte {at}: a string that does not end"
        return f" at byte {at}" + (": it ends too soon" if error.pos >= len(text) else "")
    except RecursionError:
        return ""
    except ValueError as error:  # of _no_constant
        return f": {error} is no number of JSON"
    return ": half of a surrogate pair" if _SURROGATE.search(body) is not None else ""


def check_finite(value: Any, path: str) -> None:
    """Refuse an infinite number (`1e400`) anywhere in a value that is passed on or ignored.

    Fields with a bound of their own refuse it there.
    """
    kind = type(value)
    if kind is float:
        if isinf(value):
            raise BadRequest(f"number out of range at `{path}`")
    elif kind is int:
        try:
            float(value)
        except OverflowError:
            raise BadRequest(f"number out of range at `{path}`") from None
    elif kind is list:
        kinds = set(map(type, value))
        if kinds == {int}:  # token ids, perhaps very many: only the outermost can be too large
            check_finite(max(value), path)
            check_finite(min(value), path)
        elif not kinds <= {str, bool, type(None)}:
            for k, entry in enumerate(value):
                check_finite(entry, f"{path}[{k}]")
    elif kind is dict:
        for key, entry in value.items():
            check_finite(entry, f"{path}.{key}")
