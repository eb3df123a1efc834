"""Egress: unsent bytes and backpressure of connections. Owner: the core that runs the stage.

What is written to is in `writers.py`. Here are the connections whose sockets are full, what waits
for them, and how a connection is let go of.
"""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import TYPE_CHECKING, Any

from .. import frame, reactor
from ..frame import END_CLOSE, END_NONE  # a global costs half of a module's
from .base import Port
from .writers import IOV, ConnWriter

if TYPE_CHECKING:
    from ..counters import Counters


class EgressStage:
    """All write buffers of the connections whose egress is this core."""

    name = "egress"

    def __init__(self, poller: reactor.Reactor, counters: Counters, write_timeout_ns: int) -> None:
        self.inbox: deque[frame.Message] = deque()
        self.writers: dict[int, ConnWriter] = {}
        self.counters = counters
        self._reactor = poller
        self._armed: dict[int, ConnWriter] = {}
        # Both by ingress core: that core's ingress, and the detok core that serves it (None:
        # this core, whose streams are resumed by a call).
        self._ingress: list[Port] = []
        self._detok: list[Port | None] = []
        self._write_timeout_ns = write_timeout_ns
        self._resumer: Any = None  # detok stage of this core, or None

    def connect(self, ingress: list[Port], detok: list[Port | None], detok_stage: Any) -> None:
        """Ports by ingress core, once all stages of this core exist."""
        self._ingress = ingress
        self._detok = detok
        self._resumer = detok_stage

    @property
    def busy(self) -> bool:
        """Whether bytes wait for room in a socket."""
        return bool(self._armed)

    # -- from ingress and detok ------------------------------------------------------

    def attach(self, key: int, sock: socket.socket, ingress: Any) -> ConnWriter:
        """Take a connection of the ingress stage of this core, or (None) of another: then the
        socket object is a duplicate and closed here."""
        writer = ConnWriter(self, key, sock, ingress, self._detok[key >> 40] is not None)
        self.writers[key] = writer
        return writer

    def poll(self, budget: int) -> int:
        """Messages of other stages."""
        inbox = self.inbox
        done = 0
        while inbox and done < budget:
            message = inbox.popleft()
            done += 1
            kind = message[0]
            if kind == frame.E_ATTACH:
                sock = socket.socket(fileno=message[2])
                sock.setblocking(False)
                self.attach(message[1], sock, None)
                continue
            writer = self.writers.get(message[1])
            if writer is None:
                continue
            if kind == frame.E_WRITE:
                if message[2]:
                    writer.write(message[2])
                if message[3]:
                    writer.finish(message[3])
            elif kind == frame.E_CLOSE:
                self.close_after_flush(message[1])
            elif kind == frame.E_DROP:
                self.drop(message[1])
        return done

    def close_after_flush(self, key: int) -> None:
        """Let go of a connection once its last byte is with the kernel; then I_DETACHED."""
        writer = self.writers.get(key)
        if writer is not None:
            writer.closing = True
            if not writer.queue:
                self._detach(writer)
                self._ingress[key >> 40].send((frame.I_DETACHED, key))

    def drop(self, key: int) -> None:
        """Let go of a connection at once; ingress has forgotten it already."""
        writer = self.writers.get(key)
        if writer is not None:
            writer.broken = True
            writer.queue.clear()
            writer.waiting.clear()
            self._detach(writer)

    def pure_poll(self) -> bool:
        """Whether messages wait."""
        return bool(self.inbox)

    def on_tick(self, now_ns: int) -> None:
        """Give up on peers that have not taken a byte for the write time-out."""
        limit = self._write_timeout_ns
        if limit:
            for writer in list(self._armed.values()):
                if now_ns - writer.blocked_at > limit:
                    writer.fail()

    # -- called by writers -----------------------------------------------------------

    def arm(self, writer: ConnWriter) -> None:
        """Watch for room in the socket."""
        fd = writer.sock.fileno()
        if fd < 0 or fd in self._armed:
            return
        self.counters.blocked += 1
        writer.blocked_at = writer.blocked_since = time.monotonic_ns()
        self._armed[fd] = writer
        # Ingress watches the connection's own descriptor; a second one carries EPOLLOUT.
        self._reactor.register_out(fd, self)
        self._tell_flow(writer, True)

    def on_events(self, fd: int, mask: int) -> None:
        """Room again, or the peer is gone."""
        writer = self._armed.get(fd)
        if writer is None:
            return
        if mask & reactor.BROKEN:
            writer.fail()
            return
        queue = writer.queue
        while queue:
            buffers = [queue[i] for i in range(min(len(queue), IOV))]
            try:
                sent = writer.sendmsg(buffers)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                writer.fail()
                return
            self.counters.sends += 1
            self.counters.bytes_out += sent
            writer.queued -= sent
            writer.blocked_at = time.monotonic_ns()
            while sent:
                first = queue[0]
                if sent >= len(first):
                    sent -= len(first)
                    queue.popleft()
                else:
                    queue[0] = memoryview(first)[sent:]
                    return
        self._disarm(writer)
        writer.blocked = False
        if writer.closing:
            self.close_after_flush(writer.key)
            return
        if writer.end:
            self.answered(writer)
            return
        if writer.remote:
            self._tell_flow(writer, False)
        else:
            self._resume_streams(writer)

    def answered(self, writer: ConnWriter) -> None:
        """The whole answer is with the kernel."""
        close = writer.end == END_CLOSE
        writer.end = END_NONE
        if not close and writer.ingress is not None and writer.ingress.answered(writer.key):
            return
        self._ingress[writer.key >> 40].send((frame.I_ANSWERED, writer.key, close))

    def broke(self, writer: ConnWriter) -> None:
        """The peer is gone."""
        self._disarm(writer)
        self._ingress[writer.key >> 40].send((frame.I_BROKEN, writer.key))

    # -- deaths ----------------------------------------------------------------------

    def flush_once(self) -> None:
        """A dying core: one more try to get rid of what is queued."""
        for fd in list(self._armed):
            self.on_events(fd, reactor.OUT)

    def ingress_lost(self, core: int) -> None:
        """An ingress core closed all its connections."""
        for key in [k for k in self.writers if k >> 40 == core]:
            self.drop(key)

    def abandon(self) -> None:
        """Close duplicates; the other end of each connection is its ingress core's."""
        for key in list(self.writers):
            self.drop(key)

    # -- inside ----------------------------------------------------------------------

    def _tell_flow(self, writer: ConnWriter, blocked: bool) -> None:
        port = self._detok[writer.key >> 40]
        if port is not None:
            port.send((frame.D_FLOW, writer.key, blocked))

    def _resume_streams(self, writer: ConnWriter) -> None:
        waiting = writer.waiting
        writer.waiting = []
        for stream in waiting:
            self._resumer.resume(stream)

    def _disarm(self, writer: ConnWriter) -> None:
        fd = writer.sock.fileno()
        if self._armed.pop(fd, None) is not None:
            self.counters.blocked_ns += time.monotonic_ns() - writer.blocked_since
            self._reactor.unregister_out(fd)

    def _detach(self, writer: ConnWriter) -> None:
        self._disarm(writer)
        del self.writers[writer.key]
        if writer.ingress is None:
            writer.sock.close()
