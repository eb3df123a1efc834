"""What must be left of a load: nothing. Owner: the test's main thread."""

from __future__ import annotations

import gc
import os
import threading
from typing import Any, Final

from tests.stress.clock import until

LIVE: Final = ("live_requests", "inflight", "connections")
# Records that end with their request or connection.
RECORDS: Final = (
    "Group", "Stream", "Connection", "ConnWriter", "RemoteWriter", "RequestParser", "HttpRequest",
)  # fmt: skip
# Frames of the loops keep the last record they looked at in a local variable.
_LAST_SEEN: Final = 12  # a core


def descriptors() -> dict[str, int]:
    """Open descriptors of this process by kind: sockets, event counters, epolls, files."""
    kinds: dict[str, int] = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the one that lists
        anonymous = target.startswith("anon_inode:")  # the brackets name its kind, not its number
        kind = target if anonymous or "[" not in target else target.split("[")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds


def more(after: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    """What there is more of."""
    found = {k: n - before.get(k, 0) for k, n in after.items()}
    return {k: n for k, n in found.items() if n > 0}


def lasting(before: dict[str, int], seconds: float) -> dict[str, int]:
    """What there is more of than before, and stays: the interpreter frees in several steps what
    one thread made and another let go of."""

    def gone() -> bool:
        gc.collect()
        return not more(descriptors(), before)

    until(gone, seconds)
    return more(descriptors(), before)


def threads() -> set[int]:
    """Ids of the threads of this process, as the kernel counts them."""
    return {int(entry) for entry in os.listdir("/proc/self/task")}


def names(ids: set[int]) -> list[str]:
    """Python's names of threads."""
    known = {t.native_id: t.name for t in threading.enumerate()}
    return [known.get(i, f"thread {i}") for i in sorted(ids)]


def rss_bytes() -> int:
    """Resident memory of this process."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def records() -> dict[str, int]:
    """Live objects that belong to a request or a connection; no collection is run before."""
    found = dict.fromkeys(RECORDS, 0)
    for thing in gc.get_objects():
        kind = type(thing)
        if kind.__name__ in found and str(kind.__module__).startswith("tpc_server."):
            found[kind.__name__] += 1
    return {name: count for name, count in found.items() if count}


def settle(server: Any, engine: Any, seconds: float) -> str | None:
    """Wait for the live tables to empty; what is left in them if they do not."""

    def empty() -> bool:
        counted = server.counters()
        if any(c[name] for c in counted for name in LIVE):
            return False
        return not engine.running and not engine.waiting

    if until(empty, seconds):
        return None
    left = [{name: c[name] for name in LIVE} for c in server.counters()]
    return f"left over: {left}, in the scheduler {list(engine.running)} {len(engine.waiting)}"


def too_many_records(cores: int) -> str | None:
    """Records that outlived their request or connection, if there are any."""
    bound = _LAST_SEEN * cores
    found = {name: count for name, count in records().items() if count > bound}
    return f"records that nothing needs any more: {found}" if found else None
