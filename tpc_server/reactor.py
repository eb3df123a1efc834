"""The epoll set of one core. Owner: the core's thread, which builds it.

Handlers are objects with `on_events(fd, mask)`; they are looked up in a dict that only this
thread touches. Time-outs of connections and streams are coarse (about a quarter of a
second), so there is no timer heap: the core calls `on_tick` of its stages.
"""

from __future__ import annotations

import select
from typing import Final, Protocol

IN: Final = select.EPOLLIN
OUT: Final = select.EPOLLOUT
RDHUP: Final = getattr(select, "EPOLLRDHUP", 0x2000)
IN_MASK: Final = IN | RDHUP
BROKEN: Final = select.EPOLLERR | select.EPOLLHUP


class Handler(Protocol):
    """Whatever owns a registered descriptor."""

    def on_events(self, fd: int, mask: int) -> None:
        """Called with the ready mask; may unregister any descriptor."""


class Reactor:
    """Registered descriptors of one core."""

    __slots__ = ("_epoll", "_handlers", "_masks", "_out", "_wake_fd")

    def __init__(self, wake_fd: int) -> None:
        self._epoll = select.epoll()
        self._handlers: dict[int, Handler] = {}
        self._out: dict[int, Handler] = {}
        self._masks: dict[int, int] = {}
        self._wake_fd = wake_fd
        self._epoll.register(wake_fd, IN)

    def register(self, fd: int, mask: int, handler: Handler) -> None:
        """Watch `fd` (level-triggered)."""
        self._epoll.register(fd, mask)
        self._handlers[fd] = handler
        self._masks[fd] = mask

    def register_out(self, fd: int, handler: Handler) -> None:
        """Watch `fd` for room to write, beside whatever it is watched for already."""
        self._out[fd] = handler
        if fd in self._handlers:
            self._epoll.modify(fd, self._masks[fd] | OUT)
        else:
            self._epoll.register(fd, OUT)

    def unregister_out(self, fd: int) -> None:
        """Stop watching `fd` for room; reading goes on as it was."""
        if self._out.pop(fd, None) is None:
            return
        if fd in self._handlers:
            self._epoll.modify(fd, self._masks[fd])
        else:
            self._drop(fd)

    def modify(self, fd: int, mask: int) -> None:
        """Change what `fd` is watched for; an unknown descriptor is ignored."""
        if fd in self._handlers and self._masks[fd] != mask:
            self._masks[fd] = mask
            self._epoll.modify(fd, mask | OUT if fd in self._out else mask)

    def unregister(self, fd: int) -> None:
        """Stop watching `fd`; an unknown descriptor is ignored."""
        self._out.pop(fd, None)
        if self._handlers.pop(fd, None) is not None:
            del self._masks[fd]
            self._drop(fd)

    def _drop(self, fd: int) -> None:
        try:
            self._epoll.unregister(fd)
        except OSError:  # closed already by its owner
            pass

    def poll(self, timeout_s: float) -> tuple[int, bool]:
        """Dispatch ready descriptors. Returns (handlers called, whether the doorbell rang)."""
        events = self._epoll.poll(timeout_s, 256)
        rang = False
        handlers = self._handlers
        wake_fd = self._wake_fd
        called = 0
        for fd, mask in events:
            if fd == wake_fd:
                rang = True
                continue
            called += 1
            if mask & ~IN_MASK:
                writer = self._out.get(fd)
                if writer is not None:
                    writer.on_events(fd, mask)
                    mask &= ~OUT
            handler = handlers.get(fd)
            # An earlier handler of this round may have closed it.
            if handler is not None and mask:
                handler.on_events(fd, mask)
        return called, rang

    def close(self) -> None:
        """Close the epoll descriptor; watched descriptors stay open."""
        self._handlers.clear()
        self._epoll.close()
