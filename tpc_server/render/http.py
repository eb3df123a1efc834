"""Response heads and chunk framing. Owner: stateless; bytes made at import are never changed.

Standard library only: runs in a subinterpreter too.
"""

from __future__ import annotations

import time
from http import HTTPStatus
from typing import Final

CRLF: Final = b"\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
CHALLENGE: Final = b"WWW-Authenticate: Bearer\r\n"  # of every 401
JSON: Final = b"application/json"
TEXT: Final = b"text/plain; charset=utf-8"
HTML: Final = b"text/html; charset=utf-8"

_REASON: Final = {int(s): s.phrase.encode() for s in HTTPStatus} | {499: b"Client Closed Request"}
_SSE: Final = (
    b"HTTP/1.1 %b\r\nContent-Type: text/event-stream; charset=utf-8\r\n"
    b"Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n%b%b\r\n"
)
OK: Final = b"200 OK"
_DAYS: Final = (b"Mon", b"Tue", b"Wed", b"Thu", b"Fri", b"Sat", b"Sun")
_MONTHS: Final = (
    b"", b"Jan", b"Feb", b"Mar", b"Apr", b"May", b"Jun", b"Jul", b"Aug", b"Sep", b"Oct", b"Nov",
    b"Dec",
)  # fmt: skip


def dated(second: int) -> bytes:
    """The usual status with the header Date behind it: made once a second, costs an answer
    nothing."""
    t = time.gmtime(second)
    return b"%b\r\nDate: %b, %02d %b %d %02d:%02d:%02d GMT" % (
        OK, _DAYS[t.tm_wday], t.tm_mday, _MONTHS[t.tm_mon], t.tm_year, t.tm_hour, t.tm_min,
        t.tm_sec,
    )  # fmt: skip


def answer(
    status: int, body: bytes, content_type: bytes, close: bool, head_only: bool,
    extra: bytes = b"", ok: bytes = OK,
) -> bytes:  # fmt: skip
    """A whole response; `extra` are header lines that end in CRLF, `head_only` is for HEAD, `ok`
    is what `dated` made."""
    # The usual status spares the shared table.
    if status == 200:
        line = ok
    else:
        line = b"%d %b%b" % (status, _REASON.get(status, b"Error"), ok[6:])
    head = b"HTTP/1.1 %b\r\nContent-Type: %b\r\nContent-Length: %d\r\n%b%b\r\n" % (
        line,
        content_type,
        len(body),
        extra,
        b"Connection: close\r\n" if close else b"",
    )
    return head if head_only else head + body


def stream_head(chunked: bool, close: bool, extra: bytes = b"", ok: bytes = OK) -> bytes:
    """Head of an event stream; without `chunked` (HTTP/1.0) the connection's end ends it."""
    tail = b"Transfer-Encoding: chunked\r\n" if chunked else b""
    if close or not chunked:
        tail += b"Connection: close\r\n"
    return _SSE % (ok, extra, tail)


def chunk_parts(parts: list[bytes | bytearray], chunked: bool) -> list[bytes | bytearray]:
    """Parts of a body framed as one HTTP chunk, or as they are."""
    if not chunked:
        return parts
    return [b"%x\r\n" % sum([len(part) for part in parts]), *parts, CRLF]


def chunk(data: bytes, chunked: bool) -> bytes:
    """`data` framed as one HTTP chunk, or as it is."""
    return b"%x\r\n%b\r\n" % (len(data), data) if chunked else data
