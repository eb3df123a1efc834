"""Options of our own, from SGLang's arguments and `TPC_*` variables. Owner: SGLang's processes.

Keys go from SGLang's arguments into `Options`, which reach the frontend over its link: never by a
command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ... import access
from ...config import Options
from .problem import Problem

DRAIN_S: Final = 30.0


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise ValueError
    return value


def _whole(text: str) -> int:
    value = int(text)
    if value < 0:
        raise ValueError
    return value


def _bytes(text: str) -> int:
    scale = {"k": 10, "m": 20, "g": 30}.get(text[-1:].lower(), 0)
    return _count(text[:-1] if scale else text) << scale


def _seconds(text: str) -> float:
    value = float(text)
    if not 0 <= value < 1e9:
        raise ValueError
    return value


def _format(text: str) -> str:
    if text not in ("text", "json"):
        raise ValueError
    return text


def _origins(text: str) -> tuple[str, ...]:
    return access.origins([part.strip() for part in text.split(",") if part.strip()])


class Setting(NamedTuple):
    """One variable: the option it sets, how it is read, what it is for."""

    variable: str
    option: str
    read: Callable[[str], Any]
    kind: str
    about: str


_S: Final = "seconds"
_B: Final = "bytes, or like 64M"
SETTINGS: Final = tuple(
    Setting(*row)
    for row in (
        ("TPC_MAX_CONNECTIONS", "max_connections", _count, "number", "connections of an I/O core"),
        ("TPC_MAX_BODY_SIZE", "max_body_bytes", _bytes, _B, "a larger request body is 413"),
        ("TPC_MAX_HEAD_SIZE", "max_head_bytes", _bytes, _B, "larger request headers are 431"),
        ("TPC_HEADER_TIMEOUT", "header_timeout_s", _seconds, _S, "for a request's headers"),
        ("TPC_BODY_TIMEOUT", "body_timeout_s", _seconds, _S, "for a request's body"),
        ("TPC_KEEP_ALIVE_TIMEOUT", "idle_timeout_s", _seconds, _S, "an idle connection lives"),
        ("TPC_WRITE_TIMEOUT", "write_timeout_s", _seconds, _S, "a client may read nothing"),
        ("TPC_STREAM_BUFFER", "stream_buffer_bytes", _bytes, _B, "kept for a slow reader"),
        ("TPC_SSE_KEEP_ALIVE", "sse_keepalive_s", _seconds, _S, "between comments on a silent "
         "stream, 0: none"),
        ("TPC_SPIN_US", "spin_us", _seconds, "µs", "a core looks again before it sleeps"),
        ("TPC_SOCKET_BUFFER", "socket_buffer_bytes", _bytes, _B, "kernel's buffer of a connection"),
        ("TPC_BACKLOG", "backlog", _count, "number", "connections that wait to be accepted"),
        ("TPC_LOG_FORMAT", "log_format", _format, "text or json", "of the frontend's log"),
        ("TPC_CORS_ALLOW_ORIGIN", "cors_origins", _origins, "origins, by comma", "web pages that "
         "may call, `none` for none"),
        ("TPC_ATTACH", "attach", str, "a path", "a socket where `tpc-server --attach` joins"),
    )
)  # fmt: skip
DRAIN: Final = Setting(
    "TPC_DRAIN_TIMEOUT", "", _seconds, _S, "running requests may take after SIGTERM"
)


FRONTENDS: Final = Setting(
    "TPC_FRONTENDS", "", _whole, "number", "processes that share the port (1); 0 with `TPC_ATTACH`"
)


def _value(setting: Setting, environ: Mapping[str, str]) -> Any:
    text = environ[setting.variable].strip()
    try:
        return setting.read(text)
    except access.AccessProblem as error:
        raise Problem(f"{setting.variable}: {error}") from None
    except ValueError:
        raise Problem(f"{setting.variable}={text}: must be {setting.kind}") from None


def drain_seconds(environ: Mapping[str, str] = os.environ) -> float:
    """How long running requests may take after SIGTERM."""
    if not environ.get(DRAIN.variable):
        return DRAIN_S
    return float(_value(DRAIN, environ))


def frontends(environ: Mapping[str, str] = os.environ) -> int:
    """How many processes share the port."""
    return int(_value(FRONTENDS, environ)) if environ.get(FRONTENDS.variable) else 1


def options(args: Any, environ: Mapping[str, str] = os.environ) -> Options:
    """The frontend's options. Raises Problem, naming the variable or flag."""
    given: dict[str, Any] = {
        setting.option: _value(setting, environ)
        for setting in SETTINGS
        if environ.get(setting.variable)
    }
    if getattr(args, "enable_cache_report", False):
        given["cache_report"] = True
    if str(getattr(args, "grammar_backend", "")) == "none":
        given["grammars"] = False
    try:
        for flag, option in (("api_key", "api_keys"), ("admin_api_key", "admin_api_keys")):
            key = getattr(args, flag, None)
            if key is not None:
                given[option] = (access.checked(key, f"--{flag.replace('_', '-')}"),)
        return Options(**given)
    except access.AccessProblem as error:
        raise Problem(str(error)) from None
