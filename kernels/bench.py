"""One shape from inputs to a checked time."""

from __future__ import annotations

import math

import torch

from .call import Call, relative_error, tolerance
from .cost import cost_of
from .devices import facts
from .registry import find, make
from .results import Measured
from .shape import KernelShape
from .source import Pool
from .timer import COLD, MOST_SETS, time_calls

_LEAST_POOL = 16 << 20
_MEMORY_SHARE = 0.25


class Bench:
    """A device with a pool of inputs, ready to time one shape after the other."""

    def __init__(self, device: torch.device, seed: int | None = None) -> None:
        self.device = device
        known = facts(device)
        pool = min(COLD * known.cache_bytes, _MEMORY_SHARE * known.memory_bytes)
        self._pool = Pool(device, max(int(pool), _LEAST_POOL), seed)
        self._cold_bytes = COLD * known.cache_bytes

    def measure(self, shape: KernelShape, budget_s: float = 0.1) -> Measured:
        """Check a kernel's output, then time it.

        Parameters
        ----------
        shape : what to time
        budget_s : time for the repeats [s]

        Raises
        ------
        KernelError : no such kernel
        RuntimeError : the device refuses it (out of memory, not supported)
        """
        with torch.inference_mode():
            cost = cost_of(shape)
            first, taken = self._call(shape)
            error, allowed = relative_error(first), tolerance(shape.dtype)
            timing = None
            if error < allowed:
                sets = math.ceil(self._cold_bytes / max(taken, 1)) + 1
                others = [self._call(shape)[0] for _ in range(min(max(sets, 2), MOST_SETS) - 1)]
                captured = find(shape).captured
                timing = time_calls([first, *others], self.device, budget_s, captured=captured)
        return Measured(timing, error, allowed, cost.flop, cost.hbm_bytes)

    def _call(self, shape: KernelShape) -> tuple[Call, int]:
        self._pool.begin()
        call = make(shape, self._pool)
        return call, self._pool.taken
