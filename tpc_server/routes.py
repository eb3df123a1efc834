"""Which request is answered how, on one ingress core. Owner: the core's thread.

A handler answers at once through the ingress stage, or opens a group: one message to the detok
stage that will render the answer, then the jobs to the tokenize stage.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from . import frame, info, mesh
from .boundary import codec, messages
from .contract.abort import decode_abort
from .contract.errors import BadRequest, native_error_body
from .contract.generate import GenerateDecoder
from .http1 import HttpError, HttpRequest, RequestParser
from .render import http, native
from .render.plan import PROMPT_IDS
from .stages import stream as records

if TYPE_CHECKING:
    from .counters import Counters
    from .stages.base import Port
    from .stages.connections import Connection
    from .stages.ingress import IngressStage

_NS: Final = 1_000_000_000
_CONTROL_TIMEOUT_NS: Final = 2 * _NS
WARMUP_PROMPT: Final = "The capital city of France is"
_PROBE_PLAN: Final = (True, True, False, False, False, False, False, 0, False, False)
# Path -> methods it takes; a GET route answers HEAD too.
ROUTES: Final[dict[bytes, dict[bytes, str]]] = {
    b"/generate": {b"POST": "generate", b"PUT": "generate"},
    b"/abort_request": {b"POST": "abort"},
    b"/health": {b"GET": "health"},
    b"/health_generate": {b"GET": "health_generate"},
    b"/model_info": {b"GET": "model_info"},
    b"/get_model_info": {b"GET": "model_info"},
    b"/server_info": {b"GET": "server_info"},
    b"/get_server_info": {b"GET": "server_info"},
    b"/v1/models": {b"GET": "models"},
}


class Router:
    """Handlers of one ingress core."""

    def __init__(
        self, core: int, setup: Any, counters: Counters, link: Any, words: Any, generation: int
    ) -> None:
        self.core = core
        self.setup = setup
        self.counters = counters
        self._link = link
        self._most_held = link.stage_cap
        self._words = words
        self._decoder = GenerateDecoder(setup.limits)
        self._pack = codec.make_packer()
        self._model_body = native.to_json(setup.info.model)
        self._models_body = native.to_json(setup.info.models)
        # Unique for this start of this core, so that the scheduler never sees a rid twice.
        self._prefix = f"{core:02x}{generation & 0xFF:02x}{os.urandom(2).hex()}"
        self._serial = 0
        self.warming = False
        # This core's own table: a shared dict with keys of bytes takes a lock at every look-up.
        self._handlers: dict[bytes, Any] = {}
        for path, methods in ROUTES.items():
            for method, name in methods.items():
                self._handlers[method + path] = getattr(self, name)
                if method == b"GET":
                    self._handlers[b"HEAD" + path] = getattr(self, name)
        self._stage: Any = None
        self._tok_port: Any = None
        self._tok_core = 0
        self._detok_core = 0
        self._detok_ports: list[Port] = []

    def connect(
        self, stage: IngressStage, tok_port: Port, tok_core: int, detok_core: int,
        detok_ports: list[Port],
    ) -> None:  # fmt: skip
        """Ports, once all stages of the core exist."""
        self._stage = stage
        self._tok_port = tok_port
        self._tok_core = tok_core
        self._detok_core = detok_core
        self._detok_ports = detok_ports

    # -- dispatch --------------------------------------------------------------------

    def refuse_early(self, parser: RequestParser) -> HttpError | None:
        """Before a body is asked for by `100 Continue`: what would be refused anyway."""
        if parser.method + parser.target not in self._handlers:
            known = parser.target in ROUTES
            return HttpError(405, "Method Not Allowed") if known else HttpError(404, "Not Found")
        return None

    def dispatch(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """Answer a request now or open its group."""
        handler = self._handlers.get(request.method + request.path)
        if handler is None:
            self._no_route(conn, request, close)
            return
        try:
            handler(conn, request, close)
        except BadRequest as error:
            self.counters.errors += 1
            body = native_error_body(error.message, error.status)
            head_only = request.method == b"HEAD"
            self._stage.answer(conn, error.status, body, http.JSON, close, head_only)

    def _no_route(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        methods = ROUTES.get(request.path)
        if methods is None:
            self._error(conn, request, close, 404, "Not Found")
            return
        allowed = sorted({*methods, *([b"HEAD"] if b"GET" in methods else [])})
        extra = b"Allow: %b\r\n" % b", ".join(allowed)
        self._error(conn, request, close, 405, "Method Not Allowed", extra)

    def _error(
        self, conn: Connection, request: HttpRequest, close: bool, status: int, message: str,
        extra: bytes = b"",
    ) -> None:  # fmt: skip
        self.counters.errors += 1
        self._stage.answer(
            conn, status, native.error_body(message, status), http.JSON, close,
            request.method == b"HEAD", extra,
        )  # fmt: skip

    # -- handlers --------------------------------------------------------------------

    def generate(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST, PUT /generate."""
        wanted = self._decoder.decode(request.body)
        if self._tok_port.backlog > self._most_held:
            raise BadRequest("the server is overloaded; try again later", 503)
        created = time.monotonic_ns()
        jobs: list[tuple[Any, ...]] = []
        items: list[tuple[Any, ...]] = []
        for item in wanted.items:
            self._serial += 1
            wire_rid = f"{item.rid}#{self._prefix}{self._serial:08x}"
            plan = item.plan
            items.append((wire_rid, item.rid, plan, item.group))
            jobs.append(
                (
                    wire_rid, item.text, item.input_ids, item.wire, item.token_ids_logprob,
                    plan[PROMPT_IDS],
                )
            )  # fmt: skip
        self._open(
            conn.key, records.NATIVE, wanted.stream, wanted.is_batch, request.http11, close, False,
            b"", "", created, 0, items,
        )  # fmt: skip
        self._tok_port.send((frame.T_JOB, self._detok_core, jobs))

    def abort(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /abort_request: on whichever core the request is."""
        wanted = decode_abort(request.body)
        for rid in [None] if wanted.abort_all else wanted.rids:
            for port in self._detok_ports:
                port.send((frame.D_ABORT, rid))
        self._stage.answer(conn, 200, b"", http.TEXT, close)

    def health(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /health: 503 until warm and while draining, else a probe of the scheduler."""
        self._health(conn, request, close, self.setup.health_probe)

    def health_generate(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /health_generate: always a probe."""
        self._health(conn, request, close, True)

    def _health(self, conn: Connection, request: HttpRequest, close: bool, probe: bool) -> None:
        head_only = request.method == b"HEAD"
        if self._stage.draining or not self._words[mesh.READY]:
            self._stage.answer(conn, 503, b"", http.TEXT, close, head_only)
            return
        if not probe:
            self._stage.answer(conn, 200, b"", http.TEXT, close, head_only)
            return
        now = time.monotonic_ns()
        self._serial += 1
        rid = f"HEALTH_CHECK_{self._prefix}{self._serial:024x}"
        self._open(
            conn.key, records.HEALTH, False, False, request.http11, close, head_only, b"", "",
            now, now + self.setup.health_timeout_ns, [(rid, rid, _PROBE_PLAN, None)],
        )  # fmt: skip
        self._send_probe(rid, [0], 1)

    def warm_up(self) -> None:
        """One request of the server's own; the server is ready when its answer is in."""
        self.warming = True
        now = time.monotonic_ns()
        self._serial += 1
        rid = f"{self._prefix}{self._serial:024x}"
        self._open(
            self.core << 40, records.WARMUP, False, False, True, False, False, b"", "", now,
            now + self.setup.warmup_timeout_ns, [(rid, rid, _PROBE_PLAN, None)],
        )  # fmt: skip
        if self.setup.skip_tokenizer:
            self._send_probe(rid, [10, 11, 12], 8)
        else:
            self._send_probe(rid, None, 8)

    def _send_probe(self, rid: str, ids: list[int] | None, max_new_tokens: int) -> None:
        text = WARMUP_PROMPT if ids is None else None
        wanted = messages.generate_template()
        wanted[messages.GENERATE["input_text"]] = text
        wanted[messages.GENERATE["logprob_start_len"]] = 0  # as SGLang's own probes
        sampling = messages.sampling_template()
        sampling[messages.SAMPLING["max_new_tokens"]] = max_new_tokens
        sampling[messages.SAMPLING["top_k"]] = 1
        wanted[messages.GENERATE["sampling_params"]] = sampling
        self._tok_port.send(
            (frame.T_JOB, self._detok_core, [(rid, text, ids, wanted, None, False)])
        )

    def model_info(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /model_info."""
        self._json(conn, request, close, self._model_body)

    def models(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /v1/models."""
        self._json(conn, request, close, self._models_body)

    def server_info(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /server_info: static facts, live counters, the scheduler's internal state."""
        if not self._words[mesh.READY]:
            body = self.setup.info.server_body(info.core_counters(self._words, self._link), [])
            self._json(conn, request, close, body)
            return
        self._control(conn, request, close, "server_info", "GetInternalStateReq")

    def _json(self, conn: Connection, request: HttpRequest, close: bool, body: bytes) -> None:
        self._stage.answer(conn, 200, body, http.JSON, close, request.method == b"HEAD")

    # -- groups ----------------------------------------------------------------------

    def _control(
        self, conn: Connection, request: HttpRequest, close: bool, name: str, tag: str
    ) -> None:
        """Ask the scheduler something; the detok stage renders its answer as `name` says."""
        now = time.monotonic_ns()
        self._serial += 1
        rid = f"{self._prefix}{self._serial:024x}"
        self._open(
            conn.key, records.CONTROL, False, False, request.http11, close,
            request.method == b"HEAD", b"", name, now, now + _CONTROL_TIMEOUT_NS,
            [(rid, rid, _PROBE_PLAN, None)],
        )  # fmt: skip
        self._tok_port.send((frame.T_CONTROL, rid, messages.pack_control(self._pack, tag, rid)))

    def _open(
        self, key: int, api: int, is_stream: bool, is_batch: bool, chunked: bool, close: bool,
        head_only: bool, extra: bytes, name: str, created_ns: int, deadline_ns: int,
        items: list[tuple[Any, ...]],
    ) -> None:  # fmt: skip
        self._stage.detok_port.send(
            (
                frame.D_OPEN, key, api, is_stream, is_batch, chunked, close, head_only, extra,
                name, created_ns, deadline_ns, self._tok_core, items,
            )
        )  # fmt: skip
