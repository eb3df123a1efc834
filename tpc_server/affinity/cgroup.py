"""The CPU quota of the cgroups a process sits in. Owner: none, reads files only.

Every level from the process's own cgroup up to the root can hold a limit, and the tightest one
counts: a pod's limit sits on the pod's group, the container's on the one below.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tpc_server.affinity.cpulist import read_text

_V1_NAMES = ("cpu", "cpu,cpuacct", "cpuacct,cpu")


def read_quota(base: Path, pid: int = 0) -> float | None:
    """CPUs' worth of time (1.5 = one and a half), or None where nothing limits it."""
    limits: list[float] = []
    mount = base / "sys/fs/cgroup"
    for controllers, path in _memberships(base, pid):
        if not controllers:  # v2: one hierarchy, at the mount itself or beside v1 as "unified"
            for folder in (mount, mount / "unified"):
                limits += _walk(folder, path, _v2_limit)
        elif "cpu" in controllers.split(","):
            for name in _V1_NAMES:
                limits += _walk(mount / name, path, _v1_limit)
    return min(limits, default=None)


def _memberships(base: Path, pid: int) -> list[tuple[str, str]]:
    """(controllers, path) of each line of /proc/<pid>/cgroup; v2 has no controllers."""
    found: list[tuple[str, str]] = []
    for line in read_text(base / "proc" / (str(pid) if pid else "self") / "cgroup").splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3 and not fields[1].startswith("name="):
            found.append((fields[1], fields[2]))
    # Where /proc hides it, the mount's own files are still those of this container.
    return found or [("", "/"), ("cpu", "/")]


def _walk(mount: Path, path: str, limit_of: Callable[[Path], float | None]) -> list[float]:
    """Limits at ``path`` and each of its parents, and at the mount itself.

    Inside a container the path is often the host's and names nothing below the mount; the mount
    then *is* the container's group, so it is always looked at.
    """
    parts = [part for part in path.split("/") if part not in ("", ".", "..")]
    limits: list[float] = []
    for depth in range(len(parts), -1, -1):
        limit = limit_of(mount.joinpath(*parts[:depth]))
        if limit is not None:
            limits.append(limit)
    return limits


def _v2_limit(folder: Path) -> float | None:
    fields = read_text(folder / "cpu.max").split()
    return _ratio(fields[0], fields[1]) if len(fields) == 2 else None


def _v1_limit(folder: Path) -> float | None:
    return _ratio(read_text(folder / "cpu.cfs_quota_us"), read_text(folder / "cpu.cfs_period_us"))


def _ratio(quota: str, period: str) -> float | None:
    """quota / period; None for "max", -1, or anything that is no number."""
    if not (quota.isdecimal() and period.isdecimal()):
        return None
    return int(quota) / int(period) if int(quota) and int(period) else None
