"""float32 weights of a model, dequantized once and mapped from a cache file. Owner: read only.

A weight matrix is kept `[inputs, outputs]`, so that `x @ w` reads it in order: with few rows that
is 1.3 to 1.8 times as fast as the file's own `[outputs, inputs]` (docs/adr/0005). Queries, keys and
values are one matrix, gate and up are one matrix: fewer, larger products. Tied embeddings are kept
twice for the same reason: rows to look up, columns to multiply.

Cache file: magic, u32 length of a JSON directory, directory, then the arrays at 4096-byte steps.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import struct
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from .errors import EngineError
from .gguf_tensors import Array, GgufFile, find_gguf, read_directory, tensor_values
from .memory import available_bytes
from .model_config import LlamaConfig

Progress = Callable[[str, float], None]

_MAGIC: Final = b"TPCW0001"
_STEP: Final = 4096
_PROBE_BYTES: Final = 1 << 20
#: Room beside the weights without which nothing can be generated (activations, a few sequences).
_WORK_BYTES: Final = 256 << 20
_LAYER_TENSORS: Final = (
    "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output",
    "ffn_norm", "ffn_gate", "ffn_up", "ffn_down",
)  # fmt: skip


class Weights:
    """Config and arrays of one model: `arrays["3.wqkv"]` is layer 3's, the others have no layer.

    embed [vocab, dim], norm [dim], head [dim, vocab], rope_factors [head_dim / 2]; per layer
    attn_norm [dim], wqkv [dim, q + 2 kv], wo [q, dim], ffn_norm [dim], gate_up [dim, 2 ffn],
    down [ffn, dim]. Heads of queries and keys are in halves order (see `_unpermute`).
    """

    __slots__ = ("arrays", "config")

    def __init__(self, config: LlamaConfig, arrays: Mapping[str, Array]) -> None:
        self.config = config
        self.arrays = arrays


def array_shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every array of a model, in the order they are kept."""
    dim, ffn = config.dim, config.ffn_dim
    shapes: dict[str, tuple[int, ...]] = {
        "embed": (config.vocab_size, dim),
        "norm": (dim,),
        "head": (dim, config.vocab_size),
        "rope_factors": (config.head_dim // 2,),
    }
    for i in range(config.n_layers):
        shapes[f"{i}.attn_norm"] = (dim,)
        shapes[f"{i}.wqkv"] = (dim, config.q_dim + 2 * config.kv_dim)
        shapes[f"{i}.wo"] = (config.q_dim, dim)
        shapes[f"{i}.ffn_norm"] = (dim,)
        shapes[f"{i}.gate_up"] = (dim, 2 * ffn)
        shapes[f"{i}.down"] = (ffn, dim)
    return shapes


def load_weights(
    path: str | Path,
    cache_dir: Path | None,
    progress: Progress,
    check: Callable[[LlamaConfig], object] | None = None,
) -> Weights:
    """The weights of the GGUF file (or folder) at `path`.

    cache_dir: None is the user's cache folder. progress(text, done 0..1) is called now and then.
    check(config) may raise before anything is converted.
    Raises EngineError for a wrong path, a file that is not whole, an architecture or a block type
    that is not supported, and a model that does not fit in memory as float32. A cache that cannot
    be written is done without.
    """
    source = find_gguf(path)
    folder = cache_dir or default_cache_dir()
    cached = folder / f"{_key(source)}.f32"
    found = _map_cache(cached)
    if found is not None:
        if check is not None:
            check(found.config)
        _refuse_if_too_large(source, found.config)
        progress(f"weights mapped from {cached}", 1.0)
        return found
    file = read_directory(source)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        LlamaConfig.from_gguf(file.metadata, 0)  # another architecture is the better message
        raise EngineError(f"{source}: no usable tensor token_embd.weight")
    config = LlamaConfig.from_gguf(file.metadata, embedding.shape[0])
    if check is not None:
        check(config)
    _check_tensors(file, config)
    _refuse_if_too_large(source, config)
    return _convert(file, config, cached, progress)


def default_cache_dir() -> Path:
    """Where weights are kept: `tpc_server/weights` in the user's cache folder."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "tpc_server" / "weights"


def _key(source: Path) -> str:
    """Names the cache of this very file: its size, time, first and last MiB."""
    try:
        stat = source.stat()
        digest = hashlib.sha256(_MAGIC)
        digest.update(struct.pack("<qq", stat.st_size, stat.st_mtime_ns))
        with open(source, "rb") as file:
            digest.update(file.read(_PROBE_BYTES))
            file.seek(max(stat.st_size - _PROBE_BYTES, 0))
            digest.update(file.read(_PROBE_BYTES))
    except OSError as error:
        raise EngineError(f"{source}: {error.strerror}") from None
    return f"{source.stem[:80]}-{digest.hexdigest()[:24]}"


def _refuse_if_too_large(source: Path, config: LlamaConfig) -> None:
    needed = sum(math.prod(shape) for shape in array_shapes(config).values()) * 4 + _WORK_BYTES
    free = available_bytes()
    if needed > free:
        raise EngineError(
            f"{source}: needs {needed / 2**30:.1f} GiB as float32, "
            f"{free / 2**30:.1f} GiB are available"
        )


def _check_tensors(file: GgufFile, config: LlamaConfig) -> None:
    """Every tensor that is computed with is there, has its shape, and nothing else is."""
    dim, ffn = config.dim, config.ffn_dim
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (config.vocab_size, dim),
        "output_norm.weight": (dim,),
    }
    for i in range(config.n_layers):
        for name, shape in zip(
            _LAYER_TENSORS,
            ((dim,), (config.q_dim, dim), (config.kv_dim, dim), (config.kv_dim, dim),
             (dim, config.q_dim), (dim,), (ffn, dim), (ffn, dim), (dim, ffn)),
            strict=True,
        ):  # fmt: skip
            shapes[f"blk.{i}.{name}.weight"] = shape
    optional: dict[str, tuple[int, ...]] = {
        "output.weight": (config.vocab_size, dim),
        "rope_freqs.weight": (config.head_dim // 2,),
    }
    for name in shapes:
        if name not in file.tensors:
            raise EngineError(f"{file.path}: tensor {name} is missing")
    for name, info in file.tensors.items():
        expected = shapes.get(name) or optional.get(name)
        if expected is None:
            raise EngineError(f"{file.path}: tensor {name} has no place in a plain Llama model")
        if info.shape != expected:
            raise EngineError(
                f"{file.path}: tensor {name} has shape {info.shape}, expected {expected}"
            )


def _convert(file: GgufFile, config: LlamaConfig, cached: Path, progress: Progress) -> Weights:
    """Dequantize into the cache file (beside it, then renamed), or into memory where that fails."""
    shapes = array_shapes(config)
    head, offsets, total = _layout(config, shapes)
    beside: str | None = None
    try:
        cached.parent.mkdir(parents=True, exist_ok=True)
        handle, beside = tempfile.mkstemp(prefix=cached.stem, suffix=".part", dir=cached.parent)
        with os.fdopen(handle, "w+b") as out:
            # Takes the blocks now: a disk that fills later would be a SIGBUS in the mapping.
            os.posix_fallocate(out.fileno(), 0, total)
            out.write(head)
            out.flush()
            space = np.memmap(out, np.uint8, "r+", shape=(total,))
            _fill(file, config, _views(space, shapes, offsets), progress)
            space.flush()
            os.fsync(out.fileno())
        os.replace(beside, cached)
        found = _map_cache(cached)
        if found is not None:
            return found
    except OSError as error:
        progress(f"no cache in {cached.parent} ({error.strerror}): converting into memory", 0.0)
    finally:
        if beside is not None and os.path.exists(beside):
            os.unlink(beside)
    arrays = {name: np.empty(shape, np.float32) for name, shape in shapes.items()}
    _fill(file, config, arrays, progress)
    return Weights(config, arrays)


def _layout(
    config: LlamaConfig, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[bytes, dict[str, int], int]:
    """(head of the cache file, offset of each array, size of the file)."""
    offsets: dict[str, int] = {}
    at = 0
    for name, shape in shapes.items():
        offsets[name] = at
        at += -(-math.prod(shape) * 4 // _STEP) * _STEP
    directory = json.dumps({"config": config.to_json(), "offsets": offsets, "bytes": at}).encode()
    base = -(-(len(_MAGIC) + 4 + len(directory)) // _STEP) * _STEP
    head = _MAGIC + struct.pack("<I", len(directory)) + directory
    return head, {name: base + offset for name, offset in offsets.items()}, base + at


def _views(
    space: np.ndarray[Any, Any],
    shapes: Mapping[str, tuple[int, ...]],
    offsets: Mapping[str, int],
) -> dict[str, Array]:
    return {
        name: space[offsets[name] : offsets[name] + math.prod(shape) * 4]
        .view(np.float32)
        .reshape(shape)
        for name, shape in shapes.items()
    }


def _map_cache(path: Path) -> Weights | None:
    """The weights of a cache file; None where it is missing or not whole."""
    try:
        with open(path, "rb") as file:
            head = file.read(len(_MAGIC) + 4)
            if head[: len(_MAGIC)] != _MAGIC or len(head) < len(_MAGIC) + 4:
                return None
            (length,) = struct.unpack("<I", head[len(_MAGIC) :])
            config = LlamaConfig.from_json(json.loads(file.read(length))["config"])
            shapes = array_shapes(config)
            _, offsets, total = _layout(config, shapes)
            if os.fstat(file.fileno()).st_size != total:
                return None
            space = np.memmap(file, np.uint8, "r", shape=(total,))
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Weights(config, _views(space, shapes, offsets))


def _fill(
    file: GgufFile, config: LlamaConfig, arrays: Mapping[str, Array], progress: Progress
) -> None:
    """Every tensor into its place; `arrays` is written."""
    arrays["embed"][:] = tensor_values(file, "token_embd.weight")
    arrays["norm"][:] = tensor_values(file, "output_norm.weight")
    if "output.weight" in file.tensors:
        arrays["head"][:] = tensor_values(file, "output.weight").T
    else:
        arrays["head"][:] = arrays["embed"].T
    arrays["rope_factors"][:] = config.rope_factor
    if "rope_freqs.weight" in file.tensors:
        arrays["rope_factors"][:] *= tensor_values(file, "rope_freqs.weight")
    q, kv, ffn = config.q_dim, config.kv_dim, config.ffn_dim
    for i in range(config.n_layers):
        progress("reading weights", i / config.n_layers)
        arrays[f"{i}.attn_norm"][:] = tensor_values(file, f"blk.{i}.attn_norm.weight")
        arrays[f"{i}.ffn_norm"][:] = tensor_values(file, f"blk.{i}.ffn_norm.weight")
        wqkv = arrays[f"{i}.wqkv"]
        wqkv[:, :q] = _unpermute(tensor_values(file, f"blk.{i}.attn_q.weight"), config.n_heads).T
        wqkv[:, q : q + kv] = _unpermute(
            tensor_values(file, f"blk.{i}.attn_k.weight"), config.n_kv_heads
        ).T
        wqkv[:, q + kv :] = tensor_values(file, f"blk.{i}.attn_v.weight").T
        arrays[f"{i}.wo"][:] = tensor_values(file, f"blk.{i}.attn_output.weight").T
        arrays[f"{i}.gate_up"][:, :ffn] = tensor_values(file, f"blk.{i}.ffn_gate.weight").T
        arrays[f"{i}.gate_up"][:, ffn:] = tensor_values(file, f"blk.{i}.ffn_up.weight").T
        arrays[f"{i}.down"][:] = tensor_values(file, f"blk.{i}.ffn_down.weight").T
    progress("reading weights", 1.0)


def _unpermute(rows: Array, n_heads: int) -> Array:
    """Rows of each head from GGUF's order (rotated pairs side by side) to halves order.

    Pairs (2i, 2i+1) become (i, i + half), so that the rotation works on two contiguous halves.
    """
    per_head = rows.shape[0] // n_heads
    pairs = rows.reshape(n_heads, per_head // 2, 2, rows.shape[1])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(rows.shape)
