"""Rings plus wake-ups. Owner: each end belongs to the one thread that built it.

A consumer that runs out of work raises a flag, looks once more, and sleeps on an eventfd; a
producer publishes its records, looks at the flag, and writes the eventfd only if it is up. Both
put a full barrier between their store and their load, or an x86-64 processor may do the load
first and both sides would see the world as it was: data in the ring, consumer asleep
(docs/adr/0001-wake-protocol.md). Freed space wakes a waiting producer by the same protocol.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from tpc_server.eventfd import Event
from tpc_server.ring import Part, Producer, Record
from tpc_server.ring_reader import Consumer
from tpc_server.shm import LINE_BYTES, Memory, Words

DOORBELL_BYTES: Final = LINE_BYTES
BACKSTOP_MS: Final = 50
"""Longest sleep of a `SpaceWaiter`: it looks for a stop, or for a killed peer, at least then."""


class Barrier(Protocol):
    """Acquire then release of it, uncontended, is a full memory barrier on x86-64."""

    def acquire(self) -> bool: ...
    def release(self) -> None: ...


class Doorbell:
    """Where one thread is woken: plain data, read by `Sleeper` and `Bell`.

    At `offset` in the memory: u64 sleeping (wants data), u64 waiting (wants space). One thread
    may use both words of one doorbell, with the one eventfd.
    """

    __slots__ = ("barrier", "event", "memory", "offset")

    def __init__(
        self,
        memory: Memory,
        offset: int,
        event: Event,
        barrier: Callable[[], Barrier] = _thread.allocate_lock,
    ) -> None:
        if offset % LINE_BYTES:
            raise ValueError(f"doorbell offset must be a multiple of {LINE_BYTES}, not {offset}")
        self.memory = memory
        self.offset = offset
        self.event = event
        self.barrier = barrier


class Sleeper:
    """The sleeping side of a doorbell. Built and used by the thread that sleeps."""

    __slots__ = ("_acquire", "_at", "_event", "_release", "_words")

    def __init__(self, doorbell: Doorbell) -> None:
        lock = doorbell.barrier()
        self._acquire = lock.acquire
        self._release = lock.release
        self._words: Words = doorbell.memory.mapping().words
        self._at = doorbell.offset >> 3
        self._event = doorbell.event

    def fileno(self) -> int:
        return self._event.fileno()

    def arm(self, data: bool = True, space: bool = False) -> None:
        """Raises the flags. Look at every receiver (and backlog) again before sleeping."""
        if data:
            self._words[self._at] = 1
        if space:
            self._words[self._at + 1] = 1
        self._acquire()
        self._release()

    def disarm(self) -> None:
        """Takes the flags down, so that nobody rings while this thread is awake."""
        self._words[self._at] = 0
        self._words[self._at + 1] = 0

    def clear(self) -> None:
        """Resets the eventfd. Call it after waking and before the next `arm`, never between."""
        self._event.read()

    def try_sleep(self, receivers: Sequence[Receiver]) -> bool:
        """Arms and looks again; True: nothing has come, sleep now. False: not armed, drain."""
        self.arm()
        for receiver in receivers:
            if receiver.pure_poll():
                self.disarm()
                return False
        return True

    def wait(self, timeout_ms: int) -> bool:
        """Sleeps on the eventfd alone, for threads without an epoll; then disarmed, cleared."""
        rung = self._event.wait(timeout_ms)
        self.disarm()
        if rung:
            self.clear()
        return rung


class Bell:
    """The waking side of a doorbell. Each thread that rings builds its own."""

    __slots__ = ("_acquire", "_at", "_event", "_release", "_words", "saved", "written")

    def __init__(self, doorbell: Doorbell, space: bool = False) -> None:
        lock = doorbell.barrier()
        self._acquire = lock.acquire
        self._release = lock.release
        self._words: Words = doorbell.memory.mapping().words
        self._at = (doorbell.offset >> 3) + (1 if space else 0)
        self._event = doorbell.event
        self.written = 0
        self.saved = 0

    def ring(self) -> bool:
        """Wakes the sleeper if it sleeps; whether the eventfd was written.

        The flag goes down first, so that others ringing the same sleep save their write. It
        must not be done after the write: the sleeper may be awake and armed again by then.
        """
        self._acquire()
        self._release()
        if self._words[self._at]:
            self._words[self._at] = 0
            self._event.write()
            self.written += 1
            return True
        self.saved += 1
        return False


class SpaceWaiter(Sleeper):
    """Where a producer blocks until a consumer frees space. All its rings share one."""

    __slots__ = ()

    def arm(self, data: bool = False, space: bool = True) -> None:
        super().arm(data, space)


class Sender:
    """The producing end of a mailbox: a ring, and the bell of whoever drains it."""

    __slots__ = ("_bell", "_dirty", "_producer", "_urgent")

    def __init__(self, producer: Producer, bell: Bell) -> None:
        self._producer = producer
        self._bell = bell
        self._dirty = False  # published since the last ring of the bell
        self._urgent: dict[bytes, tuple[int, bytes]] = {}

    def post(self, kind: int, key: bytes, parts: Sequence[Part]) -> bool:
        """Pushes without waking; False when there is no room. `flush` wakes."""
        if self._urgent or not self._producer.try_push(kind, key, parts):
            return False
        self._dirty = True
        return True

    def step(self, head: bytes, header: bytes, columns: Sequence[bytes], size: int) -> bool:
        """One whole record without a key, `head` its header and the start of its payload, and its
        reader woken; False: go by `post` and `flush`.

        For a scheduler, which comes with cold caches once a step: the same stores in the same
        order as those make, in one function that touches few objects.
        """
        producer = self._producer
        start = producer._head
        at = start & producer._mask
        end = start + (size + 15 & -8)
        if (
            end > producer._limit
            or producer._sent >= producer._sent_limit
            or at + size + 8 > producer._cap
            or self._urgent
            or self._dirty
        ):
            return False
        at += producer._base
        producer._buf[at : at + size + 8] = b"".join((head, header, *columns))
        producer._sent += 1
        producer._head = end
        producer._words[producer._head_at] = end
        bell = self._bell
        bell._acquire()
        bell._release()
        words, flag = bell._words, bell._at
        if words[flag]:
            words[flag] = 0
            bell._event.write()
            bell.written += 1
        else:
            bell.saved += 1
        return True

    def post_urgent(self, kind: int, key: bytes, parts: Sequence[Part]) -> None:
        """Pushes, or keeps the record here until there is room; never fails.

        One record a key is kept: a second one for a key still waiting replaces it, in its
        place. Meant for a ring of its own, since `post` is refused while records wait.
        """
        if self._urgent or not self.post(kind, key, parts):
            self._urgent[key] = (kind, b"".join(parts))

    def flush(self) -> bool:
        """Goes on with the backlog, then wakes the consumer, at most once.

        Call it once per batch, and again while `backlog` is true. True when no backlog is left.
        """
        clean = True
        if self._urgent or self._producer.parked:
            clean = self._work_off()
        if self._dirty:
            self._dirty = False
            self._bell.ring()
        return clean

    def _work_off(self) -> bool:
        producer = self._producer
        self._dirty = True
        if not producer.pump():
            return False
        while self._urgent:
            key = next(iter(self._urgent))
            kind, payload = self._urgent[key]
            if not producer.try_push(kind, key, (payload,)):
                return False
            del self._urgent[key]
        return not producer.parked

    @property
    def backlog(self) -> bool:
        """Whether a large record or urgent ones still wait for space."""
        return bool(self._urgent) or self._producer.parked

    def crowded(self, more: int) -> bool:
        """Whether with `more` records the ring would be full, however small they are."""
        return self._producer.crowded(more)

    @property
    def dead(self) -> bool:
        """Nobody will drain this ring any more."""
        return self._producer.consumer_closed()

    def close(self) -> bool:
        """Tells the consumer that nothing follows; False when that waits for `flush`."""
        told = self._producer.close()
        self._dirty = True
        self.flush()
        return told


class Receiver:
    """The consuming end of a mailbox; `space_bell` wakes a producer that waits for space."""

    __slots__ = ("_space_bell", "consumer")

    def __init__(self, consumer: Consumer, space_bell: Bell | None = None) -> None:
        self.consumer = consumer
        self._space_bell = space_bell

    def drain(self, max_records: int) -> list[Record]:
        """Up to `max_records` of (kind, key, payload); see `Consumer.drain`."""
        freed = self.consumer.tail
        out = self.consumer.drain(max_records)
        if self._space_bell is not None and self.consumer.tail != freed:
            self._space_bell.ring()
        return out

    def pure_poll(self) -> bool:
        return self.consumer.pure_poll()

    @property
    def partial(self) -> bool:
        """A part of a large record was drained, the rest is still to come."""
        return self.consumer.partial

    @property
    def closed(self) -> bool:
        return self.consumer.closed

    def close(self) -> None:
        self.consumer.close()
        if self._space_bell is not None:
            self._space_bell.ring()


def broadcast(
    senders: Sequence[Sender],
    kind: int,
    key: bytes,
    parts: Sequence[Part],
    stopped: Callable[[], bool],
    waiter: SpaceWaiter,
) -> bool:
    """Puts one record into every ring, sleeping for space; False only once `stopped()` is true.

    Every ring that has room is filled, whole records and fragments, before the first full one
    is waited for. A dead consumer's ring is skipped. The parts are free again on return.
    """
    left = offer(senders, (), kind, key, parts)
    return complete(*left, kind, key, parts, stopped, waiter)


def complete(
    unsent: Sequence[Sender],
    unfinished: Sequence[Sender],
    kind: int,
    key: bytes,
    parts: Sequence[Part],
    stopped: Callable[[], bool],
    waiter: SpaceWaiter,
) -> bool:
    """Goes on where `offer` left off; False only once `stopped()` is true."""
    while unsent or unfinished:
        if stopped():
            return False
        # Armed before the look: space freed after it rings, whatever the look has missed.
        waiter.arm()
        unsent, unfinished = offer(unsent, unfinished, kind, key, parts)
        if unsent or unfinished:
            waiter.wait(BACKSTOP_MS)
        else:
            waiter.disarm()
    return True


def offer(
    unsent: Sequence[Sender],
    unfinished: Sequence[Sender],
    kind: int,
    key: bytes,
    parts: Sequence[Part],
) -> tuple[list[Sender], list[Sender]]:
    """One round over the rings: (those without the record, those with a part of it)."""
    still_unsent: list[Sender] = []
    still_unfinished: list[Sender] = []
    for sender in unfinished:
        if not sender.flush() and not sender.dead:
            still_unfinished.append(sender)
    for sender in unsent:
        if sender.post(kind, key, parts) or (
            sender.backlog and sender.flush() and sender.post(kind, key, parts)
        ):
            if not sender.flush():
                still_unfinished.append(sender)
        elif not sender.dead:
            still_unsent.append(sender)
    return still_unsent, still_unfinished
