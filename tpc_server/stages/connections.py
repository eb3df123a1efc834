"""Record of one client connection. Owner: the ingress core that accepted it."""

from __future__ import annotations

import socket
from collections import deque
from typing import Any

from .. import connection
from ..http1 import HttpRequest, RequestParser


class Connection:
    """Socket, parser, requests that wait for their turn."""

    __slots__ = (
        "body_mark", "close_after", "deadline_ns", "eof", "fd", "inflight", "key",
        "line", "linger", "mask", "parser", "queue", "route", "sock", "state", "tally", "writer",
    )  # fmt: skip

    def __init__(self, key: int, sock: socket.socket, parser: RequestParser) -> None:
        self.key = key
        self.sock = sock
        self.fd = sock.fileno()
        self.parser: RequestParser = parser
        self.writer: Any = None
        # Of the access log, where there is one: the request in flight, bytes of the socket.
        self.line: Any = None
        self.tally: Any = None
        self.queue: deque[HttpRequest] = deque()  # pipelined behind the one in flight
        self.inflight = False
        self.route = -1  # number, in the metrics, of the route that the request in flight takes
        self.state = connection.OPEN_IDLE
        self.deadline_ns = 0  # 0: none; else the head, body or next request must come by then
        self.body_mark = -1  # bytes of the body that came when its time-out began; -1: no body yet
        self.mask = 0
        self.eof = False  # the peer sends no more
        self.close_after = False  # nothing more is read; close once what is queued is answered
        self.linger = False  # answered and shut: input is thrown away until the peer closes
