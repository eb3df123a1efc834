"""What a step's hand-over costs SGLang's scheduler thread. Owner: that thread writes, one reader.

Made for a folder of its own on PYTHONPATH, under the name `sitecustomize.py`: in the process that
imports SGLang's classes it wraps the calls that hand a step over and take requests in. Each writes
what it took into the file that METER_FILE names: for each kind a count, and the CPU nanoseconds of
the last CALLS calls.
"""

import functools
import importlib.abc
import importlib.machinery
import mmap
import os
import sys
import time

CALLS = 1 << 14
KINDS = ("push", "drain")
BYTES = len(KINDS) * (CALLS + 1) * 8
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


def wrapped(method, words, at):
    """`method`, timed on its thread; `at` is where its kind's count lies."""
    clock = time.thread_time_ns

    @functools.wraps(method)  # what compares signatures sees the method's own
    def timed(*args, **named):
        begin = clock()
        out = method(*args, **named)
        took = clock() - begin
        count = words[at]
        words[at + 1 + count % CALLS] = took
        words[at] = count + 1
        return out

    return timed


def arm(module, file):
    """Wrap what the module has of WRAPPED."""
    words = memoryview(mmap.mmap(file, BYTES)).cast("Q")
    for owner, name, kind in WRAPPED[module.__name__]:
        at = KINDS.index(kind) * (CALLS + 1)
        cls = getattr(module, owner)
        setattr(cls, name, wrapped(getattr(cls, name), words, at))


class Finder(importlib.abc.MetaPathFinder):
    """Finds the modules as they are, and wraps them once they are loaded."""

    def find_spec(self, name, path=None, target=None):
        if name not in WRAPPED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            with open(os.environ["METER_FILE"], "r+b") as file:
                arm(module, file.fileno())

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("METER_FILE"):
    sys.meta_path.insert(0, Finder())
