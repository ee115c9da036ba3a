"""Contiguous KV cache in buddy blocks: every request reserves the next power of two."""

from __future__ import annotations

from collections.abc import Callable

from .slabs import SlabAllocator


class BuddyAllocator(SlabAllocator):
    """One slab a request, the power of two above what it will need, from the buddy system.

    What it optimises: slabs are found and joined again in logarithmic time, and holes stay usable, because
    only halves of one block are ever joined. What it starves: the batch, of up to half of every slab
    (internal fragmentation), and of the pool beyond its largest power of two for whoever needs more.
    Source: Knowlton, CACM 1965; "Orca (Pow2)" of Kwon et al., SOSP 2023, section 6.

    The pool is cut into the powers of two that its size is the sum of, largest first.
    """

    name = "buddy"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_model_len: int,
        bounded_blocks: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(num_blocks, block_size, max_model_len=max_model_len, bounded_blocks=bounded_blocks)
        orders = range(num_blocks.bit_length() - 1, -1, -1)
        self._free: list[set[int]] = [set() for _ in range(num_blocks.bit_length())]
        start = 0
        for order in orders:
            if num_blocks >> order & 1:
                self._free[order].add(start)
                start += 1 << order

    def reserved(self, tokens: int) -> int:
        return tokens

    def rounded(self, blocks: int) -> int:
        return 1 << (blocks - 1).bit_length() if blocks else 0

    def place(self, blocks: int) -> int | None:
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
        order = blocks.bit_length() - 1
        while (buddy := start ^ (1 << order)) in self._free[order]:
            self._free[order].remove(buddy)
            start = min(start, buddy)
            order += 1
        self._free[order].add(start)

    def largest(self) -> int:
        return 1 << self.num_blocks.bit_length() >> 1
