"""What lies where in a ring. Owner: constants and pure functions, any thread.

Layout in a region, from `offset` (a multiple of 128 bytes):

    +0     u64 head    bytes ever written; the producer's line. Low bit set: producer closed
    +128   u64 tail    bytes ever read; the consumer's line. Low bit set: consumer closed
    +136   u64 done    records ever read
    +256   data        `capacity` bytes, a power of two

A record is `u32 size | u16 key bytes | u8 kind | u8 flags`, the key, the payload; it starts on
8 bytes and never crosses the end of the data (a pad record fills the rest). `size` counts key
and payload. Both counters only grow, so full and empty cannot be mistaken for each other, and
a close is one store that the other side reads together with the position.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from tpc_server.shm import LINE_BYTES

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Part: TypeAlias = "ReadableBuffer"
"""A piece of a payload: bytes, or any C-contiguous buffer of any item format."""

Record: TypeAlias = tuple[int, bytes, bytes]
"""(kind, key, payload), as drained."""

RING_HEADER_BYTES: Final = 2 * LINE_BYTES
MIN_CAPACITY: Final = 64
MAX_CAPACITY: Final = 1 << 31
MAX_KEY_BYTES: Final = 0xFFFF
JOIN_BYTES: Final = 16384

# Flags sit in the top byte of the second header half, so a plain record is `meta < FLAGGED`.
FLAGGED: Final = 1 << 24
PAD: Final = 1 << 24
MORE: Final = 2 << 24
REST: Final = 4 << 24


class RingCorruptError(RuntimeError):
    """The other side wrote counters or headers that no correct producer writes."""


def ring_bytes(capacity: int) -> int:
    """Bytes of region a ring takes; a multiple of 128 whenever `capacity` is."""
    check_capacity(capacity)
    return RING_HEADER_BYTES + capacity


def nbytes(part: Part) -> int:
    """Bytes in a contiguous buffer of any item format; `len()` would count items."""
    return len(part) if type(part) is bytes else memoryview(part).nbytes


def byte_view(part: Part) -> memoryview:
    try:
        return memoryview(part).cast("B")
    except (TypeError, ValueError):
        # Item formats that memoryview cannot cast (numpy records, byte-swapped numbers).
        return memoryview(b"".join((part,)))


def check_capacity(capacity: int) -> None:
    if not MIN_CAPACITY <= capacity <= MAX_CAPACITY or capacity & (capacity - 1):
        raise ValueError(
            f"ring capacity must be a power of two from {MIN_CAPACITY} to {MAX_CAPACITY} bytes, "
            f"not {capacity}"
        )


def check_place(offset: int, capacity: int) -> None:
    check_capacity(capacity)
    if offset % LINE_BYTES:
        raise ValueError(f"ring offset must be a multiple of {LINE_BYTES} bytes, not {offset}")
