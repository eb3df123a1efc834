"""The reading half of the ring in `ring.py`. Owner: the consuming thread."""

from __future__ import annotations

from tpc_server.ring_format import (
    FLAGGED,
    MORE,
    PAD,
    REST,
    RING_HEADER_BYTES,
    Record,
    RingCorruptError,
    check_place,
)
from tpc_server.shm import LINE_BYTES, Mapping, Memory, Words


class Consumer:
    """The reading half. Build it, and use it, on the consuming thread only."""

    __slots__ = (
        "_base", "_buf", "_cap", "_closed", "_done", "_halves", "_key", "_mask", "_pieces",
        "_shut", "_tail_at", "_words", "head_at", "tail",
    )  # fmt: skip

    def __init__(self, memory: Memory, offset: int, capacity: int) -> None:
        check_place(offset, capacity)
        mapping: Mapping = memory.mapping()
        self._words: Words = mapping.words
        self._halves: Words = mapping.halves
        self._buf = mapping.buf
        self.head_at = offset >> 3  # the word that differs from `tail` when there is more
        self._tail_at = (offset + LINE_BYTES) >> 3
        self._base = offset + RING_HEADER_BYTES
        self._cap = capacity
        self._mask = capacity - 1
        self.tail = 0  # bytes ever read
        self._done = 0
        self._closed = False
        self._shut = 0  # the tail's low bit
        self._key = b""  # of the record whose fragments are being collected
        self._pieces: list[bytes] = []

    def drain(self, max_records: int) -> list[Record]:
        """Up to `max_records` whole records, oldest first, copied out.

        A fragment counts as one of them, so fewer or none may come while more is there: ask
        `pure_poll`. The freed space is published at the end, and after every fragment.
        Raises RingCorruptError when the counters or headers make no sense.
        """
        tail = self.tail
        head = self._words[self.head_at]
        if head == tail:
            return []
        out: list[Record] = []
        if head & 1:
            self._closed = True
            head -= 1
        # Positions below are small integers; the 64-bit counters are touched once a drain.
        pos = tail & self._mask
        tail -= pos
        end = head - tail
        if end - pos > self._cap:
            raise RingCorruptError(f"head {head} is {end - pos} bytes past the tail")
        mask = self._mask
        base = self._base
        halves = self._halves
        buf = self._buf
        append = out.append
        for _ in range(max_records):
            if pos >= end:
                break
            at = base + (pos & mask)
            word = at >> 2
            size = halves[word]
            meta = halves[word + 1]
            if meta == PAD:  # the record it made way for was published with it
                pos += (size + 15) & -8
                at = base
                size = halves[at >> 2]
                meta = halves[(at >> 2) + 1]
            at += 8
            pos += (size + 15) & -8
            if meta < FLAGGED:
                mid = at + (meta & 0xFFFF)
                append((meta >> 16, buf[at:mid], buf[mid : at + size]))
            else:
                self._collect(at, size, meta, out)
                self._words[self._tail_at] = tail + pos | self._shut
        if pos > end:
            raise RingCorruptError(f"a record ends {pos - end} bytes past the head")
        self.tail = tail = tail + pos
        if out:
            self._done += len(out)
            self._words[self._tail_at + 1] = self._done
        self._words[self._tail_at] = tail | self._shut
        return out

    def pure_poll(self) -> bool:
        """Whether a drain would bring something new: data, or the producer's close."""
        head = self._words[self.head_at]
        tail = self.tail
        return head != tail and not (self._closed and head == tail + 1)

    def published(self) -> int:
        """Up to which byte there is something now: read when `tail` has come there."""
        return self._words[self.head_at] & -2

    @property
    def partial(self) -> bool:
        """Fragments were drained whose record is not complete yet."""
        return bool(self._pieces)

    @property
    def closed(self) -> bool:
        """The producer closed and everything it wrote was drained; set by `drain`."""
        return self._closed and self._words[self.head_at] == self.tail + 1

    def close(self) -> None:
        """Tells the producer that nobody reads any more."""
        self._shut = 1
        self._words[self._tail_at] = self.tail | 1

    def size_guess(self) -> int:
        """Bytes in the ring, pads included; already wrong when it returns."""
        return (self._words[self.head_at] & -2) - self.tail

    def _collect(self, at: int, size: int, meta: int, out: list[Record]) -> None:
        """Takes one fragment; the last one of a record puts the record into `out`."""
        mid = at + (meta & 0xFFFF)
        if meta & REST:
            self._pieces.append(self._buf[mid : at + size])
        else:
            self._key = self._buf[at:mid]
            self._pieces = [self._buf[mid : at + size]]
        if not meta & MORE:
            out.append(((meta >> 16) & 0xFF, self._key, b"".join(self._pieces)))
            self._pieces = []
