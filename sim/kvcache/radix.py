"""Token-prefix tree, as in SGLang."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .pages import PageAllocator
from .tree import Node, PrefixTree

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine.decoding import DecodeCohort
    from ..engine.request import Request


class Holding:
    """What one request holds: all pages up to ``node`` of the tree, and ``own`` pages behind it.

    The tree takes in its first ``prompt`` tokens; ``bounded`` pages hold what does not grow (windows, states).
    """

    __slots__ = ("bounded", "node", "own", "prompt")

    def __init__(self, node: Node, prompt: int, bounded: int) -> None:
        self.node = node
        self.own = 0
        self.prompt = prompt
        self.bounded = bounded

    def __len__(self) -> int:
        return self.node.stop + self.own


class RadixAllocator(PageAllocator[Holding]):
    """Pages of one token by default, and a tree of the prefixes that were computed.

    What it optimises: a prefix is found to the token, not to the block, and one that several requests computed at the
    same time is kept once. What it starves: long leaves, the least recently used of which goes as a whole, however
    little room is asked for; what a preempted request has decoded, which is computed again.
    Source: RadixAttention (Zheng et al., NeurIPS 2024); SGLang ``RadixCache`` and ``token_to_kv_pool``.

    A prompt enters the tree chunk by chunk, an answer when it ends; both are locked while in use. Pages taken come
    first from those without content, then from unlocked leaves, least recently used first.

    Approximation: a chunk can be found once it is scheduled, as under block hashing; SGLang puts it in when its step
    ends, and of equal prompts that arrive together computes what the first has not finished.

    Parameters
    ----------
    num_blocks : pages that requests can use [pages]
    block_size : tokens of one page [tokens]
    enable_prefix_caching : keep the tree; False: SGLang's ``--disable-radix-cache``
    bounded_blocks : pages that a sequence of so many tokens takes once, whatever it grows to, for layers whose cache is
        bounded (sliding windows, recurrent states); None if there are none [pages]
    """

    name = "radix"
    default_block_size = 1

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 1,
        *,
        enable_prefix_caching: bool = True,
        bounded_blocks: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(
            num_blocks,
            block_size,
            enable_prefix_caching=enable_prefix_caching,
            bounded_blocks=bounded_blocks,
        )
        self._tree = PrefixTree()

    def tracks_content_of(self, request: Request) -> bool:
        return False

    def lookup(self, request: Request) -> int:
        if not self.enable_prefix_caching:
            return 0
        return self._tree.match(request, (request.num_tokens - 1) // self.block_size)[0] * self.block_size

    def admit(
        self, request: Request, tokens: int, cached: int, *, must_hold: int = 0, keep_free: int = 0
    ) -> bool:
        hits, unlocked = self._tree.match(request, cached // self.block_size)
        bounded = self._bounded(request.num_tokens_needed)
        wanted = -(-max(tokens, must_hold) // self.block_size) - hits + bounded
        if wanted + unlocked + keep_free > self.free_blocks:
            return False
        if not request.num_preemptions:
            self.queried_tokens += request.input_tokens
            self.hit_tokens += cached
        holding = request.kv = Holding(self._tree.lock(request, hits), request.num_tokens, bounded)
        self.free_blocks -= unlocked
        self.held_blocks += hits
        if bounded:
            self._take(bounded)
        self._extend(request, holding, tokens)
        return True

    def stable_steps(self, cohort: DecodeCohort, wanted: int) -> int:
        if cohort.blocks_at_most(wanted) <= self.free_blocks:
            return wanted
        return min(wanted, cohort.steps_within(self.free_blocks))

    def note_output(self, request: Request) -> None:
        return

    def swap_out(self, request: Request) -> bool:
        return False

    def discard(self, request: Request) -> None:
        return

    def free(self, request: Request, known: int) -> None:
        holding = self._holding(request)
        total = len(holding)
        if request.num_output_tokens >= request.output_tokens:
            self._publish(request, holding, known)
        self._tree.unlock(holding.node)
        self._blank += holding.own + holding.bounded
        self.free_blocks = self._blank + self._tree.unlocked
        self.held_blocks -= total
        request.kv = None

    # -- inside ----------------------------------------------------------------------------------------------

    def _holding(self, request: Request) -> Holding:
        """Return what ``request`` holds; pages that came by ``grow`` are entered only now."""
        holding = request.kv
        assert isinstance(holding, Holding)
        grown = -(-request.num_computed_tokens // self.block_size) - len(holding)
        if grown > 0:
            holding.own += grown
        return holding

    def _extend(self, request: Request, holding: Holding, tokens: int) -> None:
        """Add the pages for ``tokens`` in all, and put those of the prompt into the tree."""
        added = -(-tokens // self.block_size) - len(holding)
        if added > 0:
            self._take(added)
            self.held_blocks += added
            holding.own += added
        self._publish(request, holding, min(tokens, holding.prompt))

    def _publish(self, request: Request, holding: Holding, known: int) -> None:
        """Put the first ``known`` tokens into the tree; pages whose content is there already become free."""
        pages = known // self.block_size
        before = holding.node.stop
        if not self.enable_prefix_caching or pages <= before:
            return
        holding.node, already = self._tree.extend(holding.node, request, pages)
        holding.own -= pages - before
        self._blank += already
        self.free_blocks = self._blank + self._tree.unlocked

    def _take(self, count: int) -> None:
        """Take pages without content, and make more of them from the leaves of the tree."""
        while self._blank < count:
            self._blank += self._tree.evict()
        self._blank -= count
        self.free_blocks -= count
