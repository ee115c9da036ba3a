"""What a KV-cache allocator promises to the scheduler and the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..engine.decoding import DecodeCohort
    from ..engine.request import Request


@dataclass(frozen=True, slots=True)
class PoolShape:
    """A sized KV pool as an allocator sees it.

    Attributes
    ----------
    num_blocks : blocks that requests can use [blocks]
    block_size : tokens of one block [tokens]
    bounded_blocks : blocks a sequence of so many tokens takes in layers whose cache is bounded; None: no such
        layers
    block_bytes : one block on one rank [B]; 0 where nobody moves blocks
    """

    num_blocks: int
    block_size: int
    bounded_blocks: Callable[[int], int] | None = None
    block_bytes: int = 0


@runtime_checkable
class KVAllocator(Protocol):
    """Hands out KV memory in blocks; a refusal is ``None`` or ``False`` and leaves no trace.

    Attributes
    ----------
    name : the name used in scenario files
    block_size : tokens one block holds [tokens]
    growth_tokens : tokens after which a decoding request needs one more block [tokens]
    num_blocks : blocks that requests can use [blocks]
    free_blocks : blocks nobody holds (still cached content included) [blocks]
    held_blocks : growing blocks held, a shared block counted once for each holder [blocks]
    keeps_all : no token of a sequence is written over while it is held, so that live tokens lie in held blocks
    reserves : holds room for tokens that come later, instead of taking it as they come
    queried_tokens, hit_tokens : prompt tokens looked up in the prefix cache, and found there [tokens]
    """

    name: str
    block_size: int
    growth_tokens: int
    num_blocks: int
    free_blocks: int
    held_blocks: int
    reserves: bool
    keeps_all: bool
    queried_tokens: int
    hit_tokens: int

    def fits(self, tokens: int) -> bool:
        """Tell whether ``tokens`` could ever be held, with the pool to itself."""
        ...

    def blocks_of(self, tokens: int) -> int:
        """Count the blocks that a sequence of so many tokens takes in all [blocks]."""
        ...

    def tracks_content_of(self, request: Request) -> bool:
        """Tell whether blocks that ``request`` fills while decoding may be shared, so must be noted."""
        ...

    def missing(self, request: Request, tokens: int) -> int:
        """Count the blocks ``request`` lacks to hold ``tokens`` computed tokens [blocks]."""
        ...

    def lookup(self, request: Request) -> int:
        """Count the leading tokens of ``request`` found in the prefix cache [tokens]; never all of them."""
        ...

    def admit(
        self, request: Request, tokens: int, cached: int, *, must_hold: int = 0, keep_free: int = 0
    ) -> bool:
        """Give a waiting request its cached prefix and the blocks for ``tokens`` computed tokens in all.

        Refused (False) unless ``must_hold`` tokens would fit too and ``keep_free`` blocks stay free.
        """
        ...

    def append(self, request: Request, tokens: int) -> bool:
        """Give a request the blocks it lacks for ``tokens`` computed tokens; False if none are left."""
        ...

    def grow(self, cohort: DecodeCohort, steps: int) -> None:
        """Give every decoding request the blocks for ``steps`` more tokens; the caller knows of them."""
        ...

    def stable_steps(self, cohort: DecodeCohort, wanted: int) -> int:
        """Count the decode steps, up to ``wanted``, for which ``grow`` can be met from the free blocks [steps]."""
        ...

    def forget(self, blocks: int) -> None:
        """Forget what the free blocks to be taken next hold, as if they were taken now."""
        ...

    def note_output(self, request: Request) -> None:
        """Learn that an output token of a content-tracked request became known."""
        ...

    def swap_out(self, request: Request) -> bool:
        """Take back every block of a request and keep its computed tokens elsewhere; False if there is no room."""
        ...

    def discard(self, request: Request) -> None:
        """Forget what ``swap_out`` has kept of a request that will not go on."""
        ...

    def free(self, request: Request, known: int) -> None:
        """Take back every block of ``request``; its first ``known`` tokens stay findable until evicted."""
        ...
