"""Contiguous KV cache: every request reserves room for the longest sequence there may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .paged import PagedAllocator

if TYPE_CHECKING:
    from .base import PoolShape


class ContiguousAllocator(PagedAllocator):
    """One slab of ``max_model_len`` tokens a request, reserved at admission, as engines before paging did.

    What it optimises: the simplest kernels, no block table, nothing can run out while a request decodes. What
    it starves: the batch, because most of a slab is never used (internal fragmentation) and what is left of
    the pool behind the last whole slab serves nobody (external fragmentation).
    Source: FasterTransformer and Orca as described by Kwon et al., SOSP 2023, section 3.

    It is the paged allocator with one block as long as the longest sequence and no prefix cache.

    Parameters
    ----------
    pool_tokens : room of the KV pool [tokens]
    max_model_len : length reserved for each request [tokens]
    """

    name = "contiguous"

    def __init__(self, pool_tokens: int, max_model_len: int) -> None:
        super().__init__(pool_tokens // max_model_len, max_model_len, enable_prefix_caching=False)
        self.external_tokens = pool_tokens % max_model_len

    @classmethod
    def of(cls, pool: PoolShape, *, max_model_len: int, enable_prefix_caching: bool) -> ContiguousAllocator:
        """Make the allocator of a sized pool; a contiguous cache has no prefixes to share."""
        return cls(pool.num_blocks * pool.block_size, max_model_len)
