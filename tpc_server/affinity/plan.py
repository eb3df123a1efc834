"""Which core runs which stage on which CPU. Owner: none, a pure function over frozen plain data.

A *core* is one thread of ours with an index (0, 1, ...); a *CPU* is the kernel's number. The plan
says how many cores there are, which stages each runs, where it is pinned, and which CPUs are left
to the scheduler.

How many. One I/O core (ingress, detok and egress of the requests it accepted) streams about 60,000
tokens a second and answers some 16,000 short requests, so four of them outrun any one scheduler;
more would only cut each step into smaller pieces, one wake-up each. Two tokenize cores encode
about 4 MB of prompts a second. Hence at most 4 + 2 by default, on however many CPUs, and at most
2 + 1 before an engine embedded in this program, which computes on the same CPUs.

Where. An I/O core gets a physical core of its own while there is one; all stay within one cache
or NUMA node where they fit (see placement.py).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tpc_server.affinity.cores_arg import STAGES, CoresSpec, parse_cores
from tpc_server.affinity.cpulist import format_cpus
from tpc_server.affinity.placement import CORE_WEIGHT, ENGINE_WEIGHT, Placement
from tpc_server.affinity.topology import Topology

__all__ = [
    "STAGES",
    "CorePlan",
    "CoreSpec",
    "CoresSpec",
    "PlanSettings",
    "parse_cores",
    "plan",
    "route",
]

Lists = dict[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """What the plan is asked for.

    cores         parsed --cores, None = choose
    engine_cpus   CPUs the engine inside this program can use; 0 or None: the scheduler is someone
                  else's thread or process
    unpinned      pin nothing
    max_io        most I/O cores chosen by default; None = 4, or 2 beside an embedded engine
    max_tokenize  most tokenize cores chosen by default; None = 2, or 1 beside an embedded engine
    """

    cores: CoresSpec | None = None
    engine_cpus: int | None = None
    unpinned: bool = False
    max_io: int | None = None
    max_tokenize: int | None = None


@dataclass(frozen=True, slots=True)
class CoreSpec:
    """One core: its index, the CPUs it is pinned to (none = unpinned) and its stages."""

    index: int
    cpus: tuple[int, ...]
    stages: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CorePlan:
    """The whole placement.

    cores           ascending by index, which is 0 .. n-1
    scheduler_cpus  CPUs for the scheduler or engine; () = leave its mask alone
    reason          one sentence: why it is as it is
    warnings        what the user should know
    engine_threads  compute threads the embedded engine should start (0 without one)
    order           core indices per stage, in STAGES order, where --cores gave an order
    """

    cores: tuple[CoreSpec, ...]
    scheduler_cpus: tuple[int, ...] = ()
    reason: str = ""
    warnings: tuple[str, ...] = ()
    engine_threads: int = 0
    order: tuple[tuple[int, ...], ...] = ()

    def stage_cores(self, stage: str) -> tuple[int, ...]:
        """Indices of the cores that run ``stage``, in the order that pairs them."""
        if self.order:
            return self.order[STAGES.index(stage)]
        return tuple(core.index for core in self.cores if stage in core.stages)

    @property
    def pinned(self) -> bool:
        """Whether any core is pinned."""
        return any(core.cpus for core in self.cores)

    def describe(self) -> str:
        """A few lines for the banner and ``doctor``."""
        lines = [f"cores: {self.reason}" if self.reason else "cores:"]
        for core in self.cores:
            where = f"CPU {format_cpus(core.cpus)}" if core.cpus else "unpinned"
            lines.append(f"  core {core.index}  {where:<10}  {' '.join(core.stages)}")
        if self.scheduler_cpus and self.engine_threads:
            threads = f"{self.engine_threads} thread{'s' * (self.engine_threads > 1)}"
            lines.append(f"  engine  CPU {format_cpus(self.scheduler_cpus)}, {threads}")
        elif self.scheduler_cpus:
            lines.append(f"  left to the scheduler: CPU {format_cpus(self.scheduler_cpus)}")
        lines += [f"  warning: {text}" for text in self.warnings]
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """The same as JSON-ready data, for /server_info."""
        return {
            "cores": [
                {"index": core.index, "cpus": list(core.cpus), "stages": list(core.stages)}
                for core in self.cores
            ],
            "scheduler_cpus": list(self.scheduler_cpus),
            "engine_threads": self.engine_threads,
            "pinned": self.pinned,
            "reason": self.reason,
            "warnings": list(self.warnings),
        }


def route(plan: CorePlan, stage: str, ingress_core: int) -> int:
    """The core that runs ``stage`` for requests accepted on core ``ingress_core``.

    The k-th ingress core uses the stage's core number k modulo how many it has, so equal lists
    keep a request on one core.
    """
    cores = plan.stage_cores(stage)
    return cores[plan.stage_cores("ingress").index(ingress_core) % len(cores)]


def plan(topology: Topology, settings: PlanSettings | None = None) -> CorePlan:
    """The placement for this machine and these wishes; equal inputs give equal plans."""
    settings = settings or PlanSettings()
    engine = max(0, settings.engine_cpus or 0)
    budget = topology.budget
    warnings: list[str] = []
    lists, numbers, reason = _stage_lists(settings, topology, engine)
    count = 1 + max(core for cores in lists.values() for core in cores)
    if topology.quota is not None and count > budget:
        warnings.append(f"{count} cores under a cgroup quota of {topology.quota:g} CPUs")

    floating = ""
    if settings.unpinned:
        floating = "unpinned as asked"
    elif not topology.pinnable:
        floating = "unpinned, this system cannot pin threads"
    elif not numbers and budget < len(topology.allowed):
        # A quota below the mask means that the CPUs are shared with containers that see the same
        # mask. Each of them would pin to the same lowest CPUs and leave the others idle.
        floating = (
            f"unpinned, the cgroup grants {topology.quota:g} of {len(topology.allowed)} shared CPUs"
        )
    if floating:
        return CorePlan(
            cores=_specs(lists, [()] * count),
            reason=f"{reason}; {floating}",
            warnings=tuple(warnings),
            engine_threads=_engine_threads(budget, count, engine),
            order=_order(lists),
        )

    if numbers:
        where, kept = _place_numbers(topology, numbers, engine, warnings)
    else:
        where, kept = _place_count(topology, len(lists["ingress"]), count, engine, warnings)
    scheduler = _scheduler_cpus(topology, where, kept, engine, warnings)
    return CorePlan(
        cores=_specs(lists, [(cpu,) for cpu in where]),
        scheduler_cpus=scheduler,
        reason=reason,
        warnings=tuple(warnings),
        engine_threads=min(_engine_threads(budget, len(set(where)), engine), len(scheduler)),
        order=_order(lists),
    )


def _stage_lists(
    settings: PlanSettings, topology: Topology, engine: int
) -> tuple[Lists, tuple[int, ...], str]:
    """Core indices per stage, the logical number asked for each index (or none), and why."""
    spec = settings.cores
    if spec is None:
        io, tokenize = _default_counts(settings, topology, engine)
        budget = topology.budget
        return _split_lists(io, tokenize), (), f"chosen for {budget} CPU{'s' * (budget > 1)}"
    reason = f"as --cores {spec} says"
    if spec.stages:
        return (*_mapped_lists(spec, topology), reason)
    count = spec.count if spec.count is not None else len(spec.cores)
    tokenize = count // 3  # 0 with 1 or 2 cores: all stages share them
    return _split_lists(count - tokenize, tokenize), spec.cores, reason


def _default_counts(settings: PlanSettings, topology: Topology, engine: int) -> tuple[int, int]:
    """(I/O cores, tokenize cores of their own)."""
    max_io = settings.max_io or (2 if engine else 4)
    max_tokenize = settings.max_tokenize or (1 if engine else 2)
    budget = topology.budget
    if engine:
        # The engine is what the CPUs are for; what we keep is one light thread, two from 4 CPUs
        # on (so that a long prompt delays no stream), a quarter from 8 on.
        least = 1 if budget < 4 else max(2, budget // 4)
        ours = max(budget - engine, least)
    else:
        ours = budget - _reserve(budget)
    # One physical core stays clear of us, both its threads: beside one of ours a scheduler is slow.
    ours = min(ours, max(2, topology.physical - 1), max_io + max_tokenize)
    if ours <= 1:
        return 1, 0
    tokenize = min(max_tokenize, max(1, ours // 3))
    return min(max_io, ours - tokenize), tokenize


def _split_lists(io: int, tokenize: int) -> Lists:
    io_cores = tuple(range(io))
    own = tuple(range(io, io + tokenize))
    return {"ingress": io_cores, "tokenize": own or io_cores, "detok": io_cores, "egress": io_cores}


def _mapped_lists(spec: CoresSpec, topology: Topology) -> tuple[Lists, tuple[int, ...]]:
    named = dict(spec.stages)
    # A stage left out runs where it costs no hop: beside the sockets.
    io = named.get("ingress") or named.get("egress") or named.get("detok")
    if io is None:
        # Only tokenize was named. The sockets go to a CPU it leaves free, if there is one.
        free = [cpu for cpu in topology.allowed if cpu not in named["tokenize"]]
        io = (free[0],) if free else named["tokenize"]
    full = {stage: named.get(stage, io) for stage in STAGES}
    full["detok"] = named.get("detok") or named.get("egress") or io
    numbers = tuple(sorted({core for cores in full.values() for core in cores}))
    index_of = {number: index for index, number in enumerate(numbers)}
    lists = {stage: tuple(index_of[core] for core in cores) for stage, cores in full.items()}
    return lists, numbers


def _place_numbers(
    topology: Topology, numbers: tuple[int, ...], engine: int, warnings: list[str]
) -> tuple[list[int], list[int]]:
    """A CPU per logical core number (itself where allowed, else the allowed ones in turn), and
    CPUs kept for the scheduler."""
    placement = Placement(topology)
    free = [cpu for cpu in topology.allowed if cpu not in numbers]
    turn = free + [cpu for cpu in topology.allowed if cpu in numbers]
    where: list[int] = []
    moved: list[str] = []
    for number in numbers:
        cpu = number
        if number not in topology.allowed:
            cpu = turn[len(moved) % len(turn)]
            moved.append(f"{number} on CPU {cpu}")
        placement.mark(cpu, CORE_WEIGHT)
        where.append(cpu)
    if moved:
        mask = format_cpus(topology.allowed)
        warnings.append(f"--cores: not among the allowed CPUs {mask}: {', '.join(moved)}")
    kept = _kept_count(topology, len(set(where)), engine)
    return where, [placement.take(ENGINE_WEIGHT) for _ in range(kept)]


def _place_count(
    topology: Topology, io: int, count: int, engine: int, warnings: list[str]
) -> tuple[list[int], list[int]]:
    """A CPU per core, the first ``io`` of them I/O cores, and CPUs kept for the scheduler."""
    if count > len(topology.allowed):
        plural = "s" * (len(topology.allowed) > 1)
        warnings.append(f"{count} cores share {len(topology.allowed)} CPU{plural}")
    kept = _kept_count(topology, min(count, len(topology.allowed)), engine)
    placement = Placement(topology)
    placement.settle(topology, io, count + kept)
    # Who waits for whom decides who chooses first: sockets, then the scheduler, then tokenizing.
    where = [placement.take(CORE_WEIGHT) for _ in range(io)]
    scheduler = [placement.take(ENGINE_WEIGHT) for _ in range(kept)]
    where += [placement.take(CORE_WEIGHT) for _ in range(count - io)]
    return where, scheduler


def _engine_threads(budget: int, used: int, engine: int) -> int:
    """How many compute threads the engine gets when our cores sit on ``used`` CPUs."""
    left = budget - used
    return min(engine, left if left >= min(engine, 2) else budget)


def _kept_count(topology: Topology, used: int, engine: int) -> int:
    """How many CPUs to keep clear of our cores; 0 when too few are left for that.

    For an embedded engine "too few" is one CPU where it can use two. On 2 CPUs it so runs on both:
    it computes all the time, and would lose up to half of its speed on one, while our core needs a
    few per cent and is run at once when it wakes (a thread that slept goes before one that
    computed). With engine_cpus=1 it gets the second CPU alone.
    """
    left = len(topology.allowed) - used
    if not engine:
        return min(left, _reserve(topology.budget))
    return (
        min(left, _engine_threads(topology.budget, used, engine)) if left >= min(engine, 2) else 0
    )


def _reserve(budget: int) -> int:
    """CPUs for a scheduler that is not ours: SGLang's rule, and one of 2 or 3 CPUs as well."""
    return min(2, budget // 4) if budget >= 4 else 1


def _scheduler_cpus(
    topology: Topology, where: list[int], kept: list[int], engine: int, warnings: list[str]
) -> tuple[int, ...]:
    """The CPUs kept for an embedded engine; every one left over for a scheduler elsewhere."""
    if not kept:
        if len(topology.allowed) > 1 and not engine:
            warnings.append("no CPU is left to the scheduler")
        return topology.allowed
    if engine:
        return tuple(sorted(kept))
    return tuple(cpu for cpu in topology.allowed if cpu not in where)


def _specs(lists: Lists, where: list[tuple[int, ...]]) -> tuple[CoreSpec, ...]:
    return tuple(
        CoreSpec(index, cpus, tuple(stage for stage in STAGES if index in lists[stage]))
        for index, cpus in enumerate(where)
    )


def _order(lists: Lists) -> tuple[tuple[int, ...], ...]:
    return tuple(lists[stage] for stage in STAGES)
