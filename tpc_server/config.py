"""Settings of the server that no scheduler knows of. Owner: read only after construction."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from . import access
from .environment import env_above_0, env_flag, env_number


@dataclass(frozen=True, slots=True)
class Options:
    """Limits and time-outs (seconds, bytes). The command line and `TPC_*` variables set them."""

    uds: str | None = None
    # Bearer keys of all routes but the open ones, and of administration. Any of them opens.
    api_keys: tuple[str, ...] = field(
        default_factory=lambda: access.gather("api-key", (), (), access.KEY_NAMES), repr=False
    )
    admin_api_keys: tuple[str, ...] = field(
        default_factory=lambda: access.gather("admin-api-key", (), (), access.ADMIN_KEY_NAMES),
        repr=False,
    )
    cors_origins: tuple[str, ...] = ("*",)  # web pages that may call; none: no CORS
    request_id_headers: bool = False  # answers to requests without x-request-id get one, too
    header_overrides: bool = field(
        default_factory=lambda: env_flag("SGLANG_ENABLE_REQUEST_HEADER_OVERRIDES", False)
    )
    max_head_bytes: int = 64 << 10
    max_body_bytes: int = 64 << 20
    max_connections: int = 16384  # per I/O core
    header_timeout_s: float = 10.0
    body_timeout_s: float = 60.0
    idle_timeout_s: float = field(
        default_factory=lambda: env_above_0("SGLANG_TIMEOUT_KEEP_ALIVE", 75.0)
    )
    write_timeout_s: float = 120.0
    linger_s: float = 2.0
    stream_buffer_bytes: int = 256 << 10
    sse_keepalive_s: float = 0.0
    drain_s: float = 30.0  # requests may take after a signal that ends the frontend
    retire_s: float = 0.0  # sidecar: those of a process that was replaced; 0: as long as they take
    stall_s: float = 5.0
    spin_us: float = 0.0
    socket_buffer_bytes: int = 0  # SO_SNDBUF of each connection; 0 leaves it to the kernel
    backlog: int = 4096
    grammars: bool = True
    max_batch: int = field(  # generations that a request may ask for
        default_factory=lambda: int(env_above_0("SGLANG_MAX_BATCH_REQS_PER_HTTP_REQ", 4096) + 0.5)
    )
    # Another path of /vertex_generate.
    predict_route: str = field(default_factory=lambda: os.environ.get("AIP_PREDICT_ROUTE", ""))
    root_path: str = ""  # a proxy may put this before every path
    max_logprobs: int = 1024  # alternatives a position that a request may ask for
    max_logprob_entries: int = 512 << 10  # of them at all positions of a request's prompts
    custom_logit_processor: bool = False  # requests may bring code of theirs to the scheduler
    streaming_session: bool = False
    cache_report: bool = False  # usage of the OpenAI routes says how much of a prompt was cached
    log_format: str = "text"
    access_log: bool = False  # a line a request, at level info
    attach: str | None = None  # sidecar: a UNIX socket where frontends join from outside
    manage_gc: bool = True
    plan: Any = None  # a ready CorePlan instead of the one made from the server's arguments
    health_timeout_s: float = field(
        default_factory=lambda: env_number("SGLANG_HEALTH_CHECK_TIMEOUT", 20.0)
    )
    health_probe: bool = field(
        default_factory=lambda: env_flag("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", True)
    )
    # How long a prefill server knows which rank serves a request.
    registry_entry_s: float = field(
        default_factory=lambda: env_number(
            "SGLANG_DISAGGREGATION_BOOTSTRAP_ENTRY_CLEANUP_INTERVAL", 120.0
        )
    )
    show_openapi: bool = field(default_factory=lambda: not env_flag("DISABLE_OPENAPI_DOC", False))
    warmup_timeout_s: float = field(
        default_factory=lambda: env_number("SGLANG_WARMUP_TIMEOUT", -1.0)
    )
