"""Keys and values of sequences, one slot each, and the prefixes they share. Owner: engine thread.

A slot is contiguous per layer and head, so that attention multiplies it as it lies, and it grows by
doubling, so that a short sequence costs little memory. A finished sequence stays in its slot until
the slot is needed: a new prompt that begins like it takes the slot over, or copies the beginning
from a slot in use (0.05 ms a token against 2 ms to compute it).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .gguf_tensors import Array
from .model_config import LlamaConfig

_FIRST_TOKENS = 256


class Slot:
    """One sequence: `keys[layer, head, position]` and `values` likewise hold positions < capacity.

    tokens   ids whose keys and values are there, in order; may be fewer than were computed
    need     positions its running request may come to: the capacity never exceeds it
    in_use   whether a running request owns it
    used_at  a counter, larger means later
    """

    __slots__ = ("capacity", "in_use", "keys", "need", "shape", "tokens", "used_at", "values")

    def __init__(self, config: LlamaConfig) -> None:
        self.shape = (config.n_layers, config.n_kv_heads, config.head_dim)
        self.need = 0
        self.capacity = 0
        self.keys: Array = np.empty((0,), np.float32)
        self.values: Array = self.keys
        self.tokens: list[int] = []
        self.in_use = False
        self.used_at = 0

    def begin(self, need: int, tokens: list[int], source: Slot) -> None:
        """Become the slot of a sequence that begins with `tokens`, which `source` holds."""
        shared = len(tokens)
        if source is not self or self.capacity > need:
            capacity = max(shared, min(_FIRST_TOKENS, need)) if shared else 0
            keys, values = self._room(capacity), self._room(capacity)
            if shared:
                keys[:, :, :shared] = source.keys[:, :, :shared]
                values[:, :, :shared] = source.values[:, :, :shared]
            self.keys, self.values, self.capacity = keys, values, capacity
        self.need = need
        self.tokens = tokens
        self.in_use = True

    def reserve(self, length: int) -> None:
        """Make room for positions < length ≤ need, keeping what is there. Raises MemoryError."""
        if length <= self.capacity:
            return
        capacity = max(self.capacity, _FIRST_TOKENS)
        while capacity < length:
            capacity *= 2
        capacity = max(min(capacity, self.need), length)
        kept = len(self.tokens)
        keys, values = self._room(capacity), self._room(capacity)
        if kept:
            keys[:, :, :kept] = self.keys[:, :, :kept]
            values[:, :, :kept] = self.values[:, :, :kept]
        self.keys, self.values, self.capacity = keys, values, capacity

    def clear(self) -> None:
        """Forget the sequence and give its memory back."""
        self.tokens = []
        self.capacity = 0
        self.keys = self.values = np.empty((0,), np.float32)

    def _room(self, capacity: int) -> Array:
        layers, heads, width = self.shape
        return np.empty((layers, heads, capacity, width), np.float32)


def shared_length(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids two sequences have in common from their start."""
    end = min(len(a), len(b))
    if a[:end] == b[:end]:
        return end
    low, high = 0, end  # a[:low] is shared, a[:high] is not
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


class KvCache:
    """`n_slots` sequences, `budget` positions together.

    The budget covers what running requests may come to need and what finished sequences keep; the
    oldest of these make room for the former.
    """

    def __init__(self, config: LlamaConfig, n_slots: int, budget: int) -> None:
        self.slots = [Slot(config) for _ in range(n_slots)]
        self.budget = budget
        self.promised = 0
        self._clock = 0

    def held(self) -> int:
        """Positions that have memory now."""
        return sum(slot.capacity for slot in self.slots)

    def fits(self, need: int) -> bool:
        """Whether a sequence that may come to `need` positions can start now."""
        if self.promised + need > self.budget:
            return False
        return any(not slot.in_use for slot in self.slots)

    def take(self, ids: list[int], need: int, max_shared: int) -> Slot:
        """A slot for a sequence that begins with `ids` and may come to `need` positions.

        Its `tokens` are the ids (at most `max_shared`) that were found in the cache. Only after
        `fits(need)`. Raises MemoryError, having changed nothing.
        """
        source, shared = self._longest_shared(ids, max_shared)
        if source is not None and not source.in_use and not self._worth_keeping(source, shared):
            slot = source
        else:
            slot = min((s for s in self.slots if not s.in_use), key=_emptiest_then_oldest)
        slot.begin(need, ids[:shared], slot if source is None else source)
        self.promised += need
        self._touch(slot)
        return slot

    def release(self, slot: Slot, keep: bool) -> None:
        """The request is over; its sequence stays for others if `keep`."""
        self.promised -= slot.need
        slot.in_use = False
        if not keep:
            slot.clear()
        self._touch(slot)

    def flush(self) -> None:
        """Forget every finished sequence."""
        for slot in self.slots:
            if not slot.in_use:
                slot.clear()

    def _longest_shared(self, ids: list[int], max_shared: int) -> tuple[Slot | None, int]:
        best: Slot | None = None
        longest = 0
        for slot in self.slots:
            length = min(shared_length(slot.tokens, ids), max_shared)
            # At equal length a free slot is better: nothing to copy.
            if length > longest or (
                length == longest and length and best is not None and best.in_use
            ):
                best, longest = slot, length
        return best, longest

    def _worth_keeping(self, slot: Slot, shared: int) -> bool:
        """Whether taking the slot over would throw away much, with an empty one at hand."""
        if len(slot.tokens) - shared <= shared:
            return False
        return any(not other.in_use and not other.tokens for other in self.slots)

    def _touch(self, touched: Slot) -> None:
        """`touched` is the latest; the oldest finished sequences make room for what is promised."""
        self._clock += 1
        touched.used_at = self._clock
        done = [slot for slot in self.slots if not slot.in_use and slot.capacity]
        kept = sum(slot.capacity for slot in done)
        done.sort(key=_last_used)
        for slot in done:
            if self.promised + kept <= self.budget:
                break
            kept -= slot.capacity
            slot.clear()


def _last_used(slot: Slot) -> int:
    return slot.used_at


def _emptiest_then_oldest(slot: Slot) -> tuple[bool, int]:
    return bool(slot.tokens), slot.used_at
