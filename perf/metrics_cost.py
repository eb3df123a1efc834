"""What `--enable-metrics` costs: a row, a request, a step at which requests come and go, a page.

Owner: main thread.

usage: python perf/metrics_cost.py [--batch 64] [--rows 256] [--quick]

The first two come from `bytecodes.py`, with metrics and without: what the interpreter executes
(exact on any machine) and the least CPU time. The third is the recorder alone over `--rows` rows:
steps that are all alike, and steps at each of which one request ends and another comes, which are
taken row by row. The last is one page of a server with four cores. A few seconds with --quick.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tpc_server import MetricsConfig
from tpc_server.metrics.exposition import Exposition
from tpc_server.metrics.http import make_layout
from tpc_server.metrics.recorder import Recorder
from tpc_server.shm import Region
from tpc_server.stages.stream import STREAM

BYTECODES = Path(__file__).with_name("bytecodes.py")
CONFIG = MetricsConfig(labels={"model_name": "m", "engine_type": "unified"})
FINISH = {"type": "length", "length": 1}


def bytecodes(what: str, batch: int, metrics: bool, timed: bool) -> float:
    """The first number that `bytecodes.py` prints."""
    argv = [sys.executable, str(BYTECODES), what, "--batch", str(batch)]
    argv += ["--metrics"] * metrics + ["--time"] * timed
    out = subprocess.run(argv, check=True, capture_output=True, text=True).stdout
    found = re.search(r"([\d.]+) (bytecodes|us)", out)
    assert found is not None, out
    return float(found[1])


def recorder() -> Any:
    """One core's, on real shared words."""
    layout = make_layout(CONFIG)
    assert layout is not None
    words = Region.create(layout.words * 8).mapping().words
    return Recorder(layout, words, 0)


def stream(one: Any, rid: str) -> Any:
    """A stream as the recorder sees it."""
    meter = one.open(rid, "", True, 0, False)
    return SimpleNamespace(hot=[0] * (STREAM + 1), meter=meter)


def batch_of(rids: list[str], finished: int = -1) -> Any:
    """One step, one token a row."""
    rows = len(rids)
    reasons: list[Any] = [None] * rows
    if finished >= 0:
        reasons[finished] = FINISH
    return SimpleNamespace(
        n=rows, rids=rids, tok_lens=[1] * rows, finish_reasons=reasons, prompt_tokens=[9] * rows,
        cached_tokens=[0] * rows, row_ended_outside=lambda row: False,
        row_decode_latency=lambda row: None,
    )  # fmt: skip


def even_ns(rows: int, steps: int) -> float:
    """Least time of a step in which nobody comes or goes."""
    one = recorder()
    rids = [f"{k:032x}" for k in range(rows)]
    for rid in rids:
        stream(one, rid)
    batch, best = batch_of(rids), 1 << 62
    for k in range(steps):
        began = time.thread_time_ns()
        one.step(batch, rids, 1_000_000 * (k + 1))
        best = min(best, time.thread_time_ns() - began)
    return best


def churn_ns(rows: int, steps: int) -> float:
    """Least time of a step in which one request ends and one has come, its end included."""
    one = recorder()
    rids = [f"{k:032x}" for k in range(rows)]
    live = [stream(one, rid) for rid in rids]
    best = 1 << 62
    for k in range(steps):
        at, now = k % rows, 1_000_000 * (k + 1)
        # As it comes out of a frame: strings of its own, looked up in the table of streams.
        batch = batch_of([rid[:1] + rid[1:] for rid in rids], at)
        dict.fromkeys(batch.rids)
        began = time.thread_time_ns()
        one.step(batch, batch.rids, now)
        one.ended(live[at], batch, at, now)
        one.forget(rids[at])
        best = min(best, time.thread_time_ns() - began)
        rids[at] = f"{rows + k:032x}"
        live[at] = stream(one, rids[at])
    return best


def page_ms(cores: int = 4) -> float:
    """Least time of a page of the frontend's families."""
    layout = make_layout(CONFIG)
    assert layout is not None
    words = Region.create(cores * layout.words * 8).mapping().words
    blocks = [core * layout.words for core in range(cores)]
    for block in blocks:
        Recorder(layout, words, block)
    exposition = Exposition(layout, words, blocks)
    best = 1 << 62
    for _ in range(5):
        began = time.thread_time_ns()
        exposition.text()
        best = min(best, time.thread_time_ns() - began)
    return best / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--quick", action="store_true", help="without bytecodes.py")
    options = parser.parse_args()
    print("| | without | with metrics |\n|---|---|---|")
    if not options.quick:
        for what, unit in (("stream", "row"), ("unary", "request")):
            for timed, name in ((False, "bytecodes"), (True, "us of CPU")):
                off, on = (bytecodes(what, options.batch, m, timed) for m in (False, True))
                print(f"| {name} a {unit} | {off:.2f} | {on:.2f} |")
    even, churn = even_ns(options.rows, 400), churn_ns(options.rows, 400)
    rows = options.rows
    print(f"| a step of {rows} rows, all as before | 0 | {even / 1e3:.1f} us |")
    print(f"| a step of {rows} rows, one comes, one ends | 0 | {churn / 1e3:.1f} us |")
    print(f"| a page of 4 cores | - | {page_ms():.1f} ms |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
