"""Logprob families and hidden states of one frame. Owner: the core that detokenizes the frame.

The twelve extras columns only count elements; the values lie in the frame's data behind the token
ids. Counts are checked when the frame is decoded, values are read when a row asks for them.
Standard library only.
"""

from __future__ import annotations

from itertools import accumulate
from math import isfinite
from typing import Any

__all__ = ["IN_IDS", "IN_TOP", "OUT_IDS", "OUT_TOP", "Extras", "build_extras", "finite"]

# Ragged families, as `ragged(family, row)` takes them.
OUT_TOP = 0
IN_TOP = 1
OUT_IDS = 2
IN_IDS = 3

_ITEM_BYTES = 4
_FIRST = 6  # the extras columns are 6 to 17 of the header
_LAST = 18

# One pair of values and their token ids: logprob (None where it is not finite) and id.
Pair = tuple[list[float | None], list[int]]


class Extras:
    """The optional families of a frame, row by row.

    flat_out(i), flat_in(i)  -> (logprobs, ids) of output and prompt tokens
    ragged(family, i)        -> one entry a position: None or (logprobs, ids)
    hidden(i)                -> one view of floats a position, as they came
    """

    __slots__ = ("_flat", "_hidden", "_nested")

    def __init__(self, flat: list[Any], nested: list[Any], hidden: Any) -> None:
        self._flat = flat
        self._nested = nested
        self._hidden = hidden

    def flat_out(self, i: int) -> Pair:
        return self._flat[0].row(i)  # type: ignore[no-any-return]

    def flat_in(self, i: int) -> Pair:
        return self._flat[1].row(i)  # type: ignore[no-any-return]

    def ragged(self, family: int, i: int) -> list[Pair | None]:
        return self._nested[family].row(i)  # type: ignore[no-any-return]

    def hidden(self, i: int) -> list[memoryview]:
        return self._hidden.rows(i)  # type: ignore[no-any-return]

    def row_logprobs(
        self, i: int
    ) -> tuple[
        Pair,
        Pair,
        list[Pair | None],
        list[Pair | None],
        list[Pair | None],
        list[Pair | None],
    ]:
        """All six families of row `i` in column order: output, input, output top, input top,
        output token ids, input token ids. A family without data is empty."""
        flat, nested = self._flat, self._nested
        return (
            flat[0].row(i),
            flat[1].row(i),
            nested[OUT_TOP].row(i),
            nested[IN_TOP].row(i),
            nested[OUT_IDS].row(i),
            nested[IN_IDS].row(i),
        )


class _Flat:
    """A value and an id a token."""

    __slots__ = ("_starts", "idx", "lens", "val")

    def __init__(self, lens: list[int], val: memoryview, idx: memoryview) -> None:
        self.lens = lens
        self.val = val
        self.idx = idx
        self._starts: list[int] | None = None

    def row(self, i: int) -> Pair:
        if not self.lens:
            return [], []
        starts = self._starts
        if starts is None:
            starts = self._starts = list(accumulate(self.lens, initial=0))
        start, end = starts[i], starts[i + 1]
        return finite(self.val[start:end].tolist()), self.idx[start:end].tolist()


class _Ragged:
    """Per position a list of values with ids, or nothing."""

    __slots__ = ("_elements", "_positions", "idx", "pos", "req", "val")

    def __init__(
        self, req: list[int], pos: list[int], val: memoryview, idx: memoryview | None
    ) -> None:
        self.req = req
        self.pos = pos
        self.val = val
        self.idx = idx
        self._positions: list[int] | None = None
        self._elements: list[int] = []

    def _span(self, i: int) -> tuple[int, int]:
        positions = self._positions
        if positions is None:
            positions = self._positions = list(accumulate(self.req, initial=0))
            self._elements = list(accumulate(self.pos, initial=0))
        return positions[i], positions[i + 1]

    def row(self, i: int) -> list[Pair | None]:
        if not self.req or self.idx is None:
            return []
        first, last = self._span(i)
        out: list[Pair | None] = []
        for position in range(first, last):
            start, end = self._elements[position], self._elements[position + 1]
            if start == end:
                out.append(None)
            else:
                out.append((finite(self.val[start:end].tolist()), self.idx[start:end].tolist()))
        return out

    def rows(self, i: int) -> list[memoryview]:
        if not self.req:
            return []
        first, last = self._span(i)
        elements, val = self._elements, self.val
        return [val[elements[p] : elements[p + 1]] for p in range(first, last)]


def finite(values: list[Any]) -> list[float | None]:
    """Values with None in place of what JSON cannot say. The sum tells in one C call if any is."""
    if isfinite(sum(values)):
        return values
    return [value if isfinite(value) else None for value in values]


def build_extras(
    columns: list[Any], n: int, data: memoryview, offset: int
) -> tuple[Extras | None, int]:
    """Check the extras columns and lay views over their data.

    Returns the families (None if the frame carries no element of any) and the number of data bytes
    that the frame's columns describe in all. Raises ValueError or TypeError on counts that do not
    agree; the caller compares the byte count with the data.
    """
    extras = columns[_FIRST:_LAST] + [[]] * (_LAST - len(columns))
    if extras.count([]) == len(extras):
        return None, offset
    at = offset
    flat: list[Any] = []
    for lens in extras[:2]:
        size = _count(lens, n) * _ITEM_BYTES
        flat.append(_Flat(lens, _view(data, at, size, "f"), _view(data, at + size, size, "i")))
        at += 2 * size
    nested: list[Any] = []
    for k in range(2, 10, 2):
        req, pos = extras[k], extras[k + 1]
        size = _positions(req, pos, n) * _ITEM_BYTES
        nested.append(
            _Ragged(req, pos, _view(data, at, size, "f"), _view(data, at + size, size, "i"))
        )
        at += 2 * size
    req, pos = extras[10], extras[11]
    size = _positions(req, pos, n) * _ITEM_BYTES
    hidden = _Ragged(req, pos, _view(data, at, size, "f"), None)
    return Extras(flat, nested, hidden), at + size


def _view(data: memoryview, at: int, size: int, code: str) -> memoryview:
    if at + size > len(data):
        raise ValueError("columns describe more bytes than the data holds")
    return data[at : at + size].cast(code)  # type: ignore[call-overload,no-any-return]


def _count(lens: Any, n: int) -> int:
    """Sum of a per-request column: 0 or `n` entries, none negative."""
    if type(lens) is not list or len(lens) not in (0, n):
        raise ValueError("an extras column has neither 0 nor one entry a row")
    return _total(lens)


def _positions(req: Any, pos: Any, n: int) -> int:
    """Elements of a ragged family: `req` counts positions a row, `pos` elements a position."""
    if type(pos) is not list or _count(req, n) != len(pos):
        raise ValueError("position counts do not add up to the positions")
    return _total(pos)


def _total(counts: list[Any]) -> int:
    total = sum(counts)
    if type(total) is not int or (counts and min(counts) < 0):
        raise ValueError("a count is not a natural number")
    return total
