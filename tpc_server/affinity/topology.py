"""What CPUs this process has. Owner: none, frozen plain data that any thread may read.

``read(root)`` looks at the affinity mask, the cgroup CPU quota and sysfs below ``root`` and never
raises: a container hides any of these files at will, and a server that cannot see its caches can
still serve. What was missing is said in ``Topology.notes``.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tpc_server.affinity.cgroup import read_quota
from tpc_server.affinity.cpulist import format_cpus, parse_cpus, read_text

Group = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Topology:
    """The CPUs a process may use and how they hang together.

    allowed   CPU numbers of the affinity mask, ascending; never empty
    quota     CPUs' worth of time per period the cgroups grant (1.5 = one and a half), None = all
    siblings  physical cores: the CPU numbers (SMT threads) of each
    nodes     NUMA nodes: the CPU numbers of each
    caches    last-level caches: the CPU numbers behind each
    pinnable  False where the system has no affinity calls: ``allowed`` is then only a count
    notes     what could not be read, one clause each

    Groups hold online CPUs, also those outside the mask; a CPU in no group stands alone.
    """

    allowed: Group
    quota: float | None = None
    siblings: tuple[Group, ...] = ()
    nodes: tuple[Group, ...] = ()
    caches: tuple[Group, ...] = ()
    pinnable: bool = True
    notes: tuple[str, ...] = ()

    @property
    def budget(self) -> int:
        """How many CPUs' worth of threads make sense: min(allowed, ceil(quota)), at least 1."""
        n = len(self.allowed)
        if self.quota is not None:
            n = min(n, math.ceil(self.quota))
        return max(1, n)

    @property
    def physical(self) -> int:
        """Physical cores that the mask touches."""
        grouped = {cpu: group for group in self.siblings for cpu in group}
        return len({grouped.get(cpu, (cpu,)) for cpu in self.allowed})

    def describe(self) -> str:
        """One line: counts, mask, quota."""
        mine = set(self.allowed)
        parts = [f"{len(self.allowed)} CPUs allowed ({format_cpus(self.allowed)})"]
        for groups, word in (
            (self.siblings, "physical cores"),
            (self.caches, "last-level caches"),
            (self.nodes, "NUMA nodes"),
        ):
            count = sum(1 for group in groups if mine.intersection(group))
            if count:
                parts.append(f"{count} {word if count > 1 else word.removesuffix('s')}")
        if self.quota is not None:
            parts.append(f"cgroup quota {self.quota:g} CPUs")
        return ", ".join(parts)


def read(
    root: str | os.PathLike[str] = "/",
    pid: int = 0,
    *,
    affinity: Iterable[int] | None = None,
) -> Topology:
    """The topology of process ``pid`` (0 = this one) as the files below ``root`` show it.

    ``affinity`` replaces the mask. Without it the mask comes from the kernel's call when ``root``
    is the real one, else from ``proc/<pid>/status`` below ``root``, else it is every online CPU.
    """
    base = Path(root)
    notes: list[str] = []
    online = _online(base)
    pinnable = True
    mask: Group = tuple(sorted(set(affinity))) if affinity is not None else ()
    if not mask and base == Path("/"):
        mask, pinnable = _kernel_mask(pid)
        if not pinnable:
            notes.append("the system gives no affinity mask")
    elif not mask:
        mask = _status_mask(base, pid)
    if not mask:
        notes.append("affinity mask not readable, every online CPU taken")
        mask = online or tuple(range(os.cpu_count() or 1))
    cpus = online or mask
    siblings = _per_cpu_groups(
        base, cpus, ("topology/thread_siblings_list", "topology/core_cpus_list")
    )
    if not siblings:
        notes.append("SMT siblings not readable")
    nodes = _nodes(base)
    if not nodes:
        notes.append("NUMA nodes not readable")
    caches = _last_level_caches(base, cpus)
    if not caches:
        notes.append("caches not readable")
    return Topology(mask, read_quota(base, pid), siblings, nodes, caches, pinnable, tuple(notes))


def _kernel_mask(pid: int) -> tuple[Group, bool]:
    if sys.platform != "linux":
        return tuple(range(os.cpu_count() or 1)), False
    try:
        return tuple(sorted(os.sched_getaffinity(pid))), True
    except OSError:
        # A mask that cannot be read cannot be trusted to be set either.
        return (), False


def _status_mask(base: Path, pid: int) -> Group:
    status = read_text(base / "proc" / (str(pid) if pid else "self") / "status")
    for line in status.splitlines():
        if line.startswith("Cpus_allowed_list:"):
            return parse_cpus(line.partition(":")[2])
    return ()


def _online(base: Path) -> Group:
    return parse_cpus(read_text(base / "sys/devices/system/cpu/online"))


def _per_cpu_groups(base: Path, cpus: Group, names: tuple[str, ...]) -> tuple[Group, ...]:
    found: list[Group] = []
    seen: set[int] = set()
    for cpu in cpus:
        if cpu in seen:
            continue
        for name in names:
            group = parse_cpus(read_text(base / f"sys/devices/system/cpu/cpu{cpu}" / name))
            if cpu in group:
                found.append(group)
                seen.update(group)
                break
    return tuple(found)


def _nodes(base: Path) -> tuple[Group, ...]:
    numbered: list[tuple[int, Group]] = []
    try:
        entries = list((base / "sys/devices/system/node").iterdir())
    except OSError:
        return ()
    for entry in entries:
        number = entry.name.removeprefix("node")
        if entry.name.startswith("node") and number.isdecimal():
            group = parse_cpus(read_text(entry / "cpulist"))
            if group:  # memory-only nodes have no CPUs
                numbered.append((int(number), group))
    return tuple(group for _, group in sorted(numbered))


def _last_level_caches(base: Path, cpus: Group) -> tuple[Group, ...]:
    found: list[Group] = []
    seen: set[int] = set()
    for cpu in cpus:
        if cpu in seen:
            continue
        group = _last_level_of(base / f"sys/devices/system/cpu/cpu{cpu}/cache")
        if cpu in group:
            found.append(group)
            seen.update(group)
    return tuple(found)


def _last_level_of(folder: Path) -> Group:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return ()
    best_level = 0
    best: Group = ()
    for entry in entries:
        if not entry.name.startswith("index") or read_text(entry / "type") == "Instruction":
            continue
        level = read_text(entry / "level")
        if level.isdecimal() and int(level) > best_level:
            group = parse_cpus(read_text(entry / "shared_cpu_list"))
            if group:
                best_level, best = int(level), group
    return best
