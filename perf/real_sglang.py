"""The real SGLang on CPU behind each frontend: its cost, and what the scheduler pays for it.

usage: python perf/real_sglang.py [--frontends tpc,rust,python] [--streams 32] [--tokens 200]
                                  [--spells 5] [--out FILE]

Owner: main thread; one SGLang runs at a time, the load comes from a process of its own. A spell is
`--streams` streams of `--tokens` tokens each, all at once; figures are medians of the spells.

frontend_us   CPU of the frontend per streamed token, µs: for ours its process, for Rust its threads
              in the scheduler's process, for Python all processes but the scheduler's
push_…_us     of the scheduler's thread per step to hand it over, packing included: median and mean,
              CPU and wall; wall is what the scheduler waits, with what preempts it meanwhile
drain_…_us    the same per call that takes requests in, where the frontend is in shared memory

SGLang is prepared by the project (5 GB, once); it wants two free CPUs.
"""

from __future__ import annotations

import argparse
import json
import mmap
import multiprocessing
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.clients.stream_client import StreamLoad, render, request_body
from perf.harness import machine, meter, procfs
from tests.sglang.prepare import prepare
from tests.sglang.serving import SGLang, environ

FRONTENDS = ("tpc", "rust", "python")
# Of the Rust server's threads, as its sources name them; the kernel keeps 15 characters.
RUST_THREADS = (
    "api-runtime", "tokenizer-", "to-scheduler", "from-scheduler", "detokenizer-",
    "tokio-rt-worker", "tracing-appende",
)  # fmt: skip
TIMEOUT_S = 120.0


class Meter:
    """The scheduler's calls, as `meter` writes them."""

    def __init__(self, folder: Path) -> None:
        (folder / "sitecustomize.py").write_bytes(Path(meter.__file__).read_bytes())
        self.path = folder / "meter"
        self.path.write_bytes(bytes(meter.BYTES))
        with open(self.path, "r+b") as file:
            self._words = memoryview(mmap.mmap(file.fileno(), meter.BYTES)).cast("Q")

    def count(self, kind: str) -> int:
        """Calls so far."""
        return int(self._words[meter.KINDS.index(kind) * meter.WORDS])

    def since(self, kind: str, count: int, clock: int) -> list[int]:
        """Nanoseconds of each call after the first `count`, as far as they are kept.

        clock: 0 CPU, 1 wall
        """
        at = meter.KINDS.index(kind) * meter.WORDS + 1 + clock
        return [
            self._words[at + 2 * (k % meter.CALLS)]
            for k in range(max(count, self.count(kind) - meter.CALLS), self.count(kind))
        ]


def frontend_ns(server: SGLang, frontend: str) -> int:
    """CPU nanoseconds that the frontend has had."""
    (scheduler,) = server.schedulers()
    if frontend == "rust":
        names = {tid: name for tid, (name, *_) in procfs.task_switches(scheduler.pid).items()}
        return sum(
            cpu
            for tid, cpu in procfs.task_cpu_ns(scheduler.pid).items()
            if names.get(tid, "").startswith(RUST_THREADS)
        )
    ours = [p.pid for p in server.tree() if p.pid != scheduler.pid] + [server.process.pid]
    return sum(procfs.process_cpu_ns(pid) for pid in ours)


def load(port: int, streams: int, tokens: int, spell: int, send: Any) -> None:
    """One spell, in a process of its own; sends (tokens asked for, events read, failed)."""
    requests = []
    for number in range(streams):
        body = request_body("/generate", f"Count {spell} and {number} on:", tokens, 0)
        del body["sampling_params"]["sampling_seed"]
        requests.append(render("/generate", body))
    one = StreamLoad(port, "/generate", streams, [tokens] * streams)
    one.run(requests, TIMEOUT_S)
    send.send((streams * tokens, sum(one.reads[2::3]) - one.done, one.failed, one.seconds))


def spell_of(
    server: SGLang, frontend: str, calls: Meter, options: argparse.Namespace, number: int
) -> dict[str, Any]:
    """Figures of one spell. Raises RuntimeError where answers are missing."""
    theirs, ours = multiprocessing.Pipe()
    client = multiprocessing.Process(
        target=load, args=(server.port, options.streams, options.tokens, number, ours)
    )
    before = {kind: calls.count(kind) for kind in meter.KINDS}
    cpu = frontend_ns(server, frontend)
    client.start()
    if not theirs.poll(TIMEOUT_S + 30):
        raise RuntimeError("the load did not end")
    tokens, events, failed, seconds = theirs.recv()
    cpu = frontend_ns(server, frontend) - cpu
    client.join()
    if failed or abs(events - tokens) > tokens * 0.01:
        raise RuntimeError(f"{events} events of {tokens} tokens, {failed} streams failed")
    found = {
        "frontend_us": cpu / 1e3 / tokens,
        "tokens_per_s": tokens / seconds,
        "steps": calls.count("push") - before["push"],
    }
    for kind in meter.KINDS:
        for clock, name in enumerate(("cpu", "wall")):
            took = calls.since(kind, before[kind], clock)
            found[f"{kind}_{name}_us"] = statistics.median(took) / 1e3 if took else None
            found[f"{kind}_{name}_mean_us"] = statistics.fmean(took) / 1e3 if took else None
    return found


def run(frontend: str, options: argparse.Namespace) -> dict[str, Any]:
    """Start SGLang behind one frontend, measure, end it."""
    with tempfile.TemporaryDirectory() as tmp:
        calls = Meter(Path(tmp))
        prepared = prepare()
        paths = environ(prepared, frontend)["PYTHONPATH"]
        env = {"METER_FILE": str(calls.path), "PYTHONPATH": os.pathsep.join((tmp, paths))}
        with SGLang(prepared, Path(tmp) / "log", frontend, env=env) as server:
            server.wait()
            spell_of(server, frontend, calls, options, 0)  # warms up
            spells = [
                spell_of(server, frontend, calls, options, number)
                for number in range(1, options.spells + 1)
            ]
    return {
        name: None
        if spells[0][name] is None
        else statistics.median(spell[name] for spell in spells)
        for name in spells[0]
    } | {"spells": spells}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--frontends", default=",".join(FRONTENDS))
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--spells", type=int, default=5)
    parser.add_argument("--out", type=Path, default=None, help="JSON of all figures")
    options = parser.parse_args()
    names = options.frontends.split(",")
    if wrong := [name for name in names if name not in FRONTENDS]:
        parser.error(f"--frontends: unknown {wrong[0]!r}; there are {', '.join(FRONTENDS)}")
    found = {}
    for name in names:
        print(f"{name}: starting SGLang", file=sys.stderr, flush=True)
        found[name] = run(name, options)
    print(f"{machine.cpu_model()}, {os.cpu_count()} CPUs; {options.streams} streams")
    columns = ("frontend_us", "push_cpu_us", "push_wall_us", "push_wall_mean_us", "drain_cpu_us",
               "drain_wall_us", "tokens_per_s")  # fmt: skip
    print("| | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for name, row in found.items():
        cells = [f"{row[key]:.1f}" if row[key] is not None else "-" for key in columns]
        print(f"| {name} | " + " | ".join(cells) + " |")
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
