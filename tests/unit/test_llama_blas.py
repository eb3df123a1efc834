"""BLAS threads: their number and their CPUs, in a process of its own (numpy is loaded once)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

PROGRAM = """
import json, os, sys, threading
from tpc_server.engines.llama.blas import prepare_blas
cpus = json.loads(sys.argv[1])
before = sorted(os.sched_getaffinity(0))
first = prepare_blas(cpus)
import numpy as np
a = np.ones((600, 600), np.float32)
a @ a
masks = {}
for task in os.listdir("/proc/self/task"):
    masks[task] = sorted(os.sched_getaffinity(int(task)))
mine = str(threading.get_native_id())
print(json.dumps({
    "first": first, "second": prepare_blas(cpus), "before": before, "mine": masks.pop(mine),
    "others": list(masks.values()), "count": os.environ.get("OPENBLAS_NUM_THREADS"),
}))
"""


def run(cpus, **env: str) -> dict[str, Any]:
    clean = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(cpus)],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_one_thread_per_cpu_each_on_these_cpus() -> None:
    cpus = sorted(os.sched_getaffinity(0))[-1:]
    found = run(cpus)
    assert found["first"] is True and found["second"] is False
    assert found["count"] == "1"
    assert found["mine"] == found["before"], "the calling thread keeps its mask"
    assert all(mask == cpus for mask in found["others"])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs 2 CPUs")
def test_helpers_are_kept_on_the_cpus_of_the_plan() -> None:
    cpus = sorted(os.sched_getaffinity(0))[-2:]
    found = run(cpus)
    assert found["count"] == "2"
    assert found["others"] and all(mask == cpus for mask in found["others"])


def test_the_environment_wins_and_no_cpus_change_nothing() -> None:
    assert run([0], OPENBLAS_NUM_THREADS="3")["count"] == "3"
    found = run(None)
    assert found["count"] is None and found["mine"] == found["before"]
    # A CPU that is not there: unpinned rather than broken.
    found = run([9999])
    assert found["mine"] == found["before"] and found["first"] is True
