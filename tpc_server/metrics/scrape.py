"""Makes pages of `/metrics` beside a core. Owner: one ingress core; the thread owns its mapping.

A page takes milliseconds, more where a scheduler wrote many files: streams of the core go on
meanwhile. The thread starts with the first request; requests that wait together get one page.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from queue import SimpleQueue
from typing import Any, Final

from .exposition import Exposition
from .http import make_layout
from .own import OwnFamilies

_NICE: Final = 10  # above the core's: where both share a CPU the core runs first
_JOIN_S: Final = 5.0


class ScrapeThread:
    """A helper; `fileno` becomes readable when a page waits, then `pages` takes it."""

    __slots__ = ("_done", "_jobs", "_thread", "_wake")

    def __init__(self, config: Any, link: Any) -> None:
        self._jobs: SimpleQueue[int | None] = SimpleQueue()
        self._done: deque[tuple[list[int], bytes, str]] = deque()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(
            target=_serve, args=(config, link, self._jobs, self._done, self._wake),
            name="tpc-metrics", daemon=True,
        )  # fmt: skip
        self._thread.start()

    def fileno(self) -> int:
        """The descriptor to poll for reading."""
        return self._wake

    def submit(self, key: int) -> None:
        """Ask for a page for a connection."""
        self._jobs.put(key)

    def pages(self) -> list[tuple[list[int], bytes, str]]:
        """What is made: (connections, page, error)."""
        try:
            os.eventfd_read(self._wake)
        except BlockingIOError:
            pass
        taken = []
        while self._done:
            taken.append(self._done.popleft())
        return taken

    def close(self) -> None:
        """End the thread after the page it is at."""
        self._jobs.put(None)
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            os.close(self._wake)


def _serve(
    config: Any, link: Any, jobs: SimpleQueue[int | None],
    done: deque[tuple[list[int], bytes, str]], wake: int,
) -> None:  # fmt: skip
    try:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
    except OSError:
        pass
    exposition = None
    while True:
        key = jobs.get()
        keys: list[int] = []
        while key is not None:
            keys.append(key)
            if jobs.empty():
                break
            key = jobs.get()
        if key is None:
            return
        try:
            if exposition is None:
                exposition = of_server(config, link)
            done.append((keys, exposition.text(), ""))
        except Exception as error:
            done.append((keys, b"", f"{type(error).__name__}: {error}"))
        os.eventfd_write(wake, 1)


def of_server(config: Any, link: Any) -> Exposition:
    """The exposition of a server's region, with a mapping of the calling thread's own."""
    layout = make_layout(config)
    assert layout is not None
    words = link.region.mapping().words
    own = OwnFamilies(link, words)
    blocks = [link.metrics_at(core) for core in range(link.n)]
    return Exposition(layout, words, blocks, own, own.aborts)
