"""GGUF files with metadata only, written by hand. Owner: each test."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

_CODES = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}


def gguf_bytes(pairs: Mapping[str, tuple[Any, ...]], order: str = "<", version: int = 3) -> bytes:
    """``pairs``: key -> (type, value), or (9, inner type, values) for arrays."""
    out = b"GGUF" + struct.pack(order + "IQQ", version, 0, len(pairs))
    for key, typed in pairs.items():
        out += _string(key, order) + struct.pack(order + "I", typed[0]) + _value(typed, order)
    return out


def _string(text: str, order: str) -> bytes:
    raw = text.encode()
    return struct.pack(order + "Q", len(raw)) + raw


def _value(typed: tuple[Any, ...], order: str) -> bytes:
    kind = typed[0]
    if kind == 8:
        return _string(typed[1], order)
    if kind != 9:
        return struct.pack(order + _CODES[kind], typed[1])
    inner, values = typed[1], typed[2]
    out = struct.pack(order + "IQ", inner, len(values))
    for value in values:
        out += _value((9, *value) if inner == 9 else (inner, value), order)
    return out
