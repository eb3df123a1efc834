"""The chunk sizes of one chunked body, as announced. Owner: the core that owns the connection.

llhttp reads the body and judges its framing, but tells no chunk's size: a chunk of a gigabyte
would be noticed only when too much of it had come. What is scanned here was accepted by llhttp.
"""

from __future__ import annotations

import re

_HEX = re.compile(rb"[0-9A-Fa-f]*")


class Chunks:
    """Follows one body; also keeps the head's `headers` apart from the trailers."""

    __slots__ = ("_free", "_line", "_lost", "_skip", "framing_bytes", "headers", "wire_bytes")

    def __init__(self, max_body_bytes: int, headers: dict[bytes, bytes]) -> None:
        self.headers = headers
        self.wire_bytes = -1  # read since the head's end, not counting before the first scan
        self.framing_bytes = 0  # that these many chunks may take
        self._free = max_body_bytes
        self._skip = 0  # of the present chunk, with its line end
        self._line = b""  # a size line that is not whole
        self._lost = False

    def scan(self, data: bytes, at: int) -> bool:
        """Whether the chunks announced in `data[at:]` still fit; `at` -1: it is not known where
        the body starts, and nothing more is said."""
        if at < 0:
            self._lost = True
        end = len(data)
        while at < end and not self._lost:
            if self._skip:
                step = min(self._skip, end - at)
                at += step
                self._skip -= step
                continue
            stop = data.find(b"\n", at)
            line = (self._line + data[at : stop if stop >= 0 else end]).lstrip(b"0")[:20]
            if stop < 0:
                self._line = line
                break
            self._line = b""
            at = stop + 1
            digits = _HEX.match(line)
            size = int(digits[0], 16) if digits and digits[0] else 0
            if size > self._free:
                return False
            self._lost = not size  # the trailers follow
            self._free -= size
            self._skip = size + 2
        return True
