"""Fit of streaming kernels (norms, rotary positions, gating, copies on the device): fixed time and bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ...hwmodels.timing.elementwise import ElementwiseParams, streams_time
from ...hwmodels.timing.form import Chip
from .base import Array, FitResult, Parameter, hull_of, robust_fit
from .gemm import Values

_BOUNDS: Final = {"t0_us": (0.02, 200.0), "eb": (0.02, 1.2), "l2f": (0.02, 3.0), "l2b": (1.0, 12.0)}


def elementwise_parameters(*, cached: bool) -> list[Parameter]:
    """Return starts and priors; ``cached`` where what the kernel before wrote may still be in the cache."""
    params = [Parameter("t0_us", 2.0, 0.6, *_BOUNDS["t0_us"]), Parameter("eb", 0.75, 0.3, *_BOUNDS["eb"])]
    if cached:
        params += [Parameter("l2f", 0.9, 0.6, *_BOUNDS["l2f"]), Parameter("l2b", 1.55, 0.5, *_BOUNDS["l2b"])]
    return params


def predict_elementwise_us(chip: Chip, params: Mapping[str, float], moved: Array) -> Array:
    """Return the time of streaming kernels that move ``moved`` bytes each [us]."""
    lane = ElementwiseParams.from_lane(Values(params))
    return np.asarray(streams_time(chip, lane, [(1.0, 1.0)], np.asarray(moved), 1.0).seconds) * 1e6


def fit_elementwise_least_squares(
    moved: Array, measured_us: Array, chip: Chip, *, lane: str = "vllm", cached: bool = True, **options: Any
) -> FitResult:
    """Fit a lane of streaming kernels.

    Parameters
    ----------
    moved : bytes that each call reads and writes, shape (n,) [B]
    measured_us : their times, shape (n,) [us]
    chip : the device's datasheet symbols
    lane : software lane
    cached : timed warm, or right after the kernel that wrote the inputs
    options : further arguments of ``robust_fit``
    """
    return robust_fit(
        lambda values: predict_elementwise_us(chip, values, moved),
        elementwise_parameters(cached=cached and chip.l2_bytes > 0.0),
        measured_us,
        family="elementwise",
        lane=lane,
        hull=hull_of(bytes=moved),
        **options,
    )
