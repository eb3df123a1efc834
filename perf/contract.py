"""Cost of decoding one /generate body, and of one step's frame. Owner: one thread, pinned.

usage: python perf/contract.py [--json FILE]

CPU time of the calling thread, microseconds, median of many repetitions: of the JSON reader alone,
of the whole decoding into a scheduler message, of packing that message, and of a plain 256-row
frame's header (`unpack`) and its checks and views (`decode`).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tpc_server.boundary import codec
from tpc_server.boundary.batch_header import decode_batch
from tpc_server.contract import json_body
from tpc_server.contract.generate import GenerateDecoder
from tpc_server.contract.limits import Limits

REPEATS = 41
INNER = 500
PROMPT = "The capital city of France is, as everybody knows who has ever been there, "

BODIES: dict[str, dict[str, Any]] = {
    "least": {"text": PROMPT, "sampling_params": {"temperature": 0, "max_new_tokens": 16}},
    "typical": {
        "text": PROMPT,
        "sampling_params": {
            "temperature": 0.7, "top_p": 0.95, "max_new_tokens": 128, "stop": ["\n\n"],
        },
        "stream": True,
        "rid": "request-1",
    },
    "with logprobs": {
        "text": PROMPT,
        "sampling_params": {"temperature": 0.7, "max_new_tokens": 128},
        "return_logprob": True,
        "top_logprobs_num": 5,
        "logprob_start_len": 0,
    },
    "batch of 8": {"text": [PROMPT] * 8, "sampling_params": {"max_new_tokens": 16}},
    "1000 ids": {"input_ids": list(range(1000)), "sampling_params": {"max_new_tokens": 16}},
}  # fmt: skip


def cost_us(call: Callable[[], Any]) -> float:
    """Median CPU time of one call."""
    found: list[float] = []
    for _ in range(REPEATS):
        begun = time.thread_time_ns()
        for _ in range(INNER):
            call()
        found.append((time.thread_time_ns() - begun) / INNER / 1e3)
    return statistics.median(found)


def body_costs(name: str, decoder: GenerateDecoder) -> dict[str, float]:
    raw = json.dumps(BODIES[name]).encode()
    pack = codec.make_packer()
    wires = [item.wire for item in decoder.decode(raw).items]
    return {
        "bytes": len(raw),
        "parse": cost_us(lambda: json_body.parse_object(raw)),
        "parse (stdlib)": cost_us(lambda: json_body.parse_object_stdlib(raw)),
        "decode": cost_us(lambda: decoder.decode(raw)),
        "pack": cost_us(lambda: [pack(wire) for wire in wires]),
    }


def frame_costs(rows: int) -> dict[str, float]:
    rids = [f"{k * 2654435761 % (1 << 128):032x}#{k:016x}" for k in range(rows)]
    columns = [rids, [None] * rows, [11] * rows, [1] * rows, [0] * rows, [0] * rows]
    header = codec.make_packer()(columns)
    data = [array("q", range(rows)).tobytes()]
    return {
        "bytes": len(header),
        "unpack": cost_us(lambda: codec.unpack(header)),
        "decode": cost_us(lambda: decode_batch(header, data)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    decoder = GenerateDecoder(Limits(32768, 129280))
    result: dict[str, Any] = {
        "python": sys.version,
        "bodies": {name: body_costs(name, decoder) for name in BODIES},
        "frame of 256 rows": frame_costs(256),
    }
    for name, costs in [*result["bodies"].items(), ("256-row frame", result["frame of 256 rows"])]:
        print(f"{name:15}", "  ".join([f"{key} {value:.1f}" for key, value in costs.items()]))
    if given.json:
        Path(given.json).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
