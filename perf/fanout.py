"""What it costs to bring one step's frame to several cores. Owner: one process, one thread.

usage: python perf/fanout.py [--rows 256] [--gil-python PYTHON] [--json FILE]

Three ways to hand a step of `rows` rows to k I/O cores, each core owning rows/k of them, over the
rings of `tpc_server.ring`:

- `whole`: the producer writes the frame as it is into every core's ring; each core decodes the
  whole header and looks up every rid in its own table. Two short cuts of the core's part, for
  steps whose running set did not change: `same rids` (the rid column's bytes equal those of the
  step before: only the other columns are decoded), `same header` (nothing is decoded).
- `split`: the producer decodes, sorts the rows by core, encodes one smaller frame per core.
- `dispatch`: one of the cores does what the producer does in `split`; the others get their part
  over one more ring.

Measured is CPU time of each side's own code, alone and pinned, in this interpreter; the
producer's side also in a GIL interpreter, where a scheduler usually lives. Wake-ups are not in
it: one doorbell a core in every way, and one more hop in `dispatch`. The columns of the result
are added up from the parts. Medians of many repetitions.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from array import array
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import msgpack

from tpc_server.ring import Producer, ring_bytes
from tpc_server.ring_reader import Consumer
from tpc_server.shm import Region

CORES = (1, 2, 4)
REPEATS = 31
INNER = 40
RING_BYTES = 1 << 22
CORE_MARK = "@"  # stands for whatever in a wire rid names its core


def make_step(rows: int, cores: int) -> tuple[bytes, bytes, list[str]]:
    """Header, token ids and rids of one ordinary decode step; row i belongs to core i % cores."""
    rids = [f"{i * 2654435761 % (1 << 128):032x}{CORE_MARK}{i % cores:02x}" for i in range(rows)]
    prompt_tokens = [11 + i * 7 % 500 for i in range(rows)]
    zeros = [0] * rows
    header = msgpack.packb([rids, [None] * rows, prompt_tokens, [1] * rows, zeros, zeros])
    ids = array("q", [(i * 7919) % 129280 for i in range(rows)]).tobytes()
    return header, ids, rids


class Ring:
    """Both ends of one ring; draining is never inside a producer's measurement."""

    def __init__(self) -> None:
        self.region = Region.create(ring_bytes(RING_BYTES))
        self.push = Producer(self.region, 0, RING_BYTES, 1 << 20).try_push
        self.drain = Consumer(self.region, 0, RING_BYTES).drain


class Codec:
    """msgpack, or msgspec where the interpreter has it; both decode to plain lists."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.decode: Callable[[bytes], Any]
        self.encode: Callable[[Any], bytes]
        if name == "msgspec":
            import msgspec

            self.decode = msgspec.msgpack.Decoder().decode
            self.encode = msgspec.msgpack.Encoder().encode
        else:
            self.decode = decode_msgpack
            self.encode = msgpack.Packer().pack


def decode_msgpack(data: bytes) -> Any:
    return msgpack.unpackb(data, strict_map_key=False)


def codecs() -> list[Codec]:
    found = [Codec("msgpack")]
    try:
        found.insert(0, Codec("msgspec"))
    except ImportError:
        pass
    return found


# the parts: each does the work of one step


def produce_whole(rings: list[Ring], header: bytes, ids: bytes) -> None:
    """The frame in three pieces, so that nothing is joined before it is copied."""
    parts = (len(header).to_bytes(4, "little"), header, ids)
    for ring in rings:
        ring.push(2, b"", parts)


def split_columns(codec: Codec, cores: int, header: bytes, ids: bytes) -> list[tuple[bytes, bytes]]:
    """(header, ids) of each core's rows; plain frames only (no extra columns)."""
    columns = codec.decode(header)
    by_core: list[list[int]] = [[] for _ in range(cores)]
    for row, rid in enumerate(columns[0]):
        by_core[int(rid[-2:], 16)].append(row)
    tokens = memoryview(ids).cast("q")
    encode = codec.encode
    found = []
    for rows in by_core:
        if len(rows) < 2:  # itemgetter of one index gives no tuple
            part: list[Any] = [[column[i] for i in rows] for column in columns]
            values: Any = [tokens[i] for i in rows]
        else:
            pick = itemgetter(*rows)
            part = [pick(column) for column in columns]
            values = pick(tokens)
        found.append((encode(part), array("q", values).tobytes()))
    return found


def produce_split(rings: list[Ring], codec: Codec, header: bytes, ids: bytes) -> None:
    frames = split_columns(codec, len(rings), header, ids)
    for ring, (part, values) in zip(rings, frames, strict=True):
        ring.push(2, b"", (len(part).to_bytes(4, "little"), part, values))


def own_rows(rids: list[str], table: dict[str, int]) -> list[tuple[int, int]]:
    """(row, state) of the rows that are this core's."""
    find = table.get
    own = []
    for row, rid in enumerate(rids):
        state = find(rid)
        if state is not None:
            own.append((row, state))
    return own


def core_decode(
    ring: Ring, decode: Callable[[bytes], Any], table: dict[str, int]
) -> list[tuple[int, int]]:
    """A core's part: copy out, decode, find the own rows."""
    record = ring.drain(1)[0][2]
    size = int.from_bytes(record[:4], "little")
    return own_rows(decode(record[4 : 4 + size])[0], table)


def core_same_rids(ring: Ring, decode: Callable[[bytes], Any], rid_column: bytes) -> Any:
    """The rid column is known from the step before: the other columns alone."""
    record = ring.drain(1)[0][2]
    size = int.from_bytes(record[:4], "little")
    if not record.startswith(rid_column, 4):
        raise AssertionError("this measurement is of equal rids")
    return decode(b"\x95" + record[4 + len(rid_column) : 4 + size])


def core_same_header(ring: Ring, last: bytes) -> None:
    """Header known from the step before: nothing to decode."""
    record = ring.drain(1)[0][2]
    if not record.startswith(last, 4):
        raise AssertionError("this measurement is of equal headers")


def drop(rings: list[Ring]) -> None:
    for ring in rings:
        while ring.drain(1 << 10):
            pass


def clock_us(before: Callable[[], None], work: Callable[..., Any], *arguments: Any) -> float:
    """Median CPU µs of one call; `before` is called, unmeasured, before every series."""
    times = []
    for _ in range(REPEATS):
        before()
        start = time.thread_time_ns()
        for _ in range(INNER):
            work(*arguments)
        times.append((time.thread_time_ns() - start) / INNER / 1e3)
    return statistics.median(times)


def measure(rows: int) -> dict[str, Any]:
    """The parts' costs in this interpreter, µs per step."""
    parts: dict[str, Any] = {"python": sys.version.split()[0], "rows": rows}
    parts["free_threaded"] = not getattr(sys, "_is_gil_enabled", lambda: True)()
    for codec in codecs():
        for cores in CORES:
            parts[f"{codec.name}/{cores}"] = measure_cores(codec, cores, rows)
    return parts


def measure_cores(codec: Codec, cores: int, rows: int) -> dict[str, float]:
    header, ids, rids = make_step(rows, cores)
    rings = [Ring() for _ in range(cores)]
    one = rings[0]
    decode = codec.decode
    table = {rid: index for index, rid in enumerate(rids) if rid.endswith("00")}
    rid_column = b"\x96" + msgpack.packb(rids)
    assert header.startswith(rid_column)
    part, values = split_columns(codec, cores, header, ids)[0]

    def empty() -> None:
        drop(rings)

    def with_whole() -> None:
        drop(rings)
        for _ in range(INNER):
            produce_whole([one], header, ids)

    def with_part() -> None:
        drop(rings)
        for _ in range(INNER):
            produce_whole([one], part, values)

    with_whole()
    whole_rows = len(core_decode(one, decode, table))
    with_part()
    part_rows = len(core_decode(one, decode, table))
    if not whole_rows == part_rows == len(table) == rows // cores:
        raise AssertionError("the two ways do not bring a core the same rows")
    return {
        "produce_whole": clock_us(empty, produce_whole, rings, header, ids),
        "produce_split": clock_us(empty, produce_split, rings, codec, header, ids),
        "core_whole": clock_us(with_whole, core_decode, one, decode, table),
        "core_same_rids": clock_us(with_whole, core_same_rids, one, decode, rid_column),
        "core_same_header": clock_us(with_whole, core_same_header, one, header),
        "core_part": clock_us(with_part, core_decode, one, decode, table),
    }


def add_up(
    parts: dict[str, float], one_ring: float, other: dict[str, float], cores: int
) -> list[dict[str, Any]]:
    """Scheduler's cost, all cores' cost, and time to the last core, of each way.

    `parts` are the producer's interpreter's costs, `one_ring` that of writing a frame to one
    ring, `other` those of the cores' interpreter.
    """
    ways = [
        ("whole", parts["produce_whole"], [other["core_whole"]] * cores),
        ("whole, same rids", parts["produce_whole"], [other["core_same_rids"]] * cores),
        ("whole, same header", parts["produce_whole"], [other["core_same_header"]] * cores),
        ("split", parts["produce_split"], [other["core_part"]] * cores),
    ]
    found = [
        {"way": way, "scheduler": push, "cores": sum(each), "last": push + max(each)}
        for way, push, each in ways
    ]
    # the dispatching core keeps its own part without a ring; the others decode theirs
    push, dispatcher = one_ring, other["produce_split"]
    rest = other["core_part"]
    found.append(
        {
            "way": "dispatch",
            "scheduler": push,
            "cores": dispatcher + rest * (cores - 1),
            "last": push + dispatcher + (rest if cores > 1 else 0),
        }
    )
    return found


def table(producer: dict[str, Any], core: dict[str, Any]) -> list[str]:
    kind = "free-threaded" if producer["free_threaded"] else "GIL"
    lines = [
        f"Producer CPython {producer['python']} ({kind}), cores {core['python']}, "
        f"{producer['rows']} rows a step, CPU µs per step:",
        "",
        "| cores | way | producer's codec | scheduler | all cores | until the last core "
        "| cores' µs/row |",
        "|---|---|---|---|---|---|---|",
    ]
    for cores in CORES:
        for name in ("msgspec", "msgpack"):
            if f"{name}/{cores}" not in producer:
                continue
            parts, one_ring = producer[f"{name}/{cores}"], producer[f"{name}/1"]["produce_whole"]
            for way in add_up(parts, one_ring, core[f"msgpack/{cores}"], cores):
                if name == "msgpack" or way["way"] == "split":
                    lines.append(
                        f"| {cores} | {way['way']} | {name if way['way'] == 'split' else '-'} "
                        f"| {way['scheduler']:.1f} | {way['cores']:.1f} | {way['last']:.1f} "
                        f"| {way['cores'] / producer['rows']:.2f} |"
                    )
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--gil-python", help="a GIL interpreter with msgpack: measured as producer")
    parser.add_argument("--json", type=Path, help="writes the parts there")
    parser.add_argument("--parts-only", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    gc.disable()
    here = measure(options.rows)
    if options.parts_only:
        print(json.dumps(here))
        return
    producers = [here]
    if options.gil_python:
        done = subprocess.run(
            [options.gil_python, __file__, "--parts-only", "--rows", str(options.rows)],
            capture_output=True,
            text=True,
            check=True,
        )
        producers.append(json.loads(done.stdout))
    for producer in producers:
        print("\n".join(table(producer, here)))
    if options.json:
        options.json.write_text(json.dumps(producers, indent=1) + "\n")


if __name__ == "__main__":
    main()
