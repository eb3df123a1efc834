"""Frontends that join a running scheduler from outside. Owner: the scheduler's thread.

The scheduler listens on a UNIX socket; a frontend connects, is told what it needs to know, and
hands over its rings. Each side may start first, and may be restarted.
"""

from __future__ import annotations

import os
import socket
import stat
import time
from collections.abc import Callable
from typing import Any, Final

from .hub import Hub
from .link import Link, attached
from .messages import Channel, LinkClosed

_ANSWER_S: Final = 120.0


class Guests:
    """The socket, and the links of those who came through it."""

    def __init__(
        self, hub: Hub, path: str, config: dict[str, Any], stall_s: float,
        log: Callable[[str], None], registry_fd: int = -1,
    ) -> None:  # fmt: skip
        self._hub = hub
        self._path = path
        self._config = config
        self._stall_s = stall_s
        self._log = log
        self._registry_fd = registry_fd
        self._coming: list[tuple[Channel, float]] = []
        self.links: list[Link] = []
        try:
            if stat.S_ISSOCK(os.stat(path).st_mode):
                os.unlink(path)
        except FileNotFoundError:
            pass
        self._sock = socket.socket(socket.AF_UNIX)
        self._sock.setblocking(False)
        self._sock.bind(path)
        os.chmod(path, 0o600)
        self._sock.listen(16)

    def fileno(self) -> int:
        """For poll."""
        return self._sock.fileno()

    def serve(self) -> None:
        """Let in who waits."""
        while True:
            try:
                peer, _ = self._sock.accept()
            except OSError:
                return
            channel = Channel(peer)
            fds = [self._registry_fd] if self._registry_fd >= 0 else []
            words = {"config": self._config, "listeners": [], "registry": bool(fds)}
            if channel.send(words, fds):
                self._coming.append((channel, time.monotonic()))
            else:
                channel.close()

    def tend(self) -> None:
        """Go on with whoever is coming or going; returns at once."""
        self.serve()
        for entry in self._coming[:]:
            channel, since = entry
            try:
                message = channel.poll()
            except LinkClosed:
                message = {}
            if message is None and time.monotonic() - since < _ANSWER_S:
                continue
            self._coming.remove(entry)
            try:
                if not message or "mesh" not in message:
                    raise ValueError(message.get("refused", "it left") if message else "silence")
                link = attached(channel, message["mesh"], self._stall_s)
            except ValueError as error:
                self._log(f"a frontend could not be attached: {error}")
                channel.close()
                continue
            self.links.append(link)
            self._hub.add(link)
        for link in [one for one in self.links if one.gone]:
            self.links.remove(link)
            self._hub.bury(link)
            self._log("an attached frontend has left; its requests are aborted")

    def close(self) -> None:
        """Hang up: they end their streams and wait for the next scheduler."""
        for link in self.links:
            self._hub.bury(link)
        self.links.clear()
        for channel, _ in self._coming:
            channel.close()
        self._sock.close()
        try:
            os.unlink(self._path)
        except OSError:
            pass
