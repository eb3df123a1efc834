"""Affinity and name of running threads. Owner: the thread that calls, except ``thread_masks``.

Linux has a mask per thread, which a new thread inherits from the one that started it. Elsewhere
these functions do nothing and say so. None of them raises: a thread that could not be pinned
serves as well, only less evenly.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tpc_server.affinity.cpulist import format_cpus, parse_cpus, read_text

_PR_SET_NAME = 15
_NAME_BYTES = 15  # the kernel's TASK_COMM_LEN less the final zero
_NO_CALLS = "this system has no affinity calls"


class PinResult(NamedTuple):
    """mask: the thread's CPUs afterwards, () if unknown; reason: why not as asked, "" if it is."""

    mask: tuple[int, ...]
    reason: str


def try_pin(cpus: Iterable[int]) -> PinResult:
    """Pin the calling thread to ``cpus``; none given leaves its mask as it is.

    The kernel drops CPUs that the cpuset forbids and refuses a set of only such ones (EINVAL); a
    sandbox may forbid the call (EPERM). The mask then stays or is smaller, and the reason says so.
    """
    wanted = tuple(sorted(set(cpus)))
    if sys.platform != "linux":
        return PinResult((), _NO_CALLS)
    reason = ""
    if wanted:
        try:
            os.sched_setaffinity(0, wanted)
        except (OSError, ValueError, OverflowError) as error:
            reason = f"not pinned to CPU {format_cpus(wanted)}: {error}"
    try:
        mask = tuple(sorted(os.sched_getaffinity(0)))
    except OSError as error:
        return PinResult((), reason or f"mask not readable: {error}")
    if wanted and not reason and mask != wanted:
        reason = f"pinned to CPU {format_cpus(mask)}, not all of {format_cpus(wanted)}"
    return PinResult(mask, reason)


def pin_current_thread(cpus: Iterable[int]) -> tuple[int, ...]:
    """Pin the calling thread; its mask afterwards (see ``try_pin`` for the reason of a miss)."""
    return try_pin(cpus).mask


def name_thread(name: str) -> str:
    """Name the calling thread for ps, top and ``thread_masks``; the name it got, "" if none.

    The kernel keeps 15 bytes; a character that does not fit is left out whole.
    """
    if sys.platform != "linux":
        return ""
    short = name.encode()[:_NAME_BYTES].decode(errors="ignore")
    data = short.encode()
    if not data or b"\x00" in data:
        return ""
    try:
        with open(f"/proc/self/task/{threading.get_native_id()}/comm", "wb", buffering=0) as comm:
            comm.write(data)
        return short
    except OSError:
        pass  # /proc is not there or read-only: the system call does the same
    try:
        done = ctypes.CDLL(None).prctl(_PR_SET_NAME, ctypes.c_char_p(data), 0, 0, 0) == 0
    except (OSError, AttributeError):
        done = False
    return short if done else ""


def thread_masks(pid: int = 0) -> dict[str, tuple[int, ...]]:
    """Name -> mask of every thread of a process (0 = this one), as the kernel has them now.

    Of threads with one name the first keeps it, the others are "name#tid". Empty off Linux and for
    a process that is gone.
    """
    masks: dict[str, tuple[int, ...]] = {}
    tasks = Path("/proc") / (str(pid) if pid else "self") / "task"
    try:
        tids = sorted(int(entry.name) for entry in tasks.iterdir())
    except OSError:
        return masks
    for tid in tids:
        fields = dict(
            line.split(":\t", 1)
            for line in read_text(tasks / str(tid) / "status").splitlines()
            if ":\t" in line
        )
        if "Name" in fields and "Cpus_allowed_list" in fields:  # else it ended meanwhile
            name = fields["Name"]
            key = f"{name}#{tid}" if name in masks else name
            masks[key] = parse_cpus(fields["Cpus_allowed_list"])
    return masks
