"""The rids of the last step, kept packed. Owner: the detok core.

The next step names nearly the same requests: those that ended in between are gone, and those that
joined come last. What is expected of its rid column is therefore known as bytes; where it is
found, only the rids of newcomers are decoded and looked up. Decoding and looking up all of them
costs about half a microsecond a row. Nothing is assumed: other bytes are decoded as any frame's.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import compress
from typing import Any

from ..boundary import codec
from ..boundary.batch_header import N_COLUMNS, N_CORE
from .stream import STREAM


class RidColumn:
    """Rids, their packed bytes, and the hot list of each one's stream (None: of another core).

    `rids` and `rows` are in the order of the last frame that was learned or found. `rids` is
    changed in the next `find`, so that whoever has that frame may keep it until then; `rows` is
    another list whenever the requests are others (the recorder of metrics goes by that).
    """

    __slots__ = (
        "_ended", "_find", "_left", "_pack", "_packed", "_size", "_spared", "_strangers", "_width",
        "rids", "rows",
    )  # fmt: skip

    def __init__(self, find: Callable[[str], Any]) -> None:
        """`find` gives the hot list of a wire rid, or None."""
        self._find = find
        self._pack = codec.make_packer()
        self._spared = False
        self.forget()

    def forget(self) -> None:
        """The next frame is decoded whole."""
        self.rids: list[str] = []
        self.rows: list[Any] = []
        self._packed = bytearray()
        self._size = 0  # characters of each rid
        self._width = 0  # its bytes when packed; 0: they differ
        self._ended: list[Any] = []  # finish reasons of the last frame: objects with keys, or None
        self._left = 0  # streams of ours that ended since
        self._strangers = 0  # rows that are None

    def entered(self, rid: str) -> None:
        """A stream is live: where its rid is listed as somebody else's, that is wrong now."""
        if self._strangers and rid in self.rids:
            self.forget()

    def left(self) -> None:
        """A stream of ours has ended, by a row of the last frame or otherwise."""
        self._left += 1

    def ends(self, rids: list[str], finish_reasons: list[Any]) -> None:
        """The frame that was learned or found last ends some of its requests."""
        if rids is self.rids:
            self._ended = finish_reasons

    def find(self, header: bytes) -> list[Any] | None:
        """The columns of a header whose rids are as expected, or None: decode it.

        The first one is `rids` itself.
        """
        if self._ended or self._left:
            self._drop()
        known = len(self.rids)
        count, rows, at = _start(header)
        fresh = rows - known
        if not known or not 0 <= fresh <= len(header) or not header.startswith(self._packed, at):
            return None
        at += len(self._packed)
        if fresh:
            return self._extend(header, at, fresh, count)
        rest = b"\xdc%b%b" % ((count - 1).to_bytes(2), header[at:])
        try:
            columns: list[Any] = codec.unpack(rest)
        except Exception:  # each library has its own; decoding it whole says what is wrong
            return None
        self._spared = False
        return [self.rids, *columns]

    def learn(self, header: bytes, rids: list[str], finish_reasons: list[Any]) -> list[Any]:
        """The hot lists of a frame that was decoded; the next one is expected to be like it."""
        rows = list(map(self._find, rids))
        if None not in finish_reasons:  # nothing of it goes on
            return rows
        # A step that prefills names newcomers alone; the one after it names all of them.
        if 2 * len(rids) < len(self.rids) and not self._spared:
            self._spared = True
            return rows
        self.forget()
        self._spared = False
        _, n, at = _start(header)
        packed = b"".join(map(self._pack, rids))
        if n != len(rids) or not header.startswith(packed, at):
            return rows  # packed in another way than ours
        self.rids, self.rows, self._packed = rids, rows, bytearray(packed)
        self._strangers = rows.count(None)
        sizes = set(map(len, rids))
        if len(sizes) == 1 and "".join(rids).isascii():
            self._size = sizes.pop()
            self._width = len(packed) // n
        return rows

    def _drop(self) -> None:
        """Those that ended are not expected any more."""
        ended, left = self._ended, self._left
        self._ended, self._left = [], 0
        rids, rows, packed, width = self.rids, self.rows, self._packed, self._width
        if not width:
            self.forget()
            return
        rows = self.rows = rows.copy()
        for row in reversed(list(compress(range(len(ended)), ended))):
            hot = rows[row]
            if hot is None:
                self._strangers -= 1
            elif hot[STREAM] is None:
                left -= 1
            del rids[row], rows[row], packed[row * width : (row + 1) * width]
        # One that ended without a row may still have rows to come, which nobody awaits.
        if left and any([hot is not None and hot[STREAM] is None for hot in rows]):
            self.forget()

    def _extend(self, header: bytes, at: int, fresh: int, count: int) -> list[Any] | None:
        """As `find`, with so many newcomers whose rids begin there."""
        rest = b"\xdd%b%b" % ((fresh + count - 1).to_bytes(4), header[at:])
        try:
            columns = codec.unpack(rest)
            new = columns[:fresh]
            packed = b"".join(map(self._pack, new))
            if not header.startswith(packed, at):
                return None
            if not "".join(new).isascii() or set(map(len, new)) != {self._size}:
                self._width = 0
        except Exception:  # the same
            return None
        self.rids += new
        found = list(map(self._find, new))
        self._strangers += found.count(None)
        self.rows = self.rows + found
        self._packed += packed
        self._spared = False
        return [self.rids, *columns[fresh:]]


def _start(header: bytes) -> tuple[int, int, int]:
    """(number of columns, number of rids, offset of the first rid) of a header.

    No rids where it is none.
    """
    if len(header) < 8:
        return 0, 0, 0
    first = header[0]
    if 0x90 + N_CORE <= first <= 0x9F:
        at, count = 1, first & 15
    elif first == 0xDC and N_CORE <= (count := header[1] << 8 | header[2]) <= N_COLUMNS:
        at = 3
    else:
        return 0, 0, 0
    tag = header[at]
    if tag & 0xF0 == 0x90:
        return count, tag & 15, at + 1
    if tag == 0xDC:
        return count, header[at + 1] << 8 | header[at + 2], at + 3
    if tag == 0xDD:
        return count, int.from_bytes(header[at + 1 : at + 5]), at + 5
    return 0, 0, 0
