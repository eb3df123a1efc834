"""Compressed request bodies, taken apart in slices. Owner: one body's core.

A small body may stand for a huge one: the limit holds for what comes out, and nothing takes
longer at a time than a slice.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator
from typing import Any, Final

from .body import Pieces, gathered
from .contract.errors import BadRequest

SLICE_BYTES: Final = 256 << 10
_PIECE_BYTES: Final = 64 << 10
_STEP_BYTES: Final = 1024  # what one call costs, in bytes of output
_MOST_STREAMS: Final = 1024  # joined in one body
_GZIP: Final = 16 + zlib.MAX_WBITS
_RAW: Final = -zlib.MAX_WBITS
_MIN_WINDOW_LOG: Final = 23  # what every decoder of zstd should allow (RFC 8878)


class Inflater:
    """One body in one coding."""

    __slots__ = ("_coding", "_free", "_inputs", "_limit", "_pieces", "_stream", "_streams",
                 "_tail")  # fmt: skip

    def __init__(self, coding: str, body: Any, limit: int) -> None:
        """`coding` is gzip, deflate or zstd, as `coding_of` returns it."""
        self._coding = coding
        self._limit = limit
        self._free = limit
        self._pieces: list[bytes] = []
        # In small pieces, because what a stream does not use it copies.
        self._inputs = _cut(body)
        self._tail = b""  # taken out of the inputs, not yet out of the stream
        while len(self._tail) < 2 and (more := next(self._inputs, b"")):
            self._tail += more  # what names the format
        self._streams = 0
        self._stream = self._next_stream()

    def step(self, budget: int = SLICE_BYTES) -> bool:
        """Take apart about `budget` bytes; whether that was all. Raises BadRequest."""
        while budget > 0:
            if not self._tail:
                self._tail = next(self._inputs, b"")
            fed = len(self._tail)
            stream = self._stream
            try:
                piece = stream.decompress(self._tail, _PIECE_BYTES)
            except Exception:  # each library has its own
                raise self._malformed() from None
            # zstd's keeps to itself what it has not used.
            self._tail = b"" if self._coding == "zstd" else stream.unconsumed_tail
            self._free -= len(piece)
            if self._free < 0:
                raise BadRequest(
                    f"request body is larger than {self._limit} bytes once decompressed", 413
                )
            if piece:
                self._pieces.append(piece)
            budget -= len(piece) + _STEP_BYTES
            if stream.eof:
                self._tail = stream.unused_data or next(self._inputs, b"")
                if not self._tail:
                    return True
                if self._coding == "deflate":
                    raise self._malformed()
                self._stream = self._next_stream()  # the other formats may be joined
            elif not fed and not piece and (self._coding != "zstd" or stream.needs_input):
                raise self._malformed()  # cut off
        return False

    def body(self) -> Any:
        """All of it."""
        return gathered(self._pieces, self._limit - self._free)

    def _malformed(self) -> BadRequest:
        return BadRequest(f"the request body is not valid {self._coding}")

    def _next_stream(self) -> Any:
        self._streams += 1
        if self._streams > _MOST_STREAMS:
            raise self._malformed()
        if self._coding == "zstd":
            return _zstd_stream(self._limit)
        if self._coding == "gzip":
            return zlib.decompressobj(_GZIP)
        # The name means zlib's format; some clients send it bare.
        head = self._tail[:2]
        wrapped = len(head) == 2 and head[0] & 15 == 8 and int.from_bytes(head, "big") % 31 == 0
        return zlib.decompressobj(zlib.MAX_WBITS if wrapped else _RAW)


def _cut(body: Any) -> Iterator[bytes]:
    for piece in body.pieces if type(body) is Pieces else (body,):
        if len(piece) <= _PIECE_BYTES:
            yield piece
            continue
        view = memoryview(piece)
        for at in range(0, len(piece), _PIECE_BYTES):
            yield bytes(view[at : at + _PIECE_BYTES])


def coding_of(encoding: bytes | None, sglang: bytes | None) -> str:
    """What `Content-Encoding` and `x-body-compressed` ask for; "" is nothing. Raises BadRequest."""
    names = [name for name in (_name(encoding), _name(sglang)) if name not in ("", "identity")]
    if len(set(names)) > 1:
        raise BadRequest("Content-Encoding and x-body-compressed name different codings")
    if not names:
        return ""
    coding = {"x-gzip": "gzip"}.get(names[0], names[0])
    if coding not in ("gzip", "deflate", "zstd"):
        raise BadRequest(f"cannot decompress {coding!r}: send {supported()}", 415)
    if coding == "zstd" and zstd_module() is None:
        raise BadRequest(
            f"cannot decompress 'zstd' on this server (backports.zstd is not installed): send"
            f" {supported()}",
            415,
        )
    return coding


def _name(value: bytes | None) -> str:
    return "" if value is None else value.decode("latin-1").strip().lower()[:64]


def supported() -> str:
    """The codings this server takes, as `Accept-Encoding` lists them."""
    return "gzip, deflate" + (", zstd" if zstd_module() is not None else "")


def zstd_module() -> Any:
    """Python 3.14's module or its backport; None without."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return importlib.import_module(name)
        except ImportError:
            pass
    return None


def _zstd_stream(limit: int) -> Any:
    zstd = zstd_module()
    # A window is memory: none is needed beyond the largest body.
    window_log = min(max(_MIN_WINDOW_LOG, limit.bit_length()), 30)
    return zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: window_log})
