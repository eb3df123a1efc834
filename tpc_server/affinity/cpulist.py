"""The kernel's text files and its CPU list notation ("0-3,8"). Owner: none, functions only."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

# Linux is built for at most 8192 CPUs; a larger number is a mistake, and a range up to it would
# only fill the memory.
MAX_CPU = 8191


def parse_cpus(text: str) -> tuple[int, ...]:
    """Ascending CPU numbers of a kernel list ("0-3,8"); whatever is not one gives ()."""
    cpus: set[int] = set()
    for part in text.replace("\x00", "").split(","):
        low, dash, high = part.strip().partition("-")
        if not low:
            continue
        if not low.isdecimal() or (dash and not high.isdecimal()):
            return ()
        first, last = int(low), int(high) if dash else int(low)
        if last > MAX_CPU:
            return ()
        cpus.update(range(first, last + 1))
    return tuple(sorted(cpus))


def format_cpus(cpus: Iterable[int]) -> str:
    """The shortest list notation: (0, 1, 2, 8) -> "0-2,8"; no CPUs -> "-"."""
    runs: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if runs and cpu == runs[-1][1] + 1:
            runs[-1][1] = cpu
        else:
            runs.append([cpu, cpu])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in runs) or "-"


def read_text(path: Path) -> str:
    """The file's text, stripped; empty when it cannot be read for any reason."""
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except (OSError, ValueError):
        return ""
