"""Ingress: accept, read, parse, dispatch. Owner: the core that runs the stage.

Requests of one connection are answered in order: one is in flight, the others wait here. What
a request means is in `routes/`; answers go to the egress stage that was attached to the
connection. How connections end is in `connection_ends.py`.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from .. import connection, frame, reactor
from ..connection import ANSWERED, OPEN_IDLE  # a global costs half of a module's
from ..http1 import HttpError, HttpRequest, KnownHeads, RequestParser, refused
from ..reactor import BROKEN, IN
from ..render import http, native
from .accept import Acceptor
from .access_log import AccessLog
from .connection_ends import ConnectionEnds
from .connections import Connection
from .inflating import Inflating
from .writers import RemoteWriter

if TYPE_CHECKING:
    from ..counters import Counters

KEY_BITS: Final = 40  # a connection key is ingress core << KEY_BITS | serial
_RECV_BYTES: Final = 65536
_MAX_PIPELINED: Final = 64
_BODY_STEP: Final = 65536
_PAUSE_NS: Final = 2_000_000_000


class IngressStage(ConnectionEnds):
    """Connections whose input is read on this core."""

    name = "ingress"

    def __init__(
        self, core: int, generation: int, setup: Any, counters: Counters, poller: reactor.Reactor,
        listeners: list[socket.socket], router: Any,
    ) -> None:  # fmt: skip
        super().__init__(setup, counters, poller, router)
        self.inbox: deque[frame.Message] = deque()
        self.core = core
        self.acceptor = Acceptor(core, setup, counters, poller, listeners, self._adopt)
        # Keys of a connection are never used again, also not after this core was rebuilt.
        self._serial = generation << 28
        reading = self._edges[connection.OPEN_IDLE * connection.N_EVENTS + connection.BYTES]
        # Where a whole request in one read leads.
        self._whole = self._edges[reading * connection.N_EVENTS + connection.REQUEST]
        self._heads = KnownHeads()
        self.draining = False  # no more connections at all
        self.leaving = False  # every answer is its connection's last
        self._second = int(time.time())
        self.ok = http.dated(self._second)  # how the usual answer begins
        self.access_log = AccessLog(setup.log) if setup.access_log else None
        self.extra = b""  # header lines of every answer to the request that is being dispatched
        self.inflating = Inflating()

    # -- stage protocol --------------------------------------------------------------

    def poll(self, budget: int) -> int:
        """Messages of egress and of other cores."""
        inbox = self.inbox
        done = 0
        while inbox and done < budget:
            message = inbox.popleft()
            done += 1
            kind = message[0]
            if kind == frame.I_HANDOVER:
                self._adopt(socket.socket(fileno=message[1]))
                continue
            conn = self.connections.get(message[1])
            if conn is None:
                continue
            if kind == frame.I_ANSWERED:
                self._answered(conn, message[2])
            elif kind == frame.I_BROKEN:
                self._reset(conn)
            elif kind == frame.I_DETACHED:
                self._detached(conn)
            elif kind == frame.I_ALIVE and conn.inflight:
                conn.deadline_ns = 0
        if self.inflating.queue:
            self.inflating.step(self)
            done += 1
        return done

    def pure_poll(self) -> bool:
        """Whether messages or compressed bodies wait."""
        return bool(self.inbox or self.inflating.queue)

    def on_tick(self, now_ns: int) -> None:
        """Time-outs, and accepting again after a shortage of descriptors."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self.ok = http.dated(second)
        gap = now_ns - self._now_ns if self._now_ns else 0
        self._now_ns = now_ns
        self.acceptor.on_tick(now_ns)
        if gap > _PAUSE_NS:  # the machine stood still: what clients sent meanwhile is not late
            for conn in self.connections.values():
                if conn.deadline_ns:
                    conn.deadline_ns += gap
        for conn in list(self.connections.values()):
            if conn.deadline_ns and now_ns > conn.deadline_ns:
                self._timed_out(conn)

    # -- accepting -------------------------------------------------------------------

    def retire(self) -> None:
        """Another process accepts now. Who is connected gets an answer, the last one; connections
        without a request stay open, so that none is lost on its way."""
        self.leaving = True
        self.acceptor.stop()

    def stop_accepting(self) -> None:
        """Drain: who connects is refused; answers to the others say `Connection: close`."""
        self.draining = self.leaving = True
        self.acceptor.close()
        for conn in list(self.connections.values()):
            if conn.state == connection.OPEN_IDLE:
                self.readable(conn, reactor.IN)  # a request may be there already
            if conn.state == connection.OPEN_IDLE and not conn.parser.started:
                self._step(conn, connection.SHUTDOWN)
                self._close(conn)

    def _adopt(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        setup = self.setup
        if setup.socket_buffer_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, setup.socket_buffer_bytes)
        twin = -1  # the writing core's own descriptor of it
        full = len(self.connections) >= setup.max_connections
        if self.egress_stage is None and not full:
            try:
                twin = sock.dup().detach()
            except OSError:  # out of descriptors
                full = True
        if full:
            body = native.error_body("too many connections", 503)
            try:
                sock.send(http.answer(503, body, http.JSON, True, False, b"", self.ok))
            except OSError:
                pass
            sock.close()
            return
        self._serial += 1
        key = self.core << KEY_BITS | self._serial
        conn = Connection(key, sock, RequestParser(setup.max_head_bytes, setup.max_body_bytes))
        self.connections[key] = conn
        self.acceptor.report(len(self.connections))
        if self.egress_stage is not None:
            conn.writer = self.egress_stage.attach(key, sock, self)
            if self.access_log is not None:
                self.access_log.attach(conn)
        else:
            self.egress_port.send((frame.E_ATTACH, key, twin))
            conn.writer = RemoteWriter(key, self.egress_port)
        conn.mask = reactor.IN | reactor.RDHUP
        conn.deadline_ns = self._now_ns + setup.header_timeout_ns
        self._reactor.register(conn.fd, conn.mask, _Reader(self, conn))

    # -- reading ---------------------------------------------------------------------

    def readable(self, conn: Connection, mask: int) -> None:
        """Input, end of input, or a reset."""
        if mask & BROKEN and not mask & IN:
            self._reset(conn)
            return
        try:
            data = conn.sock.recv(_RECV_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            self._reset(conn)
            return
        if not data:
            self._peer_eof(conn)
            return
        if conn.state == OPEN_IDLE:
            request = self._heads.find(data)
            if request is not None:
                conn.state = self._whole
                self._begin(conn, request, self.leaving)
                return
            self._step(conn, connection.BYTES)
            conn.deadline_ns = self._now_ns + self.setup.header_timeout_ns
            self._feed(conn, data, True)
            return
        if conn.linger or conn.close_after:
            self._step(conn, connection.BYTES)  # thrown away
            return
        self._feed(conn, data)

    def _feed(self, conn: Connection, data: bytes, between: bool = False) -> None:
        """`between`: the parser was between two requests when `data` came."""
        parser = conn.parser
        try:
            parser.feed(data)
        except HttpError as error:
            self._take_requests(conn)
            self._refuse(conn, error)
            return
        ready = parser.ready
        if ready:
            if between and len(ready) == 1 and not parser.started:
                self._heads.learn(data, ready[0])
            self._take_requests(conn)
        if parser.in_body and not conn.inflight:
            if conn.body_mark < 0:
                refusal = self.router.refuse_early(parser)
                if refusal is not None:
                    self._refuse(conn, refusal)
                    return
                if parser.wants_continue:
                    conn.writer.write(http.CONTINUE)
            self._body_goes_on(conn)

    def _body_goes_on(self, conn: Connection) -> None:
        """A body has its time-out for every so many bytes: one that drips holds no connection."""
        here = conn.parser.body_bytes
        if conn.body_mark < 0 or here - conn.body_mark >= _BODY_STEP:
            conn.body_mark = here
            conn.deadline_ns = self._now_ns + self.setup.body_timeout_ns

    def _take_requests(self, conn: Connection) -> None:
        ready = conn.parser.ready
        if not ready:
            return
        conn.parser.ready = []
        conn.body_mark = -1
        conn.queue.extend(ready)
        if len(conn.queue) > 1 and self._waiting(conn) > 1:
            self._want(conn, 0)  # go on reading once some are answered
        if not conn.inflight:
            self._next(conn)

    def _waiting(self, conn: Connection) -> float:
        """Of what may wait behind the request in flight, in number or bytes: how much does."""
        queue = conn.queue
        size: int = sum([len(request.body) for request in queue])
        most: int = self.setup.max_body_bytes
        return max(len(queue) / _MAX_PIPELINED, size / max(most, 1))

    def _next(self, conn: Connection) -> None:
        """Dispatch the next request of a connection."""
        request: HttpRequest = conn.queue.popleft()
        if self.access_log is not None:
            self.access_log.begin(conn, request)
        error = request.refusal
        if error is None:
            self._step(conn, connection.REQUEST)
            self._begin(conn, request, self.closes(conn, request))
            if conn.eof and not conn.queue:
                # By who writes the answer: what this core wrote might come after that.
                self.detok_port.send((frame.D_PROBE, conn.key))
            return
        self._step(conn, connection.REQUEST)
        conn.inflight = True
        conn.deadline_ns = 0
        self.inflight += 1
        self.counters.inflight = self.inflight
        self.counters.errors += 1
        body = error.body
        if body is None:
            body = self.router.error_body(request.path, error.message, error.status)
        extra = self.router.extra_lines(request.headers)
        if error.status == 401:
            extra += http.CHALLENGE
        self.answer(conn, error.status, body, http.JSON, True, request.method == b"HEAD", extra)

    def _begin(self, conn: Connection, request: HttpRequest, close: bool) -> None:
        """A request is in flight."""
        conn.inflight = True
        conn.deadline_ns = 0
        self.inflight += 1
        counters = self.counters
        counters.inflight = self.inflight
        counters.requests += 1
        self.router.dispatch(conn, request, close)

    def closes(self, conn: Connection, request: HttpRequest) -> bool:
        """Whether the answer is the connection's last one."""
        # HTTP/1.0 would have to be told that its connection stays: it is closed instead.
        return (
            not request.keep_alive
            or not request.http11
            or self.leaving
            or (conn.eof and not conn.queue)
        )

    def answer(
        self, conn: Connection, status: int, body: bytes, content_type: bytes, close: bool,
        head_only: bool = False, extra: bytes = b"",
    ) -> None:  # fmt: skip
        """Answer the request in flight from this core."""
        if self.extra:
            extra += self.extra
        self.counters.answers += 1
        if self.http_meter is not None:
            self.http_meter.answering(conn.route, status)
        conn.writer.answer(
            http.answer(status, body, content_type, close, head_only, extra, self.ok),
            frame.END_CLOSE if close else frame.END_KEEP,
        )

    # -- answers ------------------------------------------------------------------------

    def answered(self, key: int) -> bool:
        """Egress, on this core: an answer is written, the connection stays. False where more
        follows from that than may be done inside of whatever wrote it: it comes as a message."""
        conn = self.connections.get(key)
        if conn is None or conn.queue or conn.eof or self.draining or conn.parser.started:
            return False
        conn.inflight = False
        self.inflight -= 1
        self.counters.inflight = self.inflight
        if self.http_meter is not None:
            self.http_meter.ended(conn.route)
            conn.route = -1
        if conn.line is not None:
            self.access_log.end(conn)  # type: ignore[union-attr]
        self._step(conn, ANSWERED)
        conn.deadline_ns = self._now_ns + self.setup.idle_timeout_ns
        return True

    def _answered(self, conn: Connection, close: bool) -> None:
        self._landed(conn)
        last = not conn.queue and (self.draining or conn.eof)
        if close or last:
            self._step(conn, connection.ANSWERED_CLOSE)
            self._close(conn)
            return
        self._step(conn, connection.ANSWERED)
        if conn.queue:
            if not conn.eof:
                self._step(conn, connection.BYTES)
            self._next(conn)
            # After the peer's FIN the descriptor stays readable: its end was read already.
            if self._waiting(conn) <= 0.5 and not conn.eof:
                self._want(conn, reactor.IN | reactor.RDHUP)
        elif conn.parser.started:
            self._step(conn, connection.BYTES)
            conn.deadline_ns = self._now_ns + self.setup.header_timeout_ns
            if conn.parser.in_body:
                self._feed(conn, b"")
        else:
            conn.deadline_ns = self._now_ns + self.setup.idle_timeout_ns

    def _refuse(self, conn: Connection, error: HttpError) -> None:
        """Answer unusable input after what is in flight, then close."""
        conn.close_after = True
        conn.deadline_ns = 0
        self._want(conn, reactor.RDHUP)
        conn.queue.append(refused(error, conn.parser))
        if not conn.inflight:
            if conn.state == connection.OPEN_IDLE:
                self._step(conn, connection.BYTES)
            self._next(conn)

    def _timed_out(self, conn: Connection) -> None:
        conn.deadline_ns = 0
        if conn.linger:
            self._step(conn, connection.IDLE_TIMEOUT)
            self._drop(conn)
        elif conn.inflight:
            self._step(conn, connection.ERROR)  # its answer was lost with another core
            self._reset(conn)
        elif conn.state == connection.READING:
            self._refuse(conn, HttpError(408, "the request took too long to arrive"))
        elif conn.state == connection.OPEN_IDLE:
            self._step(conn, connection.IDLE_TIMEOUT)
            self._close(conn)


class _Reader:
    """Reactor handler of a connection."""

    __slots__ = ("_conn", "_stage")

    def __init__(self, stage: IngressStage, conn: Connection) -> None:
        self._stage = stage
        self._conn = conn

    def on_events(self, fd: int, mask: int) -> None:
        """Input or an end."""
        self._stage.readable(self._conn, mask)
