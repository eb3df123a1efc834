"""Which CPU is next, given what hangs together. Owner: the one call of plan() that made it."""

from __future__ import annotations

from tpc_server.affinity.topology import Group, Topology

# An engine thread computes all the time, one of our cores mostly waits: on a physical core that
# two of them must share, a core of ours is the better neighbour.
CORE_WEIGHT = 1
ENGINE_WEIGHT = 4


class Placement:
    """Hands out allowed CPUs one after the other.

    Order of preference: a CPU nobody has, inside the home domain, on the least loaded physical
    core, then node by node and cache by cache, then the lowest number. Equal inputs give equal
    answers, and it never runs out: a CPU is given again when all are taken.
    """

    __slots__ = ("_allowed", "_cache_of", "_home", "_load", "_node_of", "_physical_of", "_taken")

    def __init__(self, topology: Topology) -> None:
        self._allowed = topology.allowed
        self._physical_of = _index(topology.allowed, topology.siblings)
        self._node_of = _index(topology.allowed, topology.nodes)
        self._cache_of = _index(topology.allowed, topology.caches)
        self._load = dict.fromkeys(self._physical_of.values(), 0)
        self._taken = dict.fromkeys(topology.allowed, 0)
        self._home = frozenset(topology.allowed)

    def settle(self, topology: Topology, io: int, total: int) -> None:
        """Choose the home domain for ``total`` threads of which ``io`` are I/O cores.

        The smallest that gives each thread a physical core: a last-level cache, else a NUMA node;
        else the smallest where the I/O cores have one each and the others a sibling; else all.
        """
        for physical_needed in (total, io):
            for groups in (topology.caches, topology.nodes):
                for group in groups:
                    cpus = [cpu for cpu in group if cpu in self._physical_of]
                    physical = {self._physical_of[cpu] for cpu in cpus}
                    if len(physical) >= physical_needed and len(cpus) >= total:
                        self._home = frozenset(cpus)
                        return

    def take(self, weight: int) -> int:
        """The best CPU now, marked as taken."""
        best = min(self._allowed, key=self._rank)
        self.mark(best, weight)
        return best

    def mark(self, cpu: int, weight: int) -> None:
        """Count a CPU that was given by other means."""
        self._taken[cpu] += 1
        self._load[self._physical_of[cpu]] += weight

    def _rank(self, cpu: int) -> tuple[int, bool, int, int, int, int]:
        return (
            self._taken[cpu],
            cpu not in self._home,
            self._load[self._physical_of[cpu]],
            self._node_of[cpu],
            self._cache_of[cpu],
            cpu,
        )


def _index(allowed: Group, groups: tuple[Group, ...]) -> dict[int, int]:
    """CPU -> number of its group; a CPU in no group is a group of its own."""
    found: dict[int, int] = {}
    for number, group in enumerate(groups):
        for cpu in group:
            found.setdefault(cpu, number)
    return {cpu: found.get(cpu, len(groups) + cpu) for cpu in allowed}
