"""Accepting connections and spreading them over the ingress cores. Owner: one ingress core."""

from __future__ import annotations

import errno
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from .. import frame, reactor
from .base import Port

if TYPE_CHECKING:
    from ..counters import Counters

_ACCEPTS: Final = 64  # a turn
_PAUSE_NS: Final = 250_000_000
_TELL_NS: Final = 60_000_000_000  # between two lines about pauses
_OUT_OF_FDS: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Loads:
    """Open connections per ingress core, in words that every core publishes at once."""

    def __init__(self, words: Any, at: dict[int, int], own: int) -> None:
        """`at` maps a core to the index of its word; `own` is this core."""
        self._words = words
        self._at = at
        self._own = own
        self._others = [core for core in at if core != own]
        # By core: connections when looked at last, and those given to it that it has not counted.
        self._given = {core: (0, 0) for core in self._others}

    def report(self, connections: int) -> None:
        """Publish the own number."""
        self._words[self._at[self._own]] = connections

    def give(self, own: int) -> int | None:
        """Another core that has clearly fewer connections than this one's `own`: it counts one
        more from now on, although it will publish that only once it has taken it."""
        if not self._others:
            return None
        words = self._words
        target, least = -1, own
        for core in self._others:
            load = words[self._at[core]]
            seen, given = self._given[core]
            if load != seen:
                given = max(0, given - max(0, load - seen))
                self._given[core] = (load, given)
            load += given
            if load < least:
                target, least = core, load
        if own - least < 2 + own // 8:
            return None
        seen, given = self._given[target]
        self._given[target] = (seen, given + 1)
        return target


class Acceptor:
    """The listening sockets of one core; `adopt` takes the connections that stay here."""

    def __init__(
        self,
        core: int,
        setup: Any,
        counters: Counters,
        poller: reactor.Reactor,
        listeners: list[socket.socket],
        adopt: Callable[[socket.socket], None],
    ) -> None:
        self._core = core
        self._setup = setup
        self._counters = counters
        self._reactor = poller
        self._listeners = {listener.fileno(): listener for listener in listeners}
        self._adopt = adopt
        self._open = False
        self._paused_until_ns = 0
        self._pauses = 0  # since the last line about them
        self._tell_ns = 0
        self._now_ns = 0
        self.loads: Any = None
        self.peers: dict[int, Port] = {}  # ingress stages of the other cores
        self.connections = 0  # kept by the stage

    def start(self) -> None:
        """Watch the listening sockets."""
        self._open = True
        self._watch()

    def stop(self) -> None:
        """Watch them no more."""
        if self._open:
            self._open = False
            self._unwatch()

    def close(self) -> None:
        """Take who waits in the queues, who would be reset; whoever connects later is refused."""
        if self._open:
            self.stop()
            for fd, listener in self._listeners.items():
                self.on_events(fd, reactor.IN)
                listener.close()

    def on_tick(self, now_ns: int) -> None:
        """Go on after a shortage of descriptors."""
        self._now_ns = now_ns
        if self._paused_until_ns and now_ns >= self._paused_until_ns:
            self._paused_until_ns = 0
            if self._open:
                self._watch()

    def report(self, connections: int) -> None:
        """The number of connections has changed."""
        self.connections = connections
        self._counters.connections = connections
        self.loads.report(connections)

    def on_events(self, fd: int, mask: int) -> None:
        """Take what waits, up to a bound a turn."""
        listener = self._listeners[fd]
        for _ in range(_ACCEPTS):
            try:
                sock, _address = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _OUT_OF_FDS:
                    raise
                # Level-triggered epoll would spin: look again in a while.
                self._unwatch()
                self._paused_until_ns = self._now_ns + _PAUSE_NS
                self._pauses += 1
                if self._now_ns >= self._tell_ns:
                    self._tell()
                return
            self._counters.accepted += 1
            target = self.loads.give(self.connections)
            if target is None:
                self._adopt(sock)
            else:
                self.peers[target].send((frame.I_HANDOVER, sock.detach()))

    def _tell(self) -> None:
        """A shortage lasts: the first pause is told, then once a minute how many there were."""
        self._setup.log(
            "warning", "out of descriptors: accepting pauses", core=self._core, times=self._pauses
        )
        self._pauses = 0
        self._tell_ns = self._now_ns + _TELL_NS

    def _watch(self) -> None:
        for fd in self._listeners:
            self._reactor.register(fd, reactor.IN, self)

    def _unwatch(self) -> None:
        for fd in self._listeners:
            self._reactor.unregister(fd)
