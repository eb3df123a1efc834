"""A UNIX socket at a path, for this user alone. Owner: the scheduler's thread, or the main one.

Standard library only and Python 3.9: `./tpc status` needs no environment.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from typing import Final

from ..listen import UnixPath

_BACKLOG: Final = 16
_ACCEPT_MOST: Final = 64  # at once: a flood of them holds up nobody
_REST_S: Final = 1.0


class Listener:
    """Who connects there is accepted, as far as there are descriptors."""

    def __init__(self, path: str, log: Callable[[str], None]) -> None:
        """Raises OSError where it cannot listen, or somebody else does."""
        self.path = path
        self._log = log
        self._place = UnixPath(path, _BACKLOG, 0o600)
        self._place.sock.setblocking(False)
        self._rest_until = 0.0

    def fileno(self) -> int:
        """For poll; -1 while it rests, and once closed."""
        if self._rest_until and time.monotonic() < self._rest_until:
            return -1
        return self._place.sock.fileno()

    def accept(self) -> Iterator[socket.socket]:
        """Those who wait. Never waits itself.

        Without descriptors a poll would say again and again that somebody is there: it rests.
        """
        if self.fileno() < 0:
            return
        for _ in range(_ACCEPT_MOST):
            try:
                peer, _ = self._place.sock.accept()
            except (BlockingIOError, InterruptedError):
                break
            except ConnectionAbortedError:
                continue
            except OSError as error:
                if not self._rest_until:
                    self._log(f"nobody can be let in at {self.path}: {error.strerror or error}")
                self._rest_until = time.monotonic() + _REST_S
                return
            self._rest_until = 0.0
            yield peer

    def remove(self) -> None:
        """The path goes, before the process ends without a `close`. Any thread."""
        self._place.remove()

    def close(self) -> None:
        """Stop listening; the path goes too."""
        self._place.close()
