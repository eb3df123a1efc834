"""HTTP/1.1 requests out of bytes, without I/O. Owner: the core that owns the connection.

One parser per connection (llhttp by way of httptools, strict). A request is handed out whole;
limits are checked while it arrives, so that nothing over a limit is kept.
"""

from __future__ import annotations

from typing import Any, Final

import httptools

from .body import gathered
from .chunks import Chunks
from .target import is_authority, is_target, origin_form

# Headers that ask for something beyond the answer: a request with one of them is `marked`.
OVERRIDES: Final = (
    b"x-override-rid", b"x-override-bootstrap-host", b"x-override-bootstrap-port",
    b"x-override-bootstrap-room", b"x-override-conversation-id", b"x-override-routed-dp-rank",
    b"x-override-disagg-prefill-dp-rank", b"x-override-priority",
)  # fmt: skip
# Of the OpenAI routes: which rank serves, and what a router sorts requests by.
ROUTED: Final = (b"x-data-parallel-rank", b"x-smg-routing-key")
MARKED: Final = frozenset(
    (b"origin", b"x-request-id", b"content-encoding", b"x-body-compressed", *OVERRIDES, *ROUTED)
)
KEPT: Final = MARKED | frozenset(
    (b"host", b"expect", b"content-length", b"transfer-encoding", b"authorization", b"x-api-key",
     b"x-custom-labels", b"access-control-request-method", b"access-control-request-headers")
)  # fmt: skip
# Of a head that is remembered: how long at most, how many, and what none of them has.
_HEAD_BYTES: Final = 2048
_MOST_HEADS: Final = 512
_EARLY: Final = b"expect"
# What a chunk's framing may take without being an abuse: its size in digits, two line ends.
_CHUNK_FRAMING: Final = 24
_INITIALS: Final = frozenset(b"".join([name[:1] + name[:1].upper() for name in KEPT]))


class HttpRequest:
    """One complete request. `path` is undecoded and without the query."""

    __slots__ = (
        "body", "headers", "http11", "keep_alive", "marked", "method", "path", "query", "refusal",
    )  # fmt: skip

    def __init__(
        self, method: bytes, path: bytes, query: bytes, headers: dict[bytes, bytes], body: Any,
        http11: bool, keep_alive: bool, marked: bool,
    ) -> None:  # fmt: skip
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers  # lower-cased names, only those in KEPT; requests may share them
        self.body = body  # bytes, or `body.Pieces`
        self.http11 = http11
        self.keep_alive = keep_alive
        self.marked = marked  # has a header in MARKED
        self.refusal: HttpError | None = None  # stands for input that is no request


def refused(error: HttpError, parser: RequestParser) -> HttpRequest:
    """What takes the place of unusable input in a connection's queue."""
    method = b"HEAD" if parser.head_only else b""
    path = parser.target if parser.started else b""
    request = HttpRequest(method, path, b"", parser.headers, b"", True, False, True)
    request.refusal = error
    return request


class HttpError(Exception):
    """What makes the rest of a connection's input unusable; `status` answers it, with `body`
    where it is not the usual one."""

    def __init__(self, status: int, message: str, body: bytes | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.body = body


class RequestParser:
    """Feeds bytes, collects requests in `ready`. After HttpError it must not be fed again."""

    __slots__ = (
        "_body",
        "_chunks",
        "_counts",
        "_head_bytes",
        "_headers",
        "_http11",
        "_max_body",
        "_max_head",
        "_parser",
        "_raw_bytes",
        "_refused",
        "_tail",
        "_url",
        "body_bytes",
        "in_body",
        "ready",
        "started",
        "wants_continue",
    )

    def __init__(self, max_head_bytes: int, max_body_bytes: int) -> None:
        self._max_head = max_head_bytes
        self._max_body = max_body_bytes
        self._parser: Any = httptools.HttpRequestParser(self)
        self._refused: HttpError | None = None
        self._counts = True
        self._head_bytes = 0  # of whole lines
        self._raw_bytes = 0  # of what was fed while the head was incomplete
        self.ready: list[HttpRequest] = []
        self.in_body = False
        self.wants_continue = False
        self._http11 = True
        self._body: list[bytes] = []
        self.body_bytes = 0
        self._tail = b""  # of the head that is arriving: what came before the last read
        self._url = b""
        self.on_message_begin()
        self.started = False  # inside a request

    def feed(self, data: bytes) -> None:
        """Raises HttpError: 400 malformed, 413 body, 417 expectation, 431 head too large, 501
        transfer coding, 505 version."""
        # Lines are counted only where all bytes of a head could be too many.
        counts = len(data) + self._raw_bytes > self._max_head
        if counts and not self._counts:
            self._head_bytes = self._raw_bytes
        self._counts = counts
        complete = len(self.ready)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._ignore_upgrade(data[upgrade.args[0] :])
            return
        except httptools.HttpParserError as error:
            if self._refused is not None:
                raise self._refused from None
            text = str(error)
            # The second is what llhttp says to the preface of HTTP/2.
            if text in ("Invalid HTTP version", "Pause on PRI/Upgrade"):
                raise HttpError(505, "only HTTP/1.1 and HTTP/1.0 are supported") from None
            raise HttpError(400, f"malformed request: {text}") from None
        if self.in_body:
            if self._chunks is not None:
                self._check_chunks(self._chunks, data, len(self.ready) == complete)
        elif self.started:
            # A line that never ends reaches no callback.
            # What followed a whole request in the same read is at most that read: not counted.
            self._raw_bytes = self._raw_bytes + len(data) if len(self.ready) == complete else 0
            if self._raw_bytes > self._max_head:
                raise HttpError(431, f"request head is larger than {self._max_head} bytes")
            self._tail = (self._tail + data)[-3:]

    def _ignore_upgrade(self, rest: bytes) -> None:
        """Take the request that asks for another protocol as an ordinary one (RFC 9110, 7.8).

        llhttp has passed it without its body: another parser gets a head that asks for nothing,
        then the body.
        """
        request = self.ready[-1]
        self._parser = httptools.HttpRequestParser(self)
        if request.method == b"CONNECT":
            request.keep_alive = False  # what follows is no HTTP
            return
        headers = request.headers
        if b"transfer-encoding" in headers or int(headers.get(b"content-length", b"0")):
            self.ready.pop()
            lines = [b"%b %b HTTP/1.%d" % (request.method, self._url, request.http11)]
            lines += [b"%b: %b" % line for line in headers.items()]
            if not request.keep_alive:
                lines.append(b"connection: close")
            self.feed(b"\r\n".join([*lines, b"", b""]))
        if rest:
            self.feed(rest)

    def _check_chunks(self, chunks: Chunks, data: bytes, alone: bool) -> None:
        """A chunked body goes on: refuse an announced size, and framing without end."""
        at = 0
        if chunks.wire_bytes < 0:  # its head has ended just now
            chunks.wire_bytes = self.body_bytes
            at = self._body_at(data) if alone else -1
        else:
            chunks.wire_bytes += len(data)
            if chunks.wire_bytes - self.body_bytes > self._max_head + chunks.framing_bytes:
                raise HttpError(
                    431, f"chunk extensions and trailers are larger than {self._max_head} bytes"
                )
        if not chunks.scan(data, at):
            raise HttpError(413, f"request body is larger than {self._max_body} bytes")

    def _body_at(self, data: bytes) -> int:
        """Where the body starts in the read that ended the only request's head."""
        tail = self._tail  # of what came of this head before
        start = 0 if tail else len(data) - len(data.lstrip(b"\r\n"))
        end: int = (tail + data).index(b"\r\n\r\n", start) + 4
        return end - len(tail)

    @property
    def headers(self) -> dict[bytes, bytes]:
        """Kept headers of the request that is arriving, once its head is whole."""
        return self._headers if self._chunks is None else self._chunks.headers

    @property
    def head_only(self) -> bool:
        """Whether what is arriving is known to be a HEAD request: its answer has no body."""
        return bool(self.started and self._url and self._parser.get_method() == b"HEAD")

    @property
    def target(self) -> bytes:
        """Path of the request that is arriving, once its head is whole."""
        path = self._url.partition(b"?")[0]
        return path if path.startswith(b"/") else origin_form(path)

    @property
    def method(self) -> bytes:
        """Method of the request that is arriving, once its head is whole."""
        return bytes(self._parser.get_method())

    def close(self) -> None:
        """Break the cycle with the C parser; nothing may be fed afterwards."""
        self._parser = None

    # -- callbacks of httptools; an exception out of one ends feed_data ---------------

    def on_message_begin(self) -> None:
        """First byte of a request."""
        self.started = True
        self._head_bytes = 0
        self._raw_bytes = 0
        self._tail = b""
        self._url = b""
        self._chunks: Chunks | None = None
        self._headers: dict[bytes, bytes] = {}
        self.body_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._url += url
        if len(self._url) > self._max_head:
            self._refuse(431, f"request head is larger than {self._max_head} bytes")

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header line."""
        if self._counts:
            self._head_bytes += len(name) + len(value) + 4
            if self._head_bytes > self._max_head:
                self._refuse(431, f"request head is larger than {self._max_head} bytes")
        # The first letter spares most names the rest.
        if name[0] in _INITIALS:
            name = name.lower()
            if name in KEPT:
                headers = self._headers
                if name in headers:
                    value = self._again(name, value)
                headers[name] = value

    def on_headers_complete(self) -> None:
        """The head is whole: refuse early what would be refused anyway."""
        self.in_body = True
        headers = self._headers
        version = self._parser.get_http_version()
        self._http11 = version == "1.1"
        if self._http11:
            if b"host" not in headers:
                self._refuse(400, "a request needs a Host header")
        elif version != "1.0":
            self._refuse(505, "only HTTP/1.1 and HTTP/1.0 are supported")
        if b"host" in headers and not is_authority(headers[b"host"]):
            self._refuse(400, "malformed request: Host must be a host, perhaps with a port")
        if not self._url.startswith(b"/") and not is_target(self._url):
            self._refuse(400, "malformed request: the target's host is none")
        length = headers.get(b"content-length")
        if length is not None and int(length) > self._max_body:
            self._too_large()
        coding = headers.get(b"transfer-encoding")
        if coding is not None:
            self._chunked(coding)
        expect = headers.get(b"expect")
        if expect is not None:
            if expect.strip().lower() != b"100-continue":
                self._refuse(417, "only `Expect: 100-continue` is supported")
            self.wants_continue = length != b"0" and self._http11

    def on_chunk_header(self) -> None:
        """The line before a chunk."""
        if self._chunks is not None:
            self._chunks.framing_bytes += _CHUNK_FRAMING

    def on_body(self, data: bytes) -> None:
        """A piece of the body."""
        self.wants_continue = False
        self.body_bytes += len(data)
        if self.body_bytes > self._max_body:
            self._too_large()
        self._body.append(data)

    def on_message_complete(self) -> None:
        """The request is whole."""
        parser = self._parser
        path, _, query = self._url.partition(b"?")
        if not path.startswith(b"/"):
            path = origin_form(path)
        body = self._body
        headers = self._headers if self._chunks is None else self._chunks.headers
        self.ready.append(
            HttpRequest(
                parser.get_method(),
                path,
                query.partition(b"#")[0],
                headers,
                body[0] if len(body) == 1 else gathered(body, self.body_bytes),
                self._http11,
                parser.should_keep_alive(),
                not MARKED.isdisjoint(headers),
            )
        )
        self._body = []
        self.started = False
        self.in_body = False
        self.wants_continue = False

    def _again(self, name: bytes, value: bytes) -> bytes:
        """A header that is there already."""
        if name in (b"host", b"authorization", b"x-api-key"):
            self._refuse(400, f"more than one {name.decode().title()} header")
        if name == b"transfer-encoding":
            return self._headers[name] + b"," + value
        return value

    def _chunked(self, coding: bytes) -> None:
        *others, last = coding.lower().split(b",")
        if last.strip() != b"chunked" or not self._http11:
            self._refuse(400, "malformed request: Transfer-Encoding")
        if others:
            self._refuse(501, "only `Transfer-Encoding: chunked` is supported")
        # Trailers go where nobody looks: none takes the place of a header.
        self._chunks = Chunks(self._max_body, self._headers)
        self._headers = {}

    def _too_large(self) -> None:
        self._refuse(413, f"request body is larger than {self._max_body} bytes")

    def _refuse(self, status: int, message: str) -> None:
        self._refused = HttpError(status, message)
        raise self._refused


class KnownHeads:
    """Heads that came before, byte for byte, and what they meant. Owner: one core.

    Clients repeat their head. A read that holds one of these and its whole body is that request
    again with another body: the parser, between two requests, need not see it. Only heads of the
    usual kind are kept: HTTP/1.1, staying open, nothing to be answered before the body.
    """

    __slots__ = ("_heads",)

    def __init__(self) -> None:
        self._heads: dict[bytes, tuple[Any, ...]] = {}

    def find(self, data: bytes) -> HttpRequest | None:
        """The request that is exactly `data`; None where the parser has to say."""
        end = data.find(b"\r\n\r\n") + 4
        known = self._heads.get(data[:end])
        if known is None:
            return None
        body_bytes, method, path, query, headers, marked = known
        if len(data) != end + body_bytes:
            return None
        return HttpRequest(method, path, query, headers, data[end:], True, True, marked)

    def learn(self, data: bytes, request: HttpRequest) -> None:
        """`data` was read between two requests, and the parser made just this one of it."""
        end = data.find(b"\r\n\r\n") + 4
        # A chunked body, or blank lines before the head, make the lengths differ.
        usual = request.http11 and request.keep_alive and len(data) - end == len(request.body)
        if not usual or end > _HEAD_BYTES or _EARLY in request.headers:
            return
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        self._heads[data[:end]] = (
            len(request.body), request.method, request.path, request.query, request.headers,
            request.marked,
        )  # fmt: skip
