"""The benchmark's arithmetic: medians, ratios, and what makes a round invalid."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from array import array
from pathlib import Path
from typing import Any

import pytest

from perf import plot, stream
from perf.harness import procfs
from perf.harness.bench_flags import DEFAULT_WORKLOADS, PEERS, WORKLOADS
from perf.harness.board import REQUESTS, STEPS, Board
from perf.harness.measure import figures, problems
from perf.harness.prepare import Prepared
from perf.harness.report import markdown, summarise
from perf.harness.stats import percentiles, spread
from perf.harness.workloads import Workload, make_layout, text_offset

ROOT = Path(__file__).parents[2]
STREAM = Workload("stream256", "stream", 256, 20, 2.0)


def record(peer: str, number: int, frontend_us: float, bad: bool = False) -> dict[str, Any]:
    return {
        "peer": peer,
        "workload": "stream256",
        "round": number,
        "frontend_us": frontend_us,
        "latency_us": {"p50": 1000.0, "p99": 2000.0},
        "problems": ["it cheated"] if bad else [],
    }


def test_percentiles_are_nearest_rank():
    found = percentiles([float(each) for each in range(100, -1, -1)])
    assert found["p1"] == 1 and found["p50"] == 50 and found["p99"] == 99 and found["max"] == 100
    assert percentiles([]) == {}


def test_spread_leaves_out_missing_rounds():
    assert spread([3.0, None, 1.0, 2.0]) == {"median": 2.0, "min": 1.0, "max": 3.0, "rounds": 3}
    assert spread([None]) is None


def test_ratios_are_taken_within_a_round():
    # the machine got twice as slow in the second round: the ratio must not notice
    records = [record("rust", 0, 20.0), record("tpc", 0, 10.0)]
    records += [record("rust", 1, 40.0), record("tpc", 1, 20.0)]
    row = summarise(records)["stream256"]["tpc"]
    assert row["ratio_rust"] == {"median": 0.5, "min": 0.5, "max": 0.5, "rounds": 2}
    assert row["ratio_floor"] is None


def test_an_invalid_round_counts_neither_as_figure_nor_as_base():
    records = [record("rust", 0, 20.0), record("tpc", 0, 1.0, bad=True)]
    records += [record("rust", 1, 1.0, bad=True), record("tpc", 1, 10.0)]
    row = summarise(records)["stream256"]["tpc"]
    assert row["rounds_invalid"] == 1
    assert row["frontend_us"]["median"] == 10.0
    assert row["ratio_rust"] is None


def test_the_table_names_invalid_rounds():
    python = {"version": "3.13.5", "free_threaded": True, "pgo": False}
    report = {
        "machine": {"cpu": "cpu", "allowed_cpus": [0, 1], "kernel": "6"},
        "python": {"tpc": python},
        "commit": "abc",
        "date": "today",
        "rounds": 2,
        "titles": {"stream256": STREAM.title},
        "summary": summarise([record("rust", 0, 20.0), record("tpc", 0, 9.0, bad=True)]),
    }
    text = markdown(report)
    assert "**(1 rounds invalid)**" in text
    assert "| SGLang 0.5.23 Rust server | 20.0 | 1.00 |" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1, "every row has as many cells as the head"


def client_line(**changes: Any) -> dict[str, Any]:
    line = {
        "failed": 0,
        "done": 2,
        "events": 200,
        "tokens": 200,
        "sample_tokens": 4,
        "bytes_per_event": 230.0,
        "events_per_s": 100.0,
        "seconds": 2.0,
        "client_cpu_s": 0.2,
        "latency_us": {"p50": 1500.0},
        "sample_seed": 1,
        "sample_text": "",
        "sample_ids": [],
    }
    return line | changes


def marks(**changes: float) -> tuple[dict[str, float], dict[str, float]]:
    names = "tokens steps missed_ticks cpu_ns scheduler_cpu_ns push_cpu_ns receive_cpu_ns"
    names += " user_s system_s busy_s stolen_s wall_s"
    before = dict.fromkeys(names.split(), 5.0)
    after = dict(before)
    for name, gain in ({"tokens": 200, "steps": 100, "wall_s": 2.0} | changes).items():
        after[name] = before.get(name, 0.0) + gain
    return before, after


@pytest.fixture
def prepared(tmp_path: Path) -> Prepared:
    """A model folder in which the id n spells the word wn."""
    (tmp_path / "ids.bin").write_bytes(array("q", range(9000)).tobytes())
    (tmp_path / "text.txt").write_text(" ".join(f"w{each}" for each in range(9000)))
    return Prepared(Path("gil"), Path("ext"), tmp_path, None)


def judge(prepared: Prepared, client: dict[str, Any], clean: bool = True, **gains: float) -> Any:
    made = figures("rust", STREAM, {}, *marks(**gains), client)
    return problems("rust", prepared, STREAM, made, client, clean)


def honest(prepared: Prepared) -> dict[str, Any]:
    ids = list(array("q", (prepared.model / "ids.bin").read_bytes()))
    at = text_offset(1, len(ids))
    mine = [ids[(at + i) % len(ids)] for i in range(4)]
    words = (prepared.model / "text.txt").read_text().split()
    return client_line(sample_ids=mine, sample_text=" ".join(words[each] for each in mine))


def test_an_honest_round_has_no_problems(prepared):
    assert judge(prepared, honest(prepared)) == []


@pytest.mark.parametrize(
    ("changes", "gains", "clean", "wanted"),
    [
        ({"failed": 1}, {}, True, "1 answers failed"),
        ({"events": 197}, {}, True, "197 events for 200 tokens"),
        ({"events": 203}, {}, True, "203 events for 200 tokens"),
        ({}, {"missed_ticks": 3}, True, "ticks missed"),
        ({"latency_us": {"p50": 20_001.0}}, {}, True, "a step late"),
        ({"client_cpu_s": 1.7}, {}, True, "the client used 85%"),
        ({"sample_ids": [1, 2, 3, 4]}, {}, True, "are not those the scheduler pushed"),
        ({"sample_text": "the lazy fox"}, {}, True, "not what its ids spell"),
        ({}, {"live_rows": 1}, True, "still live"),
        ({}, {}, False, "did not stop cleanly"),
    ],
)
def test_each_way_to_be_invalid(prepared, changes, gains, clean, wanted):
    found = judge(prepared, honest(prepared) | changes, clean, **gains)
    assert len(found) == 1 and wanted in found[0], found


def test_frontend_time_is_without_the_schedulers_thread():
    before, after = marks(
        cpu_ns=4_000_000, scheduler_cpu_ns=1_000_000, push_cpu_ns=200_000, receive_cpu_ns=100_000
    )
    made = figures("tpc", STREAM, {}, before, after, client_line())
    assert made["frontend_us"] == pytest.approx(15.0)
    assert made["frontend_with_calls_us"] == pytest.approx(16.5)
    assert made["scheduler_us"] == pytest.approx(5.0)


def test_layouts():
    one = make_layout([0, 1], 1, "stream", "auto")
    assert (one.server_cpus, one.client_cpu, one.scheduler_cpu, one.shared) == (
        (0,),
        1,
        None,
        False,
    )
    unary = make_layout([0, 1], 1, "unary", "auto")
    assert (unary.client_cpu, unary.scheduler_cpu) == (1, 1)
    two = make_layout([0, 1], 2, "stream", "auto")
    assert (two.server_cpus, two.client_cpu, two.shared) == ((0, 1), 1, True)
    assert "shares" in two.note
    many = make_layout([2, 3, 8, 9], 2, "unary", "auto")
    assert (many.server_cpus, many.client_cpu, many.scheduler_cpu) == ((2, 3), 8, 9)
    with pytest.raises(ValueError, match="two CPUs"):
        make_layout([0], 1, "stream", "auto")


def test_board_is_shared_between_openings(tmp_path):
    first = Board(tmp_path / "board", create=True)
    second = Board(tmp_path / "board")
    first.push_ns[STEPS - 1] = 1 << 60
    first.first_step[0] = -1
    assert second.push_ns[STEPS - 1] == 1 << 60
    assert second.first_step[0] == -1 and second.first_step[REQUESTS - 1] == 0


def test_cpu_time_from_outside_is_that_from_inside():
    before_out, before_in = procfs.process_cpu_ns(os.getpid()), time.process_time_ns()
    deadline = time.process_time_ns() + 20_000_000
    while time.process_time_ns() < deadline:
        json.dumps(list(range(100)))
    gain_out = procfs.process_cpu_ns(os.getpid()) - before_out
    gain_in = time.process_time_ns() - before_in
    assert gain_in >= 20_000_000
    assert abs(gain_out - gain_in) < 10_000_000


def test_every_peer_can_be_drawn():
    assert set(plot.COLOURS) == set(plot.LABELS) == set(PEERS)
    assert len(set(plot.COLOURS.values())) == len(PEERS)


def test_the_flags_name_every_workload():
    made = stream.standard_workloads(1.0, "/generate")
    assert list(made) == list(WORKLOADS) and set(DEFAULT_WORKLOADS.split(",")) < set(made)


DYING = """
import runpy, sys
from tpc_server.stages.detok import DetokStage
die = DetokStage.poll
def poll(self, budget):
    if self.streams:
        raise RuntimeError("broken")
    return die(self, budget)
if sys.argv.pop(1) == "dying":
    DetokStage.poll = poll
sys.argv[0] = "perf/bytecodes.py"
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("extra", [["--time"], []])
@pytest.mark.parametrize(
    ("how", "words", "told"),
    [
        ("well", [], ""),
        ("well", ["--path", "/nowhere"], "bytecodes: AssertionError: 0"),
        ("dying", [], "bytecodes: the core died in its run"),
    ],
)
def test_a_figure_is_of_a_core_that_lived(how, words, told, extra):
    shortly = ["unary", "--rounds", "2", "--batch", "2"]
    done = subprocess.run(
        [sys.executable, "-c", DYING, how, *shortly, *words, *extra],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if told:
        assert done.returncode == 1 and told in done.stderr and not done.stdout
    else:
        unit = "of CPU per request" if extra else "bytecodes per request"
        assert done.returncode == 0 and unit in done.stdout
