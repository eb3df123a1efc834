"""What a step's hand-over costs SGLang's scheduler thread. Owner: that thread writes, one reader.

Copied into a folder of its own on PYTHONPATH, under the name `sitecustomize.py`: in the process
that imports SGLang's classes it wraps the calls that hand a step over and take requests in. Each
writes what it took into the file that METER_FILE names: for each kind a count, and nanoseconds of
CPU and of wall clock of each of the last CALLS calls.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import mmap
import os
import sys
import time
from collections.abc import Callable
from typing import Any

CALLS = 1 << 14
KINDS = ("push", "drain")
WORDS = 1 + 2 * CALLS  # of a kind
BYTES = len(KINDS) * WORDS * 8
# Module -> (class, method, kind).
WRAPPED = {
    "sglang.srt.rust_server.server": (
        ("RustServer", "push_generation", "push"),
        ("RustServer", "drain", "drain"),
    ),
    "sglang.srt.managers.scheduler_components.output_sender": (
        ("SenderWrapper", "send_output", "push"),
    ),
}


def wrapped(method: Callable[..., Any], words: memoryview[int], at: int) -> Callable[..., Any]:
    """`method`, timed on its thread; `at` is where its kind's count lies."""
    cpu, wall = time.thread_time_ns, time.perf_counter_ns

    @functools.wraps(method)  # what compares signatures sees the method's own
    def timed(*args: Any, **named: Any) -> Any:
        cpu_began, wall_began = cpu(), wall()
        out = method(*args, **named)
        wall_took, cpu_took = wall() - wall_began, cpu() - cpu_began
        count = words[at]
        place = at + 1 + 2 * (count % CALLS)
        words[place], words[place + 1] = cpu_took, wall_took
        words[at] = count + 1
        return out

    return timed


class Loader(importlib.abc.Loader):
    """Loads a module as `under` does, then wraps what it has of WRAPPED."""

    def __init__(self, under: importlib.abc.Loader) -> None:
        self._under = under

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> Any:
        return self._under.create_module(spec)

    def exec_module(self, module: Any) -> None:
        self._under.exec_module(module)
        with open(os.environ["METER_FILE"], "r+b") as file:
            words = memoryview(mmap.mmap(file.fileno(), BYTES)).cast("Q")
        for owner, name, kind in WRAPPED[module.__name__]:
            cls = getattr(module, owner)
            at = KINDS.index(kind) * WORDS
            setattr(cls, name, wrapped(getattr(cls, name), words, at))


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of WRAPPED where they are."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in WRAPPED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = Loader(spec.loader)
        return spec


if os.environ.get("METER_FILE"):
    sys.meta_path.insert(0, Finder())
