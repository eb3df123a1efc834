"""/generate: the request's items to detok and tokenize. Owner: the core's thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from .. import frame
from ..boundary.messages import GENERATE, SAMPLING
from ..contract.errors import BadRequest
from ..contract.generate import GenerateDecoder, GenerateRequest
from ..contract.vertex import decode_vertex
from ..http1 import HttpRequest
from ..render.plan import PROMPT_IDS
from ..render.shape import PREDICTIONS
from ..stages import stream as records
from .beside import BesideHandlers

if TYPE_CHECKING:
    from ..contract.generate import Item
    from ..metrics.layout import Layout
    from ..stages.connections import Connection

_PRIORITY: Final = GENERATE["priority"]
_SESSION: Final = GENERATE["session_params"]
_SAMPLING: Final = GENERATE["sampling_params"]
# json_schema, regex, ebnf, structural_tag
_GRAMMARS: Final = slice(SAMPLING["json_schema"], SAMPLING["structural_tag"] + 1)


class GenerateHandlers(BesideHandlers):
    """The native route."""

    def generate(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST, PUT /generate."""
        wanted = self.read(request, self._decoder.decode, self._fresh)
        self.submit(conn, request, close, records.NATIVE, "", wanted)

    def vertex(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /vertex_generate: the same in another envelope."""
        wanted = self.read(request, partial(decode_vertex, self._decoder), self._fresh_vertex)
        if wanted is None:
            self._json(conn, request, close, b"[]")
        else:
            self.submit(conn, request, close, records.NATIVE, PREDICTIONS, wanted)

    def _fresh_vertex(self) -> Callable[[bytes], GenerateRequest | None]:
        return partial(decode_vertex, GenerateDecoder(self.setup.limits))

    def _fresh(self) -> Callable[[bytes], GenerateRequest]:
        return GenerateDecoder(self.setup.limits).decode

    def submit(
        self, conn: Connection, request: HttpRequest, close: bool, api: int, about: Any,
        wanted: GenerateRequest,
    ) -> None:  # fmt: skip
        """Open the group of a decoded request; `about` says how it is answered."""
        if self._tok_port.backlog > self._most_held:
            raise BadRequest("the server is overloaded; try again later", 503)
        created = time.monotonic_ns()
        jobs: list[tuple[Any, ...]] = []
        items: list[tuple[Any, ...]] = []
        for item in wanted.items:
            self._serial += 1
            wire_rid = f"{item.rid}#{self._prefix}{self._serial:08x}"
            plan = item.plan
            if item.wire[_SESSION] is None:
                items.append((wire_rid, item.rid, plan, item.group))
            else:  # the session knows it by its name on the wire: the client is told that one
                items.append((wire_rid, wire_rid, plan, item.group or item.rid))
            jobs.append(
                (
                    wire_rid, item.text, item.input_ids, item.wire, item.token_ids_logprob,
                    plan[PROMPT_IDS],
                )
            )  # fmt: skip
        meter: Any = None
        if self.layout is not None:
            meter = self._meter(self.layout, conn, wanted)
        stage = self._stage
        stage.detok_port.send(
            (
                frame.D_OPEN, conn.key, api, wanted.stream, wanted.is_batch, request.http11, close,
                False, stage.extra, about, created, 0, self._tok_core, items, meter,
            )
        )  # fmt: skip
        self._tok_port.send((frame.T_JOB, self._detok_core, jobs))

    def _meter(self, layout: Layout, conn: Connection, wanted: GenerateRequest) -> tuple[Any, ...]:
        label = structured = None
        if wanted.log_metrics:
            label = layout.label_text(wanted.custom_labels, wanted.items[0].wire[_PRIORITY])
            structured = _structured(wanted.items)
        return conn.route, label, structured


def _structured(items: list[Item]) -> list[bool] | None:
    """Which items follow a grammar; None: none does."""
    flags = [any(item.wire[_SAMPLING][_GRAMMARS]) for item in items]
    return flags if True in flags else None
