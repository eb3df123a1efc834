"""`python -m sglang.bench_serving`, whatever is installed beside it. Owner: a process.

usage: python bench_runner.py ARGUMENTS…
"""

from __future__ import annotations

import runpy

from tests.sglang.absent import stand_in

if __name__ == "__main__":
    stand_in()
    runpy.run_module("sglang.bench_serving", run_name="__main__", alter_sys=True)
