"""The kernels that the reference engine runs, timed and fitted; no others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from ..hwmodels.device import DeviceProfile
from ..kernels.results import DeviceFacts, Measured, Overlap
from ..kernels.shape import KernelShape
from .device import device_of
from .fitting import fit_table, with_fits
from .machine import Lane
from .measure import Backend, measure, read_run
from .table import KernelTable

_OPERATIONS: Final = ("gemm", "attn_decode", "attn_prefill", "rmsnorm", "rotary", "swiglu", "embedding")
_BESIDES: Final = ("copy_d2d",)
"""Tells the bandwidth that a CPU's shares refer to."""
_DTYPE: Final = "bfloat16"
_NOT_SERVED: Final = ("torch_naive",)
_BY_LENGTHS, _ONE_LENGTH = ("attn_decode", "triton_paged"), ("attn_decode", "torch_paged")


def timed_device(
    backend: Backend, budget_s: float, folder: Path, seed: int, say: Callable[[str], None]
) -> tuple[DeviceProfile, KernelTable]:
    """Time the kernels that the engine runs; return the device with their lanes, and the rows they were fitted to.

    Parameters
    ----------
    backend : the device
    budget_s : time for the timings [s]
    folder : of the measuring run; gone on with if it holds one
    seed : of the shapes
    say : takes a line of progress now and then

    Raises
    ------
    CalibrationError : too few timings to fit anything
    """
    measure(backend.facts().id, budget_s, folder, seed=seed, say=say, backend=_Served(backend))
    run = read_run(folder)
    device = device_of(run.environment)
    fits = fit_table(
        run.fit,
        device,
        run_id="live",
        source="timings of this machine",
        frozen=False,
        environment=dict(run.environment),
    )
    return with_fits(device, fits), run.fit


class _Served:
    """A device of which only the kernels are timed that the reference engine runs."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def facts(self) -> DeviceFacts:
        return self._backend.facts()

    def lanes(self) -> tuple[list[Lane], dict[str, str]]:
        able, skipped = self._backend.lanes()
        served = [
            lane
            for lane in able
            if (lane[0] in _OPERATIONS and lane[2] == _DTYPE and lane[1] not in _NOT_SERVED)
            or lane[0] in _BESIDES
        ]
        if any(lane[:2] == _BY_LENGTHS for lane in served):
            served = [lane for lane in served if lane[:2] != _ONE_LENGTH]
        return served, skipped

    def environment(self) -> dict[str, object]:
        return self._backend.environment()

    def state(self) -> dict[str, float]:
        return self._backend.state()

    def measure(self, shape: KernelShape, budget_s: float) -> Measured:
        return self._backend.measure(shape, budget_s)

    def measure_together(self, shapes: Sequence[KernelShape], budget_s: float) -> list[Measured]:
        return self._backend.measure_together(shapes, budget_s)

    def overlap(self) -> Overlap:
        return self._backend.overlap()

    def close(self) -> None:
        """Do nothing: the device goes on to serve."""
