"""Listening sockets, owned by `Server` and handed to the cores. Owner: the starting thread."""

from __future__ import annotations

import os
import socket
import stat
from typing import Any


class ListenError(Exception):
    """The address cannot be listened on; the text says which and why."""


def bind_tcp(
    host: str, port: int, count: int, backlog: int
) -> tuple[list[list[socket.socket]], int]:
    """`count` sockets sharing one port by SO_REUSEPORT, one list per core, and the port.

    Raises ListenError when the host does not resolve or the port is taken.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ListenError(f"cannot resolve host {host!r}: {error}") from None
    family, _, _, _, address = found[0]
    if port:
        _probe(family, address)
    sockets: list[list[socket.socket]] = []
    try:
        for _ in range(count):
            sock = _socket(family)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            _bind(sock, address)
            sock.listen(backlog)
            sockets.append([sock])
            address = sock.getsockname()
    except BaseException:
        for group in sockets:
            for sock in group:
                sock.close()
        raise
    return sockets, int(address[1])


def bind_uds(path: str, count: int, backlog: int) -> list[list[socket.socket]]:
    """One UNIX socket on the first core, which hands connections to the others."""
    try:
        if stat.S_ISSOCK(os.stat(path).st_mode):
            probe = socket.socket(socket.AF_UNIX)
            try:
                probe.connect(path)
            except OSError:
                os.unlink(path)  # left over by a server that was killed
            finally:
                probe.close()
    except FileNotFoundError:
        pass
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.setblocking(False)
    _bind(sock, path)
    sock.listen(backlog)
    return [[sock], *[[] for _ in range(count - 1)]]


def _socket(family: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    return sock


def _probe(family: int, address: Any) -> None:
    """SO_REUSEPORT would share the port with another server of this user without a word."""
    sock = _socket(family)
    try:
        _bind(sock, address)
    finally:
        sock.close()


def _bind(sock: socket.socket, address: Any) -> None:
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        where = address if isinstance(address, str) else f"{address[0]}:{address[1]}"
        raise ListenError(f"cannot listen on {where}: {error.strerror or error}") from None
