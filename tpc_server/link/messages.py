"""What the two ends of a link's socket say to each other. Owner: one thread an end.

A UNIX stream socket carries lines of JSON, and with two of them descriptors:

    frontend -> scheduler   {"hello": [protocol, release]}
    scheduler -> frontend   {"config": …} or {"refused": …}  listening sockets
    frontend -> scheduler   {"mesh": …} or {"refused": …}    the region, the doorbells
    frontend -> scheduler   {"accepting": true}, {"ready": true}, {"failed": text}, {"reload": true}
    scheduler -> frontend   {"retire": seconds}, {"drain": seconds}, {"stop": true}

The end of the stream is the end of the peer; so is whatever cannot be read, and the end of its
process: another that inherited the socket may hold it open. Standard library only: one end is a
scheduler.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import threading
import time
from array import array
from collections import deque
from typing import Any, Final

MAX_FDS: Final = 250
_LINE: Final = 1 << 20
_SEND_S: Final = 5.0
_MOST_FDS: Final = 4096  # of one peer, not taken yet
_TEXT: Final = 500
_FD_BYTES: Final = array("i").itemsize
_CREDENTIALS: Final = struct.Struct("3i")  # process, user, group


class LinkClosed(Exception):
    """The other end is gone."""


class Channel:
    """One end of the socket."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._buffer = b""
        self._fds: list[int] = []
        self._out: deque[tuple[memoryview, list[int]]] = deque()
        self._broken = False  # nobody reads what is sent
        self._process = -1  # of the peer, a pidfd
        self._sending = threading.Lock()  # a push that waits hears, and so sends, on its own thread

    def fileno(self) -> int:
        """For poll; -1 once closed."""
        return self.sock.fileno()

    def watch(self, pid: int = 0) -> None:
        """The peer ends with that process; without a number, the one that connected, listened, or
        made the pair. Where it cannot be told, the socket alone says it."""
        if not pid:
            raw = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid = _CREDENTIALS.unpack(raw)[0]
        try:
            self._process = os.pidfd_open(pid)
        except (OSError, AttributeError):  # another namespace's; a system without it
            pass

    def filenos(self) -> list[int]:
        """All that says something has happened, for poll; none once closed."""
        return [fd for fd in (self.sock.fileno(), self._process) if fd >= 0]

    def send(self, message: dict[str, Any], fds: list[int] | None = None) -> bool:
        """One line; False when nobody reads it. What follows then would make no sense there."""
        self._append(message, fds or [])
        deadline = time.monotonic() + _SEND_S
        while not self.flush():
            rest = deadline - time.monotonic()
            if self._broken or rest <= 0:
                return False
            self._sleep(select.POLLOUT, rest)
        return True

    def post(self, message: dict[str, Any], fds: list[int] | None = None) -> None:
        """One line, for who waits for nobody: what the socket does not take now `flush` sends,
        and every `poll`. The descriptors are to stay open until then."""
        self._append(message, fds or [])
        self.flush()

    @property
    def unsent(self) -> bool:
        """Whether something waits for `flush`."""
        return bool(self._out) and not self._broken

    def _append(self, message: dict[str, Any], fds: list[int]) -> None:
        data = json.dumps(message).encode() + b"\n"
        # A byte has to go with descriptors; white space before the line is nothing.
        groups = [fds[at : at + MAX_FDS] for at in range(0, len(fds), MAX_FDS)] or [[]]
        for group in groups[:-1]:
            self._out.append((memoryview(b" "), group))
        self._out.append((memoryview(data), groups[-1]))

    def flush(self) -> bool:
        """Send what waits; whether all is sent. Nobody who does not read is waited for."""
        with self._sending:
            while self._out and not self._broken:
                data, fds = self._out[0]
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", fds))] if fds else []
                try:
                    sent = self.sock.sendmsg([data], rights)
                except BlockingIOError:
                    return False
                except OSError:
                    self._broken = True
                    return False
                if sent < len(data):
                    self._out[0] = (data[sent:], [])
                else:
                    self._out.popleft()
            return not self._broken

    def _sleep(self, event: int, seconds: float) -> None:
        poll = select.poll()
        poll.register(self.sock.fileno(), event)
        if self._process >= 0:
            poll.register(self._process, select.POLLIN)
        poll.poll(int(seconds * 1000) + 1)

    def _ended(self) -> bool:
        if self._process < 0:
            return False
        poll = select.poll()
        poll.register(self._process, select.POLLIN)
        return bool(poll.poll(0))

    def wait(self, timeout_s: float) -> dict[str, Any]:
        """The next message. Raises TimeoutError, or LinkClosed at the end."""
        deadline = time.monotonic() + timeout_s
        while (message := self.poll()) is None:
            rest = deadline - time.monotonic()
            if rest <= 0:
                raise TimeoutError("no answer on the link")
            self._sleep(select.POLLIN | select.POLLOUT * self.unsent, rest)
        return message

    def poll(self) -> dict[str, Any] | None:
        """A message that is there already, None without one. Raises LinkClosed at the end."""
        if self._out:
            self.flush()
        if b"\n" not in self._buffer:
            if self.sock.fileno() < 0:
                raise LinkClosed("the link is closed")
            ended = self._ended()  # before the look: what it said last is heard
            try:
                self._fill()  # once: it may drip for ever
            except BlockingIOError:
                if ended:
                    raise LinkClosed("the process at the other end has ended") from None
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
        for fd in self.take_fds():
            os.close(fd)
        process, self._process = self._process, -1
        if process >= 0:
            os.close(process)
        self.sock.close()

    def _fill(self) -> None:
        try:
            # `socket.recv_fds` passes no flags on.
            data, ancillary, flags, _address = self.sock.recvmsg(
                1 << 16, socket.CMSG_LEN(MAX_FDS * _FD_BYTES), socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            raise
        except OSError as error:
            raise LinkClosed(str(error)) from None
        for level, kind, raw in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                self._fds += array("i", raw[: len(raw) - len(raw) % _FD_BYTES])
        if flags & socket.MSG_CTRUNC:  # we are at our limit of open files
            raise LinkClosed("descriptors were lost on the way: too many open files here?")
        if len(self._fds) > _MOST_FDS:
            raise LinkClosed("the other end of the link sends descriptors without end")
        if not data:
            raise LinkClosed("the other end of the link is gone")
        self._buffer += data
        if len(self._buffer) > _LINE and b"\n" not in self._buffer:
            raise LinkClosed("the other end of the link speaks another language")

    def _next(self) -> dict[str, Any]:
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except (ValueError, RecursionError, MemoryError):
            message = None
        if not isinstance(message, dict):
            raise LinkClosed("the other end of the link speaks another language")
        return message


def text_of(message: dict[str, Any], key: str) -> str:
    """What the peer says there, fit for one line of a log; empty where it says nothing."""
    said = message.get(key)
    if said is None:
        return ""
    return one_line(said, _TEXT)


def one_line(said: Any, most: int) -> str:
    """What a peer said, fit for one line of a log."""
    line = " ".join(said[:most].split()) if isinstance(said, str) else ""
    return line.encode("utf-8", "replace").decode() or "?"
