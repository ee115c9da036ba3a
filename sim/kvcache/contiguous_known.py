"""Contiguous KV cache for lengths that are known: every request reserves just what it will need."""

from __future__ import annotations

from .slabs import SlabAllocator


class ContiguousKnownAllocator(SlabAllocator):
    """One slab a request, as long as prompt and answer will be, placed in the first hole that is large enough.

    What it optimises: no room is reserved that will not be used; an upper limit of what contiguous memory can
    do, since an engine does not know how long an answer will be. What it starves: whoever needs a long slab
    while free room lies scattered in small holes (external fragmentation); and room for tokens that come
    later is taken from the start.
    Source: "Orca (Oracle)" of Kwon et al., SOSP 2023, section 6.
    """

    name = "contiguous_known"

    def reserved(self, tokens: int) -> int:
        return tokens
