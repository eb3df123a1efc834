"""Answers 503 while the model is loaded. Owner: its own thread, from `__init__` to `leave`.

The port is taken before anything slow begins, so that a port in use is found at once and a load
balancer sees "not yet" instead of a connection that hangs. The cores take the sockets over when
they start; what is in their backlog then is theirs.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Sequence
from typing import Final

from .render import http, native

LOADING: Final = "the server is starting: the model is not loaded yet"
_MOST: Final = 128  # connections; beyond, the oldest goes
_HEAD_BYTES: Final = 65536
_HEAD_S: Final = 5.0
_LINGER_S: Final = 1.0
_RETRY: Final = b"Retry-After: 1\r\n"


class _Visitor:
    __slots__ = ("answered", "head", "sock", "until")

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.head = b""
        self.answered = False
        self.until = time.monotonic() + _HEAD_S


class Doorman:
    """Takes connections of these listening sockets until `leave()`."""

    def __init__(self, listeners: Sequence[socket.socket], why: str = LOADING) -> None:
        self._why = why
        self._visitors: dict[int, _Visitor] = {}
        self._bell, self._button = socket.socketpair()
        # Here and not on the thread: who starts us hears of it when descriptors have run out.
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._bell, selectors.EVENT_READ)
        for listener in listeners:
            self._selector.register(listener, selectors.EVENT_READ, listener)
        self._thread = threading.Thread(target=self._run, name="tpc-door", daemon=True)
        self._thread.start()

    def leave(self) -> None:
        """End; returns when no connection is taken any more. Idempotent."""
        if self._thread.is_alive():
            self._button.send(b"x")
            self._thread.join()
        self._bell.close()
        self._button.close()

    def _run(self) -> None:
        with self._selector:
            while True:
                for key, _ in self._selector.select(1.0 if self._visitors else None):
                    if key.fileobj is self._bell:
                        for visitor in self._visitors.values():
                            visitor.sock.close()
                        return
                    if key.data is not None:
                        self._welcome(key.data)
                    elif key.fd in self._visitors and not self._hear(self._visitors[key.fd]):
                        self._dismiss(key.fd)
                now = time.monotonic()
                for fd in [fd for fd, v in self._visitors.items() if v.until < now]:
                    self._dismiss(fd)

    def _welcome(self, listener: socket.socket) -> None:
        try:
            sock, _ = listener.accept()
        except BlockingIOError:
            return
        except OSError:  # out of descriptors: the backlog keeps them
            time.sleep(0.05)
            return
        sock.setblocking(False)
        if len(self._visitors) >= _MOST:
            self._dismiss(next(iter(self._visitors)))
        self._visitors[sock.fileno()] = _Visitor(sock)
        self._selector.register(sock, selectors.EVENT_READ)

    def _dismiss(self, fd: int) -> None:
        visitor = self._visitors.pop(fd)
        self._selector.unregister(visitor.sock)
        visitor.sock.close()

    def _hear(self, visitor: _Visitor) -> bool:
        """What a visitor sent; whether it stays."""
        try:
            data = visitor.sock.recv(_HEAD_BYTES)
            if not data:
                return False
            if visitor.answered:
                return True  # a body; closing now would take the answer back
            visitor.head += data
            if b"\r\n\r\n" not in visitor.head and len(visitor.head) < _HEAD_BYTES:
                return True
            body = native.error_body(self._why, 503)
            head_only = visitor.head.startswith(b"HEAD ")
            visitor.sock.send(
                http.answer(
                    503, body, http.JSON, True, head_only, _RETRY, http.dated(int(time.time()))
                )
            )
            visitor.sock.shutdown(socket.SHUT_WR)
        except BlockingIOError:
            return True
        except OSError:
            return False
        visitor.answered = True
        visitor.head = b""
        visitor.until = time.monotonic() + _LINGER_S
        return True
