"""Contiguous KV cache: every request reserves room for the longest sequence there may be."""

from __future__ import annotations

from collections.abc import Callable

from .slabs import FirstFit, SlabAllocator


class ContiguousAllocator(SlabAllocator):
    """One slab of ``max_model_len`` tokens a request, reserved at admission, as engines before paging did.

    What it optimises: the simplest kernels, no block table, nothing can run out while a request decodes. What
    it starves: the batch, because most of a slab is never used (internal fragmentation) and what is left of
    the pool behind the last whole slab serves nobody (external fragmentation).
    Source: FasterTransformer and "Orca (Max)" as described by Kwon et al., SOSP 2023, sections 3 and 6.
    """

    name = "contiguous"

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_model_len: int,
        bounded_blocks: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(num_blocks, block_size, max_model_len=max_model_len, bounded_blocks=bounded_blocks)
        self._space = FirstFit(num_blocks)

    def reserved(self, tokens: int) -> int:
        return self.max_model_len

    def place(self, blocks: int) -> int | None:
        return self._space.place(blocks)

    def give_back(self, start: int, blocks: int) -> None:
        self._space.give_back(start, blocks)

    def largest(self) -> int:
        return self.num_blocks
