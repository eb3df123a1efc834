"""What the handlers of a core share: its ports, ids, and the ways to answer. Owner: its thread."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from .. import frame
from ..boundary import codec, messages
from ..contract.generate import GenerateDecoder
from ..http1 import HttpRequest
from ..render import http
from ..stages import stream as records

if TYPE_CHECKING:
    from ..counters import Counters
    from ..metrics.layout import Layout
    from ..stages.base import Port
    from ..stages.connections import Connection
    from ..stages.ingress import IngressStage

_CONTROL_TIMEOUT_NS: Final = 2_000_000_000
MOST_HERE: Final = 256  # generations of one body, decoded in a core's own turn
PROBE_PLAN: Final = (True, True, False, False, False, False, False, 0, False, False)


class Handlers:
    """State of one core's handlers; the handler modules add the methods."""

    def __init__(
        self, core: int, setup: Any, counters: Counters, link: Any, words: Any, generation: int
    ) -> None:
        self.core = core
        self.setup = setup
        self.counters = counters
        self._link = link
        self._most_held = link.stage_cap
        self._words = words
        self._decoder = GenerateDecoder(setup.limits, MOST_HERE)
        self._pack = codec.make_packer()
        # Unique for this start of this core, so that the scheduler never sees a rid twice, also
        # where several processes serve it.
        self._prefix = f"{core:02x}{generation & 0xFF:02x}{os.urandom(4).hex()}"
        self._serial = 0
        self.layout: Layout | None = setup.layout  # of metrics, where they are wanted
        self.warming = False
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

    def extra_lines(self, headers: dict[bytes, bytes]) -> bytes:
        """Header lines of every answer to a request with these headers; the admission's."""
        raise NotImplementedError

    def error_body(self, path: bytes, message: str, status: int) -> bytes:
        """An error in the shape of the path's routes; the admission's."""
        raise NotImplementedError

    # -- answers of this core ----------------------------------------------------------

    def _json(self, conn: Connection, request: HttpRequest, close: bool, body: bytes) -> None:
        self._stage.answer(conn, 200, body, http.JSON, close, request.method == b"HEAD")

    def _text(
        self, conn: Connection, request: HttpRequest, close: bool, status: int, body: bytes
    ) -> None:
        self._stage.answer(conn, status, body, http.TEXT, close, request.method == b"HEAD")

    def _error(
        self, conn: Connection, request: HttpRequest, close: bool, status: int, message: str,
        extra: bytes = b"",
    ) -> None:  # fmt: skip
        self.counters.errors += 1
        self._stage.answer(
            conn, status, self.error_body(request.path, message, status), http.JSON, close,
            request.method == b"HEAD", extra,
        )  # fmt: skip

    # -- groups ------------------------------------------------------------------------

    def _own_rid(self) -> str:
        """An id for a request of the server's own."""
        self._serial += 1
        return f"{self._prefix}{self._serial:020x}"

    def _control(
        self, conn: Connection, request: HttpRequest, close: bool, name: str, tag: str,
        timeout_ns: int = _CONTROL_TIMEOUT_NS, **fields: Any,
    ) -> str:  # fmt: skip
        """Ask the scheduler something; the detok stage renders its answer as `name` says.

        Returns the message's rid."""
        now = time.monotonic_ns()
        rid = self._own_rid()
        self._open(
            conn.key, records.CONTROL, False, False, request.http11, close,
            request.method == b"HEAD", b"", name, now, now + timeout_ns,
            [(rid, rid, PROBE_PLAN, None)],
        )  # fmt: skip
        header = messages.pack_control(self._pack, tag, rid, **fields)
        self._tok_port.send((frame.T_CONTROL, rid, header))
        return rid

    def _open(
        self, key: int, api: int, is_stream: bool, is_batch: bool, chunked: bool, close: bool,
        head_only: bool, extra: bytes, about: Any, created_ns: int, deadline_ns: int,
        items: list[tuple[Any, ...]], label: str | None = None,
        structured: list[bool] | None = None,
    ) -> None:  # fmt: skip
        """`label`: the label values of its metrics, None: not recorded; `structured`: which of
        its items follow a grammar, None: none."""
        meter: Any = None
        if self.layout is not None:
            conn = self._stage.connections.get(key)
            meter = (-1 if conn is None else conn.route, label, structured)
        stage = self._stage
        if stage.extra:
            extra += stage.extra
        stage.detok_port.send(
            (
                frame.D_OPEN, key, api, is_stream, is_batch, chunked, close, head_only, extra,
                about, created_ns, deadline_ns, self._tok_core, items, meter,
            )
        )  # fmt: skip
