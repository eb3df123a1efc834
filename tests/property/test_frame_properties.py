"""Random frames: packed and decoded they are the same; damaged they are equal or refused."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.frame_model import Invalid, read_frame, rows_of
from tpc_server.boundary import codec
from tpc_server.boundary.batch_header import MalformedFrame, decode_batch
from tpc_server.boundary.columns import pack_frame

PACK = codec.make_packer()

token = st.integers(0, 2**31 - 1)
lp = st.floats(-64, 0, width=32)


def pairs(entry: Any) -> Any:
    """A cell of (value, index) lists of equal length."""
    return st.lists(st.tuples(entry, token), max_size=3)


@st.composite
def frames(draw: Any) -> tuple[bytes, list[bytes]]:
    n = draw(st.integers(0, 4))
    rids = [f"r{k}#{draw(st.integers(0, 99))}é" for k in range(n)]
    reasons = [
        draw(st.sampled_from([None, {"type": "stop", "matched": 2}, {"type": "abort"}]))
        for _ in range(n)
    ]
    counts = [[draw(st.integers(0, 300)) for _ in range(n)] for _ in range(3)]
    ids = [draw(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3)) for _ in range(n)]
    families: dict[str, Any] = {}
    for name in ("output_token_logprobs", "input_token_logprobs"):
        if draw(st.booleans()):
            cells = [draw(pairs(lp)) for _ in range(n)]
            families[f"{name}_val"] = [[value for value, _ in cell] for cell in cells]
            families[f"{name}_idx"] = [[index for _, index in cell] for cell in cells]
            if name.startswith("input"):
                for cell in families[f"{name}_val"]:
                    if cell and draw(st.booleans()):
                        cell[0] = None
    for name in (
        "output_top_logprobs",
        "input_top_logprobs",
        "output_token_ids_logprobs",
        "input_token_ids_logprobs",
    ):
        if draw(st.booleans()):
            cells = [
                draw(st.none() | st.lists(st.none() | pairs(lp), max_size=3)) for _ in range(n)
            ]
            for part, suffix in ((0, "val"), (1, "idx")):
                families[f"{name}_{suffix}"] = [
                    None
                    if cell is None
                    else [None if at is None else [pair[part] for pair in at] for at in cell]
                    for cell in cells
                ]
    if draw(st.booleans()):
        rows = st.lists(lp | st.lists(lp, max_size=3), max_size=2)
        families["output_hidden_states"] = [draw(st.none() | rows) for _ in range(n)]
    weights = [draw(st.sampled_from([None, [["v1", 0, 3], ["v2", 3, 5]]])) for _ in range(n)]
    latencies = {k: 0.5 for k in range(n) if draw(st.booleans())}
    return pack_frame(
        PACK, rids, reasons, counts[0], ids, counts[1], counts[2], families,
        weights if draw(st.booleans()) else None, latencies,
    )  # fmt: skip


@given(frames(), st.integers(0, 20))
@settings(max_examples=80, deadline=None)
def test_packed_frames_decode_as_the_model_says(frame: tuple[bytes, list[bytes]], cut: int) -> None:
    header, data = frame
    joined = b"".join(data)
    want = read_frame(codec.unpack(header), joined)
    assert rows_of(decode_batch(header, data)) == want
    assert rows_of(decode_batch(header, [joined])) == want
    # Where the columns are split does not matter.
    assert rows_of(decode_batch(header, [joined[:cut], joined[cut:]])) == want


@given(frames(), st.integers(0, 2**32))
@settings(max_examples=80, deadline=None)
def test_damaged_frames_are_equal_or_refused(frame: tuple[bytes, list[bytes]], damage: int) -> None:
    rng = random.Random(damage)
    header, data = bytearray(frame[0]), bytearray(b"".join(frame[1]))
    for _ in range(12):
        spoilt_header, spoilt_data = bytearray(header), bytearray(data)
        for _ in range(rng.randint(1, 3)):
            spoil(rng, spoilt_header if rng.random() < 0.7 or not data else spoilt_data)
        want: Any
        try:
            columns = codec.unpack(bytes(spoilt_header))
            want = read_frame(columns, bytes(spoilt_data))
        except Exception as error:
            want = error
        try:
            found = rows_of(decode_batch(bytes(spoilt_header), [bytes(spoilt_data)]))
        except MalformedFrame as refused:
            assert isinstance(want, Exception), (bytes(spoilt_header), refused)
            continue
        assert not isinstance(want, Invalid), bytes(spoilt_header)
        assert found == want


def spoil(rng: random.Random, target: bytearray) -> None:
    kind = rng.randrange(4)
    if not target or kind == 0:
        target.insert(rng.randint(0, len(target)), rng.randrange(256))
    elif kind == 1:
        del target[rng.randrange(len(target))]
    elif kind == 2:
        target[rng.randrange(len(target))] = rng.randrange(256)
    else:
        del target[rng.randint(0, len(target)) :]


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
@seed(3)
def test_noise_is_refused(noise: bytes) -> None:
    try:
        decode_batch(noise, [b""])
    except MalformedFrame as refused:
        assert all(type(rid) is str for rid in refused.rids)
    else:  # noise may happen to be a frame of no rows
        assert codec.unpack(noise)[0] == []
