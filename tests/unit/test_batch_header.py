"""The frame decoder on written examples: layouts, borders, and every way a frame can be wrong."""

from __future__ import annotations

import json
import struct
from array import array
from pathlib import Path
from typing import Any

import pytest

from tests.frame_model import read_frame, rows_of
from tpc_server.boundary import codec
from tpc_server.boundary.batch_header import Batch, MalformedFrame, decode_batch
from tpc_server.render import hidden_states

PACK = codec.make_packer()
FRAMES = Path(__file__).parents[1] / "data" / "boundary_frames.jsonl"


def plain(n: int = 2) -> list[Any]:
    """A plain frame's columns: row i emits i + 1 ids."""
    return [
        [f"r{i}" for i in range(n)],
        [None] * n,
        [3] * n,
        [i + 1 for i in range(n)],
        [0] * n,
        [0] * n,
    ]


def ids(count: int) -> bytes:
    return array("q", range(100, 100 + count)).tobytes()


def padded(columns: list[Any], **at: Any) -> list[Any]:
    """A full-length header with some columns replaced: `c18=[…]`."""
    out = columns + [[]] * (24 - len(columns))
    for key, value in at.items():
        out[int(key[1:])] = value
    return out


def decode(columns: Any, data: bytes) -> Batch:
    return decode_batch(PACK(columns), [data])


def test_the_written_example() -> None:
    header = [["a", "b"], [None, {"type": "length", "length": 4}], [3, 9], [2, 0], [0, 0], [0, 0]]
    batch = decode(header, struct.pack("<2q", 5, 6))
    assert batch.n == 2 and batch.rids == ["a", "b"] and batch.extras is None
    assert batch.row_ids(0) == [5, 6] and batch.row_ids(1) == []
    assert batch.finish_reasons[1] == {"type": "length", "length": 4}
    assert batch.prompt_tokens == [3, 9]
    assert batch.weight_versions is None and not batch.row_ended_outside(0)


def test_queue_abort_example() -> None:
    reason = {"type": "abort", "message": "Abort in waiting queue"}
    batch = decode(padded([["q"], [reason], [3], [0], [0], [0]], c23=[True]), b"")
    assert batch.row_ended_outside(0) and batch.row_ids(0) == [] and batch.extras is None


def test_recorded_frames_decode_whole_or_in_columns() -> None:
    seen = 0
    for line in FRAMES.read_text().splitlines():
        frame = json.loads(line)
        if frame["kind"] != "egress":
            continue
        seen += 1
        header = bytes.fromhex(frame["hex"])
        cols = [bytes.fromhex(col) for col in frame["cols"]]
        joined = b"".join(cols)
        want = read_frame(frame["decoded"], joined)
        for form in (
            cols,
            [joined],
            [memoryview(joined)],
            [bytearray(joined)],
            [array("B", joined)],
        ):
            assert rows_of(decode_batch(header, form)) == want
    assert seen >= 20


@pytest.mark.parametrize("n", [0, 1, 256, 4096])
def test_batch_sizes(n: int) -> None:
    columns = [[f"r{i}" for i in range(n)], [None] * n, [1] * n, [1] * n, [0] * n, [0] * n]
    batch = decode(columns, ids(n))
    assert batch.n == n and batch.ids.tolist() == list(range(100, 100 + n))


def test_ids_of_other_item_types_are_read_as_bytes() -> None:
    batch = decode_batch(PACK(plain(1)), [array("q", [7])])
    assert batch.row_ids(0) == [7]
    batch = decode_batch(PACK(plain(1)), [memoryview(array("i", [7, 0]))])
    assert batch.row_ids(0) == [7]


def test_not_a_number_is_none_everywhere() -> None:
    nan, inf = float("nan"), float("inf")
    columns = padded(plain(1), c6=[3], c7=[1], c8=[1], c9=[2], c16=[1], c17=[2])
    data = (
        ids(1)
        + struct.pack("<3f3i", nan, -0.5, -inf, 1, 2, 3)
        + struct.pack("<fi", nan, 9)
        + struct.pack("<2f2i", inf, -1.0, 4, 5)
        + struct.pack("<2f", nan, 1.5)
    )
    extras = decode(columns, data).extras
    assert extras is not None
    assert extras.flat_out(0) == ([None, -0.5, None], [1, 2, 3])
    assert extras.flat_in(0) == ([None], [9])
    assert extras.row_logprobs(0)[2] == [([None, -1.0], [4, 5])]
    (hidden,) = extras.hidden(0)
    text = bytearray()
    hidden_states.add(text, [hidden], hidden_states.Texts(), int)
    assert text == b"[null,1.5]"


def test_trailing_columns() -> None:
    columns = padded(
        plain(2),
        c18=[[["default", 0, 1]], None],
        c19=[1, 0],
        c20=[None, 2],
        c21=[0, 0],
        c22=[None, 0.25],
        c23=[False, True],
    )
    batch = decode(columns, ids(3))
    assert batch.weight_versions == [[["default", 0, 1]], None]
    assert batch.row_decode_latency(0) is None and batch.row_decode_latency(1) == 0.25
    assert batch.image_tokens == [1, 0] and batch.audio_tokens == [None, 2]
    assert batch.video_tokens == [0, 0]
    assert not batch.row_ended_outside(0) and batch.row_ended_outside(1)


def test_a_cut_header_has_its_missing_columns_empty() -> None:
    columns = padded(plain(1), c6=[1])
    data = ids(1) + struct.pack("<fi", -0.5, 7)
    for size in (7, 12, 18, 24):
        extras = decode(columns[:size], data).extras
        assert extras is not None and extras.flat_out(0) == ([-0.5], [7])


BAD: list[tuple[str, Any, bytes]] = [
    ("no array", {"a": 1}, b""),
    ("no columns", [], b""),
    ("five columns", plain()[:5], ids(3)),
    ("25 columns", [*padded(plain()), []], ids(3)),
    ("rids no array", ["r0", *plain()[1:]], ids(3)),
    ("rids null", [None, *plain()[1:]], ids(3)),
    ("a rid is a number", [["r0", 5], *plain()[1:]], ids(3)),
    ("short column", [*plain()[:2], [3], *plain()[3:]], ids(3)),
    ("long column", [*plain()[:5], [0, 0, 0]], ids(3)),
    ("column no array", [*plain()[:5], 7], ids(3)),
    ("column a string", [*plain()[:5], "ab"], ids(3)),
    ("finish reason a string", [["a", "b"], ["stop", None], *plain()[2:]], ids(3)),
    ("token count a float", [*plain()[:3], [1.0, 2], *plain()[4:]], ids(3)),
    ("token count a string", [*plain()[:3], ["1", 2], *plain()[4:]], ids(3)),
    ("token count null", [*plain()[:3], [None, 2], *plain()[4:]], ids(3)),
    ("negative token count", [*plain()[:3], [-1, 4], *plain()[4:]], ids(3)),
    ("huge token count", [*plain()[:3], [2**60, 4], *plain()[4:]], ids(3)),
    ("prompt tokens a float", [*plain()[:2], [3.5, 3], *plain()[3:]], ids(3)),
    ("cached tokens a string", [*plain()[:4], ["0", 0], [0, 0]], ids(3)),
    ("data too short", plain(), ids(3)[:-8]),
    ("data too long", plain(), ids(4)),
    ("data not whole ids", plain(), ids(3) + b"\0"),
    ("family counts but no data", padded(plain(1), c6=[1]), ids(1)),
    ("family data but no counts", padded(plain(1)), ids(1) + bytes(8)),
    ("family of another batch size", padded(plain(2), c6=[1]), ids(3) + bytes(8)),
    ("negative family count", padded(plain(2), c6=[-1, 1]), ids(3)),
    ("family count a float", padded(plain(1), c6=[1.0]), ids(1) + bytes(8)),
    ("family count a string", padded(plain(1), c6=["1"]), ids(1) + bytes(8)),
    ("family column no array", padded(plain(1), c6=1), ids(1) + bytes(8)),
    ("positions differ", padded(plain(1), c8=[2], c9=[1]), ids(1) + bytes(8)),
    ("positions without requests", padded(plain(1), c9=[1]), ids(1) + bytes(8)),
    ("requests without positions", padded(plain(1), c8=[1]), ids(1)),
    ("negative position", padded(plain(1), c8=[2], c9=[-1, 2]), ids(1) + bytes(8)),
    ("hidden positions differ", padded(plain(1), c16=[1], c17=[1, 1]), ids(1) + bytes(8)),
    ("hidden data short", padded(plain(1), c16=[1], c17=[2]), ids(1) + bytes(4)),
    ("weights of another size", padded(plain(2), c18=[None]), ids(3)),
    ("weights no array", padded(plain(1), c18=["w"]), ids(1)),
    ("weights too short", padded(plain(1), c18=[[["v", 0]]]), ids(1)),
    ("weights mistyped", padded(plain(1), c18=[[[1, 0, 1]]]), ids(1)),
    ("media count a string", padded(plain(1), c19=["1"]), ids(1)),
    ("latency a string", padded(plain(1), c22=["1"]), ids(1)),
    ("ended a number", padded(plain(1), c23=[1]), ids(1)),
    ("ended of another size", padded(plain(2), c23=[True]), ids(3)),
]  # fmt: skip


@pytest.mark.parametrize(("what", "columns", "data"), BAD, ids=[row[0] for row in BAD])
def test_malformed_frames_are_refused_whole(what: str, columns: Any, data: bytes) -> None:
    with pytest.raises(MalformedFrame) as caught:
        decode(columns, data)
    want: list[str] = []
    if isinstance(columns, list) and columns and isinstance(columns[0], list):
        want = [rid for rid in columns[0] if isinstance(rid, str)]
    assert caught.value.rids == want
    assert str(caught.value).startswith("malformed scheduler output frame")


def test_rids_are_recovered_from_a_cut_header() -> None:
    header = PACK(plain(3))
    end_of_rids = header.index(b"r2") + 2
    for cut in range(len(header)):
        with pytest.raises(MalformedFrame) as caught:
            decode_batch(header[:cut], [ids(6)])
        rids = caught.value.rids
        assert rids == ["r0", "r1", "r2"][: len(rids)]
        if cut >= end_of_rids:
            assert len(rids) == 3


@pytest.mark.parametrize("count", [3, 20, 70000])
@pytest.mark.parametrize("length", [4, 40, 300, 70000])
def test_rids_of_every_width_are_recovered(count: int, length: int) -> None:
    if count * length > 2_000_000:
        count = 3
    rids = ["x" * length] * count
    header = PACK([rids, [], [], [], [], []])[:-1]
    with pytest.raises(MalformedFrame) as caught:
        decode_batch(header, [b""])
    assert caught.value.rids == rids


def test_recovery_steps_over_a_rid_that_is_no_text() -> None:
    header = b"\x96\x93\xa1a\xa1\xff\xa1b\xc1"
    with pytest.raises(MalformedFrame) as caught:
        decode_batch(header, [b""])
    assert caught.value.rids == ["a", "b"]


def test_data_that_is_no_buffer() -> None:
    for cols in ([None], ["text"], [5], [b"", None], [[1]]):
        with pytest.raises(MalformedFrame) as caught:
            decode_batch(PACK(plain(1)), cols)
        assert caught.value.rids == ["r0"]
