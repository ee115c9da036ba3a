"""Evenly spaced arrivals."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ....hwmodels.units import Rate
from .base import ArrivalProcess


class Constant(ArrivalProcess):
    """One request every ``1 / rate_per_s``: no bursts at all, so its tails are too good for real traffic.

    Attributes
    ----------
    kind : ``constant``
    rate_per_s : rate [requests/s]
    """

    name: ClassVar[str] = "constant"
    kind: Literal["constant"] = "constant"
    rate_per_s: Rate

    def times_s(self, seed: int, count: int) -> NDArray[np.float64]:
        """Return the first ``count`` arrival times, shape (count,) [s]; nothing is random in them."""
        del seed
        return np.arange(count) / self.rate_per_s
