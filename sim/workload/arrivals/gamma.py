"""Gamma arrivals: Poisson's rate with more or fewer bursts."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray

from ....hwmodels.units import Rate
from ...random import standard_gamma
from .base import SOURCE, ArrivalProcess


class Gamma(ArrivalProcess):
    """Gamma-distributed gaps with coefficient of variation ``cv``: 1 is Poisson, above 1 comes in bursts.

    vLLM's ``--burstiness b`` is cv = 1 / sqrt(b).

    Attributes
    ----------
    kind : ``gamma``
    rate_per_s : mean rate [requests/s]
    cv : standard deviation of the gaps over their mean [-]
    """

    name: ClassVar[str] = "gamma"
    kind: Literal["gamma"] = "gamma"
    rate_per_s: Rate
    cv: Annotated[float, Ge(0.001), Le(1000)] = 1.0

    def times_s(self, seed: int, count: int) -> NDArray[np.float64]:
        """Return the first ``count`` arrival times, shape (count,) [s]."""
        shape = self.cv**-2
        gaps = standard_gamma(seed, SOURCE, range(count), shape) / shape
        return np.cumsum(gaps) / self.rate_per_s
