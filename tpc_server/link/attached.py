"""A mesh that another process made, as its scheduler sees it. Owner: the scheduler's thread.

Standard library only: importable in a scheduler's process with a GIL.
"""

from __future__ import annotations

import fcntl
import os
from typing import Any, Final

from ..counters import WORDS
from ..eventfd import EventFd
from ..mailbox import DOORBELL_BYTES
from ..mesh import EXTRA_ENDS, SCHEDULER, Lane, Mesh
from ..ring import ring_bytes
from ..shm import Region

_RING_MOST: Final = 64 << 20


def describe(mesh: Mesh) -> tuple[dict[str, Any], list[int]]:
    """What the scheduler's end must know, and the descriptors that go with it."""
    rings = [[*lane, *mesh.ring(lane)] for lane in mesh.lanes() if SCHEDULER in (lane[0], lane[1])]
    about = {
        "cores": mesh.n,
        "tokenize": list(mesh.plan.stage_cores("tokenize")),
        "detok": list(mesh.plan.stage_cores("detok")),
        "rings": rings,
        "bells": mesh.doorbell_at(0),
        "counters": mesh.counters_at(0),
        "watched": mesh.watched(),
        "size": mesh.size,
    }
    return about, [mesh.region.fd, *[event.fileno() for event in mesh.events]]


class _Stages:
    """Which cores the scheduler talks to; the part of a plan that it needs."""

    def __init__(self, about: dict[str, Any]) -> None:
        self._of = {"tokenize": tuple(about["tokenize"]), "detok": tuple(about["detok"])}

    def stage_cores(self, stage: str) -> tuple[int, ...]:
        """Indices of the cores that run `stage`."""
        return self._of[stage]


class AttachedMesh:
    """Same face as `Mesh`, for the ends of the scheduler."""

    def __init__(self, about: dict[str, Any], fds: list[int]) -> None:
        """Takes the descriptors. Raises ValueError when they are not what `about` says, or when
        that makes no sense."""
        try:
            self._read(about)
            if len(fds) != 1 + self.n + EXTRA_ENDS:
                raise ValueError(f"{len(fds)} descriptors came with a mesh of {self.n} cores")
            if not fcntl.fcntl(fds[0], fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ValueError("its memory could be taken from under us")
            for fd in fds[1:]:
                if os.readlink(f"/proc/self/fd/{fd}") != "anon_inode:[eventfd]":
                    raise ValueError("a doorbell is no eventfd: writing to it could block")
                os.set_blocking(fd, False)
            self.region = Region.attach(fds[0], self.size)
        except Exception as error:
            for fd in fds:
                os.close(fd)
            raise ValueError(f"its rings cannot be used: {error!r}") from None
        self.events = [EventFd(fd) for fd in fds[1:]]

    def _read(self, about: dict[str, Any]) -> None:
        self.n = int(about["cores"])
        self.plan = _Stages(about)
        for stage in ("tokenize", "detok"):
            cores = self.plan.stage_cores(stage)
            if len(set(cores)) != len(cores) or not 0 <= min(cores) <= max(cores) < self.n:
                raise ValueError(f"cores {str(cores)[:100]} of {self.n} {stage}")
        self._bells = int(about["bells"])
        self._counters = int(about["counters"])
        self._watched = [([int(w) for w in opened], int(end)) for opened, end in about["watched"]]
        self._rings: dict[Lane, tuple[int, int, int]] = {
            (row[0], row[1], row[2]): (row[3], row[4], row[5]) for row in about["rings"]
        }
        self.size = size = int(about["size"])
        if max([capacity for _, capacity, _ in self._rings.values()]) > _RING_MOST:
            raise ValueError("a ring that would take all memory")  # ours are mapped in advance
        ends = [at + ring_bytes(capacity) for at, capacity, _ in self._rings.values()]
        ends.append(self._bells + (self.n + EXTRA_ENDS) * DOORBELL_BYTES)
        ends += [8 * self.counters_at(self.n), 8 * max([self._counters, *self._words()]) + 8]
        starts = [at for at, _, _ in self._rings.values()]
        if min(self.n - 1, *starts, self._bells, self._counters, *self._words()) < 0 or (
            max(ends) > size
        ):
            raise ValueError(f"places outside of its {size} bytes")

    def _words(self) -> list[int]:
        return [word for opened, ended in self._watched for word in (*opened, ended)]

    def counters_at(self, core: int) -> int:
        """Index of a core's first published counter among the region's words."""
        return self._counters + core * WORDS

    def watched(self) -> list[tuple[list[int], int]]:
        """By detok core: the words that count what is opened there, and the one of what ended."""
        return self._watched

    def ring(self, lane: Lane) -> tuple[int, int, int]:
        """(offset, capacity in bytes, capacity in records) of a lane's ring."""
        return self._rings[lane]

    def doorbell_at(self, end: int) -> int:
        """Offset of an end's doorbell."""
        return self._bells + (end % (self.n + EXTRA_ENDS)) * DOORBELL_BYTES

    def close(self) -> None:
        """Close descriptors; only after every thread that used an end has ended."""
        for event in self.events:
            event.close()
        self.region.close()
