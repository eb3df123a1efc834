"""The health family and the warm-up request. Owner: the core's thread."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from .. import frame, mesh
from ..boundary import messages
from ..http1 import HttpRequest
from ..stages import stream as records
from .base import PROBE_PLAN, Handlers

if TYPE_CHECKING:
    from ..stages.connections import Connection

# The host that SGLang's two halves know to be none.
NOBODY: Final = "2.2.2.2"
WARMUP_PROMPT: Final = "The capital city of France is"


class HealthHandlers(Handlers):
    """Probes of the scheduler."""

    def health(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /health: 503 until warm and while draining, else a probe of the scheduler."""
        self._health(conn, request, close, self.setup.health_probe, b"")

    def health_generate(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /health_generate: always a probe."""
        self._health(conn, request, close, True, self.setup.health_lines)

    def _health(
        self, conn: Connection, request: HttpRequest, close: bool, probe: bool, lines: bytes
    ) -> None:
        """`lines`: header lines of the answer that all is well."""
        if self._stage.draining or not self._words[mesh.READY]:
            self._text(conn, request, close, 503, b"")
            return
        if not probe:
            self._text(conn, request, close, 200, b"")
            return
        now = time.monotonic_ns()
        self._serial += 1
        rid = f"HEALTH_CHECK_{self._prefix}{self._serial:020x}"
        self._open(
            conn.key, records.HEALTH, False, False, request.http11, close,
            request.method == b"HEAD", b"", lines, now, now + self.setup.health_timeout_ns,
            [(rid, rid, PROBE_PLAN, None)],
        )  # fmt: skip
        self._send_probe(rid, [0], 1)

    def ready(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /ready: whether requests will be served now, without asking the scheduler."""
        fit = self._fit() and not self._words[mesh.PAUSED]
        self._text(conn, request, close, 200 if fit else 503, b"")

    def ping(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /ping: the same, but a pause that somebody asked for is no reason to be replaced."""
        self._text(conn, request, close, 200 if self._fit() else 503, b"")

    def _fit(self) -> bool:
        words = self._words
        return bool(words[mesh.READY] and not words[mesh.SILENT] and not self._stage.draining)

    def live(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /live: this core answers."""
        self._text(conn, request, close, 200, b"")

    def warm_up(self) -> None:
        """One request of the server's own; the server is ready when its answer is in."""
        self.warming = True
        now = time.monotonic_ns()
        rid = self._own_rid()
        self._open(
            self.core << 40, records.WARMUP, False, False, True, False, False, b"", "", now,
            now + self.setup.warmup_timeout_ns, [(rid, rid, PROBE_PLAN, None)],
            # As in SGLang, where it is a request as any other; probes are not recorded.
            self.layout.label_text(None, None) if self.layout is not None else None,
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
        if self.setup.is_half:  # nobody is on the other side of a request of our own
            wanted[messages.GENERATE["bootstrap_host"]] = NOBODY
            wanted[messages.GENERATE["bootstrap_room"]] = 0
        wanted[messages.GENERATE["sampling_params"]] = sampling
        self._tok_port.send(
            (frame.T_JOB, self._detok_core, [(rid, text, ids, wanted, None, False)])
        )
