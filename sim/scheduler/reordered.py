"""What policies share that are vLLM's batching in another order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .vllm_v1 import VllmV1

if TYPE_CHECKING:
    from ..engine.request import Request
    from .base import SchedulerView


class Reordered(VllmV1):
    """vLLM's loop whose order of waiting, and victims, a subclass chooses: it sets ``rank``, or ``queue``.

    Parameters are vLLM's but for ``scheduling_policy``, which is what a subclass replaces.
    """

    def __init__(
        self,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        enable_chunked_prefill: bool = True,
        long_prefill_token_threshold: int = 0,
        scheduler_reserve_full_isl: bool = True,
        watermark: float = 0.0,
    ) -> None:
        super().__init__(
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            enable_chunked_prefill=enable_chunked_prefill,
            long_prefill_token_threshold=long_prefill_token_threshold,
            scheduler_reserve_full_isl=scheduler_reserve_full_isl,
            watermark=watermark,
        )


def produced(request: Request, view: SchedulerView | None = None) -> int:
    """Count the answer's tokens computed so far, in flight or delivered [tokens].

    ``view`` is needed for members of its decode cohort only.
    """
    computed = request.num_computed_tokens
    if view is not None and request in view.decoding:
        computed = view.decoding.computed(request)
    return max(request.num_output_tokens, computed + 1 - request.input_tokens)
