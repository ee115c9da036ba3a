"""Contiguous KV cache: every request reserves room for the longest sequence there may be."""

from __future__ import annotations

from .slabs import SlabAllocator


class ContiguousAllocator(SlabAllocator):
    """One slab of ``max_model_len`` tokens a request, reserved at admission, as engines before paging did.

    What it optimises: the simplest kernels, no block table, nothing can run out while a request decodes. What
    it starves: the batch, because most of a slab is never used (internal fragmentation) and what is left of
    the pool behind the last whole slab serves nobody (external fragmentation).
    Source: FasterTransformer and "Orca (Max)" as described by Kwon et al., SOSP 2023, sections 3 and 6.
    """

    name = "contiguous"

    def reserved(self, tokens: int) -> int:
        return self.max_model_len
