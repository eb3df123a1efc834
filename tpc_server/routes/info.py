"""Routes that say what the server and its model are. Owner: the core's thread."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from .. import info, mesh
from ..http1 import HttpRequest
from ..render import http, native
from .base import Handlers

if TYPE_CHECKING:
    from ..counters import Counters
    from ..stages.connections import Connection


# The page holds its script and style, and asks this server alone.
_OWN_ONLY: Final = (
    b"Content-Security-Policy: default-src 'none'; connect-src 'self'; "
    b"script-src 'unsafe-inline'; style-src 'unsafe-inline'\r\n"
)


class InfoHandlers(Handlers):
    """Static facts, rendered once a core; the scheduler's state on request."""

    def __init__(
        self, core: int, setup: Any, counters: Counters, link: Any, words: Any, generation: int
    ) -> None:
        super().__init__(core, setup, counters, link, words, generation)
        self._model_body = native.to_json(setup.info.model)
        self._models_body = native.to_json(setup.info.models)
        self._card_body = native.to_json(setup.info.models["data"][0])
        self._openapi_body = b""
        self._docs_body = b""
        server = setup.info.server
        self._version_body = native.to_json(
            {"version": server["version"], "frontend_version": server["frontend_version"]}
        )

    def model_info(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /model_info."""
        self._json(conn, request, close, self._model_body)

    def models(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /v1/models."""
        self._json(conn, request, close, self._models_body)

    def model(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /v1/models/{id}; an id may hold slashes."""
        name = request.path.removeprefix(b"/v1/models/").decode("utf-8", "replace")
        if name == self.setup.info.served:
            self._json(conn, request, close, self._card_body)
            return
        error = {
            "message": f"The model '{name}' does not exist", "type": "invalid_request_error",
            "param": "model", "code": "model_not_found",
        }  # fmt: skip
        self.counters.errors += 1
        self._stage.answer(
            conn, 404, native.to_json({"error": error}), http.JSON, close,
            request.method == b"HEAD",
        )  # fmt: skip

    def root(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /: what SGLang says here; clients look for it."""
        self._json(conn, request, close, b'"SGLang is running"')

    def version(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /version."""
        self._json(conn, request, close, self._version_body)

    def openapi(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /openapi.json, made when it is first asked for."""
        if not self._openapi_body:
            from ..openapi.document import document

            self._openapi_body = native.to_json(
                document(self.setup.info.server["version"], self.setup.root_path)
            )
        self._json(conn, request, close, self._openapi_body)

    def docs(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /docs: one page, nothing of it from elsewhere."""
        if not self._docs_body:
            from ..openapi import docs_html

            self._docs_body = docs_html()
        self._stage.answer(
            conn, 200, self._docs_body, http.HTML, close, request.method == b"HEAD", _OWN_ONLY
        )

    def server_info(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """GET /server_info: static facts, live counters, the scheduler's internal state."""
        if not self._words[mesh.READY]:
            body = self.setup.info.server_body(info.core_counters(self._words, self._link), [])
            self._json(conn, request, close, body)
            return
        self._control(conn, request, close, "server_info", "GetInternalStateReq")
