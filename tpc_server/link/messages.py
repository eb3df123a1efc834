"""What the two ends of a link's socket say to each other. Owner: one thread an end.

A UNIX stream socket carries lines of JSON, and with the first of them descriptors:

    scheduler -> frontend   {"config": …}                    listening sockets
    frontend -> scheduler   {"mesh": …} or {"refused": …}    the region, the doorbells
    frontend -> scheduler   {"accepting": true}, {"ready": true}, {"failed": text}, {"reload": true}
    scheduler -> frontend   {"retire": seconds}, {"drain": seconds}, {"stop": true}

The end of the stream is the end of the peer. Standard library only: one end is a scheduler.
"""

from __future__ import annotations

import json
import select
import socket
from array import array
from typing import Any, Final

MAX_FDS: Final = 250
_LINE: Final = 1 << 20
_SEND_S: Final = 5.0
_FD_BYTES: Final = array("i").itemsize


class LinkClosed(Exception):
    """The other end is gone."""


class Channel:
    """One end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = b""
        self._fds: list[int] = []

    def fileno(self) -> int:
        """For poll; -1 once closed."""
        return self.sock.fileno()

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> bool:
        """One line; False when nobody reads it. What follows then would make no sense there."""
        data = json.dumps(message).encode() + b"\n"
        fds = fds or []
        try:
            # One end is a scheduler: it waits for nobody for long.
            self.sock.settimeout(_SEND_S)
            for at in range(0, max(1, len(fds)), MAX_FDS):
                part = fds[at : at + MAX_FDS]
                last = at + MAX_FDS >= len(fds)
                # A byte has to go with descriptors; white space before the line is nothing.
                head = data if last else b" "
                if part:
                    sent = socket.send_fds(self.sock, [head], part)
                    self.sock.sendall(head[sent:])
                else:
                    self.sock.sendall(head)
        except OSError:
            return False
        return True

    def wait(self, timeout_s: float) -> dict[str, Any]:
        """The next message. Raises TimeoutError, or LinkClosed at the end."""
        self.sock.settimeout(timeout_s)
        while b"\n" not in self._buffer:
            try:
                self._fill()
            except BlockingIOError:
                raise TimeoutError("no answer on the link") from None
        return self._next()

    def poll(self) -> dict[str, Any] | None:
        """A message that is there already, None without one. Raises LinkClosed at the end."""
        if b"\n" not in self._buffer:
            # Not by the socket's mode, which another thread may change to send.
            fd = self.sock.fileno()
            if fd < 0:
                raise LinkClosed("the link is closed")
            poll = select.poll()
            poll.register(fd, select.POLLIN)
            if not poll.poll(0):
                return None
            try:
                self._fill()
            except (BlockingIOError, InterruptedError, TimeoutError):
                return None
            if b"\n" not in self._buffer:
                return None
        return self._next()

    def take_fds(self) -> list[int]:
        """Descriptors that came so far; they are the caller's now."""
        taken, self._fds = self._fds, []
        return taken

    def close(self) -> None:
        """Close this end, and descriptors nobody took."""
        import os

        for fd in self.take_fds():
            os.close(fd)
        self.sock.close()

    def _fill(self) -> None:
        try:
            # `socket.recv_fds` passes no flags on.
            data, ancillary, _flags, _address = self.sock.recvmsg(
                1 << 16, socket.CMSG_LEN(MAX_FDS * _FD_BYTES), socket.MSG_CMSG_CLOEXEC
            )
        except (BlockingIOError, InterruptedError, TimeoutError):
            raise
        except OSError as error:
            raise LinkClosed(str(error)) from None
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._fds += array("i", raw[: len(raw) - len(raw) % _FD_BYTES])
        if not data:
            raise LinkClosed("the other end of the link is gone")
        self._buffer += data
        if len(self._buffer) > _LINE and b"\n" not in self._buffer:
            raise LinkClosed("the other end of the link speaks another language")

    def _next(self) -> dict[str, Any]:
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            message = None
        if not isinstance(message, dict):
            raise LinkClosed("the other end of the link speaks another language")
        return message
