"""What is decided before a request is routed: keys, origins, ids, codings, overrides. Owner: the
core's thread.

Only requests with a header that asks for it come here, and all of them where keys are set. Who may
call is decided by the route that `find` gives, which is the one that will be dispatched; what is no
route needs a key as any other.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, Final

from ..access import Cors, Guard
from ..body import whole
from ..contract.errors import (
    BadRequest,
    anthropic_error_body,
    native_error_body,
    openai_error_body,
)
from ..contract.values import decimal
from ..http1 import OVERRIDES, HttpError, HttpRequest
from ..inflate import Inflater, coding_of, supported
from ..render import http
from .base import Handlers
from .table import KEY, Route

if TYPE_CHECKING:
    from ..stages.connections import Connection

REFUSALS: Final = {401: b'{"error":"Unauthorized"}', 403: b'{"error":"Forbidden"}'}
_MOST_ID_BYTES: Final = 128
_GENERATING: Final = ("generate", "vertex", "chat", "completions", "messages")
_BARE_KEYS: Final = ("messages", "count_tokens")  # Anthropic's clients send no Authorization
_TEXTS: Final = ("rid", "bootstrap_host")
# Answered in OpenAI's shape beside what is under /v1/.
_OPENAI: Final = (
    "chat", "completions", "tokenize", "detokenize", "parse_function_call", "separate_reasoning",
)  # fmt: skip


class AdmissionHandlers(Handlers):
    """Admits requests, or answers them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        setup = self.setup
        keys, admin_keys = setup.key_digests, setup.admin_key_digests
        self._guard = Guard(keys, admin_keys) if keys or admin_keys else None
        self._cors = Cors(setup.cors_origins) if setup.cors_origins else None
        self._gives_ids = setup.request_id_headers
        self._overrides = setup.header_overrides
        self._max_body = setup.max_body_bytes
        self._guarded = self._guard is not None or self._gives_ids

    def find(self, path: bytes) -> tuple[Route | None, bytes]:
        """The router's."""
        raise NotImplementedError

    # -- keys --------------------------------------------------------------------------

    def unauthorized(self, method: bytes, path: bytes, headers: dict[bytes, bytes]) -> int:
        """0, or the status of the refusal."""
        if self._guard is None or method == b"OPTIONS":
            return 0
        route, _ = self.find(path)
        access, bare = KEY, None
        if route is not None:
            access = route.access
            if route.handler in _BARE_KEYS:
                bare = headers.get(b"x-api-key")
        return self._guard.refuses(access, headers.get(b"authorization"), bare)

    def locked_out(
        self, method: bytes, path: bytes, headers: dict[bytes, bytes]
    ) -> HttpError | None:
        """The same before a body is read, as what ends the connection; None: admitted."""
        status = self.unauthorized(method, path, headers)
        return HttpError(status, "", REFUSALS[status]) if status else None

    # -- every answer --------------------------------------------------------------------

    def extra_lines(self, headers: dict[bytes, bytes]) -> bytes:
        """Header lines of the answer to a request with these headers."""
        lines = b""
        origin = headers.get(b"origin")
        if origin is not None and self._cors is not None:
            lines = self._cors.lines(origin)
        name = headers.get(b"x-request-id")
        if name is not None:
            name = name.strip()
            if not (name and len(name) <= _MOST_ID_BYTES and name.isascii()
                    and name.decode().isprintable()):  # fmt: skip
                name = None
        if name is None and self._gives_ids:
            name = os.urandom(16).hex().encode()
        return lines if name is None else b"%bX-Request-Id: %b\r\n" % (lines, name)

    # -- admission -----------------------------------------------------------------------

    def admit(self, conn: Connection, request: HttpRequest, close: bool) -> bool:
        """Whether the request goes on to its handler now; if not, it is answered, or will be
        dispatched again once its body is decompressed."""
        headers = request.headers
        stage = self._stage
        stage.extra = self.extra_lines(headers)
        if stage.access_log is not None:
            stage.access_log.named(conn, stage.extra)
        if self._preflight(conn, request, close):
            return False
        status = self.unauthorized(request.method, request.path, headers)
        if status:
            self.counters.errors += 1
            stage.answer(
                conn, status, REFUSALS[status], http.JSON, close, request.method == b"HEAD",
                http.CHALLENGE if status == 401 else b"",
            )  # fmt: skip
            return False
        if not request.marked:
            return True
        try:
            if not self._decompressed(conn, request):
                return False
            if self._overrides:
                self._override(request)
        except BadRequest as error:
            self.refuse(conn, request, close, error)
            return False
        return True

    def refuse(
        self, conn: Connection, request: HttpRequest, close: bool, error: BadRequest
    ) -> None:
        """Answer a request whose body cannot be had."""
        self.counters.errors += 1
        body = self.error_body(request.path, error.message, error.status)
        extra = b"Accept-Encoding: %b\r\n" % supported().encode() if error.status == 415 else b""
        stage = self._stage
        stage.extra = self.extra_lines(request.headers)
        stage.answer(conn, error.status, body, http.JSON, close, request.method == b"HEAD", extra)
        stage.extra = b""

    def error_body(self, path: bytes, message: str, status: int) -> bytes:
        """An error that no handler told of, in the shape of the path's routes."""
        route, path = self.find(path)
        if path.startswith(b"/v1/messages"):
            return anthropic_error_body(message, status)
        openai = path.startswith(b"/v1/") or (route is not None and route.handler in _OPENAI)
        return (openai_error_body if openai else native_error_body)(message, status)

    def _preflight(self, conn: Connection, request: HttpRequest, close: bool) -> bool:
        headers = request.headers
        if (
            request.method != b"OPTIONS" or self._cors is None or b"origin" not in headers
            or b"access-control-request-method" not in headers
        ):  # fmt: skip
            return False
        status, body, extra = self._cors.preflight(headers)
        self._stage.answer(conn, status, body, http.TEXT, close, False, extra)
        return True

    def _decompressed(self, conn: Connection, request: HttpRequest) -> bool:
        """Whether the body is as it was before it was compressed; what takes longer goes on in
        slices beside other work, and the request is dispatched again then."""
        headers = request.headers
        encoding = headers.get(b"content-encoding")
        sglang = headers.get(b"x-body-compressed")
        if encoding is None and sglang is None:
            return True
        coding = coding_of(encoding, sglang)
        request.headers = {
            name: value for name, value in headers.items()
            if name not in (b"content-encoding", b"x-body-compressed")
        }  # fmt: skip
        if not coding:
            return True
        inflater = Inflater(coding, request.body, self._max_body)
        request.body = b""
        if not inflater.step():
            self._stage.inflating.queue.append((conn, request, inflater))
            return False
        request.body = inflater.body()
        return True

    def _override(self, request: HttpRequest) -> None:
        """Put what x-override-* headers say into the body, which stays opaque to the sender."""
        headers = request.headers
        given = [name for name in OVERRIDES if name in headers]
        if not given:
            return
        route, _ = self.find(request.path)
        if route is None or route.handler not in _GENERATING:
            return
        fields: dict[str, Any] = {}
        for name in given:
            value = headers[name].decode("latin-1")
            field = name.decode().removeprefix("x-override-").replace("-", "_")
            if field == "conversation_id":
                raise BadRequest(
                    f"{name.decode()} is not supported by this server: conversations are not kept"
                    " here"
                )
            if field in _TEXTS:
                fields[field] = value
                continue
            fields[field] = decimal(value)
            if fields[field] is None:
                raise BadRequest(
                    f"invalid {name.decode()} header {value[:64]!r}: it must be an integer"
                )
        request.body = _with_fields(whole(request.body), fields)


def _with_fields(body: bytes, fields: dict[str, Any]) -> bytes:
    """The object in `body` with these fields last, which are the ones that count.

    It is not decoded for that: a large body would hold up the core. What is no JSON object is none
    afterwards either, and is refused where the others are.
    """
    start = body.rstrip(b" \t\r\n")
    if not start.endswith(b"}"):
        return body
    start = start[:-1].rstrip(b" \t\r\n")
    comma = b"" if start.endswith(b"{") else b","
    return b"%b%b%b" % (start, comma, json.dumps(fields).encode()[1:])
