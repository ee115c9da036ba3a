"""Shortest remaining predicted answer first, running requests included."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from ...hwmodels.units import Factor
from ..fields import Share
from .base import Limiter, ScheduledBatch, SchedulerView
from .predictor import LengthPredictor
from .reordered import Reordered, produced

if TYPE_CHECKING:
    from ..engine.request import Request
    from ..kvcache.base import KVAllocator


class ShortestRemainingFirst(Reordered):
    """vLLM's batching, the shortest remaining predicted answer first; it takes the places of longer ones that run.

    Who is stopped loses its KV and computes it again (what a prefix cache kept of it excepted).

    What it optimises: mean latency, also of requests that arrive while long answers fill the batch. What it
    starves: long answers; and throughput, by what is computed twice. ``preempt_until`` bounds both.
    Source: Shahout et al., "Don't Stop Me Now: Embedding Based Scheduling for LLMs" (TRAIL), ICLR 2025.

    Parameters
    ----------
    seed : the scenario's seed
    predictor_error : standard deviation of the logarithm of predicted over true length; 0 knows the length
    preempt_until : share of its predicted answer after which a request is not stopped for a shorter one
    vllm : limits of the batch, as of ``vllm_v1``
    """

    name = "srpt"
    preempts_for: ClassVar[frozenset[Limiter]] = frozenset({"kv_blocks", "max_num_seqs", "token_budget"})

    def __init__(
        self, *, seed: int = 0, predictor_error: Factor = 0.0, preempt_until: Share = 1.0, **vllm: Any
    ) -> None:
        super().__init__(**vllm)
        self.predict = LengthPredictor(seed, predictor_error)
        self.preempt_until = preempt_until
        self.rank = self._remaining
        self._stopped: list[Request] = []
        self._room = True
        self.everyone_served = False

    def caveats(self) -> tuple[str, ...]:
        return (*super().caveats(), self.predict.caveat(self.name))

    def schedule(self, view: SchedulerView, allocator: KVAllocator) -> ScheduledBatch:
        """Stop longer requests for the first who waits, then go on as vLLM does."""
        self._stopped = self._to_stop(view, allocator)
        for request in self._stopped:
            view.preempt(request)
        batch = super().schedule(view, allocator)
        batch.preempted[:0] = self._stopped
        return batch

    def stable_steps(self, view: SchedulerView, batch: ScheduledBatch) -> int:
        """Hold to a decision to stop nobody, if somebody would have had to be stopped.

        Those who run come ever closer to their end, and what is free, with what stopping them would free, only gets
        less. Where there was room at first, though, those who run may have taken it since.
        """
        if view.waiting and self._room:
            return 0
        return super().stable_steps(view, batch)

    def _may_join(self, view: SchedulerView, allocator: KVAllocator, request: Request) -> bool:
        return request not in self._stopped

    def _remaining(self, request: Request, view: SchedulerView | None = None) -> float:
        """Return how much longer an answer is predicted to be [tokens]."""
        return max(self.predict(request) - produced(request, view), 0.0)

    def _to_stop(self, view: SchedulerView, allocator: KVAllocator) -> list[Request]:
        """Return the fewest running requests, longest first, whose places the first who waits can do with."""
        if not view.waiting:
            return []
        head = view.waiting.peek()
        lacking = _blocks(allocator, head, head.num_tokens) - allocator.free_blocks
        lacking += int(self.watermark * (allocator.num_blocks + 1))
        self._room = lacking <= 0 and len(view.running) < self.max_num_seqs
        if self._room:
            return []
        stopped: list[Request] = []
        for _, _, request in sorted(self._longer(view, self._remaining(head)), reverse=True):
            stopped.append(request)
            lacking -= _blocks(allocator, request, produced(request, view) + request.input_tokens - 1)
            if lacking <= 0:
                return stopped
        return []

    def _longer(self, view: SchedulerView, than: float) -> list[tuple[float, int, Request]]:
        """Return the running requests that may be stopped and have more left, with what they have left."""
        found: list[tuple[float, int, Request]] = []
        for request in view.running:
            left = self._remaining(request, view)
            if left > than and produced(request, view) < self.preempt_until * self.predict(request):
                found.append((left, request.index, request))
        return found


def _blocks(allocator: KVAllocator, request: Request, tokens: int) -> int:
    """Count the blocks that a request holds, or will, with so many tokens computed [blocks]."""
    needed = request.num_tokens_needed
    whole = allocator.blocks_of(needed)
    if allocator.reserves:
        return whole
    size = allocator.block_size
    return whole - -(-needed // size) + -(-tokens // size)
