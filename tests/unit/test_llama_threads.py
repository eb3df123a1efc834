"""The choice between all BLAS threads and one."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import pytest

from tests.llama_driver import Driver, load_tiny
from tests.llama_models import TinyModel
from tpc_server.engines.llama import threads
from tpc_server.engines.llama.threads import ThreadGovernor, thread_setter


class Machine:
    """Steps that take as long as the machine's state says for the count in use."""

    def __init__(self, most: int = 2) -> None:
        self.count = 0
        self.cost: Callable[[int], float] = lambda count: 1.0
        self.used: dict[int, int] = {}
        self.governor = ThreadGovernor(most, self.set_count)

    def set_count(self, count: int) -> None:
        self.count = count

    def steps(self, number: int, shape: int = 8) -> None:
        self.used = {}
        for _ in range(number):
            self.governor.begin(shape)
            self.used[self.count] = self.used.get(self.count, 0) + 1
            self.governor.end(self.cost(self.count))


def test_all_threads_stay_where_they_are_faster() -> None:
    machine = Machine(4)
    machine.cost = lambda count: 1 / count
    machine.steps(5000)
    assert machine.governor.preferred == 4
    assert machine.used[1] < 60, "the slower way is tried ever more rarely"


def test_one_thread_is_found_where_they_wait_for_each_other_and_given_up_again() -> None:
    machine = Machine()
    machine.cost = lambda count: 1.0 if count == 2 else 0.1
    machine.steps(30)
    assert machine.governor.preferred == 1
    machine.steps(500)
    assert machine.used[2] < 20
    machine.cost = lambda count: 0.05 if count == 2 else 0.1
    machine.steps(5000)
    assert machine.governor.preferred == 2


def test_a_small_difference_changes_nothing() -> None:
    machine = Machine()
    machine.cost = lambda count: 1.0 if count == 2 else 0.95
    machine.steps(3000)
    assert machine.governor.preferred == 2


def test_only_steps_of_one_shape_are_compared() -> None:
    machine = Machine()
    machine.cost = lambda count: 1.0 if count == 2 else 0.1
    machine.steps(200, shape=0)
    assert machine.used == {2: 200}, "prompts are never computed for a comparison"
    for _ in range(200):
        machine.steps(1, shape=3)
        machine.steps(1, shape=4)
    assert machine.governor.preferred == 2, "no two steps in a row were alike"
    machine.steps(20, shape=5)
    assert machine.governor.preferred == 1


def test_the_loaded_openblas_is_found() -> None:
    np.ones((4, 4), np.float32) @ np.ones((4, 4), np.float32)
    set_count = thread_setter()
    assert set_count is not None, "the pinned numpy brings OpenBLAS"
    library = ctypes.CDLL(threads._loaded_openblas())
    count = next(
        getattr(library, name.replace("_set_", "_get_"))
        for name in threads._SETTERS
        if hasattr(library, name)
    )
    before = count()
    try:
        set_count(1)
        assert count() == 1
    finally:
        set_count(before)
    assert count() == before


def test_nothing_loaded_means_no_choice(monkeypatch) -> None:
    monkeypatch.setattr(threads, "_loaded_openblas", lambda: None)
    assert thread_setter() is None
    monkeypatch.setattr(threads, "_loaded_openblas", lambda: "/nowhere/libopenblas.so")
    assert thread_setter() is None


@pytest.mark.parametrize("cpus", [None, (0,), (0, 1)])
def test_the_engine_chooses_only_where_it_has_several_cpus(cpus, tmp_path, monkeypatch) -> None:
    from tpc_server.engines.llama import engine as module

    counts: list[int] = []
    monkeypatch.setattr(module, "thread_setter", lambda: counts.append)
    monkeypatch.setattr("os.sched_setaffinity", lambda pid, mask: None)
    engine = load_tiny(TinyModel(0), tmp_path, cpus=cpus)
    driver = Driver()
    driver.generate("r", [5, 6], max_new_tokens=60, top_k=1, ignore_eos=True)
    driver.run(engine)
    assert len(driver.ids("r")) == 60
    assert bool(counts) == (cpus == (0, 1))
    assert engine.stats()["blas_threads"] in ((1, 2) if counts else (None,))
