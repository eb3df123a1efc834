"""The scheduler's end of one frontend process. Owner: the scheduler's thread; pushes from others.

A link is used for one process and never again. It knows which requests went through it and did
not end: when the process is gone, those are aborted in the scheduler. Until the first of them
nothing is pushed to it: nothing could be for it, and one that never gets so far holds up nobody.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from ..boundary import codec, messages, wire
from ..boundary.port import IngressRequest, Reader, SchedulerPort, make_reader
from ..mailbox import Sender, offer
from ..mesh import DATA, SCHEDULER, STOPPED
from ..ring import Record
from ..shm import LINE_BYTES
from .attached import AttachedMesh
from .awake import Awake
from .messages import Channel, LinkClosed, text_of

_FINISH_MARK: Final = b"\xa4type"  # the key of every finish reason, in msgpack
_MARK_BYTE: Final = _FINISH_MARK[:1]  # looking for one byte costs a fraction
_HEARD_MOST: Final = 64  # messages at once
_LOG_MOST: Final = 256
_LOG_STEP: Final = 2  # read of it a step, beyond that: all at once would be felt
_LOOK_NS: Final = 50_000_000
_UNTOLD_MOST: Final = 1024
START_S: Final = 120.0  # until a process takes connections, and until it says where its rings are


def _nothing(records: list[Record]) -> list[IngressRequest]:
    return []


class Link(SchedulerPort):
    """Rings to one process, and what is known of it."""

    def __init__(self, channel: Channel, mesh: AttachedMesh, stall_s: float) -> None:
        super().__init__(mesh)
        self.channel = channel
        self.mesh = mesh
        self.accepting = False
        self.ready = False
        self.retired = False  # told to finish what it has
        self.leaving = False  # finishes what it has because a signal told it to
        self.failure = ""
        self.reload_asked = False
        self.gone = False
        self.stirred = True  # something of it has still to be seen to
        self.since = time.monotonic()
        self.words = self._words
        self.process: Any = None  # the child, where it is ours
        self.slot = 0  # of the metrics it counts in
        self._stall_ns = int(stall_s * 1e9)
        self._live: dict[bytes, None] = {}  # wire rids of requests that were given out
        self.shared: list[bytes] = []  # aborts for the other links, not told yet
        # Headers that name requests that ended, not read yet.
        self._ended: deque[bytes] = deque()
        self._looked_ns = time.monotonic_ns()
        # What follows is in time that we were awake for.
        self._awake = Awake(self._looked_ns, self._stall_ns // 4)
        self._newest = 0  # heartbeat of all, as it was seen last, and when it came
        self._turned_ns = 0
        self._heartbeats = [mesh.counters_at(core) for core in range(mesh.n)]
        self._poll = select.poll()
        for fd in channel.filenos():
            self._poll.register(fd, select.POLLIN)
        self._hearing = threading.Lock()  # a push that waits hears too, on its own thread
        self._readers = self._frames  # of what is pushed, once there may be any
        self._frames: Sequence[Sender] = ()
        # Where their readers and we are in those rings, and when a reader moved last.
        lanes = [mesh.ring((SCHEDULER, core, DATA)) for core in mesh.plan.stage_cores("detok")]
        self._places = [(at >> 3, (at + LINE_BYTES) >> 3) for at, _, _ in lanes]
        self._moved = [(0, 0)] * len(lanes)
        self.read = self._beginning(make_reader(self._live, self.shared))
        # Theirs that there was no room for yet, and the rings that lack them.
        self._untold: deque[tuple[Sequence[Sender], bytes]] = deque(maxlen=_UNTOLD_MOST)

    # -- requests ----------------------------------------------------------------------

    def _beginning(self, then: Reader) -> Reader:
        """The first record of all: from now on what is pushed may be for this process."""

        def first(records: list[Record]) -> list[IngressRequest]:
            if records:
                self._frames = self._readers
                self.read = then
            return then(records)

        return first

    def frame(self, header: Any, columns: Sequence[Any]) -> bool:
        """One frame by the short way (`SchedulerPort.step`); False: nothing was done."""
        try:
            if self.gone or not self.step(header, columns):
                return False
        except OSError as error:
            self._broken(error)
            return True
        if _MARK_BYTE in header and _FINISH_MARK in header:
            self._note_ends(header)
        return True

    def push(self, kind: int, key: bytes, parts: Sequence[Any]) -> bool:
        """As any port's; what its process did to its doorbells is the end of the link."""
        try:
            return super().push(kind, key, parts)
        except OSError as error:
            return self._broken(error)

    def offer(self, kind: int, key: bytes, parts: Sequence[Any]) -> Callable[[bool], bool] | None:
        """As any port's, in the same way."""
        try:
            finish = super().offer(kind, key, parts)
        except OSError as error:
            self._broken(error)
            return None
        if finish is None:
            return None

        def guarded(wait: bool) -> bool:
            try:
                return finish(wait)
            except OSError as error:
                return self._broken(error)

        return guarded

    def tell(self, payload: bytes = b"") -> None:
        """An abort of another frontend's client, and those that there was no room for before.
        Never waits: who asks is in `recv_requests`."""
        untold = self._untold
        if payload:
            untold.append((self._readers, payload))
        if not untold or self.gone:
            return
        self.stirred = True
        if not self._push_lock.acquire(blocking=False):
            return
        try:
            while untold:
                senders, text = untold.popleft()
                unsent, _ = offer(senders, (), wire.FOREIGN_ABORT, b"", (text,))
                if unsent:
                    untold.appendleft((unsent, text))
                    return
        except OSError as error:
            self._broken(error)
        finally:
            self._push_lock.release()

    def _broken(self, error: Exception) -> bool:
        self.failure = f"its rings cannot be used: {error!r}"
        self.gone = True
        return False

    def recv(self, max_requests: int) -> list[IngressRequest]:
        """As any port's, without what concerns other links: that is in `shared` then.

        What makes no sense is the end of the link, not of the scheduler.
        """
        if self.gone:
            return []
        try:
            return super().recv(max_requests)
        except Exception as error:
            self.failure = f"its ring cannot be read: {error!r}"
            self.gone = True
            return []

    def note(self, kind: int, key: bytes, parts: Sequence[Any]) -> None:
        """Something is pushed: whose end it says is read when there is time for it."""
        if kind == wire.BATCH:
            header = bytes(parts[1])  # no other buffer: one may be the scheduler's to use again
            if _FINISH_MARK in header:
                self._note_ends(header)
        elif kind != wire.HEALTH_ACK:
            self._live.pop(key, None)

    def _note_ends(self, header: bytes) -> None:
        self._ended.append(header)
        if len(self._ended) > _LOG_MOST:
            self.settle(_LOG_STEP)

    def settle(self, most: int) -> None:
        """Read what has ended, so many headers of it."""
        live = self._live
        for _ in range(most):
            try:
                header = self._ended.popleft()
            except IndexError:
                return
            try:
                columns = codec.unpack(header)
                for rid, finish in zip(columns[0], columns[1], strict=False):
                    if finish is not None:
                        live.pop(rid.encode(), None)
            except Exception:  # a malformed frame ends nothing that we could name
                continue

    def aborts(self) -> list[IngressRequest]:
        """An abort of every request that did not end."""
        self.settle(len(self._ended))
        pack = codec.make_packer()
        found = [IngressRequest(messages.pack_abort(pack, rid.decode()), []) for rid in self._live]
        self._live.clear()
        return found

    # -- life --------------------------------------------------------------------------

    def _stopped(self) -> bool:
        """Asked again and again by a push that waits for room."""
        if self.gone or self._words[STOPPED]:
            return True
        now = time.monotonic_ns()
        if now - self._looked_ns >= _LOOK_NS:
            self.look(now)
        return self.gone

    def look(self, now_ns: int) -> None:
        """Whether the process is still there, and turns; sets `gone` when not. Any thread."""
        self._looked_ns = now_ns  # first: others need not look now
        if self._hearing.acquire(blocking=False):  # else another thread looks, or hears
            try:
                said = self._poll.poll(0)  # which two threads may not do at once
            finally:
                self._hearing.release()
            if said or self.channel.unsent:
                self.hear()
        self.beat(now_ns)

    def beat(self, now_ns: int) -> None:
        """Whether it turns and reads; the part of `look` that is due where nothing was said."""
        self._looked_ns = now_ns
        awake_ns = self._awake.look(now_ns)
        if not self.accepting:
            if awake_ns > START_S * 1e9:
                self._give_up(f"it did not take connections in {START_S:.0f} s")
            self._turned_ns = awake_ns
            self._moved = [(-1, awake_ns)] * len(self._places)
            return
        words = self._words
        newest = max([words[at] for at in self._heartbeats])
        if newest != self._newest:
            self._newest = newest
            self._turned_ns = awake_ns
        elif awake_ns - self._turned_ns > self._stall_ns:
            self._give_up("its cores do not turn")
        for k, (head, tail) in enumerate(self._places):
            at = words[tail]
            seen, since = self._moved[k]
            if at != seen or at == words[head]:
                self._moved[k] = at, awake_ns
            elif awake_ns - since > self._stall_ns:
                self._give_up("it does not read what is pushed")

    def _give_up(self, why: str) -> None:
        if not self.gone:
            self.failure = why
            self.gone = True

    def hear(self) -> None:
        """Read what the process says; its end sets `gone`."""
        with self._hearing:
            try:
                for _ in range(_HEARD_MOST):
                    message = self.channel.poll()
                    if message is None:
                        break
                    if message.get("accepting"):
                        self.accepting = True
                    if message.get("ready"):
                        self.ready = True
                    if message.get("draining"):
                        self.leaving = True
                    if message.get("reload"):
                        self.reload_asked = True
                    self.failure = text_of(message, "failed") or self.failure
            except LinkClosed:
                self.gone = True
            for fd in self.channel.take_fds():  # none should come any more
                os.close(fd)
        self.stirred = True

    def destroy(self) -> None:
        """Let go of everything, once no thread uses it."""
        self.read = _nothing  # it may know the link, which nothing should keep
        self._words[STOPPED] = 1
        self.close()
        self.channel.close()
        self.mesh.close()


def attached(channel: Channel, about: Any, stall_s: float) -> Link:
    """The link to a process that said where its rings are. Raises ValueError where they cannot be
    used, whatever is wrong: it may be one of another version."""
    mesh = AttachedMesh(about, channel.take_fds())
    try:
        return Link(channel, mesh, stall_s)
    except Exception as error:
        mesh.close()
        raise ValueError(f"its rings cannot be used: {error!r}") from None
