"""The key-value metadata of a GGUF file, without its tensors. Owner: the calling thread.

The file is mapped, not read: of a 100 GB model only the metadata pages are touched. A reader of our
own because a vocabulary has a few hundred thousand strings, and the ``gguf`` package makes several
numpy objects of each (seconds; this takes tenths). Standard library only.

Layout (GGUF versions 2 and 3): magic, u32 version, u64 tensor count, u64 pair count, then pairs of
string key, u32 type, value; a string is a u64 length and UTF-8 bytes; an array is a u32 type, a u64
length and its elements.
"""

from __future__ import annotations

import mmap
import struct
import sys
from array import array
from collections.abc import Container
from pathlib import Path
from typing import Any, Final

_MAGIC: Final = b"GGUF"
_BOOL: Final = 7
_STRING: Final = 8
_ARRAY: Final = 9
#: GGUF type -> struct and array code of the numbers.
_NUMBERS: Final = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    10: "Q",
    11: "q",
    12: "d",
}
#: Beyond this a count is taken for damage: it keeps a broken file from eating the memory.
_MAX_PAIRS: Final = 1 << 16
_MAX_DEPTH: Final = 4


class GgufError(ValueError):
    """The file is not a GGUF file, is cut short, or is damaged."""


def read_metadata(path: str | Path, keys: Container[str] | None = None) -> dict[str, Any]:
    """Metadata as Python values (arrays as lists); only ``keys`` when given.

    Raises ``GgufError`` naming the file, ``OSError`` when it cannot be opened.
    """
    with open(path, "rb") as file:
        try:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        except ValueError:
            raise GgufError(f"{path}: the file is empty") from None
    with data:
        try:
            return _Reader(data).pairs(keys)
        except (struct.error, IndexError, OverflowError):
            raise GgufError(
                f"{path}: the metadata is cut short ({len(data)} bytes); is the file complete?"
            ) from None
        except GgufError as error:
            raise GgufError(f"{path}: {error}") from None


class _Reader:
    """A position in the mapped bytes."""

    __slots__ = ("_at", "_data", "_order")

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = 0
        self._order = "<"

    def pairs(self, keys: Container[str] | None) -> dict[str, Any]:
        if self._take(4) != _MAGIC:
            raise GgufError("not a GGUF file (its first bytes are not 'GGUF')")
        version = int(self._number("I"))
        if version & 0xFFFF == 0 and version:
            self._order = ">"
            version = int.from_bytes(version.to_bytes(4, "little"), "big")
        if version not in (2, 3):
            raise GgufError(f"GGUF version {version} is not known here (2 and 3 are)")
        self._number("Q")  # tensors
        count = int(self._number("Q"))
        if count > _MAX_PAIRS:
            raise GgufError(f"{count} metadata pairs; the file is damaged")
        found: dict[str, Any] = {}
        for _ in range(count):
            key = self._string()
            value = self._value(int(self._number("I")), keys is None or key in keys, 0)
            if keys is None or key in keys:
                found[key] = value
        return found

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise IndexError
        raw = self._data[self._at : end]
        self._at = end
        return raw

    def _number(self, code: str) -> int | float:
        number: int | float = struct.unpack_from(self._order + code, self._data, self._at)[0]
        self._at += struct.calcsize("=" + code)
        return number

    def _string(self) -> str:
        raw = self._take(int(self._number("Q")))
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise GgufError(f"a string is not UTF-8: {raw[:40]!r}") from None

    def _value(self, kind: int, wanted: bool, depth: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _BOOL:
            return bool(self._number("B"))
        if kind != _ARRAY:
            return self._number(self._code(kind))
        if depth > _MAX_DEPTH:
            raise GgufError("arrays nested too deep; the file is damaged")
        inner = int(self._number("I"))
        count = int(self._number("Q"))
        if inner == _STRING:
            return self._strings(count, wanted)
        if inner == _ARRAY:
            return [self._value(inner, wanted, depth + 1) for _ in range(self._bounded(count))]
        return self._numbers(inner, count, wanted)

    def _strings(self, count: int, wanted: bool) -> list[str]:
        data = self._data
        order = "little" if self._order == "<" else "big"
        at = self._at
        strings: list[str] = []
        for _ in range(self._bounded(count)):
            start = at + 8
            head = data[at:start]
            at = start + int.from_bytes(head, "little" if order == "little" else "big")
            if len(head) < 8 or at > len(data):
                raise IndexError
            if wanted:
                try:
                    strings.append(data[start:at].decode())
                except UnicodeDecodeError:
                    raise GgufError(f"a string is not UTF-8: {data[start:at][:40]!r}") from None
        self._at = at
        return strings

    def _numbers(self, kind: int, count: int, wanted: bool) -> list[Any]:
        code = "B" if kind == _BOOL else self._code(kind)
        raw = self._take(self._bounded(count) * struct.calcsize("=" + code))
        if not wanted:
            return []
        numbers = array(code)
        numbers.frombytes(raw)
        if (self._order == "<") != (sys.byteorder == "little"):
            numbers.byteswap()
        return [bool(n) for n in numbers] if kind == _BOOL else numbers.tolist()

    def _bounded(self, count: int) -> int:
        """A count that the rest of the file can hold (an element takes a byte or more)."""
        if count > len(self._data) - self._at:
            raise IndexError
        return count

    @staticmethod
    def _code(kind: int) -> str:
        code = _NUMBERS.get(kind)
        if code is None:
            raise GgufError(f"value type {kind} is not known; the file is damaged")
        return code
