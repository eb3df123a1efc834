"""What is decoded of the next step's rids: the newcomers alone."""

from __future__ import annotations

import msgpack
import pytest

from tpc_server.boundary import codec
from tpc_server.stages.rid_column import RidColumn
from tpc_server.stages.stream import STREAM

DONE = {"type": "length", "length": 1}


def hot_list():
    return [0, 0, (), 0, b"", None, None, object()]


def frame_of(rids, finishing=(), long_form=False):
    """A header of six columns; `long_form`: rids packed longer than they need be."""
    n = len(rids)
    columns = [rids, [DONE if rid in finishing else None for rid in rids]]
    columns += [[7] * n, [1] * n, [0] * n, [0] * n]
    packed = msgpack.packb(columns)
    if long_form and n and len(rids[0].encode()) < 32:
        raw = rids[0].encode()
        packed = packed.replace(msgpack.packb(rids[0]), b"\xd9" + bytes([len(raw)]) + raw, 1)
    return packed


class Steps:
    """A column, and how much of each frame was decoded."""

    def __init__(self, monkeypatch):
        self.hot = {}
        self.column = RidColumn(self.hot.get)
        self.decoded = []

        def unpack(data):
            value = real(data)
            self.decoded.append(sum(type(each) is str for each in value))
            return value

        real = codec.unpack
        monkeypatch.setattr(codec, "unpack", unpack)

    def enter(self, *rids):
        for rid in rids:
            self.column.entered(rid)
            self.hot[rid] = hot_list()

    def leave(self, rid):
        self.hot.pop(rid)[STREAM] = None
        self.column.left()

    def step(self, rids, finishing=(), long_form=False):
        """Whether it came as expected."""
        frame = frame_of(rids, finishing, long_form)
        self.decoded.clear()
        found = self.column.find(frame)
        hit = found is not None
        if found is None:
            found = msgpack.unpackb(frame)
            rows = self.column.learn(frame, found[0], found[1])
        else:
            rows = self.column.rows
        assert found == msgpack.unpackb(frame)
        assert all(row is self.hot.get(rid) for row, rid in zip(rows, rids, strict=True))
        if finishing:
            self.column.ends(found[0], found[1])
        for rid in finishing:
            if rid in self.hot:
                self.leave(rid)
        return hit


@pytest.fixture
def steps(monkeypatch):
    return Steps(monkeypatch)


def test_the_same_rids_are_not_decoded_again(steps):
    steps.enter("a1", "a2")
    assert not steps.step(["a1", "a2"])
    assert steps.step(["a1", "a2"])
    assert steps.decoded == [0]


def test_who_ended_is_not_expected_and_who_joins_is_looked_up_alone(steps):
    steps.enter("a1", "a2", "a3")
    steps.step(["a1", "a2", "a3"], finishing=["a1", "a3"])
    steps.enter("a4")
    assert steps.step(["a2", "a4"])
    assert steps.decoded == [1]
    assert steps.column.rows == [steps.hot["a2"], steps.hot["a4"]]


def test_another_core_s_requests_end_by_their_rows_too(steps):
    steps.enter("a1")
    steps.step(["b1", "a1", "b2"], finishing=["b1"])
    assert steps.step(["a1", "b2"])


def test_a_step_of_newcomers_alone_does_not_cost_the_others_theirs(steps):
    old = [f"a{k}" for k in range(1, 9)]
    steps.enter(*old)
    steps.step(old)
    steps.enter("b1")
    assert not steps.step(["b1"])
    assert steps.step([*old, "b1"])
    assert steps.decoded == [1]


def test_a_running_set_that_shrank_at_once_is_learned_anew(steps):
    old = [f"a{k}" for k in range(1, 9)]
    steps.enter(*old)
    steps.step(old)
    assert not steps.step(["a1"])
    assert not steps.step(["a1"])
    assert steps.step(["a1"])


def test_who_ends_in_a_step_of_its_own_is_no_matter_for_the_others(steps):
    steps.enter("a1", "a2", "a3", "b1")
    steps.step(["a1", "a2", "a3"])
    assert not steps.step(["b1"], finishing=["b1"])
    assert steps.step(["a1", "a2", "a3"])


def test_one_that_was_aborted_here_is_a_stranger_from_then_on(steps):
    steps.enter("a1", "a2")
    steps.step(["a1", "a2"])
    steps.leave("a1")
    assert not steps.step(["a1", "a2"])
    assert steps.column.rows == [None, steps.hot["a2"]]


def test_a_row_before_its_stream_is_known(steps):
    steps.enter("a1")
    steps.step(["a1", "a2"])
    steps.enter("a2")
    assert not steps.step(["a1", "a2"])
    assert steps.step(["a1", "a2"])


def test_rids_of_many_lengths_are_read_all_the_same(steps):
    steps.enter("a", "long one", "\u0663")
    steps.step(["a", "long one", "\u0663"])
    assert steps.step(["a", "long one", "\u0663"], finishing=["long one"])
    assert not steps.step(["a", "\u0663"])
    assert steps.step(["a", "\u0663"])


def test_rids_that_are_packed_otherwise_are_always_decoded(steps):
    steps.enter("a1", "a2")
    steps.step(["a1", "a2"], long_form=True)
    assert not steps.step(["a1", "a2"], long_form=True)


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"\x96",
        b"\x00" * 20,
        b"\xc1" * 20,
        b"\xdc\x00\x06\xdd\xff\xff\xff\xff\xa2a1",
        b"\x96\x92",
    ],
)
def test_what_is_no_header_is_not_found(steps, header):
    steps.enter("a1")
    steps.step(["a1"])
    assert steps.column.find(header) is None


def test_a_header_cut_after_the_known_rids_is_left_to_the_decoder(steps):
    steps.enter("a1", "a2")
    steps.step(["a1", "a2"])
    frame = frame_of(["a1", "a2", "a3"])
    for cut in range(len(frame)):
        assert steps.column.find(frame[:cut]) is None
    assert steps.step(["a1", "a2", "a3"])
