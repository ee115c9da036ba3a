"""Prompts before answers: a step computes waiting prompts or the next tokens of all who run, never both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base import ScheduledBatch, SchedulerView
from .vllm_v1 import VllmV1

if TYPE_CHECKING:
    from ..kvcache.base import KVAllocator


class PrefillFirst(VllmV1):
    """Whoever waits and fits is computed at once, in chunks; the others' answers stand still meanwhile.

    What it optimises: time in the queue, and steps without a mixture. What it starves: the answers of those who
    run, as long as prompts come. Users who come together stay together: all their prompts are computed before
    any of their answers goes on, so all of them end at about one time.
    Source: SGLang 0.5 ``Scheduler.get_next_batch_to_run`` without ``enable_mixed_chunk`` (its default).

    Approximation: SGLang admits as many as leave room for a share of the answers to come; here only the whole
    prompt must fit, and who runs out of blocks is preempted.
    """

    name = "prefill_first"

    def schedule(self, view: SchedulerView, allocator: KVAllocator) -> ScheduledBatch:
        batch = ScheduledBatch()
        budget = self._continue_prompts(view, allocator, batch)
        if view.waiting:
            self._admit(view, allocator, batch, budget)
        if batch.tokens:
            view.dissolve()  # a cohort gets a token in every step, and this one has none for it
            return batch
        self._continue_running(view, allocator, batch)
        if batch.preempted:
            batch.limiter = "kv_blocks"
        return batch

    def _continue_prompts(self, view: SchedulerView, allocator: KVAllocator, batch: ScheduledBatch) -> int:
        """Go on with prompts begun in earlier steps; return the budget left [tokens]."""
        budget = self.max_num_batched_tokens
        for request in view.individuals:
            count = min(self._wanted(view, request), budget)
            begun = request.num_computed_tokens < request.num_tokens - 1
            if begun and count > 0 and allocator.append(request, request.num_held_tokens + count):
                batch.tokens[request] = count
                budget -= count
        return budget
