"""What a thread sleeps on, and is woken by another thread or process. Owner: whoever made it.

Anybody who has the descriptor may write to it; one reads.
"""

from __future__ import annotations

import os
import select
from typing import Protocol


class Event(Protocol):
    """A counter another thread or process can be asleep on."""

    def write(self) -> None: ...
    def read(self) -> None: ...
    def wait(self, timeout_ms: int) -> bool: ...
    def fileno(self) -> int: ...


class EventFd:
    """An eventfd, inheritable by descriptor. Create one per doorbell."""

    __slots__ = ("_fd", "_poll")

    def __init__(self, fd: int | None = None) -> None:
        self._fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC) if fd is None else fd
        self._poll: select.poll | None = None

    def fileno(self) -> int:
        return self._fd

    def write(self) -> None:
        try:
            os.eventfd_write(self._fd, 1)
        except BlockingIOError:
            pass  # 2**64 - 2 unread rings: the sleeper is woken by any one of them
        except ValueError:
            pass  # closed: who slept there is gone

    def read(self) -> None:
        try:
            os.eventfd_read(self._fd)
        except (BlockingIOError, ValueError):
            pass

    def wait(self, timeout_ms: int) -> bool:
        """Sleeps, without the GIL, until it was written to; False after `timeout_ms`."""
        if self._poll is None:
            self._poll = select.poll()
            self._poll.register(self._fd, select.POLLIN)
        return bool(self._poll.poll(timeout_ms))

    def close(self) -> None:
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            os.close(fd)

    def __del__(self) -> None:
        # One that anybody may write to at any time is closed with its last holder.
        if getattr(self, "_fd", -1) >= 0:
            self.close()
