"""What an interpreter is and whether it can serve, asked of the interpreter itself. Owner: caller.

Answers are remembered in the cache by path, size and time of the binary, so that a second run
starts no interpreter just to ask it the same again.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .cache import cache_root, write_atomically

MINIMUM = (3, 11)
PROBE_LIMIT_S = 20
# Without these there is no environment (venv, pip's downloads) or no server (mmap, ctypes).
NEEDED_MODULES = ("ssl", "zlib", "ctypes", "mmap", "venv", "ensurepip")

_SCRIPT = """
import importlib.util, json, platform, sys, sysconfig
broken = []
for name in %r:
    try:
        __import__(name)
    except Exception:
        broken.append(name)
print(json.dumps({
    "executable": sys.executable,
    "implementation": platform.python_implementation(),
    "version": list(sys.version_info[:3]),
    "free_threaded": bool(sysconfig.get_config_var("Py_GIL_DISABLED")),
    "optimized": "--enable-optimizations" in (sysconfig.get_config_var("CONFIG_ARGS") or ""),
    "broken": broken,
}))
""" % (NEEDED_MODULES,)  # noqa: UP031  (braces all over: str.format would be worse)


class Interpreter(NamedTuple):
    """One interpreter that answered. `executable` is its own word for itself, absolute."""

    executable: str
    implementation: str
    version: tuple[int, int, int]
    free_threaded: bool
    optimized: bool
    broken: tuple[str, ...]

    @property
    def build(self) -> str:
        """The name of its lock file: cp313t, cp314t, …, or gil for every build that has one."""
        return f"cp{self.version[0]}{self.version[1]}t" if self.free_threaded else "gil"

    def __str__(self) -> str:
        version = ".".join(map(str, self.version))
        kind = "free-threaded" if self.free_threaded else "with a GIL"
        return f"{self.implementation} {version} {kind}{', PGO' if self.optimized else ''}"

    def fault(self, builds: Sequence[str]) -> str:
        """Why it cannot be used, or "". `builds` are the builds that have a lock file."""
        if self.implementation != "CPython":
            return f"{self}: only CPython will do"
        if self.version < MINIMUM:
            return f"{self}: older than {MINIMUM[0]}.{MINIMUM[1]}"
        if self.build not in builds:
            return f"{self}: no lock file for {self.build} (there is {', '.join(builds)})"
        if self.broken:
            return f"{self}: cannot import {', '.join(self.broken)}"
        return ""


def probe(path: str) -> Interpreter | str:
    """The interpreter at an absolute path, or why there is none."""
    try:
        stat = os.stat(path)
    except OSError as error:
        return f"{path}: {error.strerror}"
    stamp = [os.path.realpath(path), stat.st_size, stat.st_mtime_ns]
    known = _read_memo()
    entry = known.get(path)
    if isinstance(entry, dict) and entry.get("stamp") == stamp:
        return _interpreter(entry["answer"])
    answer = _ask(path)
    if isinstance(answer, str):
        return answer
    if not _is_script(path):
        # A script (a version manager's shim) may start another interpreter tomorrow.
        known[path] = {"stamp": stamp, "answer": answer}
        write_atomically(_memo(), json.dumps(known, indent=1).encode())
    return _interpreter(answer)


def _ask(path: str) -> dict[str, Any] | str:
    try:
        done = subprocess.run(
            [path, "-I", "-c", _SCRIPT],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_LIMIT_S,
            check=False,
        )
        if done.returncode == 0:
            answer = json.loads(done.stdout)
            if isinstance(answer, dict):
                return answer
        lines = done.stderr.strip().splitlines() or [f"status {done.returncode}"]
        return f"{path}: {lines[-1].strip()}"
    except subprocess.TimeoutExpired:
        return f"{path}: no answer within {PROBE_LIMIT_S} s"
    except OSError as error:
        return f"{path}: {error.strerror}"
    except ValueError:
        return f"{path}: does not answer like a Python"


def _interpreter(answer: dict[str, Any]) -> Interpreter:
    major, minor, micro = answer["version"]
    return Interpreter(
        answer["executable"],
        answer["implementation"],
        (major, minor, micro),
        answer["free_threaded"],
        answer["optimized"],
        tuple(answer["broken"]),
    )


def _is_script(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(2) == b"#!"


def _memo() -> Path:
    return cache_root() / "probes.json"


def _read_memo() -> dict[str, Any]:
    try:
        known = json.loads(_memo().read_bytes())
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
