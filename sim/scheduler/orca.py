"""Orca: batches change at every iteration, and memory is reserved for the longest answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from .vllm_v1 import VllmV1

if TYPE_CHECKING:
    from ..engine.request import Request
    from ..kvcache.base import KVAllocator
    from .base import SchedulerView


class Orca(VllmV1):
    """Who has finished leaves after every iteration, who waits joins with its whole prompt, if its longest fits.

    What it optimises: throughput over ``static`` (short answers leave at once), and nobody is ever preempted. What it
    starves: the batch, because memory is set aside that most answers never use; and running requests, which wait for
    every whole prompt that joins them.
    Source: Yu et al., "Orca: A Distributed Serving System for Transformer-Based Generative Models", OSDI 2022,
    algorithm 1.

    Memory is reserved by counting: blocks are still handed out as they fill, so that KV usage shows what is written.
    Where the slabs themselves are to show, take a contiguous allocator. Orca knows no token budget: here
    ``max_num_batched_tokens`` bounds a step, because the memory for activations is made for that.

    Parameters
    ----------
    max_num_seqs : most requests of a batch
    max_num_batched_tokens : most tokens of a step; longer prompts are rejected [tokens]
    max_model_len : longest sequence [tokens]
    reserve : ``max_model_len`` reserves that for everybody; ``max_tokens`` the prompt and the longest answer that the
        request allows
    """

    name = "orca"

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        reserve: Literal["max_model_len", "max_tokens"] = "max_model_len",
    ) -> None:
        super().__init__(
            max_num_seqs=min(max_num_seqs, max_num_batched_tokens),
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=False,
            scheduler_reserve_full_isl=False,
        )
        self.reserve = reserve

    def refuses(self, request: Request) -> str | None:
        if request.input_tokens > self.max_num_batched_tokens:
            return "prompt exceeds max_num_batched_tokens and is computed whole"
        if request.num_tokens > self.max_num_batched_tokens:  # its replica failed
            return "prompt and answer so far exceed max_num_batched_tokens and are computed whole"
        return None

    def _may_join(self, view: SchedulerView, allocator: KVAllocator, request: Request) -> bool:
        """Tell whether the longest that every running request and this one may become fit together."""
        if not view.running:
            return True
        reserved = sum(allocator.blocks_of(self._longest(other)) for other in view.running)
        return reserved + allocator.blocks_of(self._longest(request)) <= allocator.num_blocks

    def _longest(self, request: Request) -> int:
        if self.reserve == "max_model_len":
            return self.max_model_len
        return min(request.input_tokens + request.max_tokens, self.max_model_len)
