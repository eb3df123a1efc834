"""What the step loop and the other stages write a connection's bytes to. Owner: the writing core.

A `ConnWriter` is on the core of its connection's egress. While `blocked` is false the loop may call
`send` (the socket's own) and report a short write with `partial`; while it is true it keeps its
text back (streams) or hands it to `write` (single answers). `RemoteWriter` has the same face on a
core that does not own the connection's egress. Under it, `send` is the seam for another way of
writing (one system call for a whole step, or a server that carries us).
"""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from .. import frame
from .base import Port

if TYPE_CHECKING:
    from .egress import EgressStage

_MOST_HELD: Final = 64  # messages waiting for a ring beyond which streams stop rendering
_JOIN_BYTES: Final = 4096  # less is copied sooner than gathered
IOV: Final = 64  # buffers of one gathering write


class ConnWriter:
    """Unsent bytes of one connection and the streams that wait for room."""

    __slots__ = (
        "blocked", "blocked_at", "blocked_since", "broken", "closing", "egress", "end", "ingress",
        "key", "queue", "queued", "remote", "send", "sendmsg", "sock", "waiting",
    )  # fmt: skip

    def __init__(
        self, egress: EgressStage, key: int, sock: socket.socket, ingress: Any, remote: bool
    ) -> None:
        self.egress = egress
        self.ingress = ingress  # stage of the connection where it is on this core, or None
        self.key = key
        self.sock = sock
        self.send = sock.send
        self.sendmsg = sock.sendmsg
        self.remote = remote  # the connection's detok stage is on another core
        self.queue: deque[Any] = deque()
        self.queued = 0  # bytes
        self.blocked = False
        self.blocked_at = 0  # last progress while blocked
        self.blocked_since = 0
        self.broken = False
        self.closing = False
        self.end = frame.END_NONE
        self.waiting: list[Any] = []  # streams with text to show once there is room

    def write(self, data: bytes) -> None:
        """Send now or queue; never blocks. Bytes for a broken connection are dropped."""
        if self.broken:
            return
        if self.queue:
            self.queue.append(data)
            self.queued += len(data)
            return
        try:
            sent = self.send(data)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError:
            self.fail()
            return
        counters = self.egress.counters
        counters.sends += 1
        counters.bytes_out += sent
        if sent != len(data):
            self.partial(data, sent)

    def write_parts(self, parts: list[bytes | bytearray]) -> None:
        """As `write`; what is large is copied only where it has to wait."""
        if sum([len(part) for part in parts]) <= _JOIN_BYTES or len(parts) > IOV:
            self.write(b"".join(parts))
            return
        if self.broken:
            return
        sent = 0
        waits = bool(self.queue)
        if not waits:
            try:
                sent = self.sendmsg(parts)
            except (BlockingIOError, InterruptedError):
                pass
            except OSError:
                self.fail()
                return
            counters = self.egress.counters
            counters.sends += 1
            counters.bytes_out += sent
        for part in parts:
            if sent >= len(part):
                sent -= len(part)
            else:
                rest = bytes(memoryview(part)[sent:])
                sent = 0
                self.queue.append(rest)
                self.queued += len(rest)
        if self.queue and not waits:
            self.blocked = True
            self.egress.arm(self)

    def answer(self, data: bytes, end: int) -> None:
        """A whole answer: `write` and `finish` in one."""
        self.end = end
        self.write(data)
        if not self.queue:
            self.egress.answered(self)

    def partial(self, data: Any, sent: int) -> None:
        """Keep what a short write left over and wait for room."""
        rest = bytes(memoryview(data)[sent:])
        self.queue.append(rest)
        self.queued += len(rest)
        self.blocked = True
        self.egress.arm(self)

    def finish(self, end: int) -> None:
        """The answer is complete; tells ingress once its last byte is with the kernel."""
        self.end = end
        if not self.queue:
            self.egress.answered(self)

    def fail(self) -> None:
        """The peer is gone: drop everything and tell ingress once."""
        if not self.broken:
            self.broken = True
            self.queue.clear()
            self.queued = 0
            self.waiting.clear()
            self.egress.broke(self)


class Handed:
    """What the step loop counts as sent although another core writes it, and counts it again."""

    __slots__ = ("bytes", "sends")

    def __init__(self) -> None:
        self.sends = 0
        self.bytes = 0


class RemoteWriter:
    """Stands for a `ConnWriter` on another core."""

    __slots__ = ("blocked", "broken", "full", "handed", "held_up", "key", "port", "waiting")

    def __init__(
        self, key: int, port: Port, held_up: set[RemoteWriter] | None = None,
        handed: Handed | None = None,
    ) -> None:  # fmt: skip
        self.key = key
        self.port = port
        self.handed = handed  # the step loop's
        # Where it lists itself when the core of its egress lags; the detok stage looks there.
        self.held_up = held_up
        self.full = False  # the socket is, as egress told last
        self.blocked = False  # that, or held up
        self.broken = False
        self.waiting: list[Any] = []

    def send(self, data: bytes) -> int:
        """Hands the bytes over whole. 0 says that no more should come for now."""
        taken = len(data) if self._hand_over(data) else 0
        handed = self.handed
        if handed is not None:
            handed.sends += 1
            handed.bytes += taken
        return taken

    def sendmsg(self, buffers: Any) -> int:
        """Joins and hands over whole."""
        return self.send(b"".join(buffers))

    def write(self, data: bytes) -> None:
        """As `ConnWriter.write`."""
        self._hand_over(data)

    def write_parts(self, parts: list[bytes | bytearray]) -> None:
        """As `ConnWriter.write_parts`."""
        self._hand_over(b"".join(parts))

    def partial(self, data: Any, sent: int) -> None:
        """Nothing is left over: `send` takes everything."""

    def finish(self, end: int) -> None:
        """As `ConnWriter.finish`."""
        self.port.send((frame.E_WRITE, self.key, b"", end))

    def answer(self, data: bytes, end: int) -> None:
        """As `ConnWriter.answer`."""
        self.port.send((frame.E_WRITE, self.key, data, end))

    def fail(self) -> None:
        """The real writer finds out by itself."""

    def _hand_over(self, data: bytes) -> bool:
        """False where no more should come for now."""
        self.port.send((frame.E_WRITE, self.key, data, frame.END_NONE))
        if self.held_up is not None and self.port.backlog > _MOST_HELD:
            self.blocked = True
            self.held_up.add(self)
            return False
        return True


class _Nowhere:
    """Port of a connection that is gone already."""

    __slots__ = ()
    backlog = 0

    def send(self, message: frame.Message) -> None:
        """Dropped: the reader of the bytes is gone."""


def gone_writer(key: int, handed: Handed) -> RemoteWriter:
    """Stands for the writer of a connection that closed before its request was opened."""
    return RemoteWriter(key, _Nowhere(), None, handed)
