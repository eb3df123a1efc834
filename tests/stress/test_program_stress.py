"""SIGTERM under load: the program drains, answers what runs, and ends with status 0."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stress import faults, oracle, setups
from tests.stress.clock import until
from tests.stress.driver import HEADER_TIMEOUT_S, ROOT, SCENARIO_LIMIT_S, Load, judge

DRAIN_S = 6.0
_ADDRESS = re.compile(r"http://127\.0\.0\.1:(\d+)")


class Program:
    """`python -m tpc_server` and what it printed."""

    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tpc_server", "serve", *arguments],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT,
        )  # fmt: skip
        self.lines: list[str] = []
        self.port = 0
        self._told = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            found = _ADDRESS.search(line)
            if found and not self.port:
                self.port = int(found[1])
                self._told.set()
        self._told.set()

    def wait_until_ready(self, seconds: float) -> None:
        """Until the banner names the port."""
        assert self._told.wait(seconds) and self.port, self.output()

    def output(self) -> str:
        return "".join(self.lines)

    def end(self) -> None:
        """Kill what is left of it."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(20)
        self._reader.join(20)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture
def program(tmp_path: Path) -> Iterator[Program]:
    folder = setups.model(tmp_path / "model")
    made = Program(
        "--engine", "synthetic", "--model-path", str(folder), "--port", "0",
        "--synthetic-tick-ms", "3", "--synthetic-batch", "32",
        "--synthetic-seed", str(oracle.SEED), "--cores", "2", "--unpinned",
        "--header-timeout", str(HEADER_TIMEOUT_S), "--drain-timeout", str(DRAIN_S),
        "--log-level", "warning",
    )  # fmt: skip
    yield made
    made.end()


def test_sigterm_under_load(program: Program, stress_seconds: float, stress_seed: str) -> None:
    seconds = 0.06 * stress_seconds
    seed = f"{stress_seed}/program"
    print(f"TPC_SEED={stress_seed} ({seconds:.0f} s)")
    program.wait_until_ready(60)
    load = Load(("127.0.0.1", program.port), seed, seconds + SCENARIO_LIMIT_S, 24, at_random=True)
    try:
        until(lambda: program.process.poll() is not None, seconds)  # the length of the run
        assert program.process.poll() is None, program.output()
        load.tell("drain")
        signalled = time.monotonic()
        program.process.send_signal(signal.SIGTERM)
        assert until(lambda: program.process.poll() is not None, DRAIN_S + 60), program.output()
        assert program.process.returncode == 0, program.output()
        ended = time.monotonic()
        until(lambda: not load.running(), SCENARIO_LIMIT_S)
    finally:
        load.end()
    print(load.report.get("counts"), f"ended in {ended - signalled:.1f} s")
    judge(load, [(faults.DRAIN, signalled), (faults.STOP, signalled + DRAIN_S - 0.5)], seed)
    assert "Traceback" not in program.output(), program.output()
