"""What the figures were measured on. Owner: stateless."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

PROBE = """
import json, platform, sys, sysconfig
from importlib import metadata
found = {}
for name in sys.argv[1:]:
    try:
        found[name] = metadata.version(name)
    except metadata.PackageNotFoundError:
        pass
enabled = getattr(sys, "_is_gil_enabled", lambda: True)()
print(json.dumps({
    "version": platform.python_version(),
    "compiler": platform.python_compiler(),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "gil_enabled": enabled,
    "configure": sysconfig.get_config_var("CONFIG_ARGS"),
    "opt": sysconfig.get_config_var("OPT"),
    "pgo": bool(sysconfig.get_config_var("PROFILE_TASK"))
        and "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
    "packages": found,
}))
"""
PACKAGES = ("tokenizers", "numpy", "httptools", "msgpack", "msgspec", "jiter", "granian")


def python_stamp(python: Path | str) -> dict[str, Any]:
    """Version, build flags and packages of an interpreter; machine folders are left out."""
    done = subprocess.run(
        [str(python), "-c", PROBE, *PACKAGES], capture_output=True, text=True, check=True
    )
    stamp: dict[str, Any] = json.loads(done.stdout)
    # a configure line holds the builder's folders: of no use to a reader
    words = (stamp["configure"] or "").replace("'", "").split()
    stamp["configure"] = " ".join(word for word in words if "/" not in word)
    return stamp


def cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def git_commit(folder: Path) -> str | None:
    """Short commit of the checkout, with a + when tracked files differ from it."""
    try:
        commit = subprocess.run(
            ["git", "-C", str(folder), "rev-parse", "--short=10", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        dirty = subprocess.run(
            ["git", "-C", str(folder), "status", "--porcelain", "-uno", "tpc_server", "perf"],
            capture_output=True,
            text=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
    return commit + ("+" if dirty else "")


def machine_stamp() -> dict[str, Any]:
    memory = Path("/proc/meminfo").read_text().split("\n", 1)[0].split()[1]
    return {
        "cpu": cpu_model(),
        "cpus": os.cpu_count(),
        "allowed_cpus": sorted(os.sched_getaffinity(0)),
        "memory_gib": round(int(memory) / 1024**2, 1),
        "kernel": platform.release(),
        "load_average": [round(each, 2) for each in os.getloadavg()],
    }
