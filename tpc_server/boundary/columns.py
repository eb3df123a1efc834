"""Packer of one step's output frame. Owner: the scheduler thread that pushes it (stateless).

A family of ragged lists becomes columns of counts (for the header) and flat buffers (for the data):
f32 values and i32 indices, native and little-endian. The contract is asserted here because the
receiver cannot see it: an index column that is one entry longer shifts every later column by four
bytes and still adds up.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import Any

__all__ = [
    "FAMILIES",
    "FlatPairColumns",
    "NestedRowColumns",
    "RaggedPairColumns",
    "pack_frame",
    "pack_queue_abort",
]

_NAN = float("nan")
N_EXTRAS_COLUMNS = 12

# Families in the order of the header and of the data; each takes `<name>_val` and `<name>_idx`.
FAMILIES = (
    "output_token_logprobs",
    "input_token_logprobs",
    "output_top_logprobs",
    "input_top_logprobs",
    "output_token_ids_logprobs",
    "input_token_ids_logprobs",
)
HIDDEN = "output_hidden_states"


def _require(condition: bool, message: str) -> None:
    # A plain `assert` would vanish under -O, and the frame would silently shift.
    if not condition:
        raise AssertionError(message)


def _cell(column: Sequence[Any] | None, row: int) -> Any:
    return (column[row] if column else None) or []


class FlatPairColumns:
    """One value and one index a token: header [lens], data [f32 values, i32 indices].

    With `first_none_to_nan` a leading None of a row (the first prompt token has no logprob) is
    sent as NaN; any other None is a TypeError.
    """

    __slots__ = ("_idx", "_lens", "_val", "first_none_to_nan", "idxs", "name", "vals")

    def __init__(
        self,
        name: str,
        vals: Sequence[Any] | None,
        idxs: Sequence[Any] | None,
        first_none_to_nan: bool = False,
    ) -> None:
        self.name = name
        self.vals = vals
        self.idxs = idxs
        self.first_none_to_nan = first_none_to_nan
        self._val = array("f")
        self._idx = array("i")
        self._lens: list[int] = []

    def columns(self) -> tuple[tuple[str, Sequence[Any] | None], ...]:
        return (f"{self.name}_val", self.vals), (f"{self.name}_idx", self.idxs)

    def accept(self, row: int) -> None:
        values = _cell(self.vals, row)
        indices = _cell(self.idxs, row)
        _require(
            len(values) == len(indices),
            f"{self.name}: request {row} has {len(indices)} idx entries but {len(values)} vals",
        )
        if self.first_none_to_nan and values and values[0] is None:
            self._val.append(_NAN)
            self._val.extend(values[1:])
        else:
            self._val.extend(values)
        self._idx.extend(indices)
        self._lens.append(len(values))

    def header_cols(self) -> list[list[int]]:
        return [self._lens]

    def data_cols(self) -> list[bytes]:
        return [self._val.tobytes(), self._idx.tobytes()]


class RaggedPairColumns:
    """Several values and indices a position: header [req, pos], data [f32 values, i32 indices].

    A position that is None or empty counts 0 and is read back as null.
    """

    __slots__ = ("_idx", "_pos", "_req", "_val", "idxs", "name", "vals")

    def __init__(self, name: str, vals: Sequence[Any] | None, idxs: Sequence[Any] | None) -> None:
        self.name = name
        self.vals = vals
        self.idxs = idxs
        self._val = array("f")
        self._idx = array("i")
        self._req: list[int] = []
        self._pos: list[int] = []

    def columns(self) -> tuple[tuple[str, Sequence[Any] | None], ...]:
        return (f"{self.name}_val", self.vals), (f"{self.name}_idx", self.idxs)

    def accept(self, row: int) -> None:
        values = _cell(self.vals, row)
        indices = _cell(self.idxs, row)
        _require(
            len(values) == len(indices),
            f"{self.name}: request {row} has {len(indices)} idx positions"
            f" but {len(values)} val positions",
        )
        # Collect first: a row that breaks the contract leaves the buffers as they were.
        flat_values: list[Any] = []
        flat_indices: list[Any] = []
        lens: list[int] = []
        for position, value in enumerate(values):
            index = indices[position]
            n_value = len(value) if value else 0
            n_index = len(index) if index else 0
            _require(
                n_value == n_index,
                f"position {position}: idx len {n_index} != val len {n_value}",
            )
            if n_value:
                flat_values.extend(value)
                flat_indices.extend(index)
            lens.append(n_value)
        self._val.extend(flat_values)
        self._idx.extend(flat_indices)
        self._pos.extend(lens)
        self._req.append(len(lens))

    def header_cols(self) -> list[list[int]]:
        return [self._req, self._pos]

    def data_cols(self) -> list[bytes]:
        return [self._val.tobytes(), self._idx.tobytes()]


class NestedRowColumns:
    """Rows of floats (hidden states): header [req, pos], data [f32 values].

    Each row is flattened however deep it nests; a bare number is a row of one.
    """

    __slots__ = ("_pos", "_req", "_val", "name", "rows")

    def __init__(self, name: str, rows: Sequence[Any] | None) -> None:
        self.name = name
        self.rows = rows
        self._val = array("f")
        self._req: list[int] = []
        self._pos: list[int] = []

    def columns(self) -> tuple[tuple[str, Sequence[Any] | None], ...]:
        return ((self.name, self.rows),)

    def accept(self, row: int) -> None:
        cell = _cell(self.rows, row)
        flat: list[float] = []
        lens: list[int] = []
        for entry in cell:
            before = len(flat)
            _flatten_into(flat, entry)
            lens.append(len(flat) - before)
        self._val.extend(flat)
        self._pos.extend(lens)
        self._req.append(len(lens))

    def header_cols(self) -> list[list[int]]:
        return [self._req, self._pos]

    def data_cols(self) -> list[bytes]:
        return [self._val.tobytes()]


def _flatten_into(out: list[float], entry: Any) -> None:
    if isinstance(entry, (int, float)):
        out.append(float(entry))
        return
    for inner in entry:
        _flatten_into(out, inner)


def pack_frame(
    pack: Callable[[Any], bytes],
    rids: Sequence[str],
    finish_reasons: Sequence[dict[str, Any] | None],
    prompt_tokens: Sequence[int],
    output_ids: Sequence[Sequence[int]],
    cached_tokens: Sequence[int],
    reasoning_tokens: Sequence[int],
    families: Mapping[str, Sequence[Any] | None] | None = None,
    weight_versions: Sequence[Any] | None = None,
    decode_latencies: Mapping[int, float] | None = None,
) -> tuple[bytes, list[bytes]]:
    """(header, data_cols) of one step, for `Server.push_decode_result_batch`.

    `pack` is the caller's own `codec.make_packer()`. `output_ids[i]` are the new ids of row `i`.
    `families` maps `output_token_logprobs_val` and its like
    to one cell a row; a family nobody asked for is left out. `decode_latencies` maps a finished
    unary row to seconds. Raises AssertionError where a column breaks the contract.
    """
    n = len(rids)
    header: list[Any] = [
        list(rids),
        list(finish_reasons),
        list(prompt_tokens),
        list(map(len, output_ids)),
        list(cached_tokens),
        list(reasoning_tokens),
    ]
    data = [array("q", chain.from_iterable(output_ids)).tobytes()]
    with_extras = families is not None and any(families.values())
    if families is not None and with_extras:
        _append_extras(header, data, n, families)
    latencies: list[float | None] = []
    if decode_latencies:
        latencies = [None] * n
        for row, seconds in decode_latencies.items():
            latencies[row] = seconds
    # Media counts (three columns) stay empty: no engine here takes media.
    trailing: list[Any] = [list(weight_versions or []), [], [], [], latencies]
    while trailing and not trailing[-1]:
        trailing.pop()
    if trailing:
        if not with_extras:
            header += [[]] * N_EXTRAS_COLUMNS
        header += trailing
    return pack(header), data


def _append_extras(
    header: list[Any], data: list[bytes], n: int, families: Mapping[str, Sequence[Any] | None]
) -> None:
    packers: list[FlatPairColumns | RaggedPairColumns | NestedRowColumns] = []
    for k, name in enumerate(FAMILIES):
        vals, idxs = families.get(f"{name}_val"), families.get(f"{name}_idx")
        if k < 2:
            packers.append(FlatPairColumns(name, vals, idxs, first_none_to_nan=k == 1))
        else:
            packers.append(RaggedPairColumns(name, vals, idxs))
    packers.append(NestedRowColumns(HIDDEN, families.get(HIDDEN)))
    for packer in packers:
        wanted = False
        for name, column in packer.columns():
            size = len(column) if column else 0
            _require(size in (0, n), f"extras column {name}: {size} entries for a batch of {n}")
            wanted = wanted or size > 0
        if wanted:
            for row in range(n):
                packer.accept(row)
        # A family nobody asked for keeps its place with empty columns.
        header += packer.header_cols()
        data += packer.data_cols()


def pack_queue_abort(
    pack: Callable[[Any], bytes],
    rid: str,
    finish_reason: dict[str, Any],
    prompt_tokens: int,
    cached_tokens: int = 0,
    reasoning_tokens: int = 0,
    weight_versions: Any = None,
) -> tuple[bytes, list[bytes]]:
    """(header, data_cols) of a request that ended outside the output stream, with no new token."""
    header: list[Any] = [
        [rid],
        [finish_reason],
        [prompt_tokens],
        [0],
        [cached_tokens],
        [reasoning_tokens],
    ]
    header += [[]] * N_EXTRAS_COLUMNS
    header += [[weight_versions] if weight_versions is not None else [], [], [], [], [], [True]]
    return pack(header), [b""]
