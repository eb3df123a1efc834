"""Topology fixtures: a machine's /sys and /proc files as one small JSON. Owner: the calling test.

{"about": ..., "base": another fixture or null, "files": {path: text}}. Where many CPUs have the
same text a path says "cpu[0-3,8]" for all of them. ``python -m tests.topology_trees`` prints this
machine's own, which is how one is recorded.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import tempfile
from pathlib import Path

from tpc_server.affinity.cpulist import format_cpus, parse_cpus
from tpc_server.affinity.topology import Topology, read

FOLDER = Path(__file__).parent / "data" / "topology"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))

_CPU_FILES = ("topology/thread_siblings_list", "topology/core_cpus_list")
_CACHE_FILES = ("level", "type", "shared_cpu_list")
_GROUP_FILES = ("cpu.max", "cpu.cfs_quota_us", "cpu.cfs_period_us")


def unpack(name: str, folder: Path) -> Path:
    """Write the fixture's files below ``folder``; that folder is then the ``root`` to read."""
    tree = json.loads((FOLDER / f"{name}.json").read_text())
    if tree.get("base"):
        unpack(tree["base"], folder)
    for pattern, text in tree["files"].items():
        for path in expand(pattern):
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text + "\n")
    return folder


@functools.cache
def recorded(name: str) -> Topology:
    """The fixture as a Topology; unpacked once per run, because the big ones are 2000 files."""
    with tempfile.TemporaryDirectory() as folder:
        return read(unpack(name, Path(folder)))


def expand(pattern: str) -> list[str]:
    """ "cpu/cpu[0-1]/x" -> cpu/cpu0/x and cpu/cpu1/x."""
    head, bracket, rest = pattern.partition("cpu[")
    if not bracket:
        return [pattern]
    listed, _, tail = rest.partition("]")
    return [f"{head}cpu{cpu}{tail}" for cpu in parse_cpus(listed)]


def record(root: Path = Path("/")) -> dict[str, str]:
    """The files that topology.read looks at, same texts of several CPUs folded into one line."""
    files: dict[str, str] = {}
    cpu_folder = root / "sys/devices/system/cpu"
    files["sys/devices/system/cpu/online"] = (cpu_folder / "online").read_text().strip()
    same: dict[tuple[str, str], list[int]] = {}
    for cpu in parse_cpus(files["sys/devices/system/cpu/online"]):
        here = cpu_folder / f"cpu{cpu}"
        wanted = [here / name for name in _CPU_FILES]
        wanted += [index / name for index in here.glob("cache/index*") for name in _CACHE_FILES]
        for path in wanted:
            if path.is_file():
                key = (str(path.relative_to(here)), path.read_text().strip())
                same.setdefault(key, []).append(cpu)
    for (name, text), cpus in sorted(same.items()):
        files[f"sys/devices/system/cpu/cpu[{format_cpus(cpus)}]/{name}"] = text
    for path in sorted((root / "sys/devices/system/node").glob("node*/cpulist")):
        files[str(path.relative_to(root))] = path.read_text().strip()
    groups = [
        line
        for line in (root / "proc/self/cgroup").read_text().splitlines()
        if line.startswith("0::") or "cpu" in re.split("[:,]", line)
    ]
    files["proc/self/cgroup"] = "\n".join(groups)
    for line in groups:
        for mount in ("", "unified", "cpu", "cpu,cpuacct", "cpuacct,cpu"):
            inner = Path(line.split(":", 2)[2].lstrip("/"))
            for folder in (inner, *inner.parents):
                for name in _GROUP_FILES:
                    path = root / "sys/fs/cgroup" / mount / folder / name
                    if path.is_file():
                        files[str(path.relative_to(root))] = path.read_text().strip()
    status = (root / "proc/self/status").read_text()
    mask = re.search(r"^Cpus_allowed_list:.*$", status, re.MULTILINE)
    if mask:
        files["proc/self/status"] = mask.group()
    return files


if __name__ == "__main__":
    json.dump({"about": "recorded", "base": None, "files": record()}, sys.stdout, indent=1)
