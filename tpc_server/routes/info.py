"""Routes that say what the server and its model are. Owner: the core's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .. import info, mesh
from ..http1 import HttpRequest
from ..render import native
from .base import Handlers

if TYPE_CHECKING:
    from ..counters import Counters
    from ..stages.connections import Connection


class InfoHandlers(Handlers):
    """Static facts, rendered once a core; the scheduler's state on request."""

    def __init__(
        self, core: int, setup: Any, counters: Counters, link: Any, words: Any, generation: int
    ) -> None:
        super().__init__(core, setup, counters, link, words, generation)
        self._model_body = native.to_json(setup.info.model)
        self._models_body = native.to_json(setup.info.models)

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
