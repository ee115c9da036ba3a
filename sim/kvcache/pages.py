"""What allocators share that keep one pool of pages of equal size: their shape, and growth page by page."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sized
from typing import TYPE_CHECKING, Generic, Self, TypeVar

if TYPE_CHECKING:
    from ..engine.decoding import DecodeCohort
    from ..engine.request import Request
    from .base import PoolShape

Held = TypeVar("Held", bound=Sized)


class PageAllocator(ABC, Generic[Held]):
    """Pages from one pool; what a page's content is to others is left to the policy.

    Parameters
    ----------
    num_blocks : pages that requests can use [pages]
    block_size : tokens of one page [tokens]
    enable_prefix_caching : keep the content of freed pages findable
    bounded_blocks : pages that a sequence of so many tokens takes once, whatever it grows to, for layers whose cache is
        bounded (sliding windows, recurrent states); None if there are none [pages]
    """

    reserves = False
    keeps_all = True

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        enable_prefix_caching: bool = True,
        bounded_blocks: Callable[[int], int] | None = None,
    ) -> None:
        self.num_blocks: int = num_blocks
        self.free_blocks: int = num_blocks
        self.block_size: int = block_size
        self.growth_tokens: int = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.bounded_blocks = bounded_blocks
        self.held_blocks: int = 0
        self.queried_tokens: int = 0
        self.hit_tokens: int = 0
        self._blank: int = num_blocks

    @classmethod
    def of(cls, pool: PoolShape, *, max_model_len: int, enable_prefix_caching: bool) -> Self:
        """Make the allocator of a sized pool."""
        return cls(
            pool.num_blocks,
            pool.block_size,
            enable_prefix_caching=enable_prefix_caching,
            bounded_blocks=pool.bounded_blocks,
        )

    def fits(self, tokens: int) -> bool:
        return self.blocks_of(tokens) <= self.num_blocks

    def blocks_of(self, tokens: int) -> int:
        return -(-tokens // self.block_size) + self._bounded(tokens)

    def missing(self, request: Request, tokens: int) -> int:
        # Who asked for drafted tokens before may hold more than it wants now.
        return max(-(-tokens // self.block_size) - len(self._holding(request)), 0)

    def append(self, request: Request, tokens: int) -> bool:
        holding = self._holding(request)
        if -(-tokens // self.block_size) - len(holding) > self.free_blocks:
            return False
        self._extend(request, holding, tokens)
        return True

    def grow(self, cohort: DecodeCohort, steps: int) -> None:
        needed = cohort.blocks_needed(steps)
        if needed:
            self.held_blocks += needed
            self._take(needed)

    def forget(self, blocks: int) -> None:
        self._take(blocks)
        self.free_blocks += blocks
        self._blank += blocks

    def _bounded(self, tokens: int) -> int:
        return 0 if self.bounded_blocks is None else self.bounded_blocks(tokens)

    @abstractmethod
    def _holding(self, request: Request) -> Held:
        """Return what ``request`` holds; pages that came by ``grow`` are entered only now."""

    @abstractmethod
    def _extend(self, request: Request, holding: Held, tokens: int) -> None:
        """Add the pages for ``tokens`` in all."""

    @abstractmethod
    def _take(self, count: int) -> None:
        """Take pages, those without content first."""
