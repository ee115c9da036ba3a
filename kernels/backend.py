"""A device of this machine, ready to be calibrated: what it is, what it can run, how long a shape takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from . import registry
from .allreduce import time_allreduce
from .bench import Bench
from .devices import facts, resolve
from .environment import environment, state
from .overlap import measure_overlap
from .results import DeviceFacts, Measured, Overlap
from .shape import KernelShape


class TorchBackend:
    """One device through torch; on the CPU with one thread.

    Parameters
    ----------
    device : ``cpu``, ``cuda``, ``cuda:1``
    seed : of the inputs; None: from the system

    Raises
    ------
    KernelError : no such device here
    """

    def __init__(self, device: str, seed: int | None = None) -> None:
        self.device = resolve(device)
        self._threads = torch.get_num_threads()
        if self.device.type == "cpu":
            torch.set_num_threads(1)
        self._bench = Bench(self.device, seed)

    def close(self) -> None:
        """Give the threads back."""
        torch.set_num_threads(self._threads)

    def facts(self) -> DeviceFacts:
        """Return what the device says of itself."""
        return facts(self.device)

    def lanes(self) -> tuple[list[registry.Lane], dict[str, str]]:
        """Return what the device can run, and why it cannot run the rest."""
        return registry.lanes(self.device)

    def environment(self) -> dict[str, object]:
        """Return the record of device, versions and clocks."""
        return environment(self.device)

    def state(self) -> dict[str, float]:
        """Return clocks, temperature and power now, as far as they can be read."""
        return state(self.device)

    def measure(self, shape: KernelShape, budget_s: float) -> Measured:
        """Check and time one shape.

        Raises
        ------
        KernelError, RuntimeError : the device cannot run it
        """
        try:
            return self._bench.measure(shape, budget_s)
        finally:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()

    def measure_together(self, shapes: Sequence[KernelShape], budget_s: float) -> list[Measured]:
        """Time all-reduces of one group size, whose processes are started once."""
        return time_allreduce(shapes, self.device.type, budget_s)

    def overlap(self) -> Overlap:
        """Time a copy beside a kernel that reads memory."""
        return measure_overlap(self.device)
