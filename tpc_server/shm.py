"""Shared memory regions. Owner: whoever creates one; every ring half maps it anew for itself.

A region is an anonymous file (memfd) that threads map and other processes inherit by
descriptor. Raw index words in it are published in program order, which only the x86-64
memory model keeps for plain stores, so every other processor is refused here
(docs/adr/0001-wake-protocol.md).
"""

from __future__ import annotations

import fcntl
import mmap
import os
import platform
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

LINE_BYTES: Final = 128
"""Spacing of words written by different sides: two cache lines, because the adjacent-line
prefetcher moves them in pairs."""

TSO_MACHINES: Final = ("x86_64", "amd64")
STORE_BYTES: Final = 64 << 10
"""Pieces of at least this many bytes are stored without the GIL, where there is one."""
_MADV_POPULATE_WRITE: Final = 23
_HAS_GIL: Final[bool] = getattr(sys, "_is_gil_enabled", lambda: True)()

Store = Callable[[int, memoryview], None]


class UnsupportedMachineError(RuntimeError):
    """This processor does not keep the order of plain stores."""


class Words(Protocol):
    """Indexable unsigned words: a cast memoryview, or the model's recording object."""

    def __getitem__(self, index: int, /) -> int: ...
    def __setitem__(self, index: int, value: int, /) -> None: ...


class Bytes(Protocol):
    """Sliceable bytes: an mmap, or the model's recording object."""

    def __getitem__(self, span: slice, /) -> bytes: ...
    def __setitem__(self, span: slice, data: ReadableBuffer, /) -> None: ...


class Mapping(Protocol):
    """What a ring half or a bell needs of memory: three views of the same bytes."""

    @property
    def words(self) -> Words: ...
    @property
    def halves(self) -> Words: ...
    @property
    def buf(self) -> Bytes: ...


class Memory(Protocol):
    """Anything that hands out mappings: a `Region`, or the model's memory."""

    def mapping(self) -> Mapping: ...


def require_tso(machine: str | None = None) -> None:
    """Raises UnsupportedMachineError unless this processor keeps plain stores in order."""
    name = (platform.machine() if machine is None else machine).lower()
    if name not in TSO_MACHINES or sys.maxsize < 2**32 or sys.byteorder != "little":
        raise UnsupportedMachineError(
            f"the shared-memory rings need an x86-64 processor and a 64-bit interpreter; "
            f"this one is {name!r}: its stores may be seen out of order"
        )


class RegionMapping:
    """One mapping of a region, used by one thread.

    `buf` is the mmap itself (slices copy once, and a slice takes any contiguous buffer),
    `words` the same bytes as u64, `halves` as u32. Each half has a mapping of its own: a
    memoryview shared by two cores would have its reference count fought over at every access.
    """

    __slots__ = ("_fd", "buf", "halves", "words")

    def __init__(self, fd: int, size: int) -> None:
        self._fd = os.dup(fd) if _HAS_GIL else -1
        if sys.version_info >= (3, 13):
            # Without trackfd=False every mapping holds a duplicate of the descriptor.
            buf = mmap.mmap(fd, size, trackfd=False)
        else:
            buf = mmap.mmap(fd, size)
        self.buf = buf
        self.words = memoryview(buf).cast("Q")
        self.halves = memoryview(buf).cast("I")

    def populate(self, at: int, size: int) -> None:
        """Maps these bytes now, so that first stores do not fault page by page. Best effort."""
        try:
            self.buf.madvise(_MADV_POPULATE_WRITE, at, size)
        except (OSError, ValueError):  # a kernel before 5.14, or no memory to spare
            pass

    @property
    def store(self) -> Store | None:
        """Where there is a GIL: stores a large piece without it."""
        return self._store if _HAS_GIL else None

    def _store(self, at: int, data: memoryview) -> None:
        """Copies through the file, which is the same memory: the call lets go of the GIL."""
        while data.nbytes:
            done = os.pwrite(self._fd, data, at)
            at += done
            data = data[done:]

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            os.close(self._fd)

    def close(self) -> None:
        self.words.release()
        self.halves.release()
        self.buf.close()


class Region:
    """A named piece of shared memory of a fixed size, in bytes.

    The descriptor is close-on-exec; pass it down with `pass_fds`, or `os.set_inheritable`.
    """

    __slots__ = ("_own", "fd", "size")

    def __init__(self, fd: int, size: int) -> None:
        require_tso()
        self.fd = fd
        self.size = size
        self._own: RegionMapping | None = RegionMapping(fd, size)

    @classmethod
    def create(cls, size: int, name: str = "tpc-ring") -> Region:
        """New zeroed memory; `size` bytes are rounded up to whole pages.

        Raises OSError where memory or descriptors are short.
        """
        require_tso()
        if size <= 0:
            raise ValueError(f"region size must be positive, not {size}")
        size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            # A peer that shrinks the file would kill us with SIGBUS.
            seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
            return cls(fd, size)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, fd: int, size: int) -> Region:
        """The region behind an inherited descriptor, which it owns from now on.

        Raises ValueError when the file is smaller than `size`.
        """
        have = os.fstat(fd).st_size
        if size <= 0 or have < size:
            raise ValueError(f"descriptor {fd} holds {have} bytes, not the {size} announced")
        return cls(fd, size)

    def mapping(self) -> RegionMapping:
        """A fresh mapping for the calling thread; it lives as long as its holder."""
        if self.fd < 0:
            raise ValueError("region is closed")
        return RegionMapping(self.fd, self.size)

    @property
    def buf(self) -> mmap.mmap:
        """The region's own mapping, for set-up and tests; not for hot code of two threads."""
        return self._mine().buf

    @property
    def words(self) -> memoryview:
        """The region's own mapping as u64 words, for set-up and tests."""
        return self._mine().words

    def _mine(self) -> RegionMapping:
        if self._own is None:
            raise ValueError("region is closed")
        return self._own

    def close(self) -> None:
        """Closes descriptor and own mapping; mappings handed out stay valid."""
        if self._own is not None:
            self._own.close()
            self._own = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
