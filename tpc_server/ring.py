"""SPSC byte ring, its writing half. Owner: the producing thread; the other one has `ring_reader`.

The format is in `ring_format`. Both counters only grow, so full and empty cannot be mistaken for
each other, and a close is one store that the other side reads together with the position.

Why it is correct (docs/adr/0001-wake-protocol.md): a side stores only its own words, record
bytes are stored before the head that covers them and loaded before the tail that frees them,
and x86-64 keeps both orders. tests/interleave runs this very code over every schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from tpc_server.ring_format import (
    JOIN_BYTES,
    MAX_KEY_BYTES,
    MORE,
    PAD,
    REST,
    RING_HEADER_BYTES,
    Part,
    Record,
    RingCorruptError,
    byte_view,
    check_place,
    nbytes,
    ring_bytes,
)
from tpc_server.shm import LINE_BYTES, STORE_BYTES, Mapping, Memory, Words

__all__ = [
    "Part",
    "Producer",
    "Record",
    "RingCorruptError",
    "ring_bytes",
]


class Producer:
    """The writing half. Build it, and use it, on the producing thread only.

    `capacity` is in bytes, `cap_records` bounds records not yet drained.
    """

    __slots__ = (
        "_base", "_buf", "_cap", "_cap_records", "_closed", "_closing", "_halves", "_head",
        "_head_at", "_header", "_limit", "_mask", "_most_whole", "_parked", "_parked_kind",
        "_parked_left", "_peer_closed", "_sent", "_sent_limit", "_store", "_tail_at", "_words",
    )  # fmt: skip

    def __init__(self, memory: Memory, offset: int, capacity: int, cap_records: int) -> None:
        check_place(offset, capacity)
        if cap_records < 1:
            raise ValueError(f"cap_records must be at least 1, not {cap_records}")
        mapping: Mapping = memory.mapping()
        self._words: Words = mapping.words
        self._halves: Words = mapping.halves
        self._buf = mapping.buf
        self._store = getattr(mapping, "store", None)  # of a large piece, without the GIL
        self._header = Struct("<II").pack  # its own: a shared one is fought over
        self._head_at = offset >> 3
        self._tail_at = (offset + LINE_BYTES) >> 3
        self._base = offset + RING_HEADER_BYTES
        self._cap = capacity
        self._mask = capacity - 1
        self._most_whole = min(JOIN_BYTES, capacity // 2 - 15)  # bytes of a record that is joined
        self._cap_records = cap_records
        self._head = 0
        self._sent = 0
        self._limit = capacity  # cached tail + capacity
        self._sent_limit = cap_records  # cached done + cap_records; -1: parked or closed
        self._parked: list[memoryview] = []  # what a large record still has to write
        self._parked_kind = 0
        self._parked_left = 0
        self._closing = False  # close() was called
        self._closed = False  # and the consumer was told
        self._peer_closed = False

    def try_push(self, kind: int, key: bytes, parts: Sequence[Part]) -> bool:
        """Writes one record, its payload the parts end to end; False when there is no room.

        All or nothing, except that of a record larger than half the capacity what fits is
        written and the rest is parked here by reference: leave its parts unchanged until
        `pump` returns True. While something is parked every push is refused.
        Raises ValueError, TypeError or BufferError for a kind over 255, a key over 65535 bytes
        or a part that is not contiguous; the ring is then as before.
        """
        size = key_size = len(key)
        for part in parts:
            size += len(part) if type(part) is bytes else nbytes(part)
        if kind >> 8 or key_size > MAX_KEY_BYTES:
            raise ValueError(f"kind {kind} or key of {key_size} bytes does not fit a header")
        if size > self._most_whole:
            return self._push_parts(kind, key, parts, size)
        # A slice store costs more than a join of few bytes.
        data = b"".join((self._header(size, kind << 16 | key_size), key, *parts))
        head = self._head
        at = head & self._mask
        end = head + (size + 15 & -8)
        if end > self._limit or self._sent >= self._sent_limit or at + size + 8 > self._cap:
            end = self._make_room(end - head)
            if not end:
                return False
            at = end - (size + 15 & -8) & self._mask
        at += self._base
        self._buf[at : at + size + 8] = data
        self._sent += 1
        self._head = end
        self._words[self._head_at] = end
        return True

    def pump(self) -> bool:
        """Goes on with a parked record; True when nothing is parked (any more)."""
        while self._parked:
            if not self._push_fragment(b"", REST):
                if not self._peer_closed:
                    return False
                self._parked = []
        if self._closing and not self._closed:
            self._closed = True
            self._words[self._head_at] = self._head | 1
        return True

    @property
    def parked(self) -> bool:
        return bool(self._parked)

    def close(self) -> bool:
        """Tells the consumer that nothing follows; True when it was told.

        With a record still parked the flag follows its last fragment, written by `pump`.
        """
        self._closing = True
        self._sent_limit = -1
        return self.pump()

    def consumer_closed(self) -> bool:
        """Whether the consumer closed its half."""
        if not self._peer_closed:
            self._refresh(0)
        return self._peer_closed

    def size_guess(self) -> int:
        """Bytes in the ring, pads included; already wrong when it returns."""
        return self._head - (self._words[self._tail_at] & -2)

    def crowded(self, more: int) -> bool:
        """Whether with `more` records the ring would hold as many as it may, or still more.

        The consumer may have taken some since: it says yes too often, never no.
        """
        return self._sent + more - self._words[self._tail_at + 1] >= self._cap_records

    def _refresh(self, end: int) -> bool:
        """Reloads the consumer's words; whether a record may now be written up to `end`.

        Refuses while a record is parked and after `close`: both set `_sent_limit` to -1, which
        spares `try_push` a test of its own.
        """
        words = self._words
        tail = words[self._tail_at]
        if tail & 1:
            self._peer_closed = True
            tail -= 1
        self._limit = tail + self._cap
        if self._parked or self._closing:
            return False
        self._sent_limit = words[self._tail_at + 1] + self._cap_records
        return end <= self._limit and self._sent < self._sent_limit

    def _make_room(self, step: int) -> int:
        """Where a record of `step` bytes ends if it may be written now, or 0.

        What is left of the data before its end is filled with a pad when it does not fit there;
        the record that follows publishes it.
        """
        head = self._head
        at = head & self._mask
        room = self._cap - at
        end = head + step if step <= room else head + room + step
        if (end > self._limit or self._sent >= self._sent_limit) and not self._refresh(end):
            return 0
        if step > room:
            at += self._base
            self._halves[at >> 2] = room - 8
            self._halves[(at >> 2) + 1] = PAD
        return end

    def _push_parts(self, kind: int, key: bytes, parts: Sequence[Part], size: int) -> bool:
        """A record whose parts are stored one by one: a join of many bytes copies twice."""
        step = (size + 15) & -8
        if step + step > self._cap:
            return self._push_large(kind, key, parts, size)
        views = [byte_view(part) for part in parts]  # what cannot be copied must raise here
        end = self._make_room(step)
        if not end:
            return False
        at = (end - step & self._mask) + self._base
        start = self._header(size, kind << 16 | len(key)) + key
        self._buf[at : at + len(start)] = start
        at += len(start)
        for view in views:
            self._put(at, view)
            at += view.nbytes
        self._sent += 1
        self._head = end
        self._words[self._head_at] = end
        return True

    def _put(self, at: int, view: memoryview) -> None:
        """One part, or a piece of it, at an offset of the memory."""
        if view.nbytes >= STORE_BYTES and self._store is not None:
            self._store(at, view)
        else:
            self._buf[at : at + view.nbytes] = view

    def _push_large(self, kind: int, key: bytes, parts: Sequence[Part], size: int) -> bool:
        if len(key) * 4 > self._cap:
            raise ValueError(f"key of {len(key)} bytes in a ring of {self._cap}")
        if self._sent >= self._sent_limit and not self._refresh(self._head):
            return False
        # Views are made before the first store: what cannot be copied must raise here.
        views = [byte_view(part) for part in parts if nbytes(part)]
        self._parked = views
        self._parked_kind = kind
        self._parked_left = size - len(key)
        if not self._push_fragment(key, 0):
            self._parked = []
            return False
        self._sent += 1
        self._sent_limit = -1
        self.pump()
        return True

    def _push_fragment(self, key: bytes, flags: int) -> bool:
        """Writes the next piece of the parked record, if a piece worth its header fits.

        A piece holds an eighth of the capacity at least (progress is in chunks, not crumbs:
        an empty ring always has that much in one piece, after a pad) and a quarter at most
        (so that the two sides copy at the same time).
        """
        key_size = len(key)
        left = self._parked_left
        cap = self._cap
        least = 8 + key_size + min(left, cap >> 3)
        head = self._head
        at = head & self._mask
        room = cap - at
        pad = 0
        if room < least:
            pad = room
            at = 0
            room = cap
        if self._limit - head - pad < room:
            self._refresh(head)
        room = min(room, self._limit - head - pad)
        if room < least:
            return False
        take = min(left, room - 8 - key_size, max(cap >> 2, least))
        halves = self._halves
        buf = self._buf
        if pad:
            pad_at = (self._base + cap - pad) >> 2
            halves[pad_at] = pad - 8
            halves[pad_at + 1] = PAD
        if take < left:
            flags |= MORE
        at += self._base
        size = key_size + take
        halves[at >> 2] = size
        halves[(at >> 2) + 1] = flags | self._parked_kind << 16 | key_size
        at += 8
        if key_size:
            buf[at : at + key_size] = key
            at += key_size
        parked = self._parked
        left -= take
        done = 0
        while take:
            view = parked[done]
            fits = view.nbytes
            if fits > take:
                self._put(at, view[:take])
                parked[done] = view[take:]
                break
            self._put(at, view)
            at += fits
            take -= fits
            done += 1
        del parked[:done]
        self._parked_left = left
        self._head = head = head + pad + ((size + 15) & -8)
        self._words[self._head_at] = head
        return True
