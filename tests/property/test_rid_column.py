"""The expected rid column against decoding every frame whole."""

from __future__ import annotations

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.test_stage_rid_column import frame_of, hot_list
from tpc_server.boundary import codec
from tpc_server.stages.rid_column import RidColumn
from tpc_server.stages.stream import STREAM

OPS = ("join", "join", "end", "end", "abort", "vanish", "stranger", "step", "prefill", "shuffle")
SHAPES = ("{:08x}", "{}", "\u0663{:04x}", "r" * 40 + "{:04x}")


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.lists(st.tuples(st.sampled_from(OPS), st.integers(0, 1 << 16)), max_size=60),
    st.booleans(),
)
def test_every_step_reads_the_same(shape, ops, strange_packing):
    hot: dict[str, list] = {}
    running: list[str] = []
    column = RidColumn(hot.get)
    serial = 0
    for op, number in ops:
        new: list[str] = []
        finishing: set[str] = set()
        if op in ("join", "stranger"):
            for _ in range(1 + number % 3):
                serial += 1
                new.append(shape.format(serial))
            running += new
        elif op == "end" and running:
            finishing = {running[number % len(running)], running[number // 7 % len(running)]}
        elif op == "abort" and running:  # here, while the scheduler still runs it
            gone = hot.pop(running[number % len(running)], None)
            if gone is not None:
                gone[STREAM] = None
                column.left()
        elif op == "vanish" and running:
            rid = running.pop(number % len(running))
            gone = hot.pop(rid, None)
            if gone is not None:
                gone[STREAM] = None
                column.left()
        elif op == "shuffle" and running:
            running = running[number % len(running) :] + running[: number % len(running)]
        late = number % 5 == 0  # the frame comes before its stream is known here
        if op == "join" and not late:
            for rid in new:
                column.entered(rid)
                hot[rid] = hot_list()
        rids = new if op == "prefill" else list(running)
        frame = frame_of(rids, finishing, strange_packing and number % 11 == 0)
        found = column.find(frame)
        if found is None:
            found = codec.unpack(frame)
            rows = column.learn(frame, found[0], found[1])
        else:
            rows = column.rows
        assert found == msgpack.unpackb(frame)
        assert len(rows) == len(rids)
        for row, rid in zip(rows, rids, strict=True):
            assert row is hot.get(rid), rid
        if finishing:
            column.ends(found[0], found[1])
        for rid in finishing:
            running.remove(rid)
            gone = hot.pop(rid, None)
            if gone is not None:
                gone[STREAM] = None
                column.left()
        if op == "join" and late:
            for rid in new:
                column.entered(rid)
                hot[rid] = hot_list()
