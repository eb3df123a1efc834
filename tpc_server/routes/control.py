"""Routes that tell the scheduler something. Owner: the core's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import frame
from ..contract.abort import decode_abort
from ..http1 import HttpRequest
from .base import Handlers

if TYPE_CHECKING:
    from ..stages.connections import Connection


class ControlHandlers(Handlers):
    """Aborts."""

    def abort(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """POST /abort_request: on whichever core the request is."""
        wanted = decode_abort(request.body)
        for rid in [None] if wanted.abort_all else wanted.rids:
            for port in self._detok_ports:
                port.send((frame.D_ABORT, rid))
        self._text(conn, request, close, 200, b"")
