"""The flags of `./tpc bench`. Owner: stateless.

Standard library only and Python 3.9: the bootstrap answers `--help` and bad flags with it, before
there is anything to measure with.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import Any

PEERS = {
    "tpc": "tpc_server, free-threaded CPython",
    "sidecar": "tpc_server, scheduler on a GIL CPython 3.12",
    "rust": "SGLang 0.5.23 Rust server",
    "granian": "granian RSGI, a coroutine per stream",
    "granian-loop": "granian RSGI, one task for all streams",
    "floor": "send() floor",
}
DEFAULT_PEERS = "tpc,rust,granian,floor"
WORKLOADS = {
    "stream256": "256 streams, a token each every 20 ms",
    "stream1000": "1000 streams, a token each every 40 ms",
    "unary": "short requests, 64 connections that wait for their answers",
    "churn256": "stream256 with streams of 100 tokens: new ones begin all the time",
    "cumulative256": "stream256, each event with the whole text so far",
    "saturated64": "64 streams as fast as the scheduler can",
    "chat256": "stream256 through /v1/chat/completions",
    "chat10": "unary with chats of ten messages",
}
DEFAULT_WORKLOADS = "stream256,stream1000,unary"
_DESCRIPTION = """\
Measure what a frontend costs: CPU time a token and added latency of streams, requests a second of
short ones. A scheduler that computes nothing sends every frontend the same frames, on this machine
and in turn; each is started afresh for every measurement. The first run prepares what it compares
with (a few minutes). Prints a table per workload and writes JSON and a plot into perf/results.
How it is measured: perf/README.md.
"""


def parse(argv: list[str] | None = None) -> Any:
    """Parsed flags; argparse ends the program on bad ones."""
    parser = argparse.ArgumentParser(
        "./tpc bench", usage="%(prog)s [FLAGS]", description=_DESCRIPTION, epilog=_epilog(),
        formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
    )  # fmt: skip
    add = parser.add_argument
    add("--quick", action="store_true", help="shorter loads and two rounds, under 3 minutes")
    add("--peers", default=DEFAULT_PEERS, metavar="A,B", help=f"frontends ({DEFAULT_PEERS})")
    add("--workloads", default=DEFAULT_WORKLOADS, metavar="A,B",
        help=f"what is done with them ({DEFAULT_WORKLOADS})")  # fmt: skip
    add("--rounds", type=int, default=3, metavar="N", help="how often all is repeated (3)")
    add("--duration", type=float, default=8.0, metavar="S", help="seconds of one load (8)")
    add(
        "--streams", type=int, metavar="N", help="one workload of your own instead: so many streams"
    )
    add("--tick", type=float, metavar="MS", help="its step; 0: as fast as the scheduler can")
    add("--cumulative", action="store_true", help="its events carry the whole text")
    add("--path", default="/generate", help="its route (/generate)")
    add("--io-cores", type=int, default=1, metavar="N", help="I/O cores of each frontend (1)")
    add("--scheduler-cpu", choices=("auto", "server", "client"), default="auto",
        help="whose CPU the scheduler shares (auto)")  # fmt: skip
    add("--event-bytes", type=int, metavar="N",
        help="of what floor and granian send (as many as ours)")  # fmt: skip
    add("--out", type=pathlib.Path, metavar="PATH",
        help="results without suffix (perf/results/stream, or quick)")  # fmt: skip
    options = parser.parse_args(argv)
    if options.quick:
        options.duration = min(options.duration, 2.5)
        options.rounds = min(options.rounds, 2)
    for flag, given, known in (
        ("--peers", options.peers, PEERS),
        ("--workloads", options.workloads, WORKLOADS),
    ):
        for name in given.split(","):
            if name not in known:
                parser.error(f"{flag}: {name!r} is not one of {', '.join(known)}")
    return options


def _epilog() -> str:
    lines = []
    for title, rows in (("frontends", PEERS), ("workloads", WORKLOADS)):
        lines += [f"{title}:", *[f"  {name:<14} {text}" for name, text in rows.items()], ""]
    return "\n".join(lines)
