"""How long an answer will be, as far as a scheduler can know."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

from ..random import standard_normal

if TYPE_CHECKING:
    from ..engine.request import Request


class LengthPredictor:
    """Predicts the length of answers: the true length times a lognormal error of median 1.

    The error is drawn by request, so that every policy and every run of one seed sees the same predictions.

    Approximation: real predictors err towards the mean (they call long answers short); this one errs alike at
    every length.

    Parameters
    ----------
    seed : the scenario's seed
    error : standard deviation of the logarithm of predicted over true length; 0 knows the length
    """

    def __init__(self, seed: int, error: float) -> None:
        self.seed = seed
        self.error = error
        self._factor = lru_cache(maxsize=1 << 16)(self._draw)

    def __call__(self, request: Request) -> float:
        """Return the predicted length of a request's whole answer [tokens]."""
        if not self.error:
            return request.output_tokens
        return request.output_tokens * self._factor(request.index)

    def _draw(self, index: int) -> float:
        drawn = standard_normal(self.seed, "predicted_tokens", range(index, index + 1))
        return math.exp(self.error * float(drawn[0]))

    def caveat(self, name: str) -> str:
        """Say how good the predictions of a run are."""
        if not self.error:
            return (
                f"scheduler {name}: knows every answer's length (predictor_error 0), which no predictor does"
            )
        return f"scheduler {name}: predicted lengths are off by a factor of e^±{self.error:g} (standard deviation)"
