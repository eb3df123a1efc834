"""What SGLang's processes are like after its plugins. Owner: a program of its environment.

usage: python left_alone.py <CASES

CASES is JSON: name -> variables. Each is run in a fork of a process that has imported SGLang once,
as its main process and as a scheduler's; prints name -> what is found there.
"""

from __future__ import annotations

import gc
import importlib
import json
import multiprocessing
import os
import signal
import sys
import threading
from typing import Any

IMPORTED = (
    "sglang.srt.entrypoints.http_server",
    "sglang.srt.managers.scheduler",
    "sglang.srt.rust_server.server",
    "sglang.srt.server_args",
)


def main() -> None:
    cases: dict[str, dict[str, str]] = json.load(sys.stdin)
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    found = {}
    for name, variables in cases.items():
        for scheduler in (False, True):
            found[f"{name} {'scheduler' if scheduler else 'main'}"] = _run(variables, scheduler)
    print(json.dumps(found), flush=True)


def _run(variables: dict[str, str], scheduler: bool) -> Any:
    here, there = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(here)
        os.environ.update(variables)
        with os.fdopen(there, "w") as file:
            json.dump(_found(scheduler, set(variables)), file)
        os._exit(0)
    os.close(there)
    with os.fdopen(here) as file:
        text = file.read()
    _, status = os.waitpid(pid, 0)
    return json.loads(text) if not status else f"status {os.waitstatus_to_exitcode(status)}"


def _found(scheduler: bool, given: set[str]) -> dict[str, Any]:
    if scheduler:
        multiprocessing.process._parent_process = multiprocessing.process.current_process()  # type: ignore[attr-defined]
    before = set(os.listdir("/proc/self/fd"))
    plugins = importlib.import_module("sglang.srt.plugins")
    plugins.load_plugins()
    registry = importlib.import_module("sglang.srt.plugins.hook_registry").HookRegistry
    return {
        "variables": {k: v for k, v in sorted(os.environ.items()) if k not in given},
        "hooks": sorted(registry._hooks),
        "signals": {s.name: repr(signal.getsignal(s)) for s in signal.Signals},
        "threads": [t.name for t in threading.enumerate()],
        "files": sorted(set(os.listdir("/proc/self/fd")) - before),
        "finders": [repr(f) for f in sys.meta_path],
        "functions": _functions(),
        "ours": sorted(name for name in sys.modules if name.partition(".")[0] == "tpc_server"),
    }


def _functions() -> dict[str, str]:
    """Where each function of the classes that a frontend is made of was written."""
    found = {}
    for module, name in (
        ("sglang.srt.rust_server.server", "RustServer"),
        ("sglang.srt.managers.scheduler", "Scheduler"),
        ("sglang.srt.server_args", "ServerArgs"),
    ):
        for key, value in vars(getattr(importlib.import_module(module), name)).items():
            code = getattr(getattr(value, "__func__", value), "__code__", None)
            if code is not None:
                found[f"{name}.{key}"] = f"{code.co_filename}:{code.co_firstlineno}"
    return found


if __name__ == "__main__":
    main()
