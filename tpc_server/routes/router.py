"""Finds the handler of a request. Owner: the core's thread.

A path that is written as declared costs one look-up. Anything else is tried again with its escapes
undone, then against the routes whose path ends in a parameter.
"""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from ..contract.errors import BadRequest
from ..http1 import HttpError, HttpRequest, RequestParser
from ..render import http
from .admission import AdmissionHandlers
from .beside import Elsewhere
from .control import ControlHandlers
from .health import HealthHandlers
from .info import InfoHandlers
from .metrics import MetricsHandlers
from .openai import OpenAIHandlers
from .parse import ParseHandlers
from .registry import RegistryHandlers
from .table import NOT_SERVED, REGISTRY, ROUTES, Route

if TYPE_CHECKING:
    from ..counters import Counters
    from ..stages.connections import Connection


class Router(
    OpenAIHandlers, ControlHandlers, ParseHandlers, HealthHandlers, InfoHandlers, MetricsHandlers,
    RegistryHandlers, AdmissionHandlers,
):  # fmt: skip
    """Handlers of one ingress core, by method and path."""

    def __init__(
        self, core: int, setup: Any, counters: Counters, link: Any, words: Any, generation: int
    ) -> None:
        super().__init__(core, setup, counters, link, words, generation)
        # This core's own tables: a shared dict with keys of bytes takes a lock at every look-up.
        self._handlers: dict[bytes, Any] = {}  # by method + path
        self._paths: dict[bytes, Route] = {}
        self._prefixes: list[tuple[bytes, Route]] = []
        self._root = setup.root_path.encode()
        for route in ROUTES:
            if route.handler in ("openapi", "docs") and not setup.show_openapi:
                continue
            if route.handler in REGISTRY and setup.registry_fd < 0:
                continue
            path, parameter, _ = route.path.partition("{")
            if parameter:
                self._prefixes.append((path.encode(), route))
                continue
            self._add(path.encode(), route)
        predict = setup.predict_route.encode()
        if predict.startswith(b"/") and predict not in self._paths:
            self._add(predict, self._paths[b"/vertex_generate"])

    def _add(self, path: bytes, route: Route) -> None:
        self._paths[path] = route
        for method in methods_of(route):
            handler = getattr(self, route.handler)
            self._handlers[method + path] = handler
            if self._root:
                self._handlers[method + self._root + path] = handler

    # -- finding -----------------------------------------------------------------------

    def find(self, path: bytes) -> tuple[Route | None, bytes]:
        """The route of an undecoded path, and the path as it is declared: without escapes, what a
        proxy puts before it, a slash that no route ends in."""
        if b"%" in path:
            path = unquote_to_bytes(path)
        root = self._root
        if root and path.startswith(root) and path[len(root) : len(root) + 1] in (b"", b"/"):
            path = path[len(root) :] or b"/"
        route = self._paths.get(path)
        if route is None and path.endswith(b"/"):
            route = self._paths.get(path[:-1])
            if route is not None:
                return route, path[:-1]
        if route is None:
            for prefix, candidate in self._prefixes:
                if path.startswith(prefix) and len(path) > len(prefix):
                    return candidate, path
        return route, path

    def refuse_early(self, parser: RequestParser) -> HttpError | None:
        """Before a body is read: whom no key opens it for; and before it is asked for by
        `100 Continue`: what would be refused anyway."""
        if self._guard is not None:
            refusal = self.locked_out(parser.method, parser.target, parser.headers)
            if refusal is not None:
                return refusal
        if not parser.wants_continue:
            return None
        if parser.method + parser.target in self._handlers:
            return None
        route, _ = self.find(parser.target)
        if route is None:
            return HttpError(404, "Not Found")
        return None if parser.method in methods_of(route) else HttpError(405, "Method Not Allowed")

    # -- dispatch ----------------------------------------------------------------------

    def dispatch(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """Answer a request now or open its group."""
        if self._stage.http_meter is not None:
            self._count(conn, request)
        if request.marked or self._guarded:
            try:
                admitted = self.admit(conn, request, close)
            except Exception as error:
                self._failed(conn, request, close, error)
                admitted = False
            if admitted:
                self._route(conn, request, close)
            self._stage.extra = b""
            return
        handler = self._handlers.get(request.method + request.path)
        if handler is None:
            handler = self._seek(conn, request, close)
            if handler is None:
                return
        self.handle(handler, conn, request, close)

    def _route(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        handler = self._seek(conn, request, close)
        if handler is not None:
            self.handle(handler, conn, request, close)

    def handle(self, handler: Any, conn: Connection, request: HttpRequest, close: bool) -> None:
        """Run a handler."""
        serial = self._serial
        try:
            handler(conn, request, close)
        except Elsewhere as where:
            self.decode_beside(conn, request, close, handler, where)
        except BadRequest as error:
            self.counters.errors += 1
            body = self.error_body(request.path, error.message, error.status)
            head_only = request.method == b"HEAD"
            self._stage.answer(conn, error.status, body, http.JSON, close, head_only)
        except Exception as error:
            if self._serial != serial:  # what it had begun cannot be taken back
                raise
            self._failed(conn, request, close, error)

    def _failed(
        self, conn: Connection, request: HttpRequest, close: bool, error: Exception
    ) -> None:
        """A fault of ours before anything was begun: this request pays for it, not the core."""
        stack = "".join(traceback.format_exception(error))
        self.setup.log("error", "a request could not be handled", core=self.core, stack=stack)
        self._error(conn, request, close, 500, "the server failed to handle this request")

    def _count(self, conn: Connection, request: HttpRequest) -> None:
        if conn.route >= 0:  # dispatched again, its body decompressed
            return
        meter = self._stage.http_meter
        number = meter.exact(request.path, request.method)
        if number is None:
            number = meter.number(self.find(request.path)[0], request.method)
        conn.route = number
        meter.began(number)

    def _seek(self, conn: Connection, request: HttpRequest, close: bool) -> Any:
        """The handler of a path that is in no table as it is written; None: it is answered."""
        route, request.path = self.find(request.path)
        if route is None:
            self._error(conn, request, close, 404, self._not_found(request.path))
            return None
        methods = methods_of(route)
        if request.method not in methods:
            extra = b"Allow: %b\r\n" % b", ".join(sorted(methods))
            self._error(conn, request, close, 405, "Method Not Allowed", extra)
            return None
        return getattr(self, route.handler)

    def _not_found(self, path: bytes) -> str:
        """What to call instead, where that is known."""
        path = path.rstrip(b"/")
        if b"/v1" + path in self._paths:
            path = b"/v1" + path
        elif path.startswith(b"/v1/v1/") and path[3:] in self._paths:  # a base URL with /v1 twice
            path = path[3:]
        elif path not in self._paths:
            if path.decode("latin-1") in NOT_SERVED:
                return f"Not Found: {path.decode()} is a route of SGLang that is not served here"
            return "Not Found"
        return f"Not Found: the route is {path.decode()}"


def methods_of(route: Route) -> list[bytes]:
    """The methods a route answers."""
    methods = [method.encode() for method in route.methods]
    return [*methods, b"HEAD"] if b"GET" in methods else methods
