"""Arrivals of a fixed number of users who wait for their answers."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ....hwmodels.units import PositiveCount, Seconds
from .base import ArrivalProcess


class ClosedLoop(ArrivalProcess):
    """``concurrency`` users: each sends its next request ``think_time_s`` after its answer's last token.

    A slow server slows its own load down: no queue beyond ``concurrency`` can form. This is what benchmark
    tools do with ``--max-concurrency`` and no rate. Requests are taken in order by whichever user is free.

    Attributes
    ----------
    kind : ``closed_loop``
    concurrency : users
    think_time_s : mean pause of a user between an answer and the next request [s]
    think_time : whether all pauses are equal or exponentially distributed
    """

    name: ClassVar[str] = "closed_loop"
    kind: Literal["closed_loop"] = "closed_loop"
    concurrency: PositiveCount
    think_time_s: Seconds = 0.0
    think_time: Literal["constant", "exponential"] = "constant"

    def times_s(self, seed: int, count: int) -> NDArray[np.float64]:
        """Return zeros, shape (count,) [s]: all users start at once, later arrivals depend on completions."""
        del seed
        return np.zeros(count)
