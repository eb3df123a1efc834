"""Compressed request bodies that take more than a slice. Owner: one ingress core.

One after another, a slice a turn: streams go on meanwhile, and only one body at a time grows.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from ..contract.errors import BadRequest
from ..http1 import HttpRequest
from ..inflate import Inflater
from .connections import Connection


class Inflating:
    """Requests in flight whose bodies are not whole yet."""

    __slots__ = ("queue",)

    def __init__(self) -> None:
        self.queue: deque[tuple[Connection, HttpRequest, Inflater]] = deque()

    def holds(self, conn: Connection) -> bool:
        """Whether the connection's request is here."""
        return any([waiting is conn for waiting, _, _ in self.queue])

    def step(self, stage: Any) -> None:
        """A slice of the first one; `stage` dispatches it again when that was the last."""
        conn, request, inflater = self.queue[0]
        if stage.connections.get(conn.key) is not conn:
            self.queue.popleft()  # its client is gone
            return
        try:
            if not inflater.step():
                return
            request.body = inflater.body()
        except BadRequest as error:
            self.queue.popleft()
            stage.router.refuse(conn, request, stage.closes(conn, request), error)
            return
        self.queue.popleft()
        stage.router.dispatch(conn, request, stage.closes(conn, request))
