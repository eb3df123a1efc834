"""Hidden states as JSON. Owner: the detok core that has the `Texts`.

A step may bring hundreds of megabytes of them, and a number is worth many times as much memory as
an object as in the frame: only a slice is ever there as objects. Most models compute in bfloat16,
so that most numbers are one of 65,536: their texts are kept, which is several times as fast as to
make them. Standard library only.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Final

from ..boundary.extras import finite
from . import native

_SLICE: Final = 8192  # numbers


class Texts(dict[int, bytes]):
    """JSON of the bfloat16 numbers that came so far, by their bits."""

    __slots__ = ()

    def __missing__(self, bits: int) -> bytes:
        (value,) = struct.unpack("<f", (bits << 16).to_bytes(4, "little"))
        text = self[bits] = repr(value).encode() if isfinite(value) else b"null"
        return text


def add(
    out: bytearray, positions: Sequence[memoryview], texts: Texts, beat: Callable[[], None]
) -> None:
    """Append one array a position, with commas between them and behind what is there.

    It may take a minute, where all numbers differ: `beat` says meanwhile that the core lives.
    """
    for values in positions:
        out += b",[" if out else b"["
        halves = values.cast("B").cast("H")  # the lower one first
        for at in range(0, len(values), _SLICE):
            if at:
                out += b","
            beat()
            part = halves[2 * at : 2 * (at + _SLICE)]
            if any(part[::2].tolist()):
                out += native.to_json(finite(values[at : at + _SLICE].tolist()))[1:-1]
            else:
                out += b",".join(map(texts.__getitem__, part[1::2].tolist()))
        out += b"]"
