"""One contiguous slab a request: what all allocators without a block table have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from typing import Self

    from ..engine.decoding import DecodeCohort
    from ..engine.request import Request
    from .base import PoolShape


class Space(Protocol):
    """Where slabs lie.

    Attributes
    ----------
    largest : the largest slab that it has while nothing is taken [blocks]
    """

    largest: int

    def place(self, blocks: int) -> int | None:
        """Take a slab of so many blocks and return where it begins; None if no hole is large enough."""
        ...

    def give_back(self, start: int, blocks: int) -> None:
        """Take a slab back."""
        ...


class FirstFit:
    """Holes of a line of blocks, each slab placed in the first that is large enough.

    Parameters
    ----------
    size : length of the line [blocks]
    """

    def __init__(self, size: int) -> None:
        self.largest = size
        self.holes: list[tuple[int, int]] = [(0, size)] if size else []

    def place(self, blocks: int) -> int | None:
        """Take a slab and return where it begins, or None."""
        for at, (start, length) in enumerate(self.holes):
            if length >= blocks:
                self.holes[at : at + 1] = [(start + blocks, length - blocks)] if length > blocks else []
                return start
        return None

    def give_back(self, start: int, blocks: int) -> None:
        """Take a slab back and join it with the holes beside it."""
        after = bisect_left(self.holes, (start, 0))
        end = start + blocks
        if after < len(self.holes) and self.holes[after][0] == end:
            end += self.holes.pop(after)[1]
        if after and sum(self.holes[after - 1]) == start:
            after -= 1
            start = self.holes.pop(after)[0]
        self.holes.insert(after, (start, end - start))


class Slab(NamedTuple):
    """Where the slab of a request begins, and how long it is [blocks]."""

    start: int
    blocks: int


class SlabAllocator(ABC):
    """Gives a request one contiguous slab when it is admitted, and takes the whole of it back in the end.

    What a slab holds never moves, so a request cannot be given more later: it must be given all that it may
    need at once. The pool is counted in the blocks that a paged pool of the same size would have. There is no
    prefix cache: a slab belongs to one request.

    Parameters
    ----------
    num_blocks : size of the pool [blocks]
    block_size : tokens of one block [tokens]
    max_model_len : longest sequence [tokens]
    bounded_blocks : blocks that a sequence of so many tokens takes besides, in layers whose cache is bounded;
        None if there are none [blocks]
    """

    name: str
    reserves = True
    keeps_all = True
    space: Callable[[int], Space] = FirstFit
    growth_tokens = 1 << 40
    """A slab never grows."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        max_model_len: int,
        bounded_blocks: Callable[[int], int] | None = None,
    ) -> None:
        self.num_blocks = self.free_blocks = num_blocks
        self.block_size = block_size
        self.max_model_len = max_model_len
        self.bounded_blocks = bounded_blocks
        self.held_blocks = self.queried_tokens = self.hit_tokens = 0
        self._space = type(self).space(num_blocks)

    @classmethod
    def of(cls, pool: PoolShape, *, max_model_len: int, enable_prefix_caching: bool) -> Self:
        """Make the allocator of a sized pool; a slab has no prefixes to share."""
        return cls(
            pool.num_blocks, pool.block_size, max_model_len=max_model_len, bounded_blocks=pool.bounded_blocks
        )

    # -- what an allocator decides ---------------------------------------------------------------------------

    @abstractmethod
    def reserved(self, tokens: int) -> int:
        """Return the length reserved for a sequence that will have so many tokens [tokens]."""

    def place(self, blocks: int) -> int | None:
        """Take a slab of so many blocks and return where it begins; None if no hole is large enough."""
        return self._space.place(blocks)

    def give_back(self, start: int, blocks: int) -> None:
        """Take a slab back."""
        self._space.give_back(start, blocks)

    def largest(self) -> int:
        """Return the largest slab that an empty pool has [blocks]."""
        return self._space.largest

    # -- what the scheduler and the engine ask ---------------------------------------------------------------

    def fits(self, tokens: int) -> bool:
        return self.blocks_of(tokens) <= self.largest()

    def blocks_of(self, tokens: int) -> int:
        length = max(self.reserved(tokens), tokens)
        bounded = 0 if self.bounded_blocks is None else self.bounded_blocks(length)
        return self.rounded(-(-length // self.block_size) + bounded)

    def rounded(self, blocks: int) -> int:
        """Return the size of the slab that holds so many blocks [blocks]."""
        return blocks

    def tracks_content_of(self, request: Request) -> bool:
        return False

    def missing(self, request: Request, tokens: int) -> int:
        return 0

    def lookup(self, request: Request) -> int:
        return 0

    def admit(
        self, request: Request, tokens: int, cached: int, *, must_hold: int = 0, keep_free: int = 0
    ) -> bool:
        # Whose end nobody foresees may compute one token too many.
        beyond = int(request.max_tokens > request.output_tokens)
        blocks = self.blocks_of(max(request.num_tokens_needed + beyond, tokens, must_hold))
        if blocks + keep_free > self.free_blocks:
            return False
        start = self.place(blocks)
        if start is None:
            return False
        request.kv = Slab(start, blocks)
        self.free_blocks -= blocks
        self.held_blocks += blocks
        return True

    def append(self, request: Request, tokens: int) -> bool:
        return True

    def grow(self, cohort: DecodeCohort, steps: int) -> None:
        return

    def stable_steps(self, cohort: DecodeCohort, wanted: int) -> int:
        return wanted

    def forget(self, blocks: int) -> None:
        return

    def note_output(self, request: Request) -> None:
        return

    def swap_out(self, request: Request) -> bool:
        return False

    def discard(self, request: Request) -> None:
        return

    def free(self, request: Request, known: int) -> None:
        slab = request.kv
        assert isinstance(slab, Slab)
        self.give_back(slab.start, slab.blocks)
        self.free_blocks += slab.blocks
        self.held_blocks -= slab.blocks
        request.kv = None
