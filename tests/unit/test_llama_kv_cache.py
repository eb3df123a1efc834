"""Slots, shared prefixes and the budget of the KV cache."""

from __future__ import annotations

import numpy as np
import pytest

from tests.llama_models import TinyModel
from tpc_server.engines.llama.kv_cache import KvCache, Slot, shared_length
from tpc_server.engines.llama.model_config import LlamaConfig

CONFIG = LlamaConfig.from_gguf(
    {"general.architecture": "llama", **TinyModel(0).metadata("llama", {})}, 80
)


def fill(slot, ids: list[int]) -> None:
    """Keys and values that say which id and position they belong to."""
    start = len(slot.tokens)
    slot.reserve(start + len(ids))
    for position, token in enumerate(ids, start):
        slot.keys[:, :, position] = token + position / 1000
        slot.values[:, :, position] = -(token + position / 1000)
    slot.tokens += ids


def holds(slot, ids: list[int]) -> bool:
    marks = np.array([token + k / 1000 for k, token in enumerate(ids)], np.float32)
    keys = slot.keys[:, :, : len(ids)]
    values = slot.values[:, :, : len(ids)]
    return bool((keys == marks[:, None]).all() and (values == -marks[:, None]).all())


@pytest.mark.parametrize(
    ("a", "b", "length"),
    [([], [1], 0), ([1, 2, 3], [1, 2, 3, 4], 3), ([1, 2, 9, 4], [1, 2, 3, 4], 2), ([5], [6], 0)],
)
def test_shared_length(a, b, length) -> None:
    assert shared_length(a, b) == shared_length(b, a) == length


def test_shared_length_at_every_place() -> None:
    a = list(range(50))
    for k in range(50):
        b = [*a[:k], -1, *a[k + 1 :]]
        assert shared_length(a, b) == k


def test_a_finished_sequence_is_taken_over_without_a_copy() -> None:
    cache = KvCache(CONFIG, 2, 1000)
    slot = cache.take([1, 2, 3], 50, 2)
    assert slot.tokens == []
    fill(slot, [1, 2, 3, 4])
    cache.release(slot, keep=True)
    again = cache.take([1, 2, 3, 4, 5], 50, 4)
    assert again is slot and again.tokens == [1, 2, 3, 4] and holds(again, [1, 2, 3, 4])


def test_a_running_sequence_is_copied_from_and_stays_whole() -> None:
    cache = KvCache(CONFIG, 2, 1000)
    first = cache.take([1, 2, 3], 50, 2)
    fill(first, [1, 2, 3, 4])
    second = cache.take([1, 2, 9], 50, 2)
    assert second is not first and second.tokens == [1, 2]
    fill(second, [9, 9])
    assert holds(first, [1, 2, 3, 4]) and holds(second, [1, 2, 9, 9])


def test_at_most_what_is_asked_for_is_shared() -> None:
    cache = KvCache(CONFIG, 2, 1000)
    slot = cache.take([1, 2, 3], 50, 2)
    fill(slot, [1, 2, 3])
    cache.release(slot, keep=True)
    assert cache.take([1, 2, 3], 50, 1).tokens == [1]
    assert cache.take([1, 2, 3], 50, 0).tokens == []


def test_a_long_finished_sequence_is_kept_while_there_is_an_empty_slot() -> None:
    cache = KvCache(CONFIG, 2, 1000)
    long = cache.take([1], 100, 0)
    fill(long, list(range(1, 30)))
    cache.release(long, keep=True)
    other = cache.take([1, 2, 90], 100, 2)
    assert other is not long and other.tokens == [1, 2] and holds(other, [1, 2])
    assert long.tokens == list(range(1, 30))
    # No empty slot any more: now the long one has to go.
    assert cache.take([1, 2, 80], 100, 2) is long


def test_the_oldest_finished_sequence_goes_first() -> None:
    cache = KvCache(CONFIG, 3, 1000)
    slots = []
    for token in (10, 20, 30):
        slot = cache.take([token], 50, 0)
        fill(slot, [token] * 5)
        slots.append(slot)
    for slot in (slots[1], slots[0], slots[2]):
        cache.release(slot, keep=True)
    assert cache.take([99], 50, 0) is slots[1]
    assert cache.take([98], 50, 0) is slots[0]


def test_released_without_keeping_holds_nothing() -> None:
    cache = KvCache(CONFIG, 1, 1000)
    slot = cache.take([1, 2], 50, 0)
    fill(slot, [1, 2])
    cache.release(slot, keep=False)
    assert cache.held() == 0
    assert cache.take([1, 2], 50, 1).tokens == []


def test_flush_leaves_running_sequences_alone() -> None:
    cache = KvCache(CONFIG, 2, 1000)
    running, done = cache.take([1], 50, 0), cache.take([2], 50, 0)
    fill(running, [1, 1])
    fill(done, [2, 2])
    cache.release(done, keep=True)
    cache.flush()
    assert done.tokens == [] and done.capacity == 0
    assert holds(running, [1, 1])


def test_the_budget_bounds_promises_and_memory() -> None:
    cache = KvCache(CONFIG, 4, 1000)
    assert cache.fits(1000) and not cache.fits(1001)
    a = cache.take([1], 600, 0)
    assert cache.fits(400) and not cache.fits(401)
    b = cache.take([2], 400, 0)
    assert not cache.fits(1)
    fill(a, [1] * 600)
    fill(b, [2] * 400)
    assert cache.held() == 1000 == cache.promised
    cache.release(a, keep=True)
    c = cache.take([3], 600, 0)
    fill(c, [3] * 500)
    cache.release(b, keep=True)
    assert cache.held() <= 1000, "finished sequences must make room for running ones"
    cache.release(c, keep=True)
    assert cache.promised == 0


def test_random_use_keeps_every_sequence_and_the_budget() -> None:
    rng = np.random.default_rng(11)
    budget = 2000
    cache = KvCache(CONFIG, 5, budget)
    live: dict[int, tuple[Slot, list[int]]] = {}
    for step in range(600):
        if live and rng.random() < 0.4:
            key = int(rng.choice(list(live)))
            slot, ids = live.pop(key)
            cache.release(slot, keep=bool(rng.random() < 0.7))
        else:
            prompt = rng.integers(0, 2, int(rng.integers(1, 40))).tolist()
            need = len(prompt) + int(rng.integers(0, 600))
            if not cache.fits(need):
                continue
            slot = cache.take(prompt, need, len(prompt) - 1)
            shared = len(slot.tokens)
            assert slot.tokens == prompt[:shared] and shared < len(prompt)
            fill(slot, prompt[shared:])
            more = rng.integers(0, 2, int(rng.integers(0, need - len(prompt) + 1))).tolist()
            fill(slot, more)
            live[step] = (slot, prompt + more)
        for slot, ids in live.values():
            assert slot.tokens == ids and holds(slot, ids) and slot.capacity <= slot.need
        running = sum(slot.capacity for slot, _ in live.values())
        assert running <= cache.promised <= budget
        assert cache.held() <= budget
