"""Shortest predicted answer first."""

from __future__ import annotations

from typing import Any

from ...hwmodels.units import Factor
from .predictor import LengthPredictor
from .reordered import Reordered


class ShortestJobFirst(Reordered):
    """vLLM's batching, the waiting request with the shortest predicted answer first; nobody is stopped for another.

    What it optimises: mean latency, by letting the many short answers pass the few long ones. What it starves:
    long answers, for as long as shorter ones keep coming; short of KV blocks, the longest is preempted.
    Source: Fu et al., "Efficient LLM Scheduling by Learning to Rank", NeurIPS 2024.

    Parameters
    ----------
    seed : the scenario's seed
    predictor_error : standard deviation of the logarithm of predicted over true length; 0 knows the length
    vllm : limits of the batch, as of ``vllm_v1``
    """

    name = "sjf"

    def __init__(self, *, seed: int = 0, predictor_error: Factor = 0.0, **vllm: Any) -> None:
        super().__init__(**vllm)
        self.predict = self.rank = LengthPredictor(seed, predictor_error)
        self.everyone_served = False

    def caveats(self) -> tuple[str, ...]:
        return (*super().caveats(), self.predict.caveat(self.name))
