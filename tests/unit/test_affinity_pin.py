"""Real masks and names of running threads. Owner: pytest; each test restores what it changed.

Pinning happens in threads and child processes of the test's own, so that the runner keeps its mask.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from tpc_server.affinity import pin
from tpc_server.affinity.pin import (
    PinResult,
    name_thread,
    pin_current_thread,
    thread_masks,
    try_pin,
)
from tpc_server.affinity.plan import CorePlan, PlanSettings, parse_cores, plan
from tpc_server.affinity.topology import read

T = TypeVar("T")
ALLOWED = tuple(sorted(os.sched_getaffinity(0)))
NOT_THERE = 8191  # a CPU number no machine that runs these tests has


def on_a_thread(work: Callable[[], T]) -> T:
    """What ``work`` returns on a thread of its own (its mask dies with it)."""
    box: list[T] = []
    thread = threading.Thread(target=lambda: box.append(work()))
    thread.start()
    thread.join(30)
    assert box, "the thread raised or hangs"
    return box[0]


def in_a_process(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def masks_while_running(made: CorePlan) -> dict[str, tuple[int, ...]]:
    """Start the plan's cores as named, pinned threads; the kernel's view while all are alive."""
    ready = threading.Barrier(len(made.cores) + 1, timeout=30)
    done = threading.Event()

    def run(index: int, cpus: tuple[int, ...]) -> None:
        name_thread(f"tpc-core-{index}")
        pin_current_thread(cpus)
        ready.wait()
        done.wait(30)

    threads = [threading.Thread(target=run, args=(core.index, core.cpus)) for core in made.cores]
    for thread in threads:
        thread.start()
    ready.wait()
    try:
        found = thread_masks()
    finally:
        done.set()
        for thread in threads:
            thread.join(30)
    return {name: mask for name, mask in found.items() if name.startswith("tpc-core-")}


@pytest.mark.parametrize(
    "settings",
    [
        PlanSettings(),
        PlanSettings(engine_cpus=2),
        PlanSettings(cores=parse_cores("2")),
        PlanSettings(cores=parse_cores("7")),
        PlanSettings(cores=parse_cores("ingress=0 tokenize=1 detok=2 egress=3")),
        PlanSettings(unpinned=True, cores=parse_cores("3")),
    ],
    ids=["default", "engine", "two", "too few CPUs", "four stages", "unpinned"],
)
def test_running_threads_have_the_masks_of_the_plan(settings: PlanSettings) -> None:
    made = plan(read(), settings)
    expected = {f"tpc-core-{core.index}": core.cpus or ALLOWED for core in made.cores}
    assert masks_while_running(made) == expected
    assert tuple(sorted(os.sched_getaffinity(0))) == ALLOWED, "the main thread was pinned as well"


def test_under_a_mask_that_was_narrowed_before() -> None:
    cpu = ALLOWED[-1]
    code = f"""
import os, threading
os.sched_setaffinity(0, [{cpu}])
from tpc_server.affinity.plan import PlanSettings, parse_cores, plan
from tests.unit.test_affinity_pin import masks_while_running
from tpc_server.affinity.topology import read
made = plan(read(), PlanSettings(cores=parse_cores("0,1,2")))
print(sorted(masks_while_running(made).values()), made.scheduler_cpus)
"""
    assert in_a_process(code) == f"{[(cpu,)] * 3} {(cpu,)}"


def test_a_child_of_a_pinned_thread_can_be_given_the_launch_mask_back() -> None:
    def pinned() -> tuple[tuple[int, ...], PinResult]:
        pin_current_thread(ALLOWED[:1])
        inherited = on_a_thread(lambda: tuple(sorted(os.sched_getaffinity(0))))
        return inherited, on_a_thread(lambda: try_pin(ALLOWED))

    inherited, after = on_a_thread(pinned)
    assert inherited == ALLOWED[:1]
    assert after == PinResult(ALLOWED, "")


def test_no_cpus_leave_the_mask() -> None:
    assert on_a_thread(lambda: try_pin(())) == PinResult(ALLOWED, "")


def test_a_cpu_that_is_not_there_is_refused_by_the_kernel_and_said() -> None:
    mask, reason = on_a_thread(lambda: try_pin([NOT_THERE]))
    assert mask == ALLOWED
    assert str(NOT_THERE) in reason
    assert on_a_thread(lambda: pin_current_thread([NOT_THERE])) == ALLOWED


def test_cpus_partly_there_are_pinned_as_far_as_possible() -> None:
    mask, reason = on_a_thread(lambda: try_pin([ALLOWED[0], NOT_THERE]))
    assert mask == ALLOWED[:1]
    assert "not all" in reason


@pytest.mark.parametrize("cpus", [[-1], [2**40]])
def test_nonsense_is_a_reason_not_an_error(cpus: list[int]) -> None:
    mask, reason = on_a_thread(lambda: try_pin(cpus))
    assert mask == ALLOWED
    assert reason


def test_a_sandbox_that_forbids_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int, cpus: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setaffinity", refuse)
    mask, reason = try_pin(ALLOWED[:1])
    assert mask == ALLOWED
    assert "not permitted" in reason


def test_other_systems_do_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    mask, reason = try_pin(ALLOWED[:1])
    assert mask == ()
    assert reason
    assert name_thread("x") == ""
    monkeypatch.undo()
    assert tuple(sorted(os.sched_getaffinity(0))) == ALLOWED


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        ("core-0", "core-0"),
        ("a-name-that-is-too-long", "a-name-that-is-"),
        ("fourteen-bytesé", "fourteen-bytes"),
        ("", ""),
        ("a\x00b", ""),
    ],
)
def test_names(name: str, kept: str) -> None:
    def work() -> tuple[str, str]:
        got = name_thread(name)
        with open(f"/proc/self/task/{threading.get_native_id()}/comm") as comm:
            return got, comm.read().strip()

    got, real = on_a_thread(work)
    assert got == kept
    if kept:
        assert real == kept


def test_names_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    real_open = open

    def no_proc(path: str, mode: str = "r", buffering: int = -1) -> object:
        raise FileNotFoundError(path)

    def work() -> tuple[str, str]:
        got = name_thread("by-prctl")
        with real_open(f"/proc/self/task/{threading.get_native_id()}/comm") as comm:
            return got, comm.read().strip()

    monkeypatch.setattr(pin, "open", no_proc, raising=False)
    assert on_a_thread(work) == ("by-prctl", "by-prctl")


def test_masks_of_another_process_and_equal_names() -> None:
    code = """
import os, sys, threading
from tpc_server.affinity.pin import name_thread
ready = threading.Barrier(3)
def run():
    name_thread("same")
    ready.wait()
    sys.stdin.read()
for _ in range(2):
    threading.Thread(target=run, daemon=True).start()
ready.wait()
print("ready", flush=True)
sys.stdin.read()
os._exit(0)
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdin is not None
        try:
            assert child.stdout.readline().strip() == "ready"
            masks = thread_masks(child.pid)
        finally:
            child.stdin.close()
            child.wait(30)
    same = [name for name in masks if name.split("#")[0] == "same"]
    assert len(same) == 2
    assert "same" in masks
    assert set(masks.values()) == {ALLOWED}
    assert thread_masks(child.pid) == {}
