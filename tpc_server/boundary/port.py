"""The scheduler's side of the rings. Owner: the scheduler's thread; pushes may come from others.

Importable on a GIL Python 3.11: standard library, and numpy only when a request has arrived.
Reads requests from every tokenize core, writes frames to every detok core.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any, Final

from ..live import Watch
from ..mailbox import Receiver, Sender, SpaceWaiter, broadcast, complete, offer
from ..mesh import ABORTS, DATA, PUSHES_BLOCKED, PUSHES_BLOCKED_NS, SCHEDULER, SPACE, STOPPED, Ends
from ..ring import Record
from . import wire

RECV_MAX: Final = 256
_WORD: Final = (1 << 64) - 1
_SHORT_BYTES: Final = 48 << 10  # of a frame that is joined: below what is stored without a GIL


class IngressRequest:
    """One message for the scheduler.

    header   msgpack array, see `boundary.messages`
    buffers  [(name, numpy array)], read-only views on this record's own bytes
    """

    __slots__ = ("buffers", "header")

    def __init__(self, header: bytes, buffers: list[tuple[str, Any]]) -> None:
        self.header = header
        self.buffers = buffers


class SchedulerPort:
    """What `Server` offers a scheduler, over one mesh."""

    def __init__(self, mesh: Any) -> None:
        """`mesh`: a `Mesh`, or what a scheduler's process knows of one."""
        ends = self._ends = Ends(mesh)
        self._words = ends.words
        plan = mesh.plan
        self._requests = [ends.receiver(c, SCHEDULER) for c in plan.stage_cores("tokenize")]
        self._aborts = [ends.receiver(c, SCHEDULER, ABORTS) for c in plan.stage_cores("tokenize")]
        # Aborts, each with the place in the request ring that has to be read before.
        self._held: list[list[tuple[int, list[Record]]]] = [[] for _ in self._requests]
        self._first = 0  # whose turn it is: where there is more than asked for, nobody starves
        self._frames: Sequence[Sender] = [
            ends.sender(SCHEDULER, c) for c in plan.stage_cores("detok")
        ]
        # Each step, each request would come to new pages for a whole round of the ring.
        lanes = [(SCHEDULER, c, DATA) for c in plan.stage_cores("detok")]
        for lane in [*lanes, *[(c, SCHEDULER, DATA) for c in plan.stage_cores("tokenize")]]:
            at, size, _ = mesh.ring(lane)
            ends.mapping().populate(at, size)
        self._watches = [Watch(ends.words, opened, ended) for opened, ended in mesh.watched()]
        self._sleeper = ends.sleeper(SCHEDULER)
        self._space = _TimedWaiter(ends)
        self._all: Sequence[Receiver] = (*self._requests, *self._aborts)
        # Asked at every turn of a scheduler's loop: no calls (`idle`).
        self._ins = [(one.consumer.head_at, one.consumer) for one in self._all]
        # A ring has one producer; a scheduler that pushes from several threads takes turns.
        self._push_lock = threading.Lock()
        self._wait_lock = threading.Lock()  # `close` must not take the event from under a sleeper
        self._wake = mesh.events[SCHEDULER]
        self._heads: dict[int, Any] = {}  # by number of columns: packs the start of a frame
        self.read = make_reader()

    # -- receiving -------------------------------------------------------------------

    def idle(self) -> bool:
        """Whether nothing came since the last `recv`, by a short look: when in doubt it says no."""
        words = self._words
        for at, consumer in self._ins:
            if words[at] != consumer.tail:
                return False
        return not any(self._held)

    def recv(self, max_requests: int) -> list[IngressRequest]:
        """Up to about `max_requests` messages; never blocks.

        A request always comes before its abort: aborts are read first, and given out once what
        was in the request ring of the same core then has been read, and no request there is
        still incomplete.
        """
        out: list[IngressRequest] = []
        count = len(self._requests)
        first = self._first
        self._first = (first + 1) % count
        for turn in range(first, first + count):
            i = turn % count
            receiver = self._requests[i]
            held = self._held[i]
            aborts = self._aborts[i].drain(RECV_MAX)
            if aborts:
                held.append((receiver.consumer.published(), aborts))
            room = max_requests - len(out)
            if room <= 0:
                break
            records = receiver.drain(room)
            out += self.read(records)
            # Not by their number: pieces of a large one count too, and are fewer records. What has
            # come since the aborts were read is none of theirs.
            while held and receiver.consumer.tail >= held[0][0] and not receiver.partial:
                out += self.read(held.pop(0)[1])
        return out

    def wait(self, timeout_ms: int) -> bool:
        """Sleep until a message comes or the time is up; the GIL is not held."""
        if any(self._held):
            return True
        with self._wait_lock:
            if self._words[STOPPED]:
                return False
            if not self._sleeper.try_sleep(self._all):
                return True
            return self._sleeper.wait(timeout_ms)

    def arm(self) -> bool:
        """For who sleeps on several ports: False when there is something to receive now."""
        return not any(self._held) and self._sleeper.try_sleep(self._all)

    def disarm(self, rung: bool) -> None:
        """After that sleep; `rung`: its descriptor woke it."""
        self._sleeper.disarm()
        if rung:
            self._sleeper.clear()

    def fileno(self) -> int:
        """What wakes it."""
        return self._sleeper.fileno()

    def close(self) -> None:
        """After STOPPED is set: returns once no thread waits in a call, nor will again."""
        self._wake.write()
        with self._wait_lock, self._push_lock:
            pass

    # -- pushing ---------------------------------------------------------------------

    def step(self, header: Any, columns: Sequence[Any]) -> bool:
        """One frame by the short way; False: take `push`, nothing was done.

        Where one core takes the frames, everything is plain bytes, and the ring has room.
        """
        frames = self._frames
        if len(frames) != 1 or type(header) is not bytes:
            return False
        sizes = [len(column) for column in columns if type(column) is bytes]
        count = len(columns)
        if len(sizes) != count:
            return False
        size = 6 + 8 * count + len(header) + sum(sizes)
        if size > _SHORT_BYTES:
            return False
        pack = self._heads.get(count)
        if pack is None:
            pack = self._heads[count] = Struct(f"<IIIH{count}Q").pack
        head = pack(size, wire.BATCH << 16, len(header), count, *sizes)
        with self._push_lock:
            # Not `_stopped`: whether its reader lives is asked by who waits for it, and by `recv`.
            return not self._words[STOPPED] and frames[0].step(head, header, columns, size)

    def push(self, kind: int, key: bytes, parts: Sequence[Any]) -> bool:
        """One record to every detok core where a request lives; waits for space, False only on
        shutdown."""
        if self._stopped():
            return False
        with self._push_lock:
            if self._stopped():
                return False
            return broadcast(self._wanted(), kind, key, parts, self._stopped, self._space)

    def offer(self, kind: int, key: bytes, parts: Sequence[Any]) -> Callable[[bool], bool] | None:
        """As `push`, without waiting: None, or what waits for the cores that had no room.

        That must be called before anything else is pushed here; with False it gives up instead.
        """
        if self._stopped():
            return None
        self._push_lock.acquire()
        try:
            left = offer(self._wanted(), (), kind, key, parts)
        except BaseException:
            self._push_lock.release()
            raise
        if not any(left):
            self._push_lock.release()
            return None

        def finish(wait: bool) -> bool:
            try:
                return wait and complete(*left, kind, key, parts, self._stopped, self._space)
            finally:
                self._push_lock.release()

        return finish

    def _wanted(self) -> Sequence[Sender]:
        """The rings of the detok cores where a request lives; under the push lock."""
        frames = self._frames
        if len(frames) == 1:
            return frames
        watches = self._watches
        return [frames[k] for k in range(len(frames)) if watches[k].any_live()]

    def doorbells(self) -> tuple[int, int]:
        """(written, saved): wake-ups of cores by pushes."""
        bells = self._ends.bells
        return sum(b.written for b in bells), sum(b.saved for b in bells)

    def _stopped(self) -> bool:
        return bool(self._words[STOPPED])


class _TimedWaiter(SpaceWaiter):
    """Where pushes wait for room; says how often and how long."""

    __slots__ = ("_published",)

    def __init__(self, ends: Ends) -> None:
        super().__init__(ends.doorbell(SPACE))
        self._published = ends.words

    def wait(self, timeout_ms: int) -> bool:
        began = time.monotonic_ns()
        rung = super().wait(timeout_ms)
        words = self._published
        # They are in memory of both: the other side may have written anything there.
        words[PUSHES_BLOCKED] = words[PUSHES_BLOCKED] + 1 & _WORD
        words[PUSHES_BLOCKED_NS] = words[PUSHES_BLOCKED_NS] + time.monotonic_ns() - began & _WORD
        return rung


#: Messages out of records, in their order.
Reader = Callable[[list[Record]], list[IngressRequest]]


def make_reader(live: dict[bytes, None] | None = None, shared: list[bytes] | None = None) -> Reader:
    """`request_of` for one thread; requests of the usual kind take a short way.

    live    is told the wire rids of requests given out, until their abort is: of a health probe
            that it dropped a scheduler never speaks again
    shared  is told the aborts for other frontends of the scheduler, which are no messages to it
    Raises UnicodeDecodeError for a rid that could not be aborted by name.
    """
    unpack = Struct(wire.USUAL_HEAD).unpack_from
    usual, int64, request = wire.USUAL_BYTES, wire.INT64, wire.REQUEST
    frombuffer: Any = None
    dtype: Any = None

    def read(records: list[Record]) -> list[IngressRequest]:
        nonlocal frombuffer, dtype
        if frombuffer is None and records:
            import numpy

            frombuffer, dtype = numpy.frombuffer, numpy.dtype("int64")
        out = []
        for record in records:
            kind, rid, payload = record
            if kind == request:
                if live is not None:
                    if not rid.isascii():
                        rid.decode()
                    live[rid] = None
                if len(payload) > usual:
                    length, count, name_size, item, size, name = unpack(payload)
                    if count == 1 and name == b"input_ids" and name_size == 9 and item == int64:
                        at = usual + length
                        ids = frombuffer(payload, dtype, size >> 3, at + (-at & 7))
                        out.append(IngressRequest(payload[usual:at], [("input_ids", ids)]))
                        continue
            elif live is not None:
                if kind == wire.ABORT:
                    live.pop(rid, None)
                elif shared is not None and kind == wire.SHARED_ABORT:
                    shared.append(payload)
                    continue
            out.append(request_of(record))
        return out

    return read


def request_of(record: Record) -> IngressRequest:
    """The message in a record of the request ring."""
    import numpy

    payload = record[2]
    header, places = wire.split_request(payload)
    if not places:
        return IngressRequest(header, [])
    buffers: list[tuple[str, Any]] = []
    for name, item, offset, size in places:
        kind = wire.type_name(item)
        count = size // numpy.dtype(kind).itemsize
        buffers.append((name, numpy.frombuffer(payload, kind, count, offset)))
    return IngressRequest(header, buffers)
