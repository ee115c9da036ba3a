"""Static batching, for contrast: a batch starts together and ends together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ScheduledBatch, Scheduler, SchedulerView, WaitingQueue
from .queues import FCFSQueue

if TYPE_CHECKING:
    from ..engine.request import Request
    from ..kvcache.base import KVAllocator


class Static(Scheduler):
    """Fill a batch from the waiting line, run it until its longest answer is done, then fill the next.

    What it optimises: nothing but simplicity. What it starves: short answers (their slots and KV stay taken,
    and are computed along as padding, until the longest one is done) and everybody who waits.
    Source: FasterTransformer's request-level batching, as described in Orca (Yu et al., OSDI 2022).

    Parameters
    ----------
    max_num_seqs : most requests of a batch
    """

    name = "static"
    holds_batch = True
    supports_async = False

    def __init__(self, *, max_num_seqs: int) -> None:
        self.max_num_seqs = max_num_seqs

    def queue(self) -> WaitingQueue:
        return FCFSQueue()

    def schedule(self, view: SchedulerView, allocator: KVAllocator) -> ScheduledBatch:
        batch = ScheduledBatch()
        if view.running:
            batch.limiter = "max_num_seqs" if len(view.waiting) else "arrivals"
            batch.decoding = view.decoding.count > 0
            if batch.decoding:
                allocator.grow(view.decoding, 1)
            for request in view.individuals:
                allocator.append(request, request.num_tokens)
                batch.tokens[request] = request.num_tokens - request.num_computed_tokens
            return batch
        reserved = 0
        while len(view.waiting):
            if len(view.running) >= self.max_num_seqs:
                batch.limiter = "max_num_seqs"
                break
            request = view.waiting.peek()
            reserved += allocator.blocks_of(request.input_tokens + request.output_tokens)
            if reserved > allocator.num_blocks or not allocator.admit(request, request.input_tokens, 0):
                batch.limiter = "kv_blocks"
                break
            view.admit(request, 0)
            batch.admitted.append(request)
            batch.tokens[request] = request.input_tokens
        return batch

    def stable_steps(self, view: SchedulerView, batch: ScheduledBatch) -> int:
        return 0 if batch.tokens else 1 << 62

    def arrival_matters(self, view: SchedulerView, request: Request) -> bool:
        return len(view.waiting) == 1
