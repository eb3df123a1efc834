"""The model's numbers against an independent float64 reference."""

from __future__ import annotations

import numpy as np
import pytest

from tests.llama_models import TinyModel
from tpc_server.engines.llama import model as model_module
from tpc_server.engines.llama.kv_cache import KvCache, Slot
from tpc_server.engines.llama.model import LlamaModel, Piece
from tpc_server.engines.llama.weights import Weights, load_weights

IDS = [5, 17, 3, 60, 60, 2, 44, 9, 31, 7, 12]


def quiet(text: str, done: float) -> None:
    pass


def load(tiny: TinyModel, folder) -> Weights:
    return load_weights(tiny.write(folder / "m.gguf"), folder / "cache", quiet)


def open_slot(cache: KvCache, need: int = 100) -> Slot:
    slot = cache.take([], need, 0)
    slot.reserve(need)
    return slot


def run(model: LlamaModel, slot: Slot, ids: list[int]) -> np.ndarray:
    """Logits of every new position; the slot is extended."""
    states = model.forward([Piece(slot, len(slot.tokens), ids)])
    slot.tokens += ids
    return model.logits(states)


@pytest.mark.parametrize(
    "tiny",
    [
        TinyModel(1),
        TinyModel(2, tied=True, rope_base=500.0),
        TinyModel(3, n_heads=9, n_kv=3, dim=72, head_dim=16),
        TinyModel(4, n_heads=4, n_kv=4),
        TinyModel(5, factors=[1.0, 1.5, 4.0, 8.0]),
    ],
    ids=["plain", "tied", "wide-heads", "no-groups", "rope-factors"],
)
def test_logits_of_a_prompt_equal_the_reference(tiny, tmp_path) -> None:
    weights = load(tiny, tmp_path)
    model = LlamaModel(weights, 128)
    slot = open_slot(KvCache(weights.config, 1, 1000))
    assert np.abs(run(model, slot, IDS) - tiny.logits(IDS)).max() < 2e-4


def test_linear_rope_scaling(tmp_path) -> None:
    tiny = TinyModel(6)
    meta = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0}
    weights = load_weights(tiny.write(tmp_path / "m.gguf", meta=meta), tmp_path / "c", quiet)
    model = LlamaModel(weights, 128)
    found = run(model, open_slot(KvCache(weights.config, 1, 1000)), IDS)
    assert np.abs(found - tiny.logits(IDS)).max() > 1e-2
    tiny.factors = np.full(4, 4.0, np.float32)
    assert np.abs(found - tiny.logits(IDS)).max() < 2e-4


@pytest.mark.parametrize("cuts", [[1] * 11, [3, 8], [10, 1], [2, 2, 7], [5, 1, 1, 4]])
def test_pieces_of_any_size_give_the_same_logits(cuts, tmp_path) -> None:
    tiny = TinyModel(1)
    weights = load(tiny, tmp_path)
    model = LlamaModel(weights, 128)
    slot = open_slot(KvCache(weights.config, 1, 1000))
    rows, at = [], 0
    for cut in cuts:
        rows.append(run(model, slot, IDS[at : at + cut]))
        at += cut
    assert np.abs(np.concatenate(rows) - tiny.logits(IDS)).max() < 2e-4


@pytest.mark.parametrize("n", range(1, 10))
def test_batches_of_mixed_pieces_give_each_sequence_its_own_logits(n, tmp_path) -> None:
    tiny = TinyModel(1)
    weights = load(tiny, tmp_path)
    model = LlamaModel(weights, 128)
    cache = KvCache(weights.config, n, 10000)
    rng = np.random.default_rng(n)
    texts = [rng.integers(0, tiny.vocab, 8 + k).tolist() for k in range(n)]
    slots = [open_slot(cache) for _ in texts]
    heads = [text[: len(text) - 1 - k % 4] for k, text in enumerate(texts)]
    for slot, head in zip(slots, heads, strict=True):
        run(model, slot, head)
    # The rest of each: one token for some, a piece of a prompt for others.
    pieces = [
        Piece(slot, len(head), text[len(head) :])
        for slot, head, text in zip(slots, heads, texts, strict=True)
    ]
    logits = model.logits(model.forward(pieces))
    at = 0
    for piece, text in zip(pieces, texts, strict=True):
        end = at + len(piece.ids)
        expected = tiny.logits(text)[-len(piece.ids) :]
        assert np.abs(logits[at:end] - expected).max() < 2e-4
        at = end
    assert at == len(logits)


def test_slots_grow_without_losing_what_they_hold(tmp_path) -> None:
    tiny = TinyModel(1, context=700)
    weights = load(tiny, tmp_path)
    model = LlamaModel(weights, 700)
    grown = KvCache(weights.config, 1, 10000).take([], 700, 0)
    large = open_slot(KvCache(weights.config, 1, 10000), 700)
    rng = np.random.default_rng(0)
    for size in (200, 100, 1, 1, 300):
        ids = rng.integers(0, tiny.vocab, size).tolist()
        grown.reserve(len(grown.tokens) + size)
        assert np.array_equal(run(model, grown, ids), run(model, large, ids))
    assert large.capacity == 700
    assert 602 <= grown.capacity <= 700


def test_weights_that_hold_nan_give_nan_and_no_warning(tmp_path, recwarn) -> None:
    tiny = TinyModel(1)
    tiny.w["head"][7] = np.nan
    weights = load(tiny, tmp_path)
    model = LlamaModel(weights, 64)
    logits = run(model, open_slot(KvCache(weights.config, 1, 1000)), IDS)
    assert np.isnan(logits[:, 7]).all()
    assert not np.isnan(logits[:, :7]).any()
    assert not recwarn.list


def test_attention_in_blocks_is_attention(tmp_path, monkeypatch) -> None:
    tiny = TinyModel(1, context=200)
    weights = load(tiny, tmp_path)
    ids = np.random.default_rng(3).integers(0, tiny.vocab, 150).tolist()
    found = []
    for kept in (1, 5000, 1 << 18):  # blocks of 16 rows, of a size that divides nothing, one block
        monkeypatch.setattr(model_module, "_SCORES_KEPT", kept)
        slot = open_slot(KvCache(weights.config, 1, 1000), 200)
        model = LlamaModel(weights, 200)
        found.append(np.concatenate((run(model, slot, ids[:70]), run(model, slot, ids[70:]))))
    exact = tiny.logits(ids)
    for logits in found:
        assert np.abs(logits - exact).max() < 3e-4
