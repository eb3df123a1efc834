"""What a profile-guided CPython buys: the step loop and a unary request, both builds in turn.

Owner: main thread; what is measured runs in processes of its own.

usage: python perf/pgo.py [--rounds 5] [--quick]

Builds what is missing (`TPC_PGO=1 ./tpc setup`: two builds' time, once; it needs the source or the
network, as any build does), then runs `pgo_task.py` and `bytecodes.py --time` with each interpreter
in turn and prints the least CPU time of each and the ratio. Both execute the same bytecodes, so the
ratio is the interpreter's alone.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# what is measured, and how
TASKS = (
    ("row of pgo_task.py", ("perf/pgo_task.py",)),
    ("unary request", ("perf/bytecodes.py", "unary", "--batch", "64", "--time")),
    ("streamed row", ("perf/bytecodes.py", "stream", "--batch", "256", "--time")),
    ("cumulative row", ("perf/bytecodes.py", "cumulative", "--batch", "256", "--time")),
)


def tpc(pgo: bool, *arguments: str) -> str:
    """Output of `./tpc` with one of the two interpreters."""
    environment = {name: value for name, value in os.environ.items() if name != "TPC_PYTHON"}
    environment["TPC_PGO"] = "1" if pgo else "0"
    command = [str(ROOT / "tpc"), *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} with TPC_PGO={int(pgo)}: status {done.returncode}")
    return done.stdout


def build_of(pgo: bool) -> str:
    """How that interpreter was configured."""
    code = (
        "import sys, sysconfig; print(sys.version); print(sysconfig.get_config_var('CONFIG_ARGS'))"
    )
    return tpc(pgo, "python", "-c", code)


def microseconds(output: str) -> float:
    """CPU time of one unit, from what a task prints."""
    found = re.search(r"([\d.]+) us of CPU", output)
    if found:
        return float(found[1])
    found = re.search(r"(\d+) rows in ([\d.]+) s", output)
    assert found is not None, output
    return float(found[2]) / int(found[1]) * 1e6


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two rounds")
    options = parser.parse_args()
    rounds = 2 if options.quick else options.rounds
    for pgo in (False, True):
        tpc(pgo, "setup")
    plain, optimized = build_of(False), build_of(True)
    print(f"plain: {plain}\nguided: {optimized}")
    if ("--enable-optimizations" in plain) == ("--enable-optimizations" in optimized):
        print("both builds are of one kind: nothing to compare", file=sys.stderr)
        return 1
    best: dict[tuple[str, bool], float] = {}
    for number in range(rounds):
        for name, arguments in TASKS:
            # Each round the other one first: neither always runs on the warmer machine.
            for pgo in (bool(number % 2), not number % 2):
                took = microseconds(tpc(pgo, "python", *arguments))
                best[name, pgo] = min(took, best.get((name, pgo), took))
        print(f"round {number + 1} of {rounds}", file=sys.stderr, flush=True)
    print("| | plain, us | guided, us | guided / plain |\n|---|---|---|---|")
    for name, _ in TASKS:
        ours, theirs = best[name, False], best[name, True]
        print(f"| {name} | {ours:.2f} | {theirs:.2f} | {theirs / ours:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
