"""Reading GGUF files into float32 weights: block types, cache, refusals."""

from __future__ import annotations

import os
import struct

import gguf
import numpy as np
import pytest

from tests.llama_models import Kind, TinyModel
from tpc_server.engines.llama import weights as weights_module
from tpc_server.engines.llama.errors import EngineError
from tpc_server.engines.llama.gguf_tensors import find_gguf, read_directory, tensor_values
from tpc_server.engines.llama.kv_cache import KvCache
from tpc_server.engines.llama.memory import available_bytes
from tpc_server.engines.llama.model import LlamaModel, Piece
from tpc_server.engines.llama.weights import default_cache_dir, load_weights

IDS = [5, 17, 3, 60, 60, 2, 44]  # below every vocabulary size here


class Progress:
    def __init__(self) -> None:
        self.lines: list[tuple[str, float]] = []

    def __call__(self, text: str, done: float) -> None:
        self.lines.append((text, done))

    def converted(self) -> bool:
        return any(text == "reading weights" for text, _ in self.lines)


def logits(weights) -> np.ndarray:
    model = LlamaModel(weights, 64)
    slot = KvCache(weights.config, 1, 100).take([], 64, 0)
    slot.reserve(64)
    return model.logits(model.forward([Piece(slot, 0, IDS)]))


def random_blocks(value, kind):
    """Bytes of `kind` for a matrix of this shape: random, but every scale is a sane number."""
    rng = np.random.default_rng(7)
    n_values, n_bytes = gguf.GGML_QUANT_SIZES[kind]
    rows, blocks = value.shape[0], value.shape[1] // n_values
    raw = rng.integers(0, 256, (rows * blocks, n_bytes), dtype=np.uint8)
    # Where these types keep their half-precision scales.
    places = {Kind.Q3_K: (108,), Kind.Q4_K: (0, 2), Kind.Q6_K: (208,)}[kind]
    for place in places:
        scales = rng.uniform(0.0005, 0.003, len(raw)).astype(np.float16)
        raw[:, place : place + 2] = scales.view(np.uint8).reshape(-1, 2)
    return raw.reshape(rows, blocks * n_bytes)


@pytest.mark.parametrize(
    "kind", [Kind.F16, Kind.BF16, Kind.Q8_0, Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1]
)
def test_a_quantized_file_is_the_model_of_its_rounded_weights(kind, tmp_path) -> None:
    tiny = TinyModel(1, dim=64, ffn=64)
    path = tiny.write(tmp_path / "q.gguf", kind)
    found = logits(load_weights(path, tmp_path / "cache", Progress()))
    exact = tiny.logits(IDS)
    for name, value in tiny.w.items():
        if value.ndim == 2:
            tiny.w[name] = gguf.quants.dequantize(gguf.quants.quantize(value, kind), kind)
    assert np.abs(found - tiny.logits(IDS)).max() < 3e-4
    assert np.abs(found - exact).max() > 1e-5, "the rounding left no trace: was it read at all?"


@pytest.mark.parametrize("kind", [Kind.Q3_K, Kind.Q4_K, Kind.Q6_K])
def test_k_quants(kind, tmp_path) -> None:
    tiny = TinyModel(1, dim=256, vocab=64, ffn=256, n_layers=1)
    path = tiny.write(tmp_path / "k.gguf", kind, quantize=random_blocks)
    weights = load_weights(path, tmp_path / "cache", Progress())
    values = gguf.quants.dequantize(random_blocks(tiny.w["0.down"], kind), kind)
    assert np.array_equal(weights.arrays["0.down"], values.T)
    values = gguf.quants.dequantize(random_blocks(tiny.w["embed"], kind), kind)
    assert np.array_equal(weights.arrays["embed"], values)
    assert np.isfinite(logits(weights)).all()


def test_our_directory_equals_that_of_the_gguf_package(tmp_path) -> None:
    path = TinyModel(1, dim=64, ffn=64).write(tmp_path / "m.gguf", Kind.Q8_0)
    ours = read_directory(path)
    theirs = gguf.GGUFReader(path)
    assert list(ours.tensors) == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        info = ours.tensors[tensor.name]
        assert info.shape == tuple(reversed(tensor.shape.tolist()))
        assert (info.kind, info.start, info.n_bytes) == (
            int(tensor.tensor_type),
            tensor.data_offset,
            tensor.n_bytes,
        )
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(tensor_values(ours, tensor.name), values)


def test_the_cache_is_used_and_kept_apart_by_file(tmp_path) -> None:
    cache = tmp_path / "cache"
    path = TinyModel(1).write(tmp_path / "a.gguf")
    first, second = Progress(), Progress()
    made = load_weights(path, cache, first)
    again = load_weights(tmp_path / "a.gguf", cache, second)
    assert first.converted() and not second.converted()
    assert made.config == again.config
    for name, value in made.arrays.items():
        assert np.array_equal(value, again.arrays[name])
        assert not again.arrays[name].flags.writeable, "a mapped cache must not be written to"
    assert len(list(cache.iterdir())) == 1
    # Another model under the same name is another file.
    TinyModel(2).write(path)
    other = load_weights(path, cache, third := Progress())
    assert third.converted()
    assert not np.array_equal(other.arrays["embed"], made.arrays["embed"])


@pytest.mark.parametrize("damage", ["cut", "empty", "magic", "json", "config"])
def test_a_damaged_cache_is_made_anew(damage, tmp_path) -> None:
    cache = tmp_path / "cache"
    tiny = TinyModel(1)
    path = tiny.write(tmp_path / "a.gguf")
    load_weights(path, cache, Progress())
    (kept,) = cache.iterdir()
    data = bytearray(kept.read_bytes())
    (length,) = struct.unpack("<I", data[8:12])
    if damage == "cut":
        del data[-1:]
    elif damage == "empty":
        data.clear()
    elif damage == "magic":
        data[:8] = b"whatever"
    elif damage == "json":
        data[12 : 12 + length] = b"{" * length
    else:
        data[12 : 12 + length] = b'{"config":{"dim":1}}'.ljust(length)
    kept.write_bytes(data)
    again = load_weights(path, cache, progress := Progress())
    assert progress.converted()
    assert np.abs(logits(again) - tiny.logits(IDS)).max() < 3e-4


def test_a_conversion_that_stops_leaves_nothing_behind(tmp_path) -> None:
    class Stop(Exception):
        pass

    def stop(text: str, done: float) -> None:
        if done > 0:
            raise Stop

    cache = tmp_path / "cache"
    path = TinyModel(1).write(tmp_path / "a.gguf")
    with pytest.raises(Stop):
        load_weights(path, cache, stop)
    assert list(cache.iterdir()) == []


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path) -> None:
    blocked = tmp_path / "cache"
    blocked.write_text("a file where the folder should be")
    tiny = TinyModel(1)
    path = tiny.write(tmp_path / "a.gguf")
    found = load_weights(path, blocked, progress := Progress())
    assert np.abs(logits(found) - tiny.logits(IDS)).max() < 3e-4
    assert any("no cache" in text for text, _ in progress.lines)


def test_the_users_cache_folder(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache_dir() == tmp_path / "tpc_server" / "weights"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_cache_dir() == tmp_path / "home" / ".cache" / "tpc_server" / "weights"


# -- refusals -------------------------------------------------------------------------


def refusal(path, tmp_path) -> str:
    with pytest.raises(EngineError) as caught:
        load_weights(path, tmp_path / "cache", Progress())
    assert not (tmp_path / "cache").exists() or list((tmp_path / "cache").iterdir()) == []
    return str(caught.value)


def test_paths(tmp_path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    assert "no such file or folder" in refusal(tmp_path / "nothing", tmp_path)
    assert "holds no .gguf file" in refusal(folder, tmp_path)
    path = TinyModel(1).write(folder / "a.gguf")
    assert find_gguf(folder) == find_gguf(path) == path
    TinyModel(1).write(folder / "b.gguf")
    assert "several .gguf files (a.gguf, b.gguf)" in refusal(folder, tmp_path)


def test_files_that_are_no_gguf(tmp_path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"")
    assert "empty" in refusal(path, tmp_path)
    path.write_bytes(b"not at all what it says" * 100)
    assert "not a GGUF file" in refusal(path, tmp_path)


def test_a_file_cut_anywhere_is_refused(tmp_path) -> None:
    path = TinyModel(1).write(tmp_path / "a.gguf")
    data = path.read_bytes()
    start = read_directory(path).tensors["token_embd.weight"].start
    for end in (5, 30, 200, start // 2, start - 40, start + 100, len(data) - 1):
        path.write_bytes(data[:end])
        assert "cut short" in refusal(path, tmp_path), end


@pytest.mark.parametrize(
    ("meta", "arch", "text"),
    [
        ({}, "qwen2", "architecture 'qwen2' is not supported"),
        ({"llama.expert_count": 8}, "llama", "experts"),
        ({"llama.rope.scaling.type": "yarn"}, "llama", "RoPE scaling of type 'yarn'"),
        ({"llama.rope.dimension_count": 4}, "llama", "only a part of each head"),
        ({"llama.attention.value_length": 4}, "llama", "keys and values of different length"),
        ({"llama.attention.head_count": 3}, "llama", "head sizes do not fit"),
        ({"llama.block_count": None}, "llama", "no usable llama.block_count"),
        ({"llama.block_count": 3}, "llama", "tensor blk.2.attn_norm.weight is missing"),
        ({"llama.feed_forward_length": 50}, "llama", "has shape (48, 32), expected (50, 32)"),
    ],
)
def test_models_that_cannot_be_computed(meta, arch, text, tmp_path) -> None:
    path = TinyModel(1).write(tmp_path / "a.gguf", meta=meta, arch=arch)
    assert text in refusal(path, tmp_path)


def test_tensors_that_have_no_place(tmp_path) -> None:
    tiny = TinyModel(1)
    bias = {"blk.0.attn_q.bias": np.zeros(32, np.float32)}
    path = tiny.write(tmp_path / "a.gguf", extra=bias)
    assert "tensor blk.0.attn_q.bias has no place" in refusal(path, tmp_path)
    path = tiny.write(tmp_path / "b.gguf", without=("token_embd.weight",))
    assert "no usable tensor token_embd.weight" in refusal(path, tmp_path)
    path = tiny.write(tmp_path / "c.gguf", without=("blk.1.ffn_down.weight",))
    assert "tensor blk.1.ffn_down.weight is missing" in refusal(path, tmp_path)


def test_a_model_that_does_not_fit(monkeypatch, tmp_path) -> None:
    path = TinyModel(1).write(tmp_path / "a.gguf")
    monkeypatch.setattr(weights_module, "available_bytes", lambda: 200 << 20)
    assert "needs 0.3 GiB as float32, 0.2 GiB are available" in refusal(path, tmp_path)
    monkeypatch.undo()
    load_weights(path, tmp_path / "cache", Progress())
    # The cached form is as large.
    monkeypatch.setattr(weights_module, "available_bytes", lambda: 200 << 20)
    with pytest.raises(EngineError, match="as float32"):
        load_weights(path, tmp_path / "cache", Progress())


def test_available_memory_is_the_least_of_machine_and_cgroup(tmp_path) -> None:
    def put(name: str, text: str) -> None:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    assert available_bytes(tmp_path) >= 1 << 60
    put("proc/meminfo", "MemTotal: 100 kB\nMemAvailable:   8388608 kB\n")
    assert available_bytes(tmp_path) == 8 << 30
    put("sys/fs/cgroup/memory.max", "max\n")
    assert available_bytes(tmp_path) == 8 << 30
    put("sys/fs/cgroup/memory.max", str(4 << 30))
    put("sys/fs/cgroup/memory.current", str(3 << 30))
    put("sys/fs/cgroup/memory.stat", f"anon 1\ninactive_file {1 << 30}\n")
    assert available_bytes(tmp_path) == 2 << 30
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", str(3 << 30))
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", str(2 << 30))
    assert available_bytes(tmp_path) == 1 << 30
    assert available_bytes() > 0


def test_an_unreadable_file_is_an_engine_error(tmp_path) -> None:
    path = TinyModel(1).write(tmp_path / "a.gguf")
    if os.geteuid() == 0:
        path.unlink()
        os.mkfifo(path)
        text = "no such file or folder"
    else:
        path.chmod(0)
        text = "Permission denied"
    assert text in refusal(path, tmp_path)
