"""Options of our own, from SGLang's arguments and `TPC_*` variables. Owner: SGLang's processes.

Keys go from SGLang's arguments into `Options`, which reach the frontend over its link: never by a
command line.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from ... import access, modes
from ...config import Options
from ...environment import root_path
from .problem import Problem


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


def _limit(text: str) -> float:
    value = _seconds(text)
    if not value:
        raise ValueError
    return value


def _flag(text: str) -> bool:
    return bool(("0", "1").index(text))


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


DRAIN_S: Final = 30.0  # as in `Options`
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
        ("TPC_DRAIN_TIMEOUT", "drain_s", _seconds, _S, "running requests may take after SIGTERM"),
        ("TPC_RETIRE_TIMEOUT", "retire_s", _seconds, _S, "requests of a process that was replaced "
         "may take, 0: as long as they take"),
        ("TPC_STALL_TIMEOUT", "stall_s", _limit, _S, "a core may not turn before that is reported; "
         "after twice that its process is given up"),
        ("TPC_LINGER", "linger_s", _seconds, _S, "the client of a closed connection may take to "
         "close its side"),
        ("TPC_WRITE_TIMEOUT", "write_timeout_s", _seconds, _S, "a client may read nothing"),
        ("TPC_STREAM_BUFFER", "stream_buffer_bytes", _bytes, _B, "kept for a slow reader"),
        ("TPC_SSE_KEEP_ALIVE", "sse_keepalive_s", _seconds, _S, "between comments on a silent "
         "stream, 0: none"),
        ("TPC_SPIN_US", "spin_us", _seconds, "µs", "a core looks again before it sleeps"),
        ("TPC_SOCKET_BUFFER", "socket_buffer_bytes", _bytes, _B, "kernel's buffer of a connection"),
        ("TPC_BACKLOG", "backlog", _count, "number", "connections that wait to be accepted"),
        ("TPC_MAX_LOGPROBS", "max_logprobs", _whole, "number", "alternatives a position that a "
         "request may ask for"),
        ("TPC_MAX_LOGPROB_ENTRIES", "max_logprob_entries", _whole, "number", "of them at all "
         "positions of a request's prompts; more is 400"),
        ("TPC_ACCESS_LOG", "access_log", _flag, "0 or 1", "a line a request in the log"),
        ("TPC_REQUEST_ID_HEADERS", "request_id_headers", _flag, "0 or 1", "answers to requests "
         "without X-Request-Id get one, too"),
        ("TPC_LOG_FORMAT", "log_format", _format, "text or json", "of the frontend's log"),
        ("TPC_CORS_ALLOW_ORIGIN", "cors_origins", _origins, "origins, by comma", "web pages that "
         "may call, `none` for none"),
        ("TPC_ATTACH", "attach", str, "a path", "a socket where `tpc-server --attach` joins"),
    )
)  # fmt: skip
# SGLang's flags that its Rust server is not told of.
_FEATURES: Final = (
    ("enable_cache_report", "cache_report"),
    ("enable_custom_logit_processor", "custom_logit_processor"),
    ("enable_streaming_session", "streaming_session"),
)
FRONTENDS: Final = Setting(
    "TPC_FRONTENDS", "", _whole, "number", "processes that share the port (1); 0 with `TPC_ATTACH`"
)
MODE: Final = Setting(
    "TPC_MODE", "", str, " or ".join(modes.MODES), "where the cores run (with a GIL only "
    f"{modes.SIDECAR}, without one {modes.IN_PROCESS} unless told)"
)  # fmt: skip
# Options that no variable of ours sets, and why.
ABSENT: Final = {
    "uds": "SGLang names host and port",
    "api_keys": "--api-key",
    "admin_api_keys": "--admin-api-key",
    "cache_report": "--enable-cache-report",
    "custom_logit_processor": "--enable-custom-logit-processor",
    "streaming_session": "--enable-streaming-session",
    "grammars": "--grammar-backend",
    "header_overrides": "SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES",
    "health_timeout_s": "SGLANG_HEALTH_CHECK_TIMEOUT",
    "health_probe": "SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION",
    "registry_entry_s": "SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL",
    "show_openapi": "DISABLE_OPENAPI_DOC",
    "max_batch": "SGLANG_MAX_BATCH_REQS_PER_HTTP_REQ",
    "predict_route": "AIP_PREDICT_ROUTE",
    "root_path": "--fastapi-root-path",
    "warmup_timeout_s": "SGLANG_WARMUP_TIMEOUT",
    "manage_gc": "for tests: the collector's rule is none of an operator's",
    "plan": "SGLang says which CPUs, --tokenizer-worker-num and --detokenizer-worker-num the rest",
}


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
    setting = next(setting for setting in SETTINGS if setting.option == "drain_s")
    if not environ.get(setting.variable):
        return DRAIN_S
    return float(_value(setting, environ))


def frontends(environ: Mapping[str, str] = os.environ) -> int:
    """How many processes share the port."""
    return int(_value(FRONTENDS, environ)) if environ.get(FRONTENDS.variable) else 1


def check_together(environ: Mapping[str, str] = os.environ) -> None:
    """That mode, number of processes and guests can be had together. Raises Problem."""
    count, attach = frontends(environ), environ.get("TPC_ATTACH", "")
    try:
        mode = modes.mode(environ)
    except ValueError as error:
        raise Problem(str(error)) from None
    if mode == modes.IN_PROCESS and (count != 1 or attach):
        asked = f"TPC_ATTACH={attach}" if attach else f"TPC_FRONTENDS={count}"
        raise Problem(
            f"{asked}: the cores are threads of the scheduler's process here ({mode} mode), nobody"
            f" joins them; set TPC_MODE={modes.SIDECAR}"
        )
    if not count and not attach:
        raise Problem("TPC_FRONTENDS=0: nobody would serve; TPC_ATTACH says where one may join")


def options(args: Any, environ: Mapping[str, str] = os.environ) -> Options:
    """The frontend's options. Raises Problem, naming the variable or flag."""
    given: dict[str, Any] = {
        setting.option: _value(setting, environ)
        for setting in SETTINGS
        if environ.get(setting.variable)
    }
    for flag, option in _FEATURES:
        if getattr(args, flag, False):
            given[option] = True
    if getattr(args, "fastapi_root_path", None):
        given["root_path"] = root_path(args.fastapi_root_path)
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
