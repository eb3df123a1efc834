"""msgpack through whichever library the build has. Owner: any thread (stateless); packers per core.

`msgpack` is preferred: on a 256-row header it is the faster of the two, and it is the one that
free-threaded 3.13 has. `msgspec` stands in where it is the only one installed (a scheduler's own
environment). Both give the same Python values for the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

try:
    import msgpack as _msgpack
except ImportError:  # a scheduler's environment may carry msgspec alone
    _msgpack = None

__all__ = ["make_packer", "unpack", "unpack_leading_strings"]


if _msgpack is not None:
    _unpackb = _msgpack.unpackb

    def unpack(data: bytes | memoryview) -> Any:
        """One msgpack value. Raises some Exception on anything malformed or left over."""
        return _unpackb(data, strict_map_key=False)

    def make_packer() -> Callable[[Any], bytes]:
        """A pack function of the caller's own (it keeps a buffer: one per thread)."""
        return _msgpack.Packer(use_bin_type=True).pack  # type: ignore[no-any-return]

else:
    try:
        import msgspec as _msgspec
    except ImportError:
        raise ImportError("tpc_server needs msgpack (or msgspec), and neither is here") from None

    def unpack(data: bytes | memoryview) -> Any:
        """One msgpack value. Raises some Exception on anything malformed or left over."""
        return _msgspec.msgpack.decode(data)

    def make_packer() -> Callable[[Any], bytes]:
        """A pack function of the caller's own (it keeps a buffer: one per thread)."""
        encode: Callable[[Any], bytes] = _msgspec.msgpack.Encoder().encode
        return encode


def unpack_leading_strings(data: bytes | memoryview) -> list[str]:
    """The strings of the array that opens an array, as far as the bytes go.

    Used to name the requests of a header that does not decode: `[["a", "b"], …` cut or broken
    anywhere gives every string read before the damage. Never raises.
    """
    view = memoryview(data).cast("B")
    pos = _array_start(view, 0)
    if pos is None:
        return []
    inner = _array_start(view, pos[1])
    if inner is None:
        return []
    out: list[str] = []
    count, at = inner
    for _ in range(count):
        span = _string_span(view, at)
        if span is None:
            break
        start, at = span
        try:
            out.append(str(view[start:at], "utf-8"))
        except UnicodeDecodeError:
            continue
    return out


def _array_start(view: memoryview, at: int) -> tuple[int, int] | None:
    """(length, offset of the first element) of the array at `at`, or None."""
    if at >= len(view):
        return None
    tag = view[at]
    if 0x90 <= tag <= 0x9F:
        return tag & 0x0F, at + 1
    width = {0xDC: 2, 0xDD: 4}.get(tag)
    if width is None or at + 1 + width > len(view):
        return None
    return int.from_bytes(view[at + 1 : at + 1 + width], "big"), at + 1 + width


def _string_span(view: memoryview, at: int) -> tuple[int, int] | None:
    """(start, end) of the bytes of the string at `at`, or None if it is not whole or no string."""
    if at >= len(view):
        return None
    tag = view[at]
    if 0xA0 <= tag <= 0xBF:
        start, size = at + 1, tag & 0x1F
    else:
        width = {0xD9: 1, 0xDA: 2, 0xDB: 4}.get(tag)
        if width is None or at + 1 + width > len(view):
            return None
        start = at + 1 + width
        size = int.from_bytes(view[at + 1 : start], "big")
    if start + size > len(view):
        return None
    return start, start + size
