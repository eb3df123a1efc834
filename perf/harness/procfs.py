"""CPU time and memory of another process and its children. Owner: the caller; reads /proc only.

Units: nanoseconds and bytes. A process that has gone counts as zero.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path


def process_cpu_ns(pid: int) -> int:
    """User plus system time of all threads of `pid`, dead ones included, to the nanosecond.

    The clock id of another process's CPU clock is made as clock_getcpuclockid(3) makes it.
    """
    try:
        return time.clock_gettime_ns((~pid << 3) | 2)
    except OSError:
        return 0


def children(pid: int) -> list[int]:
    """All live descendants of `pid`."""
    found: list[int] = []
    todo = [pid]
    while todo:
        parent = todo.pop()
        with contextlib.suppress(OSError):
            for task in os.listdir(f"/proc/{parent}/task"):
                kids = Path(f"/proc/{parent}/task/{task}/children").read_text().split()
                found += map(int, kids)
                todo += map(int, kids)
    return found


def tree_cpu_ns(pid: int) -> int:
    """CPU time of `pid` and its live descendants."""
    return sum(process_cpu_ns(each) for each in [pid, *children(pid)])


def tree_system_share(pid: int) -> tuple[float, float]:
    """(user, system) seconds of `pid` and its live descendants, in clock ticks' resolution."""
    user = system = 0
    for each in [pid, *children(pid)]:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            user += int(fields[11])
            system += int(fields[12])
    hertz = os.sysconf("SC_CLK_TCK")
    return user / hertz, system / hertz


def tree_pss_bytes(pid: int) -> int:
    """Proportional set size of `pid` and its live descendants."""
    total = 0
    for each in [pid, *children(pid)]:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{each}/smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def machine_busy_seconds() -> tuple[float, float]:
    """(busy, stolen) seconds of all CPUs since boot: to see what else ran during a measurement."""
    fields = [int(x) for x in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    hertz = os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _iowait, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq) / hertz, steal / hertz


def task_switches(pid: int) -> dict[int, tuple[str, int, int]]:
    """Thread id -> (name, voluntary, involuntary context switches) of one process."""
    found: dict[int, tuple[str, int, int]] = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            values = dict(
                line.split(":", 1)
                for line in Path(f"/proc/{pid}/task/{task}/status").read_text().splitlines()
                if ":" in line
            )
            found[int(task)] = (
                values["Name"].strip(),
                int(values["voluntary_ctxt_switches"]),
                int(values["nonvoluntary_ctxt_switches"]),
            )
    return found


def task_cpu_ns(pid: int) -> dict[int, int]:
    """Thread id -> time on a CPU of each live thread, where the kernel keeps it; else empty."""
    found: dict[int, int] = {}
    for task in os.listdir(f"/proc/{pid}/task"):
        with contextlib.suppress(OSError):
            found[int(task)] = int(
                Path(f"/proc/{pid}/task/{task}/schedstat").read_text().split()[0]
            )
    return found
