"""Frontends side by side, on one machine and in one run. Owner: main thread; peers are processes.

`./tpc bench`; its flags are in harness/bench_flags.py.

Run it with the interpreter our server is measured on. It prepares its peers itself (a few
minutes the first time), starts each one afresh for every measurement, takes them in turn, checks
that no peer cheats (see perf/README.md) and prints one table per workload. Results are written
as JSON and as a plot.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.harness import machine
from perf.harness.bench_flags import PEERS, parse
from perf.harness.measure import measure
from perf.harness.prepare import Prepared, PrepareError, prepare
from perf.harness.report import markdown, summarise
from perf.harness.running import PeerFailed
from perf.harness.workloads import Layout, Workload, make_layout

PERF = Path(__file__).resolve().parent
CHAT = "/v1/chat/completions"
EVENT_BYTES = 235  # until a measured peer says better


def standard_workloads(duration_s: float, path: str) -> dict[str, Workload]:
    """By name, as in `bench_flags.WORKLOADS`."""
    return {
        each.name: each
        for each in (
            Workload("stream256", "stream", 256, 20, duration_s, path),
            Workload("stream1000", "stream", 1000, 40, duration_s, path),
            Workload("unary", "unary", 64, 0, duration_s * 0.6, path),
            Workload("churn256", "stream", 256, 20, duration_s, path, churn_tokens=100),
            Workload("cumulative256", "stream", 256, 20, duration_s, path, cumulative=True),
            Workload("saturated64", "stream", 64, 0, duration_s, path),
            Workload("chat256", "stream", 256, 20, duration_s, CHAT),
            Workload("chat10", "unary", 64, 0, duration_s * 0.6, CHAT, messages=10),
        )
    }


def workloads_of(options: argparse.Namespace) -> list[Workload]:
    if options.streams or options.tick is not None:
        streams = options.streams or 256
        tick = 20.0 if options.tick is None else options.tick
        name = f"stream{streams}x{tick:g}"
        return [
            Workload(
                name, "stream", streams, tick, options.duration, options.path, options.cumulative
            )
        ]
    standard = standard_workloads(options.duration, options.path)
    return [standard[name] for name in options.workloads.split(",")]


def available(peers: list[str], prepared: Prepared) -> list[str]:
    """The peers that can run here; says why another cannot."""
    kept = []
    for peer in peers:
        if peer.startswith("granian") and prepared.granian is None:
            say(f"{PEERS[peer]}: left out, not available for this interpreter")
        elif peer in ("tpc", "sidecar") and not importable(
            "from tpc_server import Server, ServerArgs"
        ):
            say("tpc_server: left out, this interpreter cannot import its Server")
        else:
            kept.append(peer)
    return kept


def importable(statement: str) -> bool:
    done = subprocess.run([sys.executable, "-c", statement], cwd=PERF.parent, capture_output=True)
    return done.returncode == 0


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def bytes_for_fillers(records: list[dict[str, Any]], workload: Workload) -> int:
    """Bytes an event of ours has on the wire here, or the Rust server's, or a guess."""
    for peer in ("tpc", "rust"):
        for record in reversed(records):
            if record["peer"] == peer and record["workload"] == workload.name:
                return int(record.get("bytes_per_event", EVENT_BYTES))
    return EVENT_BYTES


def run_all(
    options: argparse.Namespace,
    prepared: Prepared,
    peers: list[str],
    workloads: list[Workload],
) -> list[dict[str, Any]]:
    """All records: rounds outermost, the peers in turn within a workload, each round rotated."""
    records: list[dict[str, Any]] = []
    total = options.rounds * len(peers) * len(workloads)
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as tmp:
        for number in range(options.rounds):
            # ours and the Rust server first, once: the fillers send as many bytes as they did
            turn = [peers[(number + i) % len(peers)] for i in range(len(peers))]
            if number == 0:
                turn = sorted(peers, key=lambda peer: peer not in ("tpc", "rust"))
            for workload in workloads:
                layout = layout_for(options, workload)
                for peer in turn:
                    size = options.event_bytes or bytes_for_fillers(records, workload)
                    record = one(peer, prepared, workload, layout, Path(tmp) / "board", size)
                    record["round"] = number
                    records.append(record)
                    say(f"[{len(records)}/{total}] {brief(record)}")
    return records


def layout_for(options: argparse.Namespace, workload: Workload) -> Layout:
    allowed = sorted(os.sched_getaffinity(0))
    return make_layout(allowed, options.io_cores, workload.kind, options.scheduler_cpu)


def one(
    peer: str, prepared: Prepared, workload: Workload, layout: Layout, board: Path, size: int
) -> dict[str, Any]:
    """A record in any case: a peer that fails costs its own figures, not the others'."""
    try:
        return measure(peer, prepared, workload, layout, board, size)
    except (PeerFailed, RuntimeError, subprocess.TimeoutExpired, OSError) as error:
        return {
            "peer": peer,
            "workload": workload.name,
            "latency_us": {},
            "problems": [f"{type(error).__name__}: {error}"],
        }


def brief(record: dict[str, Any]) -> str:
    text = f"{record['workload']:<12} {record['peer']:<13}"
    if "frontend_us" in record:
        text += f" {record['frontend_us']:7.2f} us"
        text += f" p50 {record['latency_us'].get('p50', 0) / 1e3:.2f} ms"
        if "req_per_s" in record:
            text += f" {record['req_per_s']:.0f} req/s"
        if record["foreign_cpu_share"] > 0.1:
            text += f" (other programs used {record['foreign_cpu_share']:.0%} of a CPU)"
    for problem in record["problems"]:
        text += f"\n    INVALID: {problem}"
    return text


def main() -> int:
    options = parse()
    started = time.monotonic()
    try:
        prepared = prepare(want_granian="granian" in options.peers)
    except PrepareError as error:
        say(str(error))
        return 1
    peers = available(options.peers.split(","), prepared)
    workloads = workloads_of(options)
    stamp = machine.machine_stamp()
    records = run_all(options, prepared, peers, workloads)
    report = {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": machine.git_commit(PERF.parent),
        "machine": stamp,
        "python": {
            "tpc": machine.python_stamp(sys.executable),
            "gil": machine.python_stamp(prepared.gil_python),
        },
        "rounds": options.rounds,
        "io_cores": options.io_cores,
        "titles": {each.name: each.title for each in workloads},
        "layouts": {each.name: layout_for(options, each).note for each in workloads},
        "summary": summarise(records),
        "records": records,
        "seconds": round(time.monotonic() - started, 1),
    }
    out = options.out or PERF / "results" / ("quick" if options.quick else "stream")
    out.parent.mkdir(parents=True, exist_ok=True)
    target = out.with_suffix(".json")
    target.write_text(json.dumps(report, indent=1) + "\n")
    print(markdown(report))
    plot = [str(prepared.gil_python), str(PERF / "plot.py"), str(target)]
    subprocess.run([*plot, str(out.with_suffix(".png"))], check=False)
    say(f"{target}, {report['seconds']} s")
    return 1 if any(record["problems"] for record in records) else 0


if __name__ == "__main__":
    sys.exit(main())
