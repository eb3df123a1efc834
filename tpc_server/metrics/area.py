"""Where the blocks of all cores that are counted together lie. Owner: plain data, any thread.

A region of its own: several frontend processes that share a port share it too, and whichever is
asked shows them all. Each has a *slot*, one block a core; what a process counted stays when it
ends, and the next one of its slot goes on with it. Standard library only.
"""

from __future__ import annotations

from typing import Any

from ..shm import Region


class MetricsArea:
    """Blocks of `words` words: slot after slot, core after core, then a word a block: whether it
    was ever used. `slot` is the caller's own."""

    def __init__(self, region: Region, words: int, cores: int, slots: int, slot: int) -> None:
        """Raises ValueError where the region has no room for them."""
        if _bytes(words, cores, slots) > region.size or not 0 <= slot < slots:
            raise ValueError(f"no room for slot {slot} of {slots} in {region.size} bytes")
        self.region = region
        self.slots = slots
        self.slot = slot
        self._block = words
        self.cores = cores

    @classmethod
    def create(cls, words: int, cores: int, slots: int = 1) -> MetricsArea:
        """New ones, all zero."""
        region = Region.create(_bytes(words, cores, slots), "tpc-metrics")
        return cls(region, words, cores, slots, 0)

    def words(self) -> Any:
        """A mapping for the calling thread alone."""
        return self.region.mapping().words

    def take(self, core: int, words: Any) -> int:
        """Index of the first word of an own core's block, which is in use from now on."""
        block = self.slot * self.cores + core
        words[self.slots * self.cores * self._block + block] = 1
        return block * self._block

    def blocks(self, words: Any) -> list[int]:
        """Of all cores of all slots that were ever used."""
        count = self.slots * self.cores
        used = words[count * self._block : count * (self._block + 1)]
        return [k * self._block for k, one in enumerate(used) if one]

    def close(self) -> None:
        """Close the descriptor; mappings stay."""
        self.region.close()


def _bytes(words: int, cores: int, slots: int) -> int:
    return slots * cores * (words + 1) * 8
