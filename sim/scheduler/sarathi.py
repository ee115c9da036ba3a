"""Sarathi-Serve: prompts are computed in chunks that fill up the steps of those who decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .vllm_v1 import VllmV1

if TYPE_CHECKING:
    from ..engine.request import Request
    from .base import ScheduledBatch, SchedulerView


class Sarathi(VllmV1):
    """Every step: all who decode, then prompts under way, then new ones, as far as the token budget goes.

    What it optimises: throughput without stalls: a step is never longer than the budget makes it, so that the budget
    sets inter-token latency against time to first token. What it starves: long prompts, whose first token takes as many
    steps as they have chunks, each of which reads their KV again.
    Source: Agrawal et al., "Taming Throughput-Latency Tradeoff in LLM Inference with Sarathi-Serve", OSDI 2024,
    algorithm 3. vLLM V1 goes on from there, with running requests in the order of their admission.

    Parameters
    ----------
    max_num_seqs : most running requests
    max_num_batched_tokens : token budget of a step; the paper takes 512 to 2,048 [tokens]
    max_model_len : longest sequence [tokens]
    watermark : share of the pool left free at an admission while something is running
    """

    name = "sarathi"

    def __init__(
        self, *, max_num_seqs: int, max_num_batched_tokens: int, max_model_len: int, watermark: float = 0.0
    ) -> None:
        super().__init__(
            max_num_seqs=min(max_num_seqs, max_num_batched_tokens),
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            watermark=watermark,
        )

    def _turns(self, view: SchedulerView) -> list[Request]:
        return sorted(view.running, key=self._computes_prompt)

    def _share_out(self, view: SchedulerView, batch: ScheduledBatch, budget: int) -> bool:
        for request in sorted(view.individuals, key=self._computes_prompt):
            count = min(self._wanted(view, request), budget)
            if count > 0:
                batch.tokens[request] = count
                budget -= count
        return True

    @staticmethod
    def _computes_prompt(request: Request) -> bool:
        """Tell whether a request has more than its newest token to compute: a prompt, or what was lost of it."""
        return request.num_tokens + request.num_pending_tokens - request.num_computed_tokens > 1
