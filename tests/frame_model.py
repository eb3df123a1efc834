"""What a valid output frame is, said again slowly. Owner: tests.

`read_frame` follows the written contract entry by entry, without any of the decoder's short cuts;
tests compare the two on random and on damaged frames.
"""

from __future__ import annotations

import math
import struct
from typing import Any

from tpc_server.boundary.batch_header import Batch
from tpc_server.boundary.extras import IN_IDS, IN_TOP, OUT_IDS, OUT_TOP, finite


class Invalid(Exception):
    pass


def need(condition: Any) -> None:
    if not condition:
        raise Invalid


def read_frame(columns: Any, data: bytes) -> list[dict[str, Any]]:
    """Rows as dicts. Raises Invalid."""
    need(isinstance(columns, list) and 6 <= len(columns) <= 24)
    need(all(isinstance(column, list) for column in columns))
    n = len(columns[0])
    need(all(len(column) == n for column in columns[:6]))
    need(all(type(rid) is str for rid in columns[0]))
    need(all(reason is None or type(reason) is dict for reason in columns[1]))
    for column in columns[2:6]:
        need(all(isinstance(count, int) for count in column))
    need(all(count >= 0 for count in columns[3]))
    columns = columns + [[]] * (24 - len(columns))
    at = 0
    rows: list[dict[str, Any]] = []
    for i in range(n):
        end = at + 8 * columns[3][i]
        need(end <= len(data))
        rows.append(
            {
                "rid": columns[0][i],
                "finish": columns[1][i],
                "counts": [columns[k][i] for k in (2, 4, 5)],
                "ids": list(struct.unpack(f"<{columns[3][i]}q", data[at:end])),
            }
        )
        at = end
    for k, name in ((6, "out"), (7, "in")):
        at = flat(rows, name, columns[k], data, at)
    for k, name in ((8, "out_top"), (10, "in_top"), (12, "out_ids"), (14, "in_ids")):
        at = ragged(rows, name, columns[k], columns[k + 1], data, at, True)
    at = ragged(rows, "hidden", columns[16], columns[17], data, at, False)
    need(at == len(data))
    for k, name in ((18, "weights"), (22, "latency"), (23, "ended")):
        need(len(columns[k]) in (0, n))
        for i, row in enumerate(rows):
            row[name] = columns[k][i] if columns[k] else None
    for k in (19, 20, 21):
        need(len(columns[k]) in (0, n))
        need(all(count is None or type(count) is int for count in columns[k]))
    for spans in columns[18]:
        need(spans is None or isinstance(spans, list))
        for span in spans or []:
            need(isinstance(span, list) and [type(x) for x in span] == [str, int, int])
    need(all(x is None or type(x) in (int, float) for x in columns[22]))
    need(all(type(x) is bool for x in columns[23]))
    return rows


def numbers(data: bytes, at: int, count: int, code: str) -> tuple[list[Any], int]:
    end = at + 4 * count
    need(end <= len(data))
    values = list(struct.unpack(f"<{count}{code}", data[at:end]))
    if code == "f":
        values = [value if math.isfinite(value) else None for value in values]
    return values, end


def counts_ok(counts: Any, n: int | None) -> None:
    need(n is None or len(counts) in (0, n))
    need(all(isinstance(count, int) and count >= 0 for count in counts))


def flat(rows: list[Any], name: str, lens: Any, data: bytes, at: int) -> int:
    counts_ok(lens, len(rows))
    need(sum(lens) <= len(data))
    values, at = numbers(data, at, sum(lens), "f")
    indices, at = numbers(data, at, sum(lens), "i")
    start = 0
    for i, row in enumerate(rows):
        size = lens[i] if lens else 0
        row[name] = (values[start : start + size], indices[start : start + size])
        start += size
    return at


def ragged(
    rows: list[Any], name: str, req: Any, pos: Any, data: bytes, at: int, paired: bool
) -> int:
    counts_ok(req, len(rows))
    counts_ok(pos, None)
    need(sum(req) == len(pos))
    need(sum(pos) <= len(data))
    values, at = numbers(data, at, sum(pos), "f")
    indices: list[Any] = []
    if paired:
        indices, at = numbers(data, at, sum(pos), "i")
    position = element = 0
    for i, row in enumerate(rows):
        entries: list[Any] = []
        for _ in range(req[i] if req else 0):
            end = element + pos[position]
            if not paired:
                entries.append(values[element:end])
            elif end == element:
                entries.append(None)
            else:
                entries.append((values[element:end], indices[element:end]))
            element = end
            position += 1
        row[name] = entries
    return at


def rows_of(batch: Batch) -> list[dict[str, Any]]:
    """A decoded frame in the model's shape."""
    rows: list[dict[str, Any]] = []
    for i in range(batch.n):
        row: dict[str, Any] = {
            "rid": batch.rids[i],
            "finish": batch.finish_reasons[i],
            "counts": [batch.prompt_tokens[i], batch.cached_tokens[i], batch.reasoning_tokens[i]],
            "ids": batch.row_ids(i),
            "out": ([], []),
            "in": ([], []),
            "out_top": [],
            "in_top": [],
            "out_ids": [],
            "in_ids": [],
            "hidden": [],
            "weights": batch.weight_versions[i] if batch.weight_versions else None,
            "latency": batch.row_decode_latency(i),
            "ended": batch.ended[i] if batch.ended is not None else None,
        }
        extras = batch.extras
        if extras is not None:
            row["out"] = extras.flat_out(i)
            row["in"] = extras.flat_in(i)
            row["out_top"] = extras.ragged(OUT_TOP, i)
            row["in_top"] = extras.ragged(IN_TOP, i)
            row["out_ids"] = extras.ragged(OUT_IDS, i)
            row["in_ids"] = extras.ragged(IN_IDS, i)
            row["hidden"] = [finite(values.tolist()) for values in extras.hidden(i)]
            assert extras.row_logprobs(i) == (
                row["out"],
                row["in"],
                row["out_top"],
                row["in_top"],
                row["out_ids"],
                row["in_ids"],
            )
        rows.append(row)
    return rows
