"""Fit of low-precision linear layers: the GEMM's parameters at another peak and width, and a quantise pass.

Two families of libraries differ in how they choose a tile: cuBLAS and DeepGEMM take the best, CUTLASS's fp8
kernels of vLLM and SGLang take one by a rule and never split k (``tiles.RULES``). That is a fact of a lane, not
fitted; with the wrong one a lane errs twice as much.

Chosen on weight shapes held out of the fitted part (3,000 rows fitted, mean error before and after): the rule of vLLM
on Ada 17.6 to 14.3 %; tiles of rows in pairs and a price of rows that only fill them up, Hopper, vLLM 7.1 to 6.2,
SGLang 8.8 to 8.1; the quantise pass per row, vLLM on Hopper 9.0 to 8.0 and, with matrix-vector products and the copies
of weights in the timing loop, on Blackwell 12.4 to 10.3; elsewhere within 0.3 either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.precision import Precision
from ...hwmodels.timing.form import Chip
from ...hwmodels.timing.gemm import GemmWidths
from ...hwmodels.timing.linear import LinearParams, linear_time
from ...hwmodels.timing.tiles import comes_in_pairs
from ..dtypes import PRECISION
from ..errors import CalibrationError
from ..table import KernelTable
from .base import Array, FitResult, Parameter, hull_of, robust_fit
from .gemm import Values, gemm_regimes, matrix_axes

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


def linear_parameters(*, quantise: bool, by_m: int) -> list[Parameter]:
    """Return starts and priors of a linear lane.

    Parameters
    ----------
    quantise : activations are quantised in a pass of their own
    by_m : number of the rule by which the library picks its tile (``tiles.RULES``); 0 for the best
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
        Parameter("l2q", 6.0, 0.7, 1.0, 40.0),
        Parameter("l2c", 4.0, 0.5, 1.0, 40.0),
        Parameter("gv", 0.9, 0.5, 0.02, 20.0),
    ]
    if by_m:
        params += [Parameter("pad", 0.5, 0.7, 0.01, 5.0)] if comes_in_pairs(by_m) else []
        params.append(Parameter("by_m", float(by_m), vary=False))
    else:
        params += [Parameter("ts_us", 5.0, 1.2, 0.2, 200.0), Parameter("cs", 0.5, 0.4, 0.02, 4.0)]
    if quantise:
        params += [Parameter("tqz_us", 2.0, 0.5, 0.05, 10.0), Parameter("eqz", 0.4, 0.4, 0.03, 1.2)]
        params.append(Parameter("tqr_ns", 1.0, 1.5, 0.001, 50.0))
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


def linear_regimes(table: KernelTable) -> NDArray[Any]:
    """Return the regime of each row: as for GEMM, the middle cut once more, at 256 rows."""
    names, m = gemm_regimes(table), table["m"]
    middle = (m > 64) & (m <= 1024)
    cut = np.where(m <= 256, "64<m<=256", "256<m<=1024")
    return np.where(middle, np.char.replace(names, "64<m<=1024", cut), names)


def fit_linear_least_squares(
    table: KernelTable,
    chip: Chip,
    *,
    family: str,
    lane: str,
    quantise: bool = True,
    by_m: int = 0,
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
    return robust_fit(
        lambda values: predict_linear_us(chip, values, chosen),
        params or linear_parameters(quantise=quantise, by_m=by_m),
        chosen.latency_us,
        family=family,
        lane=lane,
        regimes=linear_regimes(chosen),
        hull=hull_of(**matrix_axes(table)),
        axes=matrix_axes(chosen),
        alike=(chosen["n"], chosen["k"]),
        **{"rounds": 2, "evaluations": 20, **options},
    )
