"""Where a GGUF file keeps its tensors, and their float32 values. Owner: the calling thread.

The directory is read here, behind the metadata reader of `text.gguf_meta`, because the `gguf`
package builds every vocabulary string into numpy arrays first (7 s for 49 k tokens against 0.2 s);
`gguf` knows the block formats and turns them into numbers.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tpc_server.text.gguf_meta import GgufError, _Reader

from .errors import EngineError

Array = npt.NDArray[np.float32]
_MAX_DIMS = 4
_DEFAULT_ALIGNMENT = 32


class TensorInfo(NamedTuple):
    """One tensor: shape in numpy's order (GGUF's reversed), type number, absolute byte range."""

    name: str
    shape: tuple[int, ...]
    kind: int
    start: int
    n_bytes: int


class GgufFile(NamedTuple):
    """Metadata and tensor directory of one file."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def find_gguf(path: str | Path) -> Path:
    """The GGUF file that `path` names: a file, or a folder that holds exactly one.

    Raises EngineError otherwise. Of a folder's files only the first shard's name counts as several.
    """
    path = Path(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise EngineError(f"{path}: no such file or folder")
    found = sorted(p for p in path.iterdir() if p.suffix.lower() == ".gguf" and p.is_file())
    if not found:
        raise EngineError(f"{path}: the folder holds no .gguf file")
    if len(found) > 1:
        names = ", ".join(p.name for p in found)
        raise EngineError(f"{path}: the folder holds several .gguf files ({names}); name one")
    return found[0]


def read_directory(path: Path) -> GgufFile:
    """Metadata and tensor directory. Raises EngineError on anything that is not a whole file."""
    try:
        with open(path, "rb") as file:
            try:
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError:
                raise EngineError(f"{path}: the file is empty") from None
    except OSError as error:
        raise EngineError(f"{path}: {error.strerror}") from None
    with data:
        reader = _Reader(data)
        try:
            metadata = reader.pairs(None)
            if reader._order != "<":
                raise EngineError(f"{path}: big-endian GGUF files are not supported")
            tensors = _tensors(data, reader._at, metadata)
        except GgufError as error:
            raise EngineError(f"{path}: {error}") from None
        except (struct.error, IndexError, OverflowError):
            raise EngineError(f"{path}: cut short ({len(data)} bytes); is it complete?") from None
        for tensor in tensors.values():
            if tensor.start + tensor.n_bytes > len(data):
                raise EngineError(
                    f"{path}: cut short: tensor {tensor.name} ends at byte "
                    f"{tensor.start + tensor.n_bytes}, the file has {len(data)}"
                )
    return GgufFile(path, metadata, tensors)


def _tensors(data: mmap.mmap, at: int, metadata: dict[str, Any]) -> dict[str, TensorInfo]:
    import gguf

    raw: list[tuple[str, tuple[int, ...], int, int]] = []
    (count,) = struct.unpack_from("<Q", data, 8)
    if count > len(data):
        raise IndexError
    for _ in range(count):
        (size,) = struct.unpack_from("<Q", data, at)
        name = data[at + 8 : at + 8 + size].decode("utf-8", "replace")
        at += 8 + size
        (n_dims,) = struct.unpack_from("<I", data, at)
        if n_dims > _MAX_DIMS:
            raise IndexError
        dims = struct.unpack_from(f"<{n_dims}Q", data, at + 4)
        at += 4 + 8 * n_dims
        kind, offset = struct.unpack_from("<IQ", data, at)
        at += 12
        raw.append((name, tuple(reversed(dims)), kind, offset))
    alignment = int(metadata.get("general.alignment", _DEFAULT_ALIGNMENT))
    base = -(-at // alignment) * alignment
    found: dict[str, TensorInfo] = {}
    for name, shape, kind, offset in raw:
        n_values = 1
        for size in shape:
            n_values *= size
        block, block_bytes = _block_size(gguf, name, kind)
        if n_values % block:
            raise EngineError(f"tensor {name}: {n_values} values are no whole blocks of {block}")
        found[name] = TensorInfo(name, shape, kind, base + offset, n_values // block * block_bytes)
    return found


def _block_size(gguf: Any, name: str, kind: int) -> tuple[int, int]:
    """(values, bytes) of one block of this type."""
    try:
        sizes = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]
    except (KeyError, ValueError):
        raise EngineError(f"tensor {name}: block type {kind} is not known here") from None
    return int(sizes[0]), int(sizes[1])


def tensor_values(file: GgufFile, name: str) -> Array:
    """One tensor as float32, in numpy's shape. Raises EngineError where `gguf` cannot read it."""
    import gguf

    info = file.tensors[name]
    kind = gguf.GGMLQuantizationType(info.kind)
    raw = np.fromfile(file.path, np.uint8, info.n_bytes, offset=info.start)
    if len(raw) != info.n_bytes:
        raise EngineError(f"{file.path}: cut short inside tensor {name}")
    rows = info.shape[0] if len(info.shape) > 1 else 1
    try:
        values = gguf.quants.dequantize(raw.reshape(rows, -1), kind)
    except NotImplementedError:
        raise EngineError(
            f"tensor {name}: {kind.name} cannot be turned into numbers here"
        ) from None
    return np.ascontiguousarray(values, np.float32).reshape(info.shape)
