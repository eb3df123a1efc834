"""The whole server under a seeded mixture of everything that clients and schedulers do wrong.

The server and the synthetic scheduler run here, the clients in a process of their own, and in some
variants the server's cores as well (`test_sidecar_stress.py` kills and replaces those). A failure
names its seed: `TPC_SEED=… pytest tests/stress/test_server_stress.py -k <variant>` gives every
client the same requests and the server the same injuries. Longer: --stress-seconds N.
"""

from __future__ import annotations

import gc
import json
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.http_client import call
from tests.stress import faults, leaks, setups, watchdog
from tests.stress.client import ANSWERED
from tests.stress.clock import NAP_S, Awake, until
from tests.stress.driver import SCENARIO_LIMIT_S, Load, judge
from tpc_server import Server
from tpc_server.engines.synthetic import SyntheticEngine
from tpc_server.link.link import Link
from tpc_server.link.server import SidecarServer

SETTLE_S = 30.0
# Memory that a run may add: rings touched for the first time, tables of rebuilt cores.
GROWTH_BYTES = 120 << 20


class Variant(NamedTuple):
    """One placement, its caps, and what is done to it."""

    cores: list[str]
    share: float  # of all seconds
    injuries: tuple[str, ...] = ()
    caps: dict[str, int] = {}  # noqa: RUF012
    options: dict[str, float] = {}  # noqa: RUF012
    incremental: bool = False
    small: bool = False
    workers: int = 24
    drain_s: float = 0.0  # a drain this long before the end
    stop: bool = False  # a shutdown soon after the drain began, whatever still runs
    beside: bool = False  # the cores run in a process of their own


VARIANTS = {
    "one-core": Variant(["1"], 0.09, (faults.ABORT_ALL,)),
    "dying-core": Variant(
        ["1"], 0.10, (faults.THROW,), incremental=True, options={"sse_keepalive_s": 0.02}
    ),
    "two-cores": Variant(["2"], 0.10, (faults.THROW, faults.ABORT_ALL, faults.STALL)),
    "four-cores": Variant(
        ["ingress=0", "tokenize=1", "detok=2", "egress=3"], 0.11,
        (faults.THROW, faults.STALL, faults.ABORT_ALL), options={"spin_us": 20.0},
    ),
    "tiny-rings": Variant(
        ["ingress=0,1", "tokenize=2", "detok=3,0", "egress=1,0"], 0.11,
        (faults.STALL,),
        {"to_scheduler_cap": 16, "from_scheduler_cap": 4, "stage_channel_cap": 16},
        small=True, workers=48,
    ),
    "drain": Variant(["2"], 0.06, drain_s=1.5),
    "stop": Variant(
        ["ingress=0", "tokenize=1", "detok=2", "egress=3"], 0.06, drain_s=1.5, stop=True
    ),
    "beside-two-cores": Variant(["2"], 0.06, (faults.ABORT_ALL,), incremental=True, beside=True),
    "beside-tiny-rings": Variant(
        ["ingress=0,1", "tokenize=2", "detok=3,0", "egress=1,0"], 0.07, (faults.ABORT_ALL,),
        {"to_scheduler_cap": 16, "from_scheduler_cap": 4, "stage_channel_cap": 16},
        small=True, workers=48, beside=True,
    ),
    "beside-drain": Variant(["2"], 0.05, drain_s=1.5, beside=True),
    "beside-stop": Variant(["1"], 0.05, drain_s=1.5, stop=True, beside=True),
}  # fmt: skip


class Beside(SidecarServer):
    """As the server in this process, as far as the tests use that."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self._last: list[dict[str, int]] = []
        super().__init__(*args, **options)
        self._bury = self.hub.bury
        self.hub.bury = self._keep  # type: ignore[method-assign]

    def _keep(self, link: Link) -> None:
        """A process that drained ends by itself: what it counted is still asked for."""
        self._last = self.counters()
        self._bury(link)

    def counters(self) -> list[dict[str, int]]:
        return super().counters() or self._last

    def start_drain(self) -> None:
        threading.Thread(target=self.drain, args=(SCENARIO_LIMIT_S,), daemon=True).start()

    def command(self, name: bytes, payload: bytes = b"", only: int | None = None) -> None:
        raise AssertionError("a core of another process cannot be told to throw")


def make_server(folder: Path, variant: Variant) -> Server | Beside:
    args = setups.server_args(folder, incremental_streaming_output=variant.incremental)
    options = setups.options(variant.cores, **variant.options)
    kind = Beside if variant.beside else Server
    return kind(args, options=options, **variant.caps)


def wait_for_clients(
    load: Load, server: Server | Beside, engine_thread: threading.Thread,
    schedule: list[faults.Injury], done: list[tuple[str, float]], limit_s: float,
) -> None:  # fmt: skip
    """Injure the server as scheduled until the clients have ended."""
    clock = Awake()
    left = list(schedule)
    stopped = False
    while load.running():
        now = clock.look()
        assert now < limit_s, f"clients still wait after {now:.0f} s"
        assert not server.failed, "cores died too often"
        assert stopped or engine_thread.is_alive(), "the scheduler's thread ended"
        if left and left[0].at <= now:
            stopped = stopped or left[0].kind == faults.STOP
            injure(left.pop(0), load, server, done)
        time.sleep(NAP_S)
    done += [(faults.PAUSE, at) for at in clock.pauses]


def injure(
    injury: faults.Injury, load: Load, server: Server | Beside, done: list[tuple[str, float]]
) -> None:
    done.append((injury.kind, time.monotonic()))
    if injury.kind == faults.THROW:
        server.command(b"throw", only=injury.core)
    elif injury.kind == faults.STALL:
        server.command(b"stall", b"%f" % injury.seconds, only=injury.core)
    elif injury.kind == faults.ABORT_ALL:
        # A core that dies may take this connection with it.
        try:
            call(("127.0.0.1", server.http_port), "POST", "/abort_request", {"abort_all": True})
        except (EOFError, OSError):
            pass
    elif injury.kind == faults.DRAIN:
        load.tell("drain")
        server.start_drain()
    elif injury.kind == faults.STOP:
        server.shutdown()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return setups.model(tmp_path_factory.mktemp("model"))


@pytest.mark.parametrize("name", VARIANTS)
def test_the_whole_server(folder: Path, stress_seconds: float, stress_seed: str, name: str) -> None:
    variant = VARIANTS[name]
    seconds = variant.share * stress_seconds
    seed = f"{stress_seed}/{name}"
    print(f"TPC_SEED={stress_seed} ({name}, {seconds:.0f} s)")
    warm_up(folder)
    gc.collect()
    fds, threads = leaks.descriptors(), leaks.threads()
    run(folder, variant, seed, seconds)
    gc.collect()
    assert until(lambda: leaks.threads() <= threads, 10), (
        f"seed {seed}: threads {leaks.names(leaks.threads() - threads)}"
    )
    extra = leaks.lasting(fds, 10)
    assert not extra, f"seed {seed}: descriptors left open: {extra}"


def run(folder: Path, variant: Variant, seed: str, seconds: float) -> None:
    engine = SyntheticEngine(setups.engine_settings())
    stopping = threading.Event()
    server = make_server(folder, variant)
    engine_thread = threading.Thread(target=engine.run, args=(server, stopping), daemon=True)
    engine_thread.start()
    address = ("127.0.0.1", server.http_port)
    load: Load | None = None
    try:
        for _ in range(3):  # tables and helper threads that are made on demand
            text = "x" * 9000
            body = {"text": text, "sampling_params": {"max_new_tokens": 2}}
            assert call(address, "POST", "/generate", body).status == 200
        assert leaks.settle(server, engine, SETTLE_S) is None
        fds = leaks.descriptors()
        rss = leaks.rss_bytes()
        load = Load(
            address, seed, seconds, variant.workers,
            incremental=variant.incremental, small=variant.small,
        )  # fmt: skip
        load.on_wrong = lambda: watchdog.show(server, sys.stderr)
        schedule = faults.injuries(
            random.Random(seed), variant.injuries, len(server.plan.cores), seconds
        )
        if variant.drain_s:
            schedule.append(faults.Injury(seconds - variant.drain_s, faults.DRAIN))
        if variant.stop:
            schedule.append(faults.Injury(seconds - variant.drain_s + 0.2, faults.STOP))
        done: list[tuple[str, float]] = []
        limit = seconds + SCENARIO_LIMIT_S + 30
        begun = time.monotonic()
        with watchdog.Watchdog(limit + 20, server, load.end):
            wait_for_clients(load, server, engine_thread, schedule, done, limit)
        took = time.monotonic() - begun
        print(json.dumps(load.report.get("counts")), f"{len(done)} injuries, {took:.1f} s")
        judge(load, done, seed)
        died = sum(c["resets"] for c in server.counters())
        asked = sum(kind == faults.THROW for kind, _ in done)
        assert died == asked, f"seed {seed}: cores died {died} times, asked to {asked} times"
        if variant.stop:
            return
        left = leaks.settle(server, engine, SETTLE_S)
        if left is not None:
            watchdog.show(server, sys.stderr)
        assert left is None, f"seed {seed}: {left}"
        found = leaks.too_many_records(len(server.plan.cores))
        assert found is None, f"seed {seed}: {found}"
        assert engine.received and engine.finished
        counts = load.report["counts"]
        answers = sum(c["answers"] for c in server.counters())
        errors = sum(c["errors"] for c in server.counters())
        requests = sum(c["requests"] for c in server.counters())
        seen = f"seed {seed}: {answers} of {requests}, {errors} errors"
        assert counts[ANSWERED] <= answers + errors and answers <= requests, seen
        if not variant.drain_s:
            assert call(address, "GET", "/health").status == 200
            info = call(address, "GET", "/server_info").json()
            assert info["frontend"] == "tpc" and len(info["cores"]) == len(server.plan.cores)
            assert info["internal_states"][0]["num_running_reqs"] == 0
            assert leaks.settle(server, engine, SETTLE_S) is None
        # Of the clients' process, and a core's helper, made when the first long prompt comes.
        fds["pipe:"] = fds.get("pipe:", 0) + 3
        fds["anon_inode:[eventfd]"] += len(server.plan.cores)
        # The writing core lets go of its descriptor after the connection has been forgotten.
        extra = leaks.lasting(fds, 10)
        assert not extra, f"seed {seed}: descriptors left open while running: {extra}"
        grown = leaks.rss_bytes() - rss
        print(f"memory grew by {grown >> 20} MiB")
        assert grown < GROWTH_BYTES, f"seed {seed}: memory grew by {grown >> 20} MiB"
    finally:
        if load is not None:
            load.end()
        begun = time.monotonic()
        server.shutdown()
        stopping.set()
        engine_thread.join(20)
        assert not engine_thread.is_alive(), "the scheduler's thread hangs"
        print(f"stopped in {time.monotonic() - begun:.1f} s")


_warm: set[str] = set()


def warm_up(folder: Path) -> None:
    """What a first server of a process opens and never closes again (lazy imports)."""
    if _warm:
        return
    _warm.add("done")
    engine = SyntheticEngine(setups.engine_settings())
    stopping = threading.Event()
    with make_server(folder, VARIANTS["one-core"]) as server:
        thread = threading.Thread(target=engine.run, args=(server, stopping), daemon=True)
        thread.start()
        body = {"text": "x" * 9000, "sampling_params": {"max_new_tokens": 2}}
        assert call(("127.0.0.1", server.http_port), "POST", "/generate", body).status == 200
        stopping.set()
        thread.join(20)
