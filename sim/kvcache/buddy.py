"""Contiguous KV cache in buddy blocks: every request reserves the next power of two."""

from __future__ import annotations

from .slabs import SlabAllocator


class Buddies:
    """Blocks in powers of two: a larger one is halved for a slab, and its halves are joined again.

    The line is cut into the powers of two that its length is the sum of, largest first.

    Parameters
    ----------
    size : length of the line [blocks]
    """

    def __init__(self, size: int) -> None:
        self.largest = 1 << size.bit_length() >> 1
        self._free: list[set[int]] = [set() for _ in range(size.bit_length())]
        start = 0
        for order in reversed(range(size.bit_length())):
            if size >> order & 1:
                self._free[order].add(start)
                start += 1 << order

    def place(self, blocks: int) -> int | None:
        """Take a slab, a power of two, and return where it begins, or None."""
        order = blocks.bit_length() - 1
        larger = next((o for o in range(order, len(self._free)) if self._free[o]), None)
        if larger is None:
            return None
        start = min(self._free[larger])
        self._free[larger].remove(start)
        for half in range(larger - 1, order - 1, -1):
            self._free[half].add(start + (1 << half))
        return start

    def give_back(self, start: int, blocks: int) -> None:
        """Take a slab back and join it with its buddy, as long as that is free."""
        order = blocks.bit_length() - 1
        while (buddy := start ^ (1 << order)) in self._free[order]:
            self._free[order].remove(buddy)
            start = min(start, buddy)
            order += 1
        self._free[order].add(start)


class BuddyAllocator(SlabAllocator):
    """One slab a request, the power of two above what it will need, from the buddy system.

    What it optimises: slabs are found and joined again in logarithmic time, and holes stay usable, because
    only halves of one block are ever joined. What it starves: the batch, of up to half of every slab
    (internal fragmentation), and of the pool beyond its largest power of two for whoever needs more.
    Source: Knowlton, CACM 1965; "Orca (Pow2)" of Kwon et al., SOSP 2023, section 6.
    """

    name = "buddy"
    space = Buddies

    def reserved(self, tokens: int) -> int:
        return tokens

    def rounded(self, blocks: int) -> int:
        return 1 << (blocks - 1).bit_length() if blocks else 0
