"""The scheduler of vLLM before V1: prompts first, and meanwhile nobody decodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ScheduledBatch, SchedulerView
from .vllm_v1 import VllmV1

if TYPE_CHECKING:
    from ..engine.request import Request
    from ..kvcache.base import KVAllocator

WATERMARK = 0.01
"""Share of the pool V0 leaves free at an admission (``BlockSpaceManager``)."""


class VllmV0(VllmV1):
    """A step computes either the whole prompts of those who join, or one token of everybody who runs.

    What it optimises: time to first token, and how full the batch gets. What it starves: running requests, which
    stall for as long as prompts are computed; their inter-token latency has a long tail.
    Source: vLLM 0.2 to 0.8, ``Scheduler._schedule_default``, with preemption by recompute (Kwon et al., SOSP 2023).

    Parameters
    ----------
    max_num_seqs : most running requests
    max_num_batched_tokens : most prompt tokens of a step; longer sequences are rejected [tokens]
    max_model_len : longest sequence [tokens]
    """

    name = "vllm_v0"

    def __init__(self, *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int) -> None:
        super().__init__(
            max_num_seqs=min(max_num_seqs, max_num_batched_tokens),
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=False,
            scheduler_reserve_full_isl=False,
            watermark=WATERMARK,
        )

    def refuses(self, request: Request) -> str | None:
        # Preempted at its end, a request is computed again in one piece, its answer included.
        if request.num_tokens_needed > self.max_num_batched_tokens:
            return "sequence exceeds max_num_batched_tokens and prompts are computed whole"
        return None

    def schedule(self, view: SchedulerView, allocator: KVAllocator) -> ScheduledBatch:
        batch = ScheduledBatch()
        if view.waiting:
            self._admit(view, allocator, batch, self.max_num_batched_tokens)
        if batch.admitted:
            view.dissolve()
            return batch
        self._continue_running(view, allocator, batch)
        if batch.preempted:
            batch.limiter = "kv_blocks"
        return batch
