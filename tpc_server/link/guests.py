"""Frontends that join a running scheduler from outside. Owner: the scheduler's thread.

The scheduler listens on a UNIX socket; a frontend connects, is told what it needs to know, and
hands over its rings. Each side may start first, and may be restarted.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import time
from collections.abc import Callable
from typing import Any, Final

from ..metrics.area import MetricsArea
from .hub import Hub
from .link import START_S, Link, attached
from .messages import Channel, LinkClosed

# Where metrics are counted: places for guests, and cores that each may have.
GUESTS: Final = 16
GUEST_CORES: Final = 32


class Guests:
    """The socket, and the links of those who came through it."""

    def __init__(
        self, hub: Hub, path: str, config: dict[str, Any], stall_s: float,
        log: Callable[[str], None], registry_fd: int = -1, metrics: MetricsArea | None = None,
        first_slot: int = 0,
    ) -> None:  # fmt: skip
        """`metrics`: what all frontends count in, from `first_slot` on GUESTS are for these."""
        self._hub = hub
        self._path = path
        self._config = config
        self._stall_s = stall_s
        self._log = log
        self._registry_fd = registry_fd
        self._metrics = metrics
        self._slots = range(first_slot, first_slot + GUESTS)
        self._coming: list[tuple[Channel, float, int]] = []
        self.links: list[Link] = []
        self._finishing = False
        _clear(path)
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
            if self._finishing or not self._welcome(channel):
                channel.close()

    def _welcome(self, channel: Channel) -> bool:
        """Tell a guest what it needs to know; whether it may come."""
        words: dict[str, Any] = {"config": self._config, "listeners": []}
        fds = []
        slot = -1
        if self._metrics is not None:
            taken = {link.slot for link in self.links} | {slot for _, _, slot in self._coming}
            slot = min(set(self._slots) - taken, default=-1)
            if slot < 0:
                words = {
                    "refused": f"{GUESTS} frontends are attached, metrics have room for no more"
                }
                channel.post(words)
                return False
            area = self._metrics
            words["metrics"] = [area.region.size, area.slots, slot, area.cores]
            fds.append(area.region.fd)
        if self._registry_fd >= 0:
            words["registry"] = True
            fds.append(self._registry_fd)
        channel.post(words, fds)  # inside of a scheduler's call, and who reads slowly may
        self._coming.append((channel, time.monotonic(), slot))
        return True

    def tend(self) -> None:
        """Go on with whoever is coming or going; returns at once."""
        self.serve()
        for entry in self._coming[:]:
            channel, since, slot = entry
            try:
                message = channel.poll()
            except LinkClosed:
                message = {}
            if message is None and time.monotonic() - since < START_S:
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
            link.slot = slot
            self.links.append(link)
            self._hub.add(link)
            if self._finishing:
                link.channel.post({"drain": 0.0})
        for link in [one for one in self.links if one.gone]:
            self.links.remove(link)
            self._hub.bury(link)
            if not self._finishing:
                self._log("an attached frontend has left; its requests are aborted")

    def finish(self, seconds: float) -> None:
        """Let nobody in any more, and tell all to finish what they have; `tend` buries them when
        they have hung up."""
        self._finishing = True
        for link in self.links:
            link.channel.post({"drain": seconds})

    def close(self) -> None:
        """Hang up: they end their streams and wait for the next scheduler."""
        for link in self.links:
            self._hub.bury(link)
        self.links.clear()
        for channel, _, _ in self._coming:
            channel.close()
        self._sock.close()
        try:
            os.unlink(self._path)
        except OSError:
            pass


def _clear(path: str) -> None:
    """Remove what a scheduler that was killed has left. Raises OSError where one listens."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            return
        with socket.socket(socket.AF_UNIX) as probe:
            if not probe.connect_ex(path):
                raise OSError(errno.EADDRINUSE, "another scheduler listens there")
        os.unlink(path)
    except FileNotFoundError:
        pass
