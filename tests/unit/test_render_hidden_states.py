"""Hidden states as JSON: the same text whether a number's was kept or is made."""

from __future__ import annotations

import math
import struct
from array import array

import pytest

from tpc_server.boundary.extras import finite
from tpc_server.render import hidden_states, native


def rendered(*positions: array[float], texts: hidden_states.Texts | None = None) -> bytes:
    out = bytearray()
    kept = hidden_states.Texts() if texts is None else texts
    hidden_states.add(out, [memoryview(values) for values in positions], kept, int)
    return bytes(out)


def plainly(*positions: array[float]) -> bytes:
    return native.to_json([finite(values.tolist()) for values in positions])[1:-1]


def test_every_number_of_bfloat16():
    """Infinities and what is no number are null; both zeros are themselves."""
    bits = b"".join(struct.pack("<I", upper << 16) for upper in range(1 << 16))
    values = array("f", bits)
    texts = hidden_states.Texts()
    assert rendered(values, texts=texts) == plainly(values)
    assert len(texts) == 1 << 16
    assert rendered(values, texts=texts) == plainly(values)  # now out of the table


@pytest.mark.parametrize("count", [0, 1, 8191, 8192, 8193, 20000])
def test_slices_join_and_numbers_of_all_kinds_mix(count):
    values = array("f", [0.5] * count)
    if count > 8192:
        values[8192] = 0.1  # no bfloat16: its slice is made number by number
        values[3] = math.nan
    assert rendered(values) == plainly(values)


def test_positions_follow_what_is_there():
    one, none, three = array("f", [1.5]), array("f"), array("f", [0.1, -0.0, math.inf])
    assert rendered(one, none, three) == b"[1.5],[],[0.10000000149011612,-0.0,null]"
    out = bytearray(b"[2.0]")
    hidden_states.add(out, [memoryview(one)], hidden_states.Texts(), int)
    hidden_states.add(out, [], hidden_states.Texts(), int)
    assert out == b"[2.0],[1.5]"


def test_the_core_lives_meanwhile():
    beats: list[None] = []
    values = memoryview(array("f", [0.1] * 100_000))
    hidden_states.add(
        bytearray(), [values, values], hidden_states.Texts(), lambda: beats.append(None)
    )
    assert len(beats) == 2 * 13  # one for so many numbers as take some milliseconds
