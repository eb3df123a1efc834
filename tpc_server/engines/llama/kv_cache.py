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
#: A shared beginning shorter than this is not worth a look-up and a copy.
MIN_SHARED = 1


class Slot:
    """One sequence: `keys[layer, head, position]` and `values` likewise hold positions < capacity.

    tokens   ids whose keys and values are there, in order; may be fewer than were computed
    in_use   whether a running request owns it
    used_at  a counter, larger means later
    """

    __slots__ = ("capacity", "in_use", "keys", "limit", "shape", "tokens", "used_at", "values")

    def __init__(self, config: LlamaConfig, limit: int) -> None:
        self.shape = (config.n_layers, config.n_kv_heads, config.head_dim)
        self.limit = limit
        self.capacity = 0
        self.keys: Array = np.empty((0,), np.float32)
        self.values: Array = self.keys
        self.tokens: list[int] = []
        self.in_use = False
        self.used_at = 0

    def reserve(self, length: int) -> None:
        """Make room for positions < length, keeping what is there."""
        if length <= self.capacity:
            return
        capacity = max(self.capacity, min(_FIRST_TOKENS, self.limit))
        while capacity < length:
            capacity *= 2
        capacity = max(min(capacity, self.limit), length)
        layers, heads, width = self.shape
        kept = len(self.tokens)
        for name in ("keys", "values"):
            grown = np.empty((layers, heads, capacity, width), np.float32)
            if kept:
                grown[:, :, :kept] = getattr(self, name)[:, :, :kept]
            setattr(self, name, grown)
        self.capacity = capacity

    def clear(self) -> None:
        """Forget the sequence and give its memory back."""
        self.tokens = []
        self.capacity = 0
        self.keys = self.values = np.empty((0,), np.float32)


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
    """`n_slots` sequences of at most `limit` positions, `budget` positions together.

    The budget counts what running requests may come to need (`Slot` memory follows the actual
    lengths), and what finished sequences keep on top of it is given back first.
    """

    def __init__(self, config: LlamaConfig, n_slots: int, limit: int, budget: int) -> None:
        self.slots = [Slot(config, limit) for _ in range(n_slots)]
        self.limit = limit
        self.budget = budget
        self.promised = 0
        self._clock = 0

    def held(self) -> int:
        """Positions that have memory now."""
        return sum(slot.capacity for slot in self.slots)

    def fits(self, length: int) -> bool:
        """Whether a sequence that may come to `length` positions can start now."""
        if self.promised + length > self.budget:
            return False
        return any(not slot.in_use for slot in self.slots)

    def take(self, ids: list[int], length: int, max_shared: int) -> tuple[Slot, int]:
        """A slot for a sequence that begins with `ids` and may come to `length` positions.

        At most `max_shared` ids are taken from what is there. Returns the slot, whose `tokens` are
        those ids, and their number. Only after `fits(length)`.
        """
        free = [slot for slot in self.slots if not slot.in_use]
        best, shared = self._longest_shared(ids, max_shared)
        if best is not None and not best.in_use and not self._worth_keeping(best, shared):
            slot = best
        else:
            slot = min(free, key=_emptiest_then_oldest)
            if slot is best:
                pass
            elif best is not None and shared >= MIN_SHARED:
                slot.tokens = []
                slot.reserve(min(length, max(len(ids) + 1, shared)))
                slot.keys[:, :, :shared] = best.keys[:, :, :shared]
                slot.values[:, :, :shared] = best.values[:, :, :shared]
            else:
                shared = 0
        slot.tokens = ids[:shared]
        slot.in_use = True
        self.promised += length
        self._clock += 1
        slot.used_at = self._clock
        self._give_back()
        return slot, shared

    def release(self, slot: Slot, length: int, keep: bool) -> None:
        """The request is over; its sequence stays for others if `keep`."""
        self.promised -= length
        slot.in_use = False
        self._clock += 1
        slot.used_at = self._clock
        if not keep:
            slot.clear()
        self._give_back()

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

    def _give_back(self) -> None:
        """Keep the memory of finished sequences within the budget, oldest first."""
        held = self.held()
        if held <= self.budget:
            return
        for slot in sorted(self.slots, key=lambda s: s.used_at):
            if held <= self.budget:
                break
            if not slot.in_use and slot.capacity:
                held -= slot.capacity
                slot.clear()


def _emptiest_then_oldest(slot: Slot) -> tuple[bool, int]:
    return bool(slot.tokens), slot.used_at
