"""Listening sockets, owned by `Server` and handed to the cores. Owner: the starting thread."""

from __future__ import annotations

import errno
import os
import socket
import stat
from collections.abc import Sequence
from typing import Any, Final

_PORT_TRIES: Final = 8
_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class ListenError(Exception):
    """The address cannot be listened on; the text says which and why."""

    def __init__(self, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.errno = number


class Bound:
    """Sockets that listen: one list a core in `groups`, the TCP port (0 for a UNIX socket)."""

    def __init__(self, groups: list[list[socket.socket]], port: int, uds: str | None) -> None:
        self.groups = groups
        self.port = port
        self._uds = uds

    def close(self) -> None:
        """Stop listening; a UNIX socket's file goes too. Idempotent."""
        for group in self.groups:
            for sock in group:
                sock.close()
        if self._uds is not None:
            try:
                os.unlink(self._uds)
            except OSError:
                pass
            self._uds = None


def bind(host: str, port: int, uds: str | None, count: int, backlog: int) -> Bound:
    """Listen for `count` cores, on the UNIX socket `uds` if there is one. Raises ListenError."""
    if uds is not None:
        return Bound(bind_uds(uds, count, backlog), 0, uds)
    groups, port = bind_tcp(host, port, count, backlog)
    return Bound(groups, port, None)


def bind_tcp(
    host: str, port: int, count: int, backlog: int
) -> tuple[list[list[socket.socket]], int]:
    """For each core one socket per address of `host`, all on one port (SO_REUSEPORT), and the port.

    Raises ListenError when the host does not resolve or the port is taken.
    """
    try:
        found = socket.getaddrinfo(
            host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise ListenError(f"cannot resolve host {host!r}: {error}") from None
    addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
    for left in range(_PORT_TRIES if not port and len(addresses) > 1 else 1, 0, -1):
        try:
            return _bind_all(addresses, port, count, backlog)
        except _PortTaken as taken:
            if left == 1:
                raise taken.error from None
    raise AssertionError("unreachable")


class _PortTaken(Exception):
    """The port that the system chose for one address is taken at another."""

    def __init__(self, error: ListenError) -> None:
        super().__init__()
        self.error = error


def _bind_all(
    addresses: Sequence[tuple[int, Any]], port: int, count: int, backlog: int
) -> tuple[list[list[socket.socket]], int]:
    sockets: list[list[socket.socket]] = [[] for _ in range(count)]
    absent: ListenError | None = None
    chosen = port
    # `::` takes IPv4 too, unless IPv4 has a socket of its own.
    only_v6 = len(addresses) > 1
    try:
        for family, address in addresses:
            address = (address[0], chosen, *address[2:])
            try:
                if chosen:
                    _probe(family, address, only_v6)
                for group in sockets:
                    sock = _socket(family, only_v6)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                    _bind(sock, address)
                    group.append(sock)
                    sock.listen(backlog)
                    address = sock.getsockname()
                    chosen = int(address[1])
            except ListenError as error:
                if error.errno in _NO_SUCH_ADDRESS and only_v6:
                    absent = error  # a name for both families, where the machine has one
                elif chosen != port:
                    raise _PortTaken(error) from None
                else:
                    raise
        if absent is not None and not sockets[0]:
            raise absent
    except BaseException:
        for group in sockets:
            for sock in group:
                sock.close()
        raise
    return sockets, chosen


def bind_uds(path: str, count: int, backlog: int) -> list[list[socket.socket]]:
    """One UNIX socket on the first core, which hands connections to the others."""
    try:
        mode = os.stat(path).st_mode
        if not stat.S_ISSOCK(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a file that is no socket"
            raise ListenError(f"cannot listen on {path}: {kind} is there", errno.EADDRINUSE)
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


def _socket(family: int, only_v6: bool) -> socket.socket:
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:  # a kernel without this family
        raise ListenError(f"cannot listen: {error.strerror}", error.errno) from None
    sock.setblocking(False)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6:
        sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(only_v6))
    return sock


def _probe(family: int, address: Any, only_v6: bool) -> None:
    """SO_REUSEPORT would share the port with another server of this user without a word."""
    sock = _socket(family, only_v6)
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
        text = f"cannot listen on {where}: {error.strerror or error}"
        raise ListenError(text, error.errno) from None
