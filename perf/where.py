"""Where our time goes: a profile of the cores under one workload. Owner: main thread.

usage: python perf/where.py [--workload unary] [--duration 6] [--top 40]

Runs our server with the interpreter's own support for Linux `perf` (`-X perf_jit`) and prints the
share of the cores' CPU time: inclusive by Python function, exclusive by library and by native
function. Sampling with DWARF stacks slows the server by some percent: read shares, and take the
microseconds from `stream.py`. Needs the `perf` program and the right to use it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.harness.board import Board
from perf.harness.measure import run_client
from perf.harness.ports import free_port
from perf.harness.prepare import PrepareError, prepare
from perf.harness.running import RunningPeer, peer_command
from perf.harness.workloads import Workload, make_layout
from perf.stream import standard_workloads

HERTZ = 997
STACK_BYTES = 16384
CORE_THREADS = "tpc-core"
LINE = re.compile(r"^\s*([\d.]+)%\s+(?:([\d.]+)%\s+)?(.*?)\s*(?:-\s+-\s*)?$")


def record(workload: Workload, scratch: Path) -> dict[str, float]:
    """Runs the load with `perf record` beside it; figures of the client."""
    prepared = prepare(want_granian=False)
    layout = make_layout(sorted(os.sched_getaffinity(0)), 1, workload.kind, "auto")
    board = scratch / "board"
    Board(board, create=True)
    port = free_port()
    command = peer_command("tpc", prepared, workload, layout, port, board, 235)
    command[1:1] = ["-X", "perf_jit"]
    os.environ["JITDUMPDIR"] = str(scratch)
    running = RunningPeer("tpc", command, list(layout.server_cpus), port)
    try:
        run_client(prepared, workload, layout, port, board, warm=True)
        events = ["-k", "1", "-e", "cpu-clock", "-F", str(HERTZ)]
        stacks = ["--call-graph", f"dwarf,{STACK_BYTES}"]
        target = ["-p", str(running.pid), "-o", str(scratch / "raw.data")]
        sampler = subprocess.Popen(
            ["perf", "record", "-q", *events, *stacks, *target],
            cwd=scratch,
            stderr=subprocess.DEVNULL,
        )
        client = run_client(prepared, workload, layout, port, board, warm=False)
        sampler.terminate()
        sampler.wait(60)
    finally:
        running.stop()
    inject = ["perf", "inject", "-i", "raw.data", "--jit", "-o", "jit.data"]
    subprocess.run(inject, cwd=scratch, check=True, capture_output=True)
    units = client["done"] if workload.kind == "unary" else client["events"]
    return {"units": float(units), "seconds": float(client["seconds"])}


def core_threads(scratch: Path) -> list[str]:
    """Names of the sampled threads that are I/O cores."""
    text = report(scratch, "--sort", "comm", "--no-children")
    return [name for name, _share in text if name.startswith(CORE_THREADS)]


def report(scratch: Path, *arguments: str) -> list[tuple[str, float]]:
    """(name, percent) in the order perf prints; percent of all samples."""
    done = subprocess.run(
        ["perf", "report", "-i", "jit.data", "--stdio", "-g", "none", *arguments],
        cwd=scratch,
        capture_output=True,
        text=True,
    )
    found = []
    for line in done.stdout.splitlines():
        if line.startswith("#") or not (match := LINE.match(line)):
            continue
        found.append((match[3].strip(), float(match[1])))
    return found


def short(symbol: str) -> str:
    """`py::Core._loop:/a/b/core.py` as `Core._loop (core.py)`."""
    name, _, path = symbol.split("py::", 1)[1].partition(":")
    return f"{name} ({'/'.join(Path(path).parts[-2:])})"


def print_table(title: str, rows: list[tuple[str, float]], whole: float, top: int) -> None:
    print(f"| {title} | share |\n|---|---|")
    for name, share in rows[:top]:
        print(f"| {name} | {share / whole:.1%} |")
    print()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    workloads = standard_workloads(6.0, "/generate")
    parser.add_argument("--workload", choices=tuple(workloads), default="stream256")
    parser.add_argument("--duration", type=float, default=6.0)
    parser.add_argument("--path", default="/generate")
    parser.add_argument("--top", type=int, default=40)
    options = parser.parse_args()
    if shutil.which("perf") is None:
        print("the `perf` program is not installed", file=sys.stderr)
        return 1
    workload = standard_workloads(options.duration, options.path)[options.workload]
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(KeyboardInterrupt):
        scratch = Path(folder)
        try:
            seen = record(workload, scratch)
        except PrepareError as error:
            print(error, file=sys.stderr)
            return 1
        threads = ",".join(core_threads(scratch))
        only = ("--comm", threads)
        libraries = report(scratch, "--sort", "dso", "--no-children", *only)
        # every trampoline is a little library of its own; they hold next to no time
        libraries = [each for each in libraries if not each[0].startswith("jitted-")]
        whole = sum(share for _name, share in libraries)
        print(f"**{workload.title}**: {seen['units'] / seen['seconds']:.0f} per second\n")
        print_table("library (exclusive)", libraries, whole, 12)
        native = report(scratch, "--sort", "symbol", "--no-children", *only)
        print_table("native function (exclusive)", native, whole, options.top // 2)
        functions = report(scratch, "--sort", "symbol", "--children", *only)
        python = [(short(name), share) for name, share in functions if "py::" in name]
        print_table("Python function (inclusive)", python, whole, options.top)
    return 0


if __name__ == "__main__":
    sys.exit(main())
