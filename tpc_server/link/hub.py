"""All links of one scheduler behind one face. Owner: the scheduler's thread; pushes from others.

What concerns the life of frontends (messages of theirs, deaths, restarts) is looked after inside
the calls of the scheduler, briefly: its process has no thread of ours.
"""

from __future__ import annotations

import select
import threading
import time
from _thread import get_ident
from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from ..boundary.port import IngressRequest
from .link import Link
from .messages import Channel

_TEND_NS: Final = 50_000_000


class Extra(Protocol):
    """A socket that is no link; a descriptor of -1: there is nothing to wait for now."""

    def fileno(self) -> int: ...
    def serve(self) -> None: ...


class Hub:
    """Receives from every link, pushes to every link, buries the dead ones."""

    def __init__(self, tend: Callable[[], object]) -> None:
        """`tend` looks after processes: called a few times a second, and when one has ended. True:
        nothing is under way, it has nothing to do until somebody says something."""
        self.links: tuple[Link, ...] = ()
        self.extra: list[Extra] = []
        self.coming: tuple[Channel, ...] = ()  # of who has not said yet where its rings are
        self.closed = False
        self._tend = tend
        self._tended_ns = 0
        self._calm: select.poll | None = None  # of all who may say something, while all is calm
        self._stirs = 0  # how often that was over
        self._put_off = False  # messages came first the last time
        self._first = 0
        self._waiting: list[IngressRequest] = []  # aborts of what a dead link had
        self.lock = threading.RLock()  # links come and go, and processes are tended, only under it
        self._asleep = threading.RLock()  # descriptors that are slept on stay open
        self._receiver = 0  # the thread that receives: it alone buries, until `close`

    # -- links -------------------------------------------------------------------------

    def add(self, link: Link) -> None:
        """A new link: pushes reach it from now on."""
        with self.lock:
            self.stir()
            self.links = (*self.links, link)

    def expect(self, channel: Channel) -> None:
        """Somebody comes: what is said there is seen to at once."""
        with self.lock:
            self.stir()
            self.coming = (*self.coming, channel)

    def forget(self, channel: Channel) -> None:
        """That one has come, or does not any more."""
        with self.lock:
            self.stir()
            self.coming = tuple([other for other in self.coming if other is not channel])

    def bury(self, link: Link) -> int:
        """A link whose process is gone: its requests are aborted, its memory let go. How many
        requests those were."""
        with self.lock:
            if link not in self.links:
                return 0
            self.stir()
            self.links = tuple([other for other in self.links if other is not link])
            link.gone = True
            try:
                aborts = link.aborts()
                self._waiting += aborts
            finally:
                link.destroy()
            return len(aborts)

    def tend(self, now: bool = False) -> None:
        """Look after the processes, when it is time to."""
        clock = time.monotonic_ns()
        if not now and clock - self._tended_ns < _TEND_NS:
            return
        self._tended_ns = clock
        with self.lock:
            if self.closed or (not now and self._all_calm(clock)):
                return
            self.stir()
            stirs = self._stirs
            for link in self.links:
                link.stirred = False
                link.look(clock)
                link.tell()
            if self._tend():
                self._calm = self._listening()
                if self._stirs != stirs:  # by a handler of a signal, too
                    self._calm = None

    def stir(self) -> None:
        """Something is under way from now on: the next look is a whole one. Under `lock`."""
        self._stirs += 1
        self._calm = None

    def _all_calm(self, clock: int) -> bool:
        """The short look: nobody said anything, and all turn."""
        calm = self._calm
        if calm is None or calm.poll(0):
            return False
        for link in self.links:
            link.beat(clock)
            if link.gone or link.stirred:
                return False
        return True

    def _listening(self) -> select.poll | None:
        """A poll of all who may say something; None where one has still to be seen to."""
        fds = [one.fileno() for one in self.extra]
        for channel in (*self.coming, *[link.channel for link in self.links]):
            fds += channel.filenos() or [-1]
            if channel.unsent:
                return None
        if -1 in fds:
            return None
        poll = select.poll()
        for fd in fds:
            poll.register(fd, select.POLLIN)
        return poll

    # -- the scheduler's calls -----------------------------------------------------------

    def recv(self, most: int) -> list[IngressRequest]:
        """Messages of all frontends; never blocks."""
        self._receiver = get_ident()
        links = self.links
        if len(links) == 1 and not self._waiting and not self._put_off and not links[0].idle():
            self._put_off = True  # who has messages lives: the look at it is for the next call
        else:
            self._put_off = False
            self.tend()
            links = self.links
            if not self._waiting and len(links) == 1 and links[0].idle():
                return []
        out, self._waiting = self._waiting, []
        if len(links) == 1:
            out += links[0].recv(most)
            links[0].shared.clear()
            return out
        self._first += 1
        for turn in range(len(links)):
            room = most - len(out)
            if room <= 0:
                break
            link = links[(self._first + turn) % len(links)]
            out += link.recv(room)
            if link.shared:
                self._share(link)
        return out

    def _share(self, source: Link) -> None:
        """A client's aborts may mean requests of other frontends, or of one that is leaving."""
        told = source.shared[:]
        source.shared.clear()  # the list stays: what reads the ring puts them there
        for link in self.links:
            if link is not source:
                for payload in told:
                    link.tell(payload)

    def wait(self, timeout_ms: int) -> bool:
        """Sleep, without the GIL, until there may be a message or the time is up."""
        self._receiver = get_ident()
        self.tend()
        if self._waiting:
            return True
        deadline = time.monotonic() + timeout_ms / 1000
        while not self.closed:
            rest = deadline - time.monotonic()
            if rest <= 0:
                return False
            if any([link.gone for link in self.links]):
                self.tend(now=True)
            # Never longer than children may go unattended.
            with self._asleep:
                if self._sleep(min(int(rest * 1000) + 1, 250)):
                    return True
            self.tend()
            if self._waiting:
                return True
        return False

    def _sleep(self, timeout_ms: int) -> bool:
        if self.closed:
            return False
        links = [link for link in self.links if not link.gone]
        for k, link in enumerate(links):
            if not link.arm():
                for armed in links[:k]:
                    armed.disarm(False)
                return True
        # A signal's handler may close everything meanwhile, on this thread.
        watched = [(link, link.fileno(), link.channel.filenos()) for link in links]
        coming = [fd for channel in self.coming for fd in channel.filenos()]
        poll = select.poll()
        extra = {one.fileno(): one for one in self.extra}
        for fd in (*extra, *coming, *[fd for _, bell, ends in watched for fd in (bell, *ends)]):
            if fd >= 0:
                poll.register(fd, select.POLLIN)
        rung = {fd for fd, _ in poll.poll(timeout_ms)}
        found = False
        for link, bell, ends in watched:
            here = bell in rung
            link.disarm(here)
            found = found or here
            if not rung.isdisjoint(ends) and not link.gone:
                link.hear()
                self.tend(now=True)
        if not rung.isdisjoint(coming):
            self.tend(now=True)
        for fd in rung:
            one = extra.get(fd)
            if one is not None:
                with self.lock:
                    self.stir()
                    one.serve()
        return found

    def push(self, kind: int, key: bytes, parts: Sequence[Any]) -> bool:
        """One record to every link: all that have room first, then those that make it wait.

        False on shutdown only. What a link that is gone does not take is dropped.
        """
        if self.closed:
            return False
        links = self.links
        if len(links) == 1:
            link = links[0]
            link.note(kind, key, parts)
            link.push(kind, key, parts)
        else:
            for link in links:
                link.note(kind, key, parts)
            left: list[Callable[[bool], bool]] = []
            try:
                for link in links:
                    finish = link.offer(kind, key, parts)
                    if finish is not None:
                        left.append(finish)
                while left:
                    left.pop()(True)
            except BaseException:  # an interrupt of the scheduler's: what is locked stays so else
                for finish in left:
                    finish(False)
                raise
        if any([link.gone for link in links]) and get_ident() == self._receiver:
            self.tend(now=True)
        return not self.closed

    def close(self) -> None:
        """No more calls; returns once nobody sleeps in one or tends, nor will again."""
        self.closed = True
        with self._asleep, self.lock:
            pass
