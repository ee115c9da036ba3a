"""Paged KV cache with block-level prefix caching, as in vLLM V1."""

from __future__ import annotations

from collections import OrderedDict
from itertools import takewhile
from typing import TYPE_CHECKING

from .pages import PageAllocator
from .runs import CachedRun, PoolContent

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..engine.decoding import DecodeCohort
    from ..engine.request import Request
    from ..tiers.mover import Mover
    from ..tiers.swap import SwapSpace
    from ..tiers.tiers import TierStack
    from .runs import Piece


class Remains:
    """Freed blocks of one request whose content nobody else has, first block first; evicted from the end."""

    __slots__ = ("blocks", "owner")

    def __init__(self, owner: Request | None, blocks: int) -> None:
        self.owner = owner
        self.blocks = blocks


class Holding:
    """What one request holds: ``shared`` blocks with shareable content, then ``private`` ones that only need counting.

    ``cached`` of the shared ones are findable, in ``runs``; the first ``known`` tokens will be when the request comes
    back; ``bounded`` blocks hold what does not grow (windows, states).
    """

    __slots__ = ("bounded", "cached", "known", "private", "runs", "shared")

    def __init__(self) -> None:
        self.bounded = 0
        self.known = 0
        self.runs: list[CachedRun] = []
        self.shared = 0
        self.cached = 0
        self.private = 0

    def __len__(self) -> int:
        return self.shared + self.private


class PagedAllocator(PageAllocator[Holding]):
    """Fixed-size blocks from one pool; a freed block keeps its content until it is needed again.

    What it optimises: no external fragmentation, internal fragmentation of at most one block a request, and
    prefixes that were computed before are not computed again. What it costs: a lookup per admission.
    Source: PagedAttention (Kwon et al., SOSP 2023); vLLM V1 ``KVCacheManager`` and ``BlockPool``.

    Freed blocks queue up: those without findable content at the front, the others at the back, a request's
    last block first; allocation takes from the front and forgets what the block held.

    Approximation: when a preempted request comes back and its known tokens fill its last block exactly, that
    block is computed again and its old copy can no longer be found; vLLM would keep both. It matters only if
    the request is preempted once more before the old copy is evicted.

    Parameters
    ----------
    num_blocks : blocks that requests can use (the null block is not among them) [blocks]
    block_size : tokens of one block [tokens]
    enable_prefix_caching : keep the content of freed blocks findable
    bounded_blocks : blocks that a sequence of so many tokens takes once, whatever it grows to, for layers
        whose cache is bounded (sliding windows, recurrent states); None if there are none [blocks]

    Attributes
    ----------
    below : tiers that keep what this pool forgets, None without
    swap : where preempted requests' blocks wait, None where they are computed again
    mover : what carries blocks to and from both
    """

    name = "paged"
    below: TierStack | None = None
    swap: SwapSpace | None = None
    mover: Mover | None = None

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
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
        self._queue: OrderedDict[CachedRun | Remains, None] = OrderedDict()
        self._content = PoolContent()
        self._remains: dict[Request, Remains] = {}

    def tracks_content_of(self, request: Request) -> bool:
        return (
            self.enable_prefix_caching and len(request.block_hashes) * self.block_size > request.input_tokens
        )

    def lookup(self, request: Request) -> int:
        if self.swap is not None and request in self.swap:
            return min(self.swap.tokens(request), request.num_tokens - 1)
        if not self.enable_prefix_caching or not (request.block_hashes or request in self._remains):
            return 0
        limit = (request.num_tokens - 1) // self.block_size
        limit_shared = min(limit, len(request.block_hashes))
        found = self._content.leading(request.block_hashes, limit_shared)
        hits = found[-1][1] if found else 0
        if self.below is not None:
            hits += self.below.found(request.block_hashes, hits, limit_shared)
        if hits == len(request.block_hashes) and (remains := self._remains.get(request)):
            hits += min(remains.blocks, limit - hits)
        return hits * self.block_size

    def admit(
        self, request: Request, tokens: int, cached: int, *, must_hold: int = 0, keep_free: int = 0
    ) -> bool:
        swapped = self.swap is not None and request in self.swap
        hits = cached // self.block_size
        found = (
            self._content.leading(request.block_hashes, min(hits, len(request.block_hashes))) if hits else []
        )
        shared = found[-1][1] if found else 0
        restored = private = 0
        if not swapped:
            restored = min(hits, len(request.block_hashes)) - shared
            private = hits - shared - restored
        idle = private
        if found:
            idle += sum(end - run.start for run, end in found if not run.holders)
        bounded = 0 if self.bounded_blocks is None else self.bounded_blocks(request.num_tokens_needed)
        wanted = -(-max(tokens, must_hold) // self.block_size) - shared - private + bounded
        if wanted + idle + keep_free > self.free_blocks:
            return False
        if not request.num_preemptions:
            self.queried_tokens += request.input_tokens
            self.hit_tokens += cached
        holding = request.kv = Holding()
        for run, end in found:
            part = run if end == run.stop else self._content.split(run, end)
            if not part.holders:
                self._queue.pop(part, None)
            part.holders[holding] = None
            holding.runs.append(part)
        holding.shared = holding.cached = shared
        holding.bounded = bounded
        if private:
            self._revive(request, private)
            holding.private = private
        self.free_blocks -= idle
        self.held_blocks += shared + private
        if restored:
            self._restore(request, holding, restored)
        elif swapped and self.swap is not None:
            self.swap.take_back(request, -(-cached // self.block_size) - shared + bounded)
        if bounded:
            self._take(bounded)
        self._extend(request, holding, tokens)
        return True

    def stable_steps(self, cohort: DecodeCohort, wanted: int) -> int:
        free = self.free_blocks
        if self.below is not None and self.below.keeps_evicted:
            free = self._without_content()
        if cohort.blocks_at_most(wanted) <= free:
            return wanted
        return min(wanted, cohort.steps_within(free))

    def note_output(self, request: Request) -> None:
        self._publish(
            request, self._holding(request), request.num_computed_tokens - request.num_pending_tokens
        )

    def shared_blocks(self, request: Request, holders: int) -> int:
        """Count the leading blocks of a running request that so many requests hold [blocks]."""
        common = takewhile(lambda run: len(run.holders) == holders, self._holding(request).runs)
        return sum(map(len, common))

    def shrink(self, request: Request) -> None:
        """Take back the blocks beyond what a request still holds of its prompt; of private ones alone."""
        holding = self._holding(request)
        released = len(holding) - -(-request.num_held_tokens // self.block_size)
        holding.private -= released
        self.free_blocks += released
        self.held_blocks -= released
        self._blank += released

    def swap_out(self, request: Request) -> bool:
        if self.swap is None:
            return False
        holding = self._holding(request)
        if not self.swap.put(request, len(holding) + holding.bounded, request.num_computed_tokens):
            return False
        self._let_go(request, holding, 0)
        return True

    def discard(self, request: Request) -> None:
        if self.swap is not None:
            self.swap.drop(request)

    def free(self, request: Request, known: int) -> None:
        holding = self._holding(request)
        private = holding.private
        # What a prefill has computed is known, though its token may not be; what a decode has computed is not yet.
        known = max(known, holding.known)
        findable = min(max(known // self.block_size - len(request.block_hashes), 0), private)
        if not self.enable_prefix_caching or holding.shared < len(request.block_hashes):
            findable = 0
        self._let_go(request, holding, findable)

    # -- inside ----------------------------------------------------------------------------------------------

    def _let_go(self, request: Request, holding: Holding, findable: int) -> None:
        """Take back all that is held; the first ``findable`` private blocks stay findable by the request."""
        total, private = len(holding), holding.private
        if self.below is not None and holding.cached:
            self.below.released(request.block_hashes, holding.cached)
        blank = private - findable + holding.bounded + holding.shared - holding.cached
        self._blank += blank
        released = findable + blank
        if findable:
            self._leave_behind(request, findable)
        for run in reversed(holding.runs):
            del run.holders[holding]
            if not run.holders:
                released += len(run)
                self._queue[run] = None
        self.free_blocks += released
        self.held_blocks -= total
        request.kv = None

    def _restore(self, request: Request, holding: Holding, count: int) -> None:
        """Take blocks for what the tiers hold of the prompt beyond ``holding``, and order it from there."""
        assert self.below is not None
        start, stop = holding.shared, holding.shared + count
        self.below.restore(request.block_hashes, start, stop)
        self._take(count)
        self.held_blocks += count
        self._content.add(holding, request.block_hashes, start, stop)
        holding.shared = holding.cached = stop

    def _without_content(self) -> int:
        """Free blocks that are taken before the first whose content has to be moved [blocks]."""
        found = self._blank
        for entry in self._queue:
            if not isinstance(entry, Remains):
                break
            found += entry.blocks
        return found

    def _holding(self, request: Request) -> Holding:
        """Return what ``request`` holds; blocks that came by ``grow`` are entered only now."""
        holding = request.kv
        assert isinstance(holding, Holding)
        known = request.num_held_tokens
        if request.draft is not None:
            known = max(known, request.draft.slots)
        grown = -(-known // self.block_size) - len(holding)
        if grown > 0:
            holding.private += grown
        return holding

    def _extend(self, request: Request, holding: Holding, tokens: int) -> None:
        """Add the blocks for ``tokens`` in all, shareable ones first; publish the full and known ones."""
        added = -(-tokens // self.block_size) - len(holding)
        if added > 0:
            self._take(added)
            self.held_blocks += added
            if self.enable_prefix_caching:
                shareable = min(max(len(request.block_hashes) - holding.shared, 0), added)
                holding.shared += shareable
                added -= shareable
            holding.private += added
        if request.draft is not None:
            request.draft.slots = max(request.draft.slots, tokens)
        known = request.num_tokens
        holding.known = known if known < tokens else tokens
        if holding.cached < len(request.block_hashes):
            self._publish(request, holding, holding.known)

    def _publish(self, request: Request, holding: Holding, known: int) -> None:
        """Make the shareable blocks among the first ``known`` tokens findable."""
        full = min(known // self.block_size, holding.shared)
        if full <= holding.cached:
            return
        if self.below is not None:
            self.below.computed(request.block_hashes, holding.cached, full)
        self._content.add(holding, request.block_hashes, holding.cached, full)
        holding.cached = full

    def _take(self, count: int) -> None:
        """Take blocks from the front of the free queue and forget what they held."""
        self.free_blocks -= count
        if count <= self._blank:
            self._blank -= count
            return
        count -= self._blank
        self._blank = 0
        gone: list[Piece] = []
        while count:
            oldest = next(iter(self._queue))
            if isinstance(oldest, Remains):
                taken = oldest.blocks if oldest.blocks < count else count
                oldest.blocks -= taken
                empty = not oldest.blocks
                if empty and oldest.owner is not None:
                    del self._remains[oldest.owner]
            else:
                taken = min(count, len(oldest))
                gone += self._content.forget(oldest, taken)
                empty = not len(oldest)
            if empty:
                del self._queue[oldest]
            count -= taken
        if gone and self.below is not None:
            self.below.evicted(gone)

    def _leave_behind(self, request: Request, blocks: int) -> None:
        """Queue a request's private blocks: findable by itself if it comes back, else by nobody."""
        finished = request.num_output_tokens >= request.output_tokens
        last = next(reversed(self._queue), None)
        if finished and isinstance(last, Remains) and last.owner is None:
            last.blocks += blocks
            return
        remains = Remains(None if finished else request, blocks)
        self._queue[remains] = None
        if not finished:
            old = self._remains.get(request)
            if old is not None:
                old.owner = None
            self._remains[request] = remains

    def _revive(self, request: Request, blocks: int) -> None:
        """Take the first ``blocks`` of what a request left behind out of the free queue."""
        remains = self._remains.pop(request)
        remains.owner = None
        remains.blocks -= blocks
        if not remains.blocks:
            del self._queue[remains]
