"""Fit of low-precision linear layers: the GEMM's parameters at another peak and width, and a quantise pass.

Two families of libraries differ in how they choose a tile: cuBLAS and DeepGEMM take the best, CUTLASS's fp8
kernels on Hopper take one by the number of rows alone and never split k. That is a fact of a lane, not fitted;
with the wrong one a lane errs twice as much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from ...hwmodels.precision import Precision
from ...hwmodels.timing.form import Chip
from ...hwmodels.timing.gemm import GemmWidths
from ...hwmodels.timing.linear import LinearParams, linear_time
from ..dtypes import PRECISION
from ..errors import CalibrationError
from ..table import KernelTable
from .base import Array, FitResult, Parameter, hull_of, robust_fit
from .gemm import Values, gemm_regimes

ROWS: Final = 3000


def linear_table_precision(dtype: str) -> Precision:
    """Return how a linear layer of a table's dtype is held and multiplied.

    Raises
    ------
    CalibrationError : a dtype without one (16 bit ones are a GEMM)
    """
    if dtype not in PRECISION:
        raise CalibrationError(f"unknown dtype of a linear {dtype!r}; allowed: {', '.join(PRECISION)}")
    return PRECISION[dtype]


def linear_parameters(*, quantise: bool, by_m: bool) -> list[Parameter]:
    """Return starts and priors of a linear lane.

    Parameters
    ----------
    quantise : activations are quantised in a pass of their own
    by_m : the library picks its tile by rows alone
    """
    params = [
        Parameter("t0_us", 4.0, 0.5, 0.3, 40.0),
        Parameter("ec", 0.8, 0.3, 0.05, 1.2),
        Parameter("eb", 0.85, 0.15, 0.2, 1.1),
        Parameter("q", 2.5, 0.3, 1.0, 12.0),
        Parameter("k0", 250.0, 0.5, 5.0, 4000.0),
        Parameter("ct", 8.0, 0.8, 0.2, 100.0),
        Parameter("sat", 1.5, 0.4, 0.2, 8.0),
        Parameter("oe", 0.08, 0.6, 0.005, 1.0),
        Parameter("wq", 0.2, 0.8, 0.01, 1.0),
        Parameter("l2f", 0.3, 0.7, 0.02, 1.5),
        Parameter("l2b", 2.0, 0.5, 1.0, 10.0),
    ]
    if by_m:
        params.append(Parameter("by_m", 1.0, vary=False))
    else:
        params += [Parameter("ts_us", 5.0, 1.2, 0.2, 200.0), Parameter("cs", 0.5, 0.4, 0.02, 4.0)]
    if quantise:
        params += [Parameter("tqz_us", 2.0, 0.5, 0.05, 10.0), Parameter("eqz", 0.4, 0.4, 0.03, 1.2)]
    return params


def predict_linear_us(
    chip: Chip, params: Mapping[str, float], table: KernelTable, *, warm: bool = True
) -> Array:
    """Return the time of low-precision linear rows under given parameters [us]."""
    found = np.zeros(len(table))
    for dtype in sorted(set(table["dtype"].tolist())):
        precision = linear_table_precision(dtype)
        widths = GemmWidths(precision.weight_bytes, precision.input_bytes, precision.output_bytes)
        lane = LinearParams.from_lane(Values(params), precision.compute, widths)
        rows = np.flatnonzero(table["dtype"] == dtype)
        m, n, k = table.take(rows).numbers("m", "n", "k")
        found[rows] = np.asarray(linear_time(chip, lane, m, n, k, warm=warm).seconds) * 1e6
    return found


def fit_linear_least_squares(
    table: KernelTable,
    chip: Chip,
    *,
    family: str,
    lane: str,
    quantise: bool = True,
    by_m: bool = False,
    rows: int = ROWS,
    params: list[Parameter] | None = None,
    **options: Any,
) -> FitResult:
    """Fit a lane of low-precision linears to rows of one dtype.

    Parameters
    ----------
    table : rows that a fit may see, screened
    chip : the device's datasheet symbols
    family, lane : names in the device file (``linear_fp8``; ``vllm``)
    quantise, by_m : see ``linear_parameters``
    rows : rows to fit, drawn at random
    params : starts and priors; default: ``linear_parameters``
    options : further arguments of ``robust_fit``

    Raises
    ------
    CalibrationError : too few rows, an unknown dtype, or times that are not positive
    """
    chosen = table.sample(rows)
    m, n, k = table.numbers("m", "n", "k")
    return robust_fit(
        lambda values: predict_linear_us(chip, values, chosen),
        params or linear_parameters(quantise=quantise, by_m=by_m),
        chosen.latency_us,
        family=family,
        lane=lane,
        regimes=gemm_regimes(chosen),
        hull=hull_of(m=m, n=n, k=k),
        **{"rounds": 2, "evaluations": 20, **options},
    )
