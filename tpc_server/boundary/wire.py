"""Records on the rings between a scheduler and the cores. Owner: stateless, any thread.

Every record carries its kind and key (a wire rid, or empty) outside msgpack, so that a
reader can route it without decoding the payload. Standard library only: a scheduler process
on a GIL build and a subinterpreter both read and write these.
"""

from __future__ import annotations

import struct
from typing import Any, Final

Buffer = Any  # bytes-like: bytes, bytearray, memoryview, numpy array

# core -> scheduler
REQUEST: Final = 1
ABORT: Final = 2
SHARED_ABORT: Final = 3  # of a client, for other frontends of the same scheduler
# scheduler -> core
CONTROL_RESULT: Final = 1
BATCH: Final = 2
ERROR: Final = 3
HEALTH_ACK: Final = 4
FOREIGN_ABORT: Final = 5  # a SHARED_ABORT of another frontend
# core -> core (payload: see tpc_server.frame)
MESSAGE: Final = 8
# alien -> core
COMMAND: Final = 9

_HEAD: Final = struct.Struct("<IH")  # header length in bytes, number of buffers or columns
_SIZE: Final = struct.Struct("<Q")
_BUFFER: Final = struct.Struct("<BBQ")  # name length, item type, length in bytes

# Of a request with input_ids and nothing else: header length, 1, 9, INT64, bytes, b"input_ids".
# Who sends many packs it with a Struct of its own: a shared one is fought over.
USUAL_HEAD: Final = "<IHBBQ9s"
USUAL_BYTES: Final = struct.calcsize(USUAL_HEAD)
PADS: Final = tuple([bytes(n) for n in range(8)])

# An item type is the place of its name.
INT64: Final = 0
UINT8: Final = 3
_TYPE_NAMES: Final = ("int64", "float32", "int32", "uint8")


def request_parts(header: bytes, buffers: list[tuple[str, int, Buffer]]) -> list[Buffer]:
    """Parts of one REQUEST record: `buffers` are (name, item type constant, raw data)."""
    parts: list[Buffer] = [_HEAD.pack(len(header), len(buffers))]
    for name, item, data in buffers:
        raw = name.encode()
        parts.append(_BUFFER.pack(len(raw), item, memoryview(data).nbytes) + raw)
    # The data start at a multiple of 8 bytes, so that an int64 view of it is aligned.
    used = len(header) + sum(len(p) for p in parts)
    parts.append(header)
    parts.append(b"\0" * (-used % 8))
    for _, _, data in buffers:
        parts.append(data)
    return parts


def split_request(payload: bytes) -> tuple[bytes, list[tuple[str, int, int, int]]]:
    """Header and (name, item type, offset, length in bytes) of each buffer of a REQUEST."""
    header_len, count = _HEAD.unpack_from(payload, 0)
    offset = _HEAD.size
    heads: list[tuple[str, int, int]] = []
    for _ in range(count):
        name_len, item, size = _BUFFER.unpack_from(payload, offset)
        offset += _BUFFER.size
        heads.append((payload[offset : offset + name_len].decode(), item, size))
        offset += name_len
    header = payload[offset : offset + header_len]
    offset += header_len
    offset += -offset % 8
    found: list[tuple[str, int, int, int]] = []
    for name, item, size in heads:
        found.append((name, item, offset, size))
        offset += size
    return header, found


def type_name(item: int) -> str:
    """numpy's name of an item type constant."""
    return _TYPE_NAMES[item]


def frame_parts(header: Buffer, columns: list[Buffer]) -> list[Buffer]:
    """Parts of one BATCH record: lengths first, then the header, then each column's bytes."""
    sizes = b"".join([_SIZE.pack(memoryview(c).nbytes) for c in columns])
    return [_HEAD.pack(memoryview(header).nbytes, len(columns)) + sizes, header, *columns]


def split_frame(payload: bytes) -> tuple[bytes, list[memoryview]]:
    """Header and columns (views on `payload`) of a BATCH record."""
    header_len, count = _HEAD.unpack_from(payload, 0)
    offset = _HEAD.size
    sizes = struct.unpack_from(f"<{count}Q", payload, offset) if count else ()
    offset += 8 * count
    header = payload[offset : offset + header_len]
    offset += header_len
    view = memoryview(payload)
    columns: list[memoryview] = []
    for size in sizes:
        columns.append(view[offset : offset + size])
        offset += size
    return header, columns
