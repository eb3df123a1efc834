"""How client connections end: EOF, close, linger, reset. Owner: the core that accepted them.

`ingress.py` beside this reads them and dispatches their requests.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from .. import connection, frame, reactor
from ..connection import N_EVENTS  # a global costs half of a module's
from ..fsm import ILLEGAL, IllegalTransition
from .connections import Connection

if TYPE_CHECKING:
    from ..counters import Counters
    from .accept import Acceptor
    from .access_log import AccessLog
    from .inflating import Inflating


class ConnectionEnds:
    """The connections of one ingress core, as far as their ends are concerned."""

    acceptor: Acceptor
    access_log: AccessLog | None
    inflating: Inflating

    def __init__(self, setup: Any, counters: Counters, poller: reactor.Reactor, router: Any):
        self.setup = setup
        self.counters = counters
        self.router = router
        self.connections: dict[int, Connection] = {}
        self.egress_port: Any = None
        self.egress_stage: Any = None  # when egress runs on this core
        self.detok_port: Any = None
        self.inflight = 0
        self.http_meter: Any = None  # of metrics, where they are wanted
        self._reactor = poller
        self._now_ns = 0
        self._edges = connection.MACHINE.compile()

    def _peer_eof(self, conn: Connection) -> None:
        """The peer sends no more: it has closed, or it only waits for its answer."""
        if not (conn.inflight or conn.queue):
            self._step(conn, connection.PEER_EOF)
            self._drop(conn)
            return
        conn.eof = True
        conn.deadline_ns = 0
        self._step(conn, connection.PEER_EOF)
        self._want(conn, 0)  # resets are reported all the same
        if conn.inflight:
            self.detok_port.send((frame.D_PROBE, conn.key))

    def _close(self, conn: Connection) -> None:
        """Close once what is queued has been written."""
        conn.deadline_ns = 0
        conn.close_after = True
        if self.egress_stage is not None:
            self.egress_stage.close_after_flush(conn.key)
        else:
            self.egress_port.send((frame.E_CLOSE, conn.key))

    def _detached(self, conn: Connection) -> None:
        """Everything is written: shut our side, then wait for the peer to close (a close with
        unread input would reset the connection and could destroy the answer)."""
        if conn.eof or conn.state == connection.CLOSED:
            self._forget(conn)
            return
        try:
            conn.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self._forget(conn)
            return
        conn.linger = True
        conn.deadline_ns = self._now_ns + self.setup.linger_ns
        self._want(conn, reactor.IN | reactor.RDHUP)

    def _reset(self, conn: Connection) -> None:
        """The peer is gone."""
        if self.router.beside:
            self.router.forget(conn.key)
        if conn.inflight:
            self.detok_port.send((frame.D_GONE, conn.key))
            self._landed(conn, True)
        self._drop(conn)

    def _landed(self, conn: Connection, cut: bool = False) -> None:
        """No request of the connection is in flight any more; `cut`: its peer is gone."""
        conn.inflight = False
        self.inflight -= 1
        self.counters.inflight = self.inflight
        if self.http_meter is not None:
            self.http_meter.ended(conn.route)
            conn.route = -1
        if conn.line is not None:
            self.access_log.end(conn, cut)  # type: ignore[union-attr]

    def _drop(self, conn: Connection) -> None:
        if self.egress_stage is not None:
            self.egress_stage.drop(conn.key)
        else:
            self.egress_port.send((frame.E_DROP, conn.key))
        self._forget(conn)

    def _forget(self, conn: Connection) -> None:
        if self.connections.pop(conn.key, None) is None:
            return
        if conn.state == connection.DRAINING:
            self._step(conn, connection.FLUSHED)
        elif conn.state != connection.CLOSED:
            self._step(conn, connection.RESET)
        self._reactor.unregister(conn.fd)
        conn.parser.close()
        conn.queue.clear()
        conn.writer = None
        conn.sock.close()
        self.acceptor.report(len(self.connections))

    def partner_lost(self, egress: bool) -> None:
        """A core that renders or writes for this one lost its state."""
        for conn in list(self.connections.values()):
            if egress:
                self._reset(conn)
            elif conn.inflight and not (
                conn.key in self.router.beside or self.inflating.holds(conn)
            ):
                # Its error answer may still be on the way; if it is not, and the core does not
                # know of it since its restart, the client must not wait.
                conn.deadline_ns = self._now_ns + self.setup.linger_ns
                self.detok_port.send((frame.D_CHECK, conn.key))

    def abandon(self) -> None:
        """A dying core: close every connection."""
        for conn in list(self.connections.values()):
            self._reactor.unregister(conn.fd)
            conn.parser.close()
            conn.sock.close()
        self.connections.clear()
        self.counters.inflight = 0
        self.acceptor.report(0)
        self.acceptor.stop()

    def _want(self, conn: Connection, mask: int) -> None:
        if conn.mask != mask:
            conn.mask = mask
            self._reactor.modify(conn.fd, mask)

    def _step(self, conn: Connection, event: int) -> None:
        after = self._edges[conn.state * N_EVENTS + event]
        if after == ILLEGAL:
            raise IllegalTransition(connection.MACHINE, conn.state, event)
        conn.state = after
