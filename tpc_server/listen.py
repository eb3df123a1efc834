"""Listening sockets, owned by `Server` and handed to the cores. Owner: the starting thread."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

_PORT_TRIES: Final = 8
_LOCK_TRIES: Final = 100
_LOCK_PAUSE_S: Final = 0.02
_NO_SUCH_ADDRESS: Final = (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT)


class ListenError(Exception):
    """The address cannot be listened on; the text says which and why."""

    def __init__(self, text: str, number: int | None = None) -> None:
        super().__init__(text)
        self.errno = number


class Bound:
    """Sockets that listen: one list a core in `groups`, the TCP port (0 for a UNIX socket)."""

    def __init__(
        self, groups: list[list[socket.socket]], port: int, place: UnixPath | None = None
    ) -> None:  # fmt: skip
        self.groups = groups
        self.port = port
        self._place = place

    def close(self) -> None:
        """Stop listening; a UNIX socket's file goes too. Idempotent."""
        if self._place is not None:
            self._place.close()
        for group in self.groups:
            for sock in group:
                sock.close()


def bind(host: str, port: int, uds: str | None, count: int, backlog: int) -> Bound:
    """Listen for `count` cores, on the UNIX socket `uds` if there is one. Raises ListenError."""
    if uds is not None:
        return bind_uds(uds, count, backlog)
    return Bound(*bind_tcp(host, port, count, backlog))


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


def bind_uds(path: str, count: int, backlog: int) -> Bound:
    """One UNIX socket on the first core, which hands connections to the others."""
    try:
        place = UnixPath(path, backlog)
    except OSError as error:
        text = f"cannot listen on {path}: {error.strerror or error}"
        raise ListenError(text, error.errno) from None
    place.sock.setblocking(False)
    return Bound([[place.sock], *[[] for _ in range(count - 1)]], 0, place)


class UnixPath:
    """A UNIX socket that listens at a path, and the path, which goes with it.

    A socket that a killed process has left there is removed, one that somebody listens at never;
    nor is at the end what another has put there meanwhile.
    """

    def __init__(self, path: str, backlog: int, mode: int = 0o777) -> None:
        """Raises OSError where it cannot listen."""
        self._path = path
        self.sock = socket.socket(socket.AF_UNIX)
        try:
            os.fchmod(self.sock.fileno(), mode)  # the path is made with it
            with _folder_of(path):
                _remove_stale(path)
                self.sock.bind(path)
                self.sock.listen(backlog)
                self._identity: tuple[int, ...] = _identity(path)
        except BaseException:
            self.sock.close()
            raise

    def remove(self) -> None:
        """The path goes; nobody comes any more. Idempotent, any thread."""
        with contextlib.suppress(OSError), _folder_of(self._path):
            if _identity(self._path) == self._identity:
                os.unlink(self._path)

    def close(self) -> None:
        """Stop listening. Idempotent."""
        self.remove()
        self._identity = ()
        self.sock.close()  # a core that drained has done so already


@contextlib.contextmanager
def _folder_of(path: str) -> Iterator[None]:
    """One at a time: between the look at a stale socket and the next one's first breath another
    start would see a socket that nobody listens at."""
    fd = -1
    try:
        fd = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        for _ in range(_LOCK_TRIES):
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # by ours for a moment; by somebody else's as it likes
                time.sleep(_LOCK_PAUSE_S)
    except OSError:  # not to be read, or a file system without locks: it goes without
        pass
    try:
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _identity(path: str) -> tuple[int, ...]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino, found.st_mtime_ns  # a number may be given out again


def _remove_stale(path: str) -> None:
    """Raises OSError where somebody listens, or where no socket is."""
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        kind = "a folder" if stat.S_ISDIR(mode) else "a file that is no socket"
        raise OSError(errno.EADDRINUSE, f"{kind} is there")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # one that is stopped, or busy, has a full queue
        found = probe.connect_ex(path)
    if found not in (errno.ECONNREFUSED, errno.ENOENT):
        raise OSError(errno.EADDRINUSE, "another process listens there")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


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
