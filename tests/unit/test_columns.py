"""The frame packer: the contract's own examples, its assertions, and what it sends in all."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import pytest

from tests.frame_model import rows_of
from tpc_server.boundary import codec
from tpc_server.boundary.batch_header import decode_batch
from tpc_server.boundary.columns import (
    FlatPairColumns,
    NestedRowColumns,
    RaggedPairColumns,
    pack_frame,
    pack_queue_abort,
)

PACK = codec.make_packer()


def packed(columns: Any, n: int) -> tuple[list[list[int]], list[str]]:
    for row in range(n):
        columns.accept(row)
    return columns.header_cols(), [data.hex() for data in columns.data_cols()]


def test_flat_pair_example() -> None:
    columns = FlatPairColumns("o", [[None, -0.5, -1.0], []], [[7, 8, 9], []], True)
    assert packed(columns, 2) == (
        [[3, 0]],
        ["0000c07f000000bf000080bf", "070000000800000009000000"],
    )


def test_flat_pair_counts_missing_as_empty() -> None:
    assert packed(FlatPairColumns("o", [None, [-0.5]], [None, [4]]), 2)[0] == [[0, 1]]
    assert packed(FlatPairColumns("o", None, None), 2) == ([[0, 0]], ["", ""])


def test_flat_pair_assertions() -> None:
    columns = FlatPairColumns("o", [[-0.5]], [[4, 5]])
    with pytest.raises(AssertionError, match=r"^o: request 0 has 2 idx entries but 1 vals$"):
        columns.accept(0)
    with pytest.raises(AssertionError, match=r"^o: request 0 has 0 idx entries but 1 vals$"):
        FlatPairColumns("o", [[-0.5]], None).accept(0)
    with pytest.raises(TypeError):
        FlatPairColumns("o", [[-0.5, None]], [[4, 5]], True).accept(0)
    with pytest.raises(TypeError):
        FlatPairColumns("o", [[None]], [[4]]).accept(0)


def test_ragged_pair_example() -> None:
    columns = RaggedPairColumns("t", [[None, [-0.5, -1.5], []], None], [[None, [4, 5], []], None])
    assert packed(columns, 2) == ([[3, 0], [0, 2, 0]], ["000000bf0000c0bf", "0400000005000000"])


@pytest.mark.parametrize(
    ("vals", "idxs", "text"),
    [
        ([[[-0.5]]], [[[4, 5]]], "position 0: idx len 2 != val len 1"),
        ([[[]]], [[[4]]], "position 0: idx len 1 != val len 0"),
        ([[None]], [[[4]]], "position 0: idx len 1 != val len 0"),
        ([[[-0.5]]], [[None]], "position 0: idx len 0 != val len 1"),
        ([[[-0.5], [-0.5]]], [[[4]]], "1 idx positions but 2 val positions"),
        ([[[-0.5]]], None, "0 idx positions but 1 val positions"),
        (None, [[[4]]], "1 idx positions but 0 val positions"),
    ],
)
def test_ragged_pair_assertions(vals: Any, idxs: Any, text: str) -> None:
    columns = RaggedPairColumns("t", vals, idxs)
    with pytest.raises(AssertionError, match=text):
        columns.accept(0)
    assert columns.header_cols() == [[], []] and columns.data_cols() == [b"", b""]


def test_nested_rows_example() -> None:
    columns = NestedRowColumns("h", [[[1, 2], [3, 4]], None, [0.5, [1, 2]]])
    want = struct.pack("<7f", 1, 2, 3, 4, 0.5, 1, 2).hex()
    assert packed(columns, 3) == ([[2, 0, 2], [2, 2, 1, 2]], [want])


def test_nested_rows_flatten_at_any_depth() -> None:
    columns = NestedRowColumns("h", [[[[1.0], [[2.0]]], 3]])
    assert packed(columns, 1)[0] == [[2], [2, 1]]


def test_plain_frame_is_six_columns() -> None:
    header, data = pack_frame(
        PACK, ["a", "b"], [None, {"type": "length", "length": 4}], [3, 9], [[5, 6], []],
        [0, 0], [0, 0],
    )  # fmt: skip
    assert codec.unpack(header) == [
        ["a", "b"], [None, {"type": "length", "length": 4}], [3, 9], [2, 0], [0, 0], [0, 0],
    ]  # fmt: skip
    assert data == [struct.pack("<2q", 5, 6)]


def test_trailing_columns_are_padded_and_cut() -> None:
    header, _ = pack_frame(
        PACK, ["a"], [None], [1], [array("q", [5])], [0], [0], weight_versions=[[["v", 0, 1]]]
    )
    columns = codec.unpack(header)
    assert len(columns) == 19 and columns[6:18] == [[]] * 12
    header, _ = pack_frame(PACK, ["a"], [None], [1], [[5]], [0], [0], decode_latencies={0: 0.5})
    columns = codec.unpack(header)
    assert len(columns) == 23 and columns[18:] == [[], [], [], [], [0.5]]


def test_a_family_nobody_asked_for_keeps_its_place() -> None:
    families: dict[str, Any] = {
        "output_top_logprobs_val": [None, [[-0.5]]],
        "output_top_logprobs_idx": [None, [[4]]],
    }
    header, data = pack_frame(
        PACK, ["a", "b"], [None, None], [1, 1], [[5], [6]], [0, 0], [0, 0], families
    )
    columns = codec.unpack(header)
    assert columns[6:18] == [[], [], [0, 1], [1], [], [], [], [], [], [], [], []]
    assert len(data) == 14
    rows = rows_of(decode_batch(header, data))
    assert rows[0]["out_top"] == [] and rows[1]["out_top"] == [([-0.5], [4])]


def test_a_column_of_another_batch_size_is_refused() -> None:
    families = {"output_hidden_states": [[[1.0]]]}
    with pytest.raises(AssertionError, match="1 entries for a batch of 2"):
        pack_frame(PACK, ["a", "b"], [None, None], [1, 1], [[], []], [0, 0], [0, 0], families)


def test_queue_abort_frame() -> None:
    reason = {"type": "abort", "message": "Abort in waiting queue"}
    header, data = pack_queue_abort(PACK, "q", reason, 3, weight_versions=[["default", 0, 0]])
    assert codec.unpack(header) == [
        ["q"], [reason], [3], [0], [0], [0], *[[]] * 12, [[["default", 0, 0]]],
        [], [], [], [], [True],
    ]  # fmt: skip
    assert decode_batch(header, data).row_ended_outside(0)
