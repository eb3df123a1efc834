"""Runs the load generator's process and judges what it saw. Owner: the test's main thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.stress import faults
from tests.stress.client import ANSWERED, SENT, UNANSWERED

ROOT: Final = Path(__file__).parents[2]
SCENARIO_LIMIT_S: Final = 60.0
HEADER_TIMEOUT_S: Final = 4.0


class Load:
    """The clients' process."""

    def __init__(
        self, address: tuple[str, int], seed: str, seconds: float, workers: int, **more: Any
    ) -> None:
        """`more`: the other settings of `client.Config`."""
        settings = {
            "host": address[0], "port": address[1], "seed": seed, "seconds": seconds,
            "workers": workers, "incremental": False, "small": False,
            "header_timeout": HEADER_TIMEOUT_S, "limit": SCENARIO_LIMIT_S,
            "only": os.environ.get("TPC_STRESS_ONLY", ""), **more,
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.stress.load"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True,
        )  # fmt: skip
        self.wrong: list[str] = []
        self.report: dict[str, Any] = {}
        self.on_wrong: Callable[[], None] | None = None
        self.tell(json.dumps(settings))
        self._reader = threading.Thread(target=self._read, name="stress-load", daemon=True)
        self._reader.start()

    def tell(self, line: str) -> None:
        """An order."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            said = json.loads(line)
            if "wrong" in said:
                self.wrong.append(said["wrong"])
                if len(self.wrong) == 1 and self.on_wrong is not None:
                    self.on_wrong()
            else:
                self.report = said["report"]

    def running(self) -> bool:
        """Whether clients are still at work, or their last words not read."""
        return self.process.poll() is None or self._reader.is_alive()

    def end(self) -> None:
        """Kill what is left of it; its pipes are closed."""
        self.process.kill()
        self.process.wait(10)
        self._reader.join(10)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def judge(load: Load, done: list[tuple[str, float]], seed: str) -> None:
    """Everything the clients saw."""
    assert not load.wrong, f"seed {seed}: {len(load.wrong)}: " + "\n".join(load.wrong[:5])
    assert load.report, f"seed {seed}: the clients' process died"
    ends = [faults.Loose(*entry) for entry in load.report["loose"]]
    odd = [text for end in ends if (text := faults.unexplained(end, done)) is not None]
    assert not odd, f"seed {seed}: {len(odd)}: " + "\n".join(odd[:5]) + f"\ninjuries {done}"
    counts = load.report["counts"]
    assert counts.get("ok", 0) > 20, f"seed {seed}: hardly anything was answered: {counts}"
    # Once each: a second answer, or none without a cause, was Wrong in its client.
    ends = counts[ANSWERED] + counts.get(UNANSWERED, 0)
    paused = counts.get("around a pause", 0)  # scenarios that were given up
    assert counts[SENT] == ends or paused, f"seed {seed}: {counts}"
