"""What a step costs outside its kernels, from the steps of a real engine: launches, its loop, its tables.

Step time is the kernels' sum by the device's lanes, at a compute rate to be found, plus a fixed time and a time for
each sequence. The rate is scanned and the two times are solved for: the loss is not smooth in the rate on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..hwmodels.device import DeviceProfile
from ..hwmodels.engine import EngineProfile, load_engine
from ..hwmodels.enginesections import GraphSection
from ..hwmodels.model import ModelSpec
from ..hwmodels.stepmodel import StepModel
from ..hwmodels.steptypes import chip_of
from .engineprofile import with_step
from .errors import CalibrationError
from .fit.elementwise import fit_elementwise_least_squares
from .reference_engine import ServedStep
from .streams import moved_bytes_of
from .table import KernelTable

Array = NDArray[np.float64]
LANE = "torch"
COARSE = tuple(round(0.6 + 0.1 * i, 2) for i in range(13))
GRID = 0.02
FINE = tuple(round(GRID * i, 2) for i in range(-4, 5))
"""Compute rates to scan, over the lane's, and then around the best of them [-]."""
FEWEST_STEPS = 40
_NO_HOST: Mapping[str, float] = {"host_exposed_s": 0.0, "host_per_seq_s": 0.0}
_BASE = "vllm-0.24"
_STREAMS = ("rmsnorm", "rotary", "swiglu", "embedding")


@dataclass(frozen=True, slots=True)
class StepFit:
    """An engine whose step parameters were fitted to steps.

    Attributes
    ----------
    engine : its profile
    steps : steps fitted
    mape : mean absolute error of a step's time after the fit [-]
    bias : error of the summed time of all steps [-]
    before : the same without the fit: kernels at their own rate and nothing else [-]
    """

    engine: EngineProfile
    steps: int
    mape: float
    bias: float
    before: float

    def describe(self) -> str:
        """Return the parameters and how well they fit, in two lines."""
        engine = self.engine
        return (
            f"step: host {1e3 * engine.host_exposed_s:.3f} ms + {1e6 * engine.host_per_seq_s:.0f} us a sequence, "
            f"GEMM rate x{engine.engine_gemm_efficiency:.2f}, elementwise {1e6 * engine.elementwise_t0_s:.1f} us a "
            f"kernel + bytes at {engine.elementwise_eb:.2f} of the bandwidth\n"
            f"fitted to {self.steps} steps: mean absolute error {100 * self.mape:.1f} %, sum {100 * self.bias:+.1f} % "
            f"(kernels alone {100 * self.before:+.1f} %)"
        )


def live_engine(device: DeviceProfile, timed: KernelTable, base: str = _BASE) -> EngineProfile:
    """Return a synchronous engine before its steps are known: flags as it runs, elementwise kernels as timed.

    Parameters
    ----------
    device, timed : lanes, and the rows they were fitted to
    base : profile whose defaults it has

    Raises
    ------
    CalibrationError : no elementwise kernel was timed
    """
    flags = load_engine(base)
    streams = timed.where(np.isin(timed["op"], _STREAMS))
    if not len(streams):
        raise CalibrationError("no elementwise kernel was timed: give more budget")
    lane = fit_elementwise_least_squares(
        moved_bytes_of(streams), streams.latency_us, chip_of(device), lane=LANE, cached=False
    ).params
    none: Mapping[str, float] = {
        "host_exposed_s": 0.0,
        "host_per_seq_s": 0.0,
        "engine_gemm_efficiency": 1.0,
        "mixed_decode_factor": 1.0,
        "elementwise_t0_s": 1e-6 * lane["t0_us"],
        "elementwise_eb": lane["eb"],
        "client_overhead_s": 0.0,
        "client_turnaround_s": 0.0,
    }
    plain = flags.model_copy(
        update={
            "id": "reference",
            "version": flags.version,
            "aliases": (),
            "lane": LANE,
            "notes": "A synchronous engine with vLLM's scheduler, kernels launched one by one.",
            "defaults": flags.defaults.model_copy(
                update={"async_scheduling": False, "enable_prefix_caching": False}
            ),
            "graphs": GraphSection(source="launched one by one", ranges=(), max_capture=0),
        }
    )
    return with_step(plain, none, "kernels of the calibration run")


def fit_steps(
    steps: Sequence[ServedStep], device: DeviceProfile, engine: EngineProfile, model: ModelSpec
) -> StepFit:
    """Fit host time per step and per sequence, and the GEMM rate, to the steps of a real engine.

    Parameters
    ----------
    steps : of loads that nobody is judged on
    device, engine, model : lanes, profile to start from, and what was served

    Raises
    ------
    CalibrationError : too few steps
    """
    if len(steps) < FEWEST_STEPS:
        raise CalibrationError(
            f"{len(steps)} steps of a real engine; needed {FEWEST_STEPS}: give more budget"
        )
    return fit_step_times(steps, engine, lambda profile: StepModel(device, profile, model))


def fit_step_times(
    steps: Sequence[ServedStep], engine: EngineProfile, timer: Callable[[EngineProfile], StepModel]
) -> StepFit:
    """Fit the same with any step model.

    Parameters
    ----------
    steps : compositions and times
    engine : profile to start from
    timer : the step model of a profile
    """
    taken = np.array([step.seconds for step in steps])
    rows = np.array([len(step.tokens) for step in steps], dtype=np.float64)
    alone = times_of(steps, timer(with_step(engine, _NO_HOST, "kernels alone")))

    def tried(efficiency: float) -> tuple[float, float, Array]:
        at = {**_NO_HOST, "engine_gemm_efficiency": efficiency}
        kernels = times_of(steps, timer(with_step(engine, at, "scanned")))
        host = _host_times(taken, kernels, rows, alone)
        return _loss(taken, kernels + host[0] + host[1] * rows, alone), efficiency, host

    best = min(map(tried, COARSE), key=_first)
    around = [round(best[1] + step, 2) for step in FINE if step]
    _, efficiency, host = min([best, *map(tried, around)], key=_first)
    found = {
        "host_exposed_s": float(host[0]),
        "host_per_seq_s": float(host[1]),
        "engine_gemm_efficiency": efficiency,
    }
    fitted = with_step(engine, found, f"fit of {len(steps)} steps of a real engine")
    error = times_of(steps, timer(fitted)) / taken - 1.0
    return StepFit(
        engine=fitted,
        steps=len(steps),
        mape=float(np.abs(error).mean()),
        bias=float((error * taken).sum() / taken.sum()),
        before=float(alone.sum() / taken.sum() - 1.0),
    )


def step_seconds(
    steps: Sequence[ServedStep], device: DeviceProfile, engine: EngineProfile, model: ModelSpec
) -> Array:
    """Return what the simulator takes for steps of these compositions, shape (steps,) [s]."""
    return times_of(steps, StepModel(device, engine, model))


def times_of(steps: Sequence[ServedStep], timer: StepModel) -> Array:
    """Return what a step model takes for steps of these compositions, shape (steps,) [s]."""
    return 1e-9 * np.array(
        [
            timer.step_ns(
                len(step.decodes),
                sum(step.decodes),
                max(step.decodes, default=0),
                step.prefill,
                len(step.tokens),
            )
            for step in steps
        ],
        dtype=np.float64,
    )


def _first(found: tuple[float, float, Array]) -> float:
    return found[0]


def _loss(taken: Array, told: Array, alone: Array) -> float:
    """Return the squared errors over the kernels' times: seconds count alike, in short steps and in long ones [s].

    Over the times taken they would favour steps that happened to be quick, and the sum would come out short.
    """
    return float(np.sum((told - taken) ** 2 / alone))


def _host_times(taken: Array, kernels: Array, rows: Array, alone: Array) -> Array:
    """Return fixed time and time per sequence that bring the sum closest to what was taken, none negative [s]."""
    candidates = [np.zeros(2)]
    weight = alone**-0.5
    for columns in ((0, 1), (0,), (1,)):
        design = np.stack([weight, rows * weight], axis=1)[:, columns]
        found = np.zeros(2)
        found[list(columns)] = np.linalg.lstsq(design, (taken - kernels) * weight, rcond=None)[0]
        if (found >= 0.0).all():
            candidates.append(found)
    return min(candidates, key=lambda host: _loss(taken, kernels + host[0] + host[1] * rows, alone))
