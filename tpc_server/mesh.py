"""Where every ring and doorbell of a link lies. Owner: plain data after construction, any thread.

One shared region holds everything that crosses a thread: a doorbell and blocks of published
counters per core, a doorbell for the scheduler, and one ring per ordered pair that talks. The
layout is a pure function of the plan and the capacities, so that a child process finds the same
places from the same numbers.

Ends: cores 0 .. n-1, `SCHEDULER`, `ALIEN` (signals, control threads of this process).
"""

from __future__ import annotations

from typing import Final

from .affinity.plan import CorePlan, route
from .counters import WORDS
from .eventfd import EventFd
from .mailbox import DOORBELL_BYTES, Bell, Doorbell, Receiver, Sender, Sleeper
from .metrics.area import MetricsArea
from .ring import Producer, ring_bytes
from .ring_reader import Consumer
from .shm import LINE_BYTES, Region, RegionMapping

SCHEDULER: Final = -1
ALIEN: Final = -2
SPACE: Final = -3  # where the scheduler's pushes wait for space; it may sleep for data meanwhile
EXTRA_ENDS: Final = 3

DATA: Final = 0
ABORTS: Final = 1

FRAME_RING_BYTES: Final = 4 << 20  # scheduler -> detok core
REQUEST_RING_BYTES: Final = 4 << 20  # tokenize core -> scheduler
ABORT_RING_BYTES: Final = 64 << 10
CORE_RING_BYTES: Final = 1 << 20  # core -> core
ALIEN_RING_BYTES: Final = 64 << 10

_PAGE: Final = 4096

Lane = tuple[int, int, int]  # from, to, DATA or ABORTS

# Words of the shared state block at the start of the region.
READY: Final = 0  # a warm-up answer is in
STOPPED: Final = 1  # the server is shutting down: pushes return False
FAILED: Final = 2  # cores died too often, or the warm-up request was not answered
PUSHES_BLOCKED: Final = 8  # times the scheduler waited for room in a ring; written by it alone
PUSHES_BLOCKED_NS: Final = 9  # how long in all
SILENT: Final = 3  # the last health probe was not answered
PAUSED: Final = 4  # a client paused the scheduler; never where it has other frontends, too


class Mesh:
    """One region, its doorbells, and the ends of its rings for whoever asks on its own thread."""

    def __init__(
        self, plan: CorePlan, to_scheduler_cap: int, from_scheduler_cap: int, stage_cap: int,
        metrics: MetricsArea | None = None,
    ) -> None:  # fmt: skip
        self.plan = plan
        self.metrics = metrics  # ours from now on; None: nothing is recorded
        self.n = len(plan.cores)
        self.stage_cap = stage_cap
        caps: dict[Lane, tuple[int, int]] = {}
        for core in plan.stage_cores("tokenize"):
            caps[core, SCHEDULER, DATA] = (REQUEST_RING_BYTES, to_scheduler_cap)
            caps[core, SCHEDULER, ABORTS] = (ABORT_RING_BYTES, 1 << 20)
        for core in plan.stage_cores("detok"):
            caps[SCHEDULER, core, DATA] = (FRAME_RING_BYTES, from_scheduler_cap)
        for core in range(self.n):
            caps[ALIEN, core, DATA] = (ALIEN_RING_BYTES, 1 << 10)
            for other in range(self.n):
                if other != core:
                    caps[core, other, DATA] = (CORE_RING_BYTES, stage_cap)
        at = _PAGE  # the first page: state words
        self._bells = at
        at += (self.n + EXTRA_ENDS) * DOORBELL_BYTES
        at += -at % _PAGE
        self._counters = at
        at += self.n * WORDS * 8
        at += -at % LINE_BYTES
        self._live = at  # what each core has opened and what has ended there, a line each
        at += self.n * 2 * LINE_BYTES
        self._rings: dict[Lane, tuple[int, int, int]] = {}
        for lane, (capacity, cap_records) in caps.items():
            at += -at % _PAGE
            self._rings[lane] = (at, capacity, cap_records)
            at += ring_bytes(capacity)
        at += -at % _PAGE
        self.size = at
        self.region = Region.create(at, "tpc-link")
        self.events = [EventFd() for _ in range(self.n + EXTRA_ENDS)]

    def counters_at(self, core: int) -> int:
        """Index of a core's first published counter among the region's words."""
        return (self._counters >> 3) + core * WORDS

    def lanes(self) -> list[Lane]:
        """All rings."""
        return list(self._rings)

    def opened_at(self, core: int) -> int:
        """Index of the word that counts what an ingress core has opened at its detok core."""
        return (self._live + core * 2 * LINE_BYTES) >> 3

    def ended_at(self, core: int) -> int:
        """Index of the word that counts what has ended on a detok core."""
        return self.opened_at(core) + (LINE_BYTES >> 3)

    def watched(self) -> list[tuple[list[int], int]]:
        """By detok core: the words that count what is opened there, and the one of what ended."""
        plan = self.plan
        ingress = plan.stage_cores("ingress")
        return [
            ([self.opened_at(i) for i in ingress if route(plan, "detok", i) == c], self.ended_at(c))
            for c in plan.stage_cores("detok")
        ]

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
        if self.metrics is not None:
            self.metrics.close()


class Ends:
    """The ends one thread holds. Build it on that thread: it makes the thread's own mapping."""

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._mapping = mesh.region.mapping()
        self.words = self._mapping.words
        self.bells: list[Bell] = []  # of all senders, for their counts

    def mapping(self) -> RegionMapping:
        """The thread's mapping: all ends of a thread share it."""
        return self._mapping

    def doorbell(self, end: int) -> Doorbell:
        """The doorbell of a core, the scheduler or the alien end."""
        return Doorbell(self, self._mesh.doorbell_at(end), self._mesh.events[end])

    def sleeper(self, end: int) -> Sleeper:
        """The sleeping side of an end's doorbell."""
        return Sleeper(self.doorbell(end))

    def sender(self, source: int, target: int, lane: int = DATA) -> Sender:
        """Producing end of a ring."""
        at, capacity, cap_records = self._mesh.ring((source, target, lane))
        producer = Producer(self, at, capacity, cap_records)
        bell = Bell(self.doorbell(target))
        self.bells.append(bell)
        return Sender(producer, bell)

    def receiver(self, source: int, target: int, lane: int = DATA) -> Receiver:
        """Consuming end of a ring; the scheduler is woken when space is freed for it."""
        at, capacity, _ = self._mesh.ring((source, target, lane))
        bell = Bell(self.doorbell(SPACE), space=True) if source == SCHEDULER else None
        return Receiver(Consumer(self, at, capacity), bell)
