"""Where decode nodes find the ranks of a prefill server. Owner: a file in memory; whoever holds it
takes its lock.

Ranks of the prefill side register at `/route`, decode nodes ask there; which rank serves a room is
noted for each request. What is noted outlives the process that noted it: the file is a memfd of the
scheduler's side, which every frontend process is given, and any core may write. The scheduler's
thread has no part in it: it registers itself, and waits for the answer. Standard library only.

    head         version, bytes of the topology
    topology     JSON, twice: a version lies in the area of its parity, the older stays whole
    rooms        a table of buckets of records (room, rank, time)
"""

from __future__ import annotations

import fcntl
import json
import os
import struct
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

HEAD_BYTES: Final = 4096
AREA_BYTES: Final = 512 << 10
# A record does not cross a page: one that is killed while it writes leaves none half written.
_RECORD: Final = "<qqqq"
_RECORD_BYTES: Final = 32
BUCKET: Final = 8
_BUCKETS: Final = 1 << 15
_ROOMS_AT: Final = HEAD_BYTES + 2 * AREA_BYTES
_TRIES: Final = 40
_PAUSE_S: Final = 0.0005

Topology = dict[str, Any]


class RegistryBusy(Exception):
    """The lock was not to be had; its holder has stopped."""


class RegistryFull(Exception):
    """More ranks than there is room for."""


def create() -> int:
    """The descriptor of a new one, empty."""
    fd = os.memfd_create("tpc-registry", os.MFD_CLOEXEC)
    os.ftruncate(fd, _ROOMS_AT + _BUCKETS * BUCKET * _RECORD_BYTES)
    return fd


class _Locked:
    """The file through a descriptor of its own: a lock is one open file's, not a process's."""

    def __init__(self, fd: int) -> None:
        self.fd = os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)

    def __enter__(self) -> int:
        for left in range(_TRIES, -1, -1):
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return self.fd
            except BlockingIOError:
                if left:
                    time.sleep(_PAUSE_S)
        os.close(self.fd)
        raise RegistryBusy

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        os.close(self.fd)  # and with it the lock


class Registry:
    """One core's view of the file. Every method raises RegistryBusy."""

    def __init__(self, fd: int, entry_s: float) -> None:
        """`entry_s`: how long a room is kept at least, where there is room for it."""
        self._fd = fd
        self._kept_ns = int(max(entry_s, 1.0) * 2e9)  # SGLang sweeps: one to two intervals
        self._record = struct.Struct(_RECORD)
        self._head = struct.Struct("<qq")
        self._version = 0
        self._topology: Topology = {}

    # -- topology ----------------------------------------------------------------------

    def topology(self) -> Topology:
        """What is registered; empty before the first. Not the caller's to change."""
        with _Locked(self._fd) as fd:
            return self._read(fd)

    def _read(self, fd: int) -> Topology:
        version, size = self._head.unpack(os.pread(fd, self._head.size, 0))
        if version != self._version:
            self._topology = json.loads(os.pread(fd, size, _area(version)))
            self._version = version
        return self._topology

    def register(self, row: dict[str, Any]) -> str:
        """A rank registers; the reason where it is refused. Raises RegistryFull."""
        with _Locked(self._fd) as fd:
            before = self._read(fd)
            for name, text in _ALIKE.items():
                if before and before[name] != row[name]:
                    return text
            after = {"ranks": {}, **before}
            for name in _FIRST_COUNTS:
                if after.get(name) is None:
                    after[name] = row[name]
            for name in _ALIKE:
                after[name] = row[name]
            place = place_of(row["dp_rank"], row["cp_rank"], row["tp_rank"], row["pp_rank"])
            after["ranks"] = {**after["ranks"], place: [row["rank_ip"], row["rank_port"]]}
            data = json.dumps(after).encode()
            if len(data) > AREA_BYTES:
                raise RegistryFull
            version = self._version + 1
            os.pwrite(fd, data, _area(version))
            os.pwrite(fd, self._head.pack(version, len(data)), 0)
            self._version, self._topology = version, after
            return ""

    # -- rooms -------------------------------------------------------------------------

    def note_room(self, room: int, rank: int) -> None:
        """That `rank` serves a room; in the place of the oldest of its bucket."""
        now = time.monotonic_ns()
        with _Locked(self._fd) as fd:
            at = _bucket(room)
            records = self._bucket(fd, at)
            same = [k for k, record in enumerate(records) if record[2] and record[0] == room]
            k = same[0] if same else min(range(BUCKET), key=lambda k: records[k][2])
            os.pwrite(fd, self._record.pack(room, rank, now, 0), at + k * _RECORD_BYTES)

    def rooms(self, wanted: Sequence[int]) -> dict[int, int]:
        """The ranks of those rooms that are known."""
        found: dict[int, int] = {}
        oldest = time.monotonic_ns() - self._kept_ns
        with _Locked(self._fd) as fd:
            for room in wanted:
                for known, rank, stamp, _ in self._bucket(fd, _bucket(room)):
                    if known == room and stamp and stamp >= oldest:
                        found[room] = rank
        return found

    def _bucket(self, fd: int, at: int) -> list[tuple[Any, ...]]:
        return list(self._record.iter_unpack(os.pread(fd, BUCKET * _RECORD_BYTES, at)))


# Of the server as a whole: what the first rank says that says anything.
_FIRST_COUNTS: Final = (
    "attn_tp_size", "attn_cp_size", "dp_size", "pp_size", "page_size", "kv_cache_dtype",
    "kv_layout", "prefill_http_port", "follow_bootstrap_room", "enable_dsa_cache_layer_split",
    "enable_kv_cache_sharding",
)  # fmt: skip
# What all ranks must say alike, and what the one that does not is told.
_ALIKE: Final = {
    "dsv41_spec_layout": "the ranks' DSpark layouts (dsv41_spec_layout) differ",
    "decode_allocation_policy": "the ranks' allocation policies (decode_allocation_policy) differ",
}
_OPTIONAL: Final = ("kv_layout", "dsv41_spec_layout")


def is_ready(topology: Topology) -> bool:
    """Whether every rank is there."""
    if not topology:
        return False
    wanted: int = topology["dp_size"] * topology["pp_size"]
    wanted *= topology["attn_cp_size"] * topology["attn_tp_size"]
    return len(topology["ranks"]) >= wanted


def shown(topology: Topology) -> dict[str, Any]:
    """What a decode node is told of the server: names that its SGLang takes, no others."""
    out = {name: topology[name] for name in (*_FIRST_COUNTS, *_ALIKE)}
    for name in _OPTIONAL:
        if out[name] is None:
            del out[name]
    return out


def place_of(dp: int, cp: int, tp: int, pp: int) -> str:
    """The name of a rank's place among `ranks`."""
    return f"{dp} {cp} {tp} {pp}"


def _area(version: int) -> int:
    return HEAD_BYTES + (version & 1) * AREA_BYTES


def _bucket(room: int) -> int:
    mixed = room * 0x9E3779B97F4A7C15 & (1 << 64) - 1  # rooms are drawn at random, or counted
    return _ROOMS_AT + (mixed >> 49) * BUCKET * _RECORD_BYTES  # by the top 15 bits
