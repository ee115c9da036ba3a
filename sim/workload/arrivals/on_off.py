"""Poisson arrivals whose rate switches between two levels."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from ....hwmodels.units import FASTEST_RATE, Rate, Seconds
from ...random import exponential
from .base import SOURCE, ArrivalProcess


class OnOff(ArrivalProcess):
    """Poisson arrivals at ``rate_per_s`` for ``on_s``, then at ``off_rate_per_s`` for ``off_s``, and so on.

    The mean rate is the time-weighted one; requests that arrive in an on phase meet the full burst.

    Attributes
    ----------
    kind : ``on_off``
    rate_per_s : rate of an on phase [requests/s]
    on_s, off_s : length of an on and of an off phase [s]
    off_rate_per_s : rate of an off phase [requests/s]
    """

    name: ClassVar[str] = "on_off"
    kind: Literal["on_off"] = "on_off"
    rate_per_s: Rate
    on_s: Annotated[Seconds, Gt(0)]
    off_s: Seconds
    off_rate_per_s: Annotated[float, Ge(0), Le(FASTEST_RATE)] = 0.0

    def times_s(self, seed: int, count: int) -> NDArray[np.float64]:
        """Return the first ``count`` arrival times, shape (count,) [s].

        A Poisson process of rate 1 runs in units of expected requests; the inverse of the expected number of
        requests until t turns it into time.
        """
        expected = np.cumsum(exponential(seed, SOURCE, range(count)))
        during_on, during_off = self.rate_per_s * self.on_s, self.off_rate_per_s * self.off_s
        cycles, left = np.divmod(expected, during_on + during_off)
        in_on = left <= during_on
        off_rate = self.off_rate_per_s or 1.0  # never used where it is 0: nothing is left over then
        within = np.where(in_on, left / self.rate_per_s, self.on_s + (left - during_on) / off_rate)
        return cycles * (self.on_s + self.off_s) + within
