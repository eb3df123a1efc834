"""Our frame packer beside the released one: the same bytes for random batches."""

from __future__ import annotations

import random
from typing import Any

import pytest

from tests.sglang_wheel import load_module
from tpc_server.boundary import columns as ours

pytestmark = [pytest.mark.network, pytest.mark.timeout(360)]


@pytest.fixture(scope="module")
def theirs() -> Any:
    return load_module("sglang/srt/utils/flatten.py")


def outcome(kind: Any, n: int, *args: Any) -> Any:
    """Header and data of a column class over `n` rows, or the error it ends with."""
    columns = kind(*args)
    try:
        for row in range(n):
            columns.accept(row)
    except (AssertionError, TypeError) as error:
        return type(error)
    return columns.columns(), columns.header_cols(), columns.data_cols()


def cell(rng: random.Random, spoil: float) -> tuple[Any, Any]:
    size = rng.choice((0, 1, 1, 2, 5))
    values: Any = [rng.uniform(-30, 0) for _ in range(size)]
    indices: Any = [rng.randrange(200000) for _ in range(size)]
    if rng.random() < spoil:
        indices = indices[:-1] if indices and rng.random() < 0.5 else [*indices, 1]
    if not size and rng.random() < 0.5:
        values = None
    if not indices and rng.random() < 0.5:
        indices = None
    return values, indices


def nested(rng: random.Random, depth: int) -> Any:
    if depth == 0 or rng.random() < 0.3:
        return rng.choice((1, 0, -2.5, True, rng.uniform(-1, 1)))
    return [nested(rng, depth - 1) for _ in range(rng.randrange(4))]


@pytest.mark.parametrize("spoil", [0.0, 0.1])
def test_random_batches_pack_to_the_same_bytes(theirs: Any, spoil: float) -> None:
    rng = random.Random(int(spoil * 10) + 5)
    refused = 0
    for _ in range(400):
        n = rng.randrange(5)
        cells = [cell(rng, spoil) for _ in range(n)]
        vals, idxs = [pair[0] for pair in cells], [pair[1] for pair in cells]
        first_none = rng.random() < 0.5
        for row in vals:
            if row and rng.random() < 0.2:
                row[0 if rng.random() < 0.8 else -1] = None
        if rng.random() < 0.1:
            idxs = [] if rng.random() < 0.5 else None  # type: ignore[assignment]
        args = ("o", vals, idxs, first_none)
        want = outcome(theirs.FlatPairColumns, n, *args)
        assert outcome(ours.FlatPairColumns, n, *args) == want
        refused += isinstance(want, type)

        ragged = [[cell(rng, spoil / 3) for _ in range(rng.randrange(4))] for _ in range(n)]
        vals = [[pair[0] for pair in row] or None for row in ragged]
        idxs = [[pair[1] for pair in row] or None for row in ragged]
        if rng.random() < 0.05 and idxs and idxs[0]:
            idxs[0].append(None)
        want = outcome(theirs.RaggedPairColumns, n, "t", vals, idxs)
        assert outcome(ours.RaggedPairColumns, n, "t", vals, idxs) == want

        rows = [
            None if rng.random() < 0.2 else [nested(rng, 3) for _ in range(3)] for _ in range(n)
        ]
        want = outcome(theirs.NestedRowColumns, n, "h", rows)
        assert outcome(ours.NestedRowColumns, n, "h", rows) == want
    assert refused > 0
