"""Where the blocks of all cores that are counted together lie. Owner: plain data, any thread.

A region of its own: several frontend processes that share a port share it too, and whichever is
asked shows them all. Each has a *slot*, one block a core; what a process counted stays when it
ends, and the next one of its slot goes on with it. Standard library only.
"""

from __future__ import annotations

from typing import Any

from ..shm import Region


class MetricsArea:
    """Blocks of `words` words: slot after slot, core after core. `slot` is the caller's own."""

    def __init__(self, region: Region, words: int, cores: int, slots: int, slot: int) -> None:
        """Raises ValueError where the region has no room for them."""
        if slots * cores * words * 8 > region.size or not 0 <= slot < slots:
            raise ValueError(f"no room for slot {slot} of {slots} in {region.size} bytes")
        self.region = region
        self.slots = slots
        self.slot = slot
        self._block = words
        self._cores = cores

    @classmethod
    def create(cls, words: int, cores: int, slots: int = 1) -> MetricsArea:
        """New ones, all zero."""
        region = Region.create(slots * cores * words * 8, "tpc-metrics")
        return cls(region, words, cores, slots, 0)

    def words(self) -> Any:
        """A mapping for the calling thread alone."""
        return self.region.mapping().words

    def block(self, core: int, slot: int | None = None) -> int:
        """Index of the first word of a core's block."""
        return ((self.slot if slot is None else slot) * self._cores + core) * self._block

    def blocks(self) -> list[int]:
        """Of all cores of all slots."""
        return [k * self._block for k in range(self.slots * self._cores)]

    def close(self) -> None:
        """Close the descriptor; mappings stay."""
        self.region.close()
