"""The access log: a line a request, when it has ended. Owner: the ingress core.

Only where it was asked for. The writer thread formats the line; the status and the bytes come from
what goes into the socket, where egress runs on the core of the connection (elsewhere they are not
known, and left out).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ..http1 import HttpRequest
    from .connections import Connection

_ID: Final = b"X-Request-Id: "


class Tally:
    """Stands between a writer and its socket. It knows of neither: a cycle would never be freed."""

    __slots__ = ("_send", "_sendmsg", "sent", "status")

    def __init__(self, sock: Any) -> None:
        self._send = sock.send
        self._sendmsg = sock.sendmsg
        self.sent = 0
        self.status = 0  # of the answer that began last; 0: none since this was set

    def send(self, data: Any) -> int:
        """As of a socket."""
        if not self.status:
            self._look(data)
        sent: int = self._send(data)
        self.sent += sent
        return sent

    def sendmsg(self, parts: Any) -> int:
        """As of a socket."""
        if not self.status:
            self._look(parts[0])
        sent: int = self._sendmsg(parts)
        self.sent += sent
        return sent

    def _look(self, data: Any) -> None:
        head = bytes(data[:12])
        if head.startswith(b"HTTP/1.1 ") and head[9:10] != b"1" and head[9:].isdigit():
            self.status = int(head[9:])


class Line:
    """What is known of a request from its beginning."""

    __slots__ = ("began_ns", "method", "path", "request_id", "sent")

    def __init__(self, request: HttpRequest, sent: int) -> None:
        self.began_ns = time.monotonic_ns()
        self.method = request.method
        self.path = request.path
        self.request_id = request.headers.get(b"x-request-id")
        self.sent = sent


class AccessLog:
    """Of one core."""

    def __init__(self, log: Any) -> None:
        self._log = log

    def attach(self, conn: Connection) -> None:
        """Count what goes into the socket of a connection whose egress is on this core."""
        tally = conn.tally = Tally(conn.sock)
        conn.writer.send = tally.send
        conn.writer.sendmsg = tally.sendmsg

    def begin(self, conn: Connection, request: HttpRequest) -> None:
        """A request is in flight."""
        tally = conn.tally
        if tally is not None:
            tally.status = 0
        conn.line = Line(request, 0 if tally is None else tally.sent)

    def named(self, conn: Connection, lines: bytes) -> None:
        """The header lines of its answer, which may hold an id of our own making."""
        at = lines.find(_ID)
        if at >= 0 and conn.line is not None:
            at += len(_ID)
            conn.line.request_id = lines[at : lines.index(b"\r\n", at)]

    def end(self, conn: Connection, cut: bool = False) -> None:
        """Answered whole, or (`cut`) its peer is gone."""
        line = conn.line
        if line is None:
            return
        conn.line = None
        fields: dict[str, Any] = {
            "method": line.method.decode("latin-1") or "-",
            "path": line.path.decode("latin-1") or "-",
        }
        tally = conn.tally
        if tally is not None:
            fields["status"] = tally.status or None
            fields["bytes"] = tally.sent - line.sent
        fields["ms"] = round((time.monotonic_ns() - line.began_ns) / 1e6, 1)
        if line.request_id is not None:
            fields["id"] = line.request_id.decode("latin-1")
        if cut:
            fields["cut"] = True
        self._log("info", "request", **fields)
