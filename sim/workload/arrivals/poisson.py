"""Poisson arrivals."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ....hwmodels.units import Rate
from ...random import exponential
from .base import SOURCE, ArrivalProcess


class Poisson(ArrivalProcess):
    """Independent users: exponential gaps of mean ``1 / rate_per_s``, the usual model of open traffic.

    Attributes
    ----------
    kind : ``poisson``
    rate_per_s : mean rate [requests/s]
    """

    name: ClassVar[str] = "poisson"
    kind: Literal["poisson"] = "poisson"
    rate_per_s: Rate

    def times_s(self, seed: int, count: int) -> NDArray[np.float64]:
        """Return the first ``count`` arrival times, shape (count,) [s]."""
        return np.cumsum(exponential(seed, SOURCE, range(count))) / self.rate_per_s
