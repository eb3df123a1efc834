"""How much memory this process may still take. Owner: any thread (stateless)."""

from __future__ import annotations

from pathlib import Path

#: A cgroup v1 without a limit reports a number near 2^63.
_NO_LIMIT = 1 << 60


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated without swapping: the machine's, or the cgroup's if smaller.

    `root` stands for `/` in tests. Page cache counts as available, as the kernel itself counts it.
    Where nothing can be read the answer is 2^60, so that no check refuses on a guess.
    """
    found = [_NO_LIMIT]
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            found.append(int(line.split()[1]) << 10)
    for limit_name, used_name, stat_name, stat_key in (
        ("memory.max", "memory.current", "memory.stat", "inactive_file"),
        (
            "memory/memory.limit_in_bytes",
            "memory/memory.usage_in_bytes",
            "memory/memory.stat",
            "total_inactive_file",
        ),
    ):
        base = root / "sys/fs/cgroup"
        limit = _number(base / limit_name)
        if limit is None or limit >= _NO_LIMIT:
            continue
        used = _number(base / used_name) or 0
        for line in _text(base / stat_name).splitlines():
            key, _, value = line.partition(" ")
            if key == stat_key:
                used -= int(value)
        found.append(max(limit - used, 0))
    return min(found)


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None
