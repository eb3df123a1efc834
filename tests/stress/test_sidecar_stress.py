"""The whole server with its cores in processes of their own, which are killed, frozen, replaced.

The scheduler is here, with the scheduler's end of the links and no thread of ours. Otherwise as
test_server_stress.py: seed, clients, oracle; what only a dead process explains may be cut, and
nothing else.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.http_client import call
from tests.stress import faults, leaks, setups, watchdog
from tests.stress.clock import NAP_S, Awake, until
from tests.stress.driver import SCENARIO_LIMIT_S, Load, judge
from tpc_server.engines.synthetic import SyntheticEngine
from tpc_server.link.server import SidecarServer

STALL_S = 1.5
GIVEN_UP_S = 2 * STALL_S  # a process that does not turn for so long
SETTLE_S = 45.0  # a process is started, or leaves, on a busy machine
GROWTH_BYTES = 100 << 20


class Variant(NamedTuple):
    """How many processes, of which cores, and what is done to them."""

    frontends: int
    cores: list[str]
    share: float  # of all seconds
    injuries: tuple[str, ...]


VARIANTS = {
    "one-process": Variant(
        1, ["2"], 0.14, (faults.KILL, faults.FREEZE, faults.STUCK, faults.RELOAD)
    ),
    "two-processes": Variant(2, ["1"], 0.08, (faults.KILL, faults.RELOAD, faults.ABORT_ALL)),
}


class Run:
    """One server, its scheduler's thread, and what was done to it."""

    def __init__(self, folder: Path, variant: Variant, seed: str) -> None:
        self.variant = variant
        self.rng = random.Random(f"{seed}/victims")
        self.engine = SyntheticEngine(setups.engine_settings())
        self.server = SidecarServer(
            setups.server_args(folder),
            options=setups.options(variant.cores, stall_s=STALL_S), frontends=variant.frontends,
        )  # fmt: skip
        self.address = ("127.0.0.1", self.server.http_port)
        self.done: list[tuple[str, float]] = []
        self.ended = 0  # processes that were killed while they served, or will be for being stuck
        self._frozen: list[tuple[float, int]] = []  # when to go on, pid
        self._stopping = threading.Event()
        self._thread = threading.Thread(
            target=self.engine.run, args=(self.server, self._stopping), daemon=True
        )
        self._thread.start()

    def threads(self) -> set[int]:
        """Of this process, without the scheduler's."""
        return leaks.threads() - {self._thread.native_id or 0}

    def injure(self, injury: faults.Injury, now: float) -> bool:
        """False when there is nobody yet whom it could hurt."""
        at = time.monotonic()  # before: a client may see it sooner than we go on
        if injury.kind in (faults.KILL, faults.FREEZE, faults.STUCK):
            with self.server.hub.lock:  # else a pid may be another's by now
                pids = self.server.processes()  # also those that start, or are about to leave
                if not pids:
                    return False
                pid = self.rng.choice(pids)
                os.kill(pid, signal.SIGKILL if injury.kind == faults.KILL else signal.SIGSTOP)
            self.ended += injury.kind != faults.FREEZE
            if injury.kind != faults.KILL:
                self._frozen.append((now + injury.seconds, pid))
        self.done.append((injury.kind, at))
        if injury.kind == faults.RELOAD:
            self.server.reload()
        elif injury.kind == faults.ABORT_ALL:
            with contextlib.suppress(EOFError, OSError):  # of a process that is killed just then
                call(self.address, "POST", "/abort_request", {"abort_all": True})
        return True

    def thaw(self, now: float) -> None:
        """Let those go on whose time has come, if they are still there."""
        for at, pid in self._frozen[:]:
            if at <= now:
                self._frozen.remove((at, pid))
                with self.server.hub.lock:
                    if pid in self.server.processes():
                        os.kill(pid, signal.SIGCONT)

    def play(self, load: Load, schedule: list[faults.Injury], limit_s: float) -> None:
        """Injure it as scheduled until the clients have ended."""
        clock = Awake()
        left = list(schedule)
        while load.running() or self._frozen:
            now = clock.look()
            assert now < limit_s, f"clients still wait after {now:.0f} s"
            assert self._thread.is_alive(), "the scheduler's thread ended"
            if left and left[0].at <= now and self.injure(left[0], now):
                del left[0]
            self.thaw(now)
            time.sleep(NAP_S)
        self.done += [(faults.PAUSE, at) for at in clock.pauses]

    def settled(self) -> bool:
        """Whether every seat has its one process, which takes connections."""
        seats = self.server.seats
        links = [seat.link for seat in seats]
        alone = len(self.server.processes()) == self.variant.frontends
        return alone and all([link is not None and link.accepting for link in links])

    def settle(self) -> str | None:
        """Wait until nothing of the load is left; what is."""
        if not until(self.settled, SETTLE_S):
            return f"processes {self.server.processes()}"
        return leaks.settle(self.server, self.engine, SETTLE_S)

    def end(self) -> None:
        pids = self.server.processes()
        self.server.shutdown()
        self._stopping.set()
        self._thread.join(20)
        assert not self._thread.is_alive(), "the scheduler's thread hangs"
        assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return setups.model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", VARIANTS)
def test_processes_come_and_go(
    folder: Path, stress_seconds: float, stress_seed: str, name: str
) -> None:
    variant = VARIANTS[name]
    seconds = variant.share * stress_seconds
    seed = f"{stress_seed}/{name}"
    print(f"TPC_SEED={stress_seed} ({name}, {seconds:.0f} s)")
    run = Run(folder, variant, seed)
    load: Load | None = None
    try:
        body = {"text": "x" * 9000, "sampling_params": {"max_new_tokens": 2}}
        assert call(run.address, "POST", "/generate", body).status == 200
        assert run.settle() is None
        gc.collect()
        threads = run.threads()
        fds, rss = leaks.descriptors(), leaks.rss_bytes()
        load = Load(run.address, seed, seconds, 24)
        load.on_wrong = lambda: watchdog.show(run.server, sys.stderr)
        schedule = faults.ends_of_processes(
            random.Random(seed), variant.injuries, seconds, GIVEN_UP_S
        )
        limit = seconds + SCENARIO_LIMIT_S + 30
        with watchdog.Watchdog(limit + 20, run.server, load.end):
            run.play(load, schedule, limit)
        load.end()
        print(json.dumps(load.report.get("counts")), [kind for kind, _ in run.done])
        judge(load, run.done, seed)
        left = run.settle()
        assert left is None, f"seed {seed}: {left}"
        assert run.engine.received and run.engine.finished
        assert call(run.address, "GET", "/health").status == 200
        info = call(run.address, "GET", "/server_info").json()
        assert info["mode"] == "sidecar" and info["internal_states"][0]["num_running_reqs"] == 0
        restarts = sum([seat.restarts for seat in run.server.seats])
        assert restarts <= run.ended, f"seed {seed}: {restarts} restarts, {run.ended} ends"
        extra = leaks.lasting(fds, 10)
        assert not extra, f"seed {seed}: descriptors left open: {extra}"
        grown = leaks.rss_bytes() - rss
        print(f"memory grew by {grown >> 20} MiB")
        assert grown < GROWTH_BYTES, f"seed {seed}: memory grew by {grown >> 20} MiB"
        extra_threads = run.threads() - threads
        assert not extra_threads, f"seed {seed}: threads {leaks.names(extra_threads)}"
    finally:
        if load is not None:
            load.end()
        run.end()
