"""KV cache of sequences that keep a bounded number of tokens: a ring of blocks a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .slabs import SlabAllocator

if TYPE_CHECKING:
    from ...hwmodels.pool import KVPool


class RingAllocator(SlabAllocator):
    """As many blocks a request as its windows ever fill, taken at admission and written over in a circle.

    What it optimises: a request's memory stops growing, and nothing can run out while it decodes. What it starves:
    prefixes, whose first tokens are written over. Not chosen by name: ``kv_cache.eviction`` brings it.
    Source: the rolling cache of StreamingLLM (Xiao et al., ICLR 2024).

    Approximation: a request holds from the start what it will hold in the end; a chunk's own keys lie in activation
    memory until they are written.

    Parameters
    ----------
    blocks_held : blocks that a sequence of so many tokens holds
    """

    name = "ring"
    keeps_all = False

    def __init__(
        self, num_blocks: int, block_size: int, *, max_model_len: int, blocks_held: Callable[[int], int]
    ) -> None:
        super().__init__(num_blocks, block_size, max_model_len=max_model_len)
        self._blocks_held = blocks_held

    @staticmethod
    def holds(pool: KVPool) -> bool:
        """Tell whether rings hold all that a pool's layers keep."""
        return all(group.kind != "full" for group in pool.layout.groups)

    @classmethod
    def over(cls, pool: KVPool, max_model_len: int) -> RingAllocator:
        """Make the allocator of a sized pool: a ring for each group of layers of a request."""
        layout = pool.layout

        def blocks_held(tokens: int) -> int:
            return sum(
                group.copies * -(-min(tokens, group.window) // group.block_tokens)
                if group.block_tokens
                else group.blocks(tokens, 0, 1, layout.state_blocks)
                for group in layout.groups
            )

        return cls(
            pool.usable_blocks, layout.block_tokens, max_model_len=max_model_len, blocks_held=blocks_held
        )

    def reserved(self, tokens: int) -> int:
        return tokens

    def blocks_of(self, tokens: int) -> int:
        return self._blocks_held(tokens)

    def place(self, blocks: int) -> int | None:
        return 0

    def give_back(self, start: int, blocks: int) -> None:
        return

    def largest(self) -> int:
        return self.num_blocks
