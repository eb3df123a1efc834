"""A server with nothing to do: wake-ups per second and thread, and CPU. Owner: main thread.

usage: python perf/idle.py [--seconds 60] [--peers tpc,rust] [--connections N] [--gate]
       python perf/idle.py --pid N      a server that runs already

Wake-ups are voluntary context switches: each time a thread went to sleep it was woken before.
The thread of the synthetic scheduler is listed but not counted: it is not the frontend's.
`--gate` fails above 20 wake-ups per second and thread or 0.2 % CPU.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.harness import procfs
from perf.harness.bench_flags import PEERS
from perf.harness.board import Board
from perf.harness.measure import run_client
from perf.harness.ports import free_port
from perf.harness.prepare import PrepareError, prepare
from perf.harness.running import RunningPeer, peer_command
from perf.harness.workloads import Workload, make_layout

WAKEUPS_PER_S = 20.0
CPU_SHARE = 0.002
SETTLE_S = 2.0


def observe(pid: int, seconds: float) -> dict[str, Any]:
    """Wake-ups per second of each thread of `pid`, and CPU share of the process, while idle."""
    before, cpu = procfs.task_switches(pid), procfs.process_cpu_ns(pid)
    threads_cpu = procfs.task_cpu_ns(pid)
    start = time.monotonic()
    time.sleep(seconds)
    spent = time.monotonic() - start
    after = procfs.task_switches(pid)
    cpu = procfs.process_cpu_ns(pid) - cpu
    scheduler_cpu = procfs.task_cpu_ns(pid).get(pid, 0) - threads_cpu.get(pid, 0)
    threads = [
        {
            "name": name,
            "tid": tid,
            "wakeups_per_s": (voluntary - before[tid][1]) / spent,
            "scheduler": tid == pid,
        }
        for tid, (name, voluntary, _forced) in sorted(after.items())
        if tid in before
    ]
    return {
        "seconds": spent,
        "threads": threads,
        "cpu_share": cpu / 1e9 / spent,
        "cpu_share_without_scheduler": (cpu - scheduler_cpu) / 1e9 / spent,
    }


def show(title: str, seen: dict[str, Any]) -> None:
    print(f"**{title}**, idle for {seen['seconds']:.0f} s: ", end="")
    print(f"{seen['cpu_share_without_scheduler']:.3%} CPU without the scheduler's thread\n")
    print("| thread | wake-ups per second |\n|---|---|")
    for thread in seen["threads"]:
        note = " (synthetic scheduler)" if thread["scheduler"] else ""
        print(f"| {thread['name']}{note} | {thread['wakeups_per_s']:.1f} |")
    print()


def passes(seen: dict[str, Any]) -> bool:
    worst = max(
        (each["wakeups_per_s"] for each in seen["threads"] if not each["scheduler"]), default=0.0
    )
    return worst <= WAKEUPS_PER_S and bool(seen["cpu_share_without_scheduler"] <= CPU_SHARE)


def idle_peer(peer: str, seconds: float, connections: int) -> dict[str, Any]:
    """Starts a peer, sends it a little, keeps `connections` open, and watches it do nothing."""
    prepared = prepare(want_granian=False)
    workload = Workload("idle", "stream", 16, 20, 0.5)
    layout = make_layout(sorted(os.sched_getaffinity(0)), 1, "stream", "server")
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as stack:
        board = Path(scratch) / "board"
        Board(board, create=True)
        port = free_port()
        command = peer_command(peer, prepared, workload, layout, port, board, 235)
        running = RunningPeer(peer, command, list(layout.server_cpus), port)
        try:
            run_client(prepared, workload, layout, port, board, warm=True)
            for _ in range(connections):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=10))
            time.sleep(SETTLE_S)
            return observe(running.pid, seconds)
        finally:
            running.stop()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--peers", default="tpc")
    parser.add_argument("--connections", type=int, default=0, help="idle ones, kept open")
    parser.add_argument("--pid", type=int, help="watch this process instead")
    parser.add_argument("--gate", action="store_true")
    options = parser.parse_args()
    if options.pid:
        seen = {f"process {options.pid}": observe(options.pid, options.seconds)}
    else:
        try:
            seen = {
                PEERS[peer]: idle_peer(peer, options.seconds, options.connections)
                for peer in options.peers.split(",")
            }
        except PrepareError as error:
            print(error, file=sys.stderr)
            return 1
    for title, values in seen.items():
        show(title, values)
    return 1 if options.gate and not all(map(passes, seen.values())) else 0


if __name__ == "__main__":
    sys.exit(main())
