"""What a client is told when its request is refused. Owner: stateless.

One place decides the texts' frame and the body's shape, so that every build answers alike.
"""

from __future__ import annotations

import json
import re
from math import inf
from typing import Any, Final

__all__ = [
    "BadRequest",
    "TooMuchHere",
    "anthropic_error_body",
    "bad_value",
    "invalid_type",
    "native_error_body",
    "openai_error_body",
    "unknown_field",
]


class BadRequest(Exception):
    """A request that is refused before it reaches a scheduler: HTTP `status` and a text."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


class TooMuchHere(Exception):
    """So many generations that a core hands the body on rather than decode it itself."""


def native_error_body(message: str, status: int = 400) -> bytes:
    """Error body of the native routes.

    `{"error": {"message", "code"}}` holds both shapes clients read: one frontend of the protocol
    sends the message alone, the other adds the code.
    """
    return json.dumps(
        {"error": {"message": message, "code": status}},
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


# How texts name a field: by its place, as one that is missing or unknown, by their first word.
_AT: Final = re.compile(r"at `([^`]{1,200})`")
_FIELD: Final = re.compile(r"\b(?:missing|unknown) field `([^`]{1,200})`")
_FIRST: Final = re.compile(
    r"`?([a-z][a-z_]*(?:\[\d+\]|\.\w+){0,8})`?"
    r"(?:=\S{0,64}| of type \S{1,64}| '[^']{0,200}'| -?\d{1,99})?"
    r" (?:must|cannot|needs|requires|contains|leaves|names (?:no|token)|has \d|is \d|is not|is too"
    r"|is required)"
    r"|([a-z][a-z_]*(?:\.\w+){1,8}): "
)
_OPENAI_TYPES: Final = {
    401: "AuthenticationError",
    403: "PermissionDeniedError",
    404: "NotFoundError",
    413: "RequestEntityTooLargeError",
    429: "RateLimitError",
    501: "NotImplementedError",
    503: "ServiceUnavailableError",
}


def openai_error_body(
    message: str, status: int = 400, kind: str | None = None, param: str | None = None
) -> bytes:
    """Error body of the OpenAI routes, in the flat shape of SGLang's Python frontend.

    `param`: the field that a refusal's text names, where nothing else is given.
    """
    if param is None and 400 <= status < 500:
        param = _named(message)
    if kind is None:
        kind = _OPENAI_TYPES.get(
            status, "BadRequestError" if status < 500 else "InternalServerError"
        )
    return json.dumps(
        {"object": "error", "message": message, "type": kind, "param": param, "code": status},
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


_ANTHROPIC_TYPES: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error_body(message: str, status: int = 400) -> bytes:
    """Error body of the Anthropic routes."""
    kind = _ANTHROPIC_TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    return json.dumps(
        {"type": "error", "error": {"type": kind, "message": message}},
        ensure_ascii=False,
        separators=(",", ":"),
    ).encode()


def _named(message: str) -> str | None:
    """The field that a text of ours names."""
    found = _AT.search(message) or _FIELD.search(message) or _FIRST.match(message)
    return None if found is None else found[found.lastindex or 1]


def unexpected(value: Any) -> str:
    """A JSON value as type errors name it."""
    if value is None:
        return "null"
    if value is True or value is False:
        return f"boolean `{'true' if value else 'false'}`"
    if type(value) is int:
        # A number beyond 64 bits is read as a floating point one.
        if -(1 << 63) <= value < 1 << 64:
            return f"integer `{value}`"
        try:
            return f"floating point `{float(value)}`"
        except OverflowError:
            return f"floating point `{'inf' if value > 0 else '-inf'}`"
    if type(value) is float:
        return f"floating point `{value}`"
    if type(value) is str:
        shown = value if len(value) <= 64 else value[:64] + "…"
        return f'string "{shown}"'
    return "array" if type(value) is list else "object"


def invalid_type(value: Any, expected: str, path: str) -> BadRequest:
    """The value at `path` is of the wrong JSON type."""
    # An integer that is too long to be read as one is infinite.
    if expected == "an integer" and (type(value) is int or value in (inf, -inf)):
        expected = "a 64-bit integer"
    return BadRequest(f"invalid type: {unexpected(value)}, expected {expected} at `{path}`")


def bad_value(value: Any, expected: str, path: str) -> BadRequest:
    """The value at `path` is of the right type and out of its range."""
    return BadRequest(f"invalid value: {unexpected(value)}, expected {expected} at `{path}`")


def unknown_field(key: str, names: tuple[str, ...], path: str = "") -> BadRequest:
    """An object (the one at `path`) that takes no other key than `names` has `key`."""
    listed = ", ".join([f"`{name}`" for name in names])
    where = f" at `{path}`" if path else ""
    return BadRequest(f"unknown field `{key}`, expected one of {listed}{where}")
