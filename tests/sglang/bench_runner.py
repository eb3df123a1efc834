"""`python -m sglang.bench_serving` where `datasets` is not installed. Owner: a process.

It is imported by data sets that this does not use. usage: python bench_runner.py ARGUMENTS…
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import runpy
import sys
import types

if __name__ == "__main__":
    if importlib.util.find_spec("datasets") is None:
        absent = types.ModuleType("datasets")
        absent.__spec__ = importlib.machinery.ModuleSpec("datasets", None)
        vars(absent).update(load_dataset=None, Dataset=None)
        sys.modules["datasets"] = absent
    runpy.run_module("sglang.bench_serving", run_name="__main__", alter_sys=True)
