"""Fit of the matrix multiplication: twelve parameters, and four more of the cache in tables that were timed warm.

The sample is drawn as the table's rows come: a sample spread evenly over the axes errs by 0.1 to 0.9 points more
on weight shapes that it does not hold (tried on the fitted part alone). Judged rows are never read: they are cut
off by ``splits.train`` before they reach a fit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.timing.form import Chip
from ...hwmodels.timing.gemm import GemmParams, GemmWidths, gemm_time
from ..dtypes import COMPUTE, element_width
from ..table import KernelTable
from .base import Array, FitResult, Parameter, hull_of, robust_fit
from .starts import GEMM, GEMM_SHARED, start

ROWS: Final = 6000
_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "t0_us": (0.05, 50.0), "ec": (0.05, 1.2), "eb": (0.05, 1.2), "q": (1.0, 12.0), "k0": (1.0, 4000.0),
    "ts_us": (0.05, 200.0), "ct": (0.05, 200.0), "sat": (0.2, 8.0), "oe": (0.002, 1.0), "cs": (0.02, 4.0),
    "fd": (0.05, 5.0),
    "wq": (0.01, 1.0), "ws": (0.01, 1.0), "gv": (0.02, 2.0), "l2f": (0.02, 1.5), "l2b": (1.0, 10.0), "l2q": (1.0, 40.0),
    "l2c": (1.0, 40.0),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Values:
    """Parameter values as a timing function reads a lane."""

    params: Mapping[str, float]


def gemm_parameters(arch: str, *, warm: bool, fed: bool = False) -> list[Parameter]:
    """Return starts and priors of a bf16 GEMM lane.

    Parameters
    ----------
    arch : architecture, for the starting values
    warm : timed back to back. Activations then stay in L2 as long as they and all copies of the weights fit: with
        the copies counted, unseen weight shapes of the fitted part err 11.6 instead of 12.9 % on L40S, larger m
        14.9 instead of 23.2 (A100 6.9 instead of 7.2, H100 7.0 instead of 7.1, B200 the same)
    fed : the rate at which on-chip memory feeds the matrix units is known: the loss of small tiles then follows from
        it, and transfers to other architectures. A free loss fits as well and predicts the rows that fits may see
        16.9 % off from H100 on A100, 14.7 on B200, 12.9 from A100 on H100; this one 12.1, 13.2 and 11.8
    """
    values = {**start(GEMM, arch), **GEMM_SHARED}
    if fed:
        del values["ct"]
        values["fd"] = 1.0
        values["ws"] = values["wq"]
    tight = {"q": 0.1, "k0": 0.1, "ts_us": 0.1}
    params = [Parameter(name, value, tight.get(name, 0.3), *_BOUNDS[name]) for name, value in values.items()]
    params.append(Parameter("gv", 0.7, 0.7, *_BOUNDS["gv"]))
    cache = {"l2f": (0.9, 0.3), "l2b": (1.5, 0.5), "l2q": (6.0, 0.7), "l2c": (6.0, 0.7)} if warm else {}
    return params + [Parameter(name, value, sd, *_BOUNDS[name]) for name, (value, sd) in cache.items()]


def predict_gemm_us(
    chip: Chip, params: Mapping[str, float], table: KernelTable, *, warm: bool = True
) -> Array:
    """Return the time of 16 and 32-bit GEMM rows under given parameters [us]."""
    lane, out = GemmParams.from_lane(Values(params)), np.empty(len(table))
    for dtype in set(table["dtype"].tolist()):
        rows = np.flatnonzero(table["dtype"] == dtype)
        m, n, k = table.take(rows).numbers("m", "n", "k")
        width = element_width(dtype)
        time = gemm_time(
            chip,
            lane,
            m,
            n,
            k,
            dtype=COMPUTE.get(dtype, "bf16"),
            widths=GemmWidths(width, width, width),
            warm=warm,
        )
        out[rows] = np.asarray(time.seconds) * 1e6
    return out


def gemm_regimes(table: KernelTable) -> NDArray[Any]:
    """Return the regime of each row: by tokens, and by the size of the weights (a step of a model has the large)."""
    m, weights = table["m"], 2.0 * table["n"] * table["k"]
    rows = np.where(m <= 64, "m<=64", np.where(m <= 1024, "64<m<=1024", "m>1024"))
    size = np.where(weights < 2e6, " small", np.where(weights < 16e6, " medium", " large"))
    return np.char.add(rows, size)


def matrix_axes(table: KernelTable) -> dict[str, Array]:
    """Return where each product lies on the axes of a hull."""
    m, n, k = table.numbers("m", "n", "k")
    return {"m": m, "n": n, "k": k}


def fit_gemm_least_squares(
    table: KernelTable,
    chip: Chip,
    arch: str,
    *,
    lane: str = "vllm",
    rows: int = ROWS,
    warm: bool = True,
    params: list[Parameter] | None = None,
    **options: Any,
) -> FitResult:
    """Fit a bf16 GEMM lane.

    Parameters
    ----------
    table : GEMM rows that a fit may see, screened
    chip : the device's datasheet symbols
    arch : architecture, for starting values
    lane : software lane
    rows : rows to fit, drawn at random
    warm : timed back to back, operands may be in L2
    params : starts and priors; default: ``gemm_parameters``
    options : further arguments of ``robust_fit``

    Raises
    ------
    CalibrationError : too few rows, or times that are not positive
    """
    chosen = table.sample(rows)
    return robust_fit(
        lambda values: predict_gemm_us(chip, values, chosen, warm=warm),
        params or gemm_parameters(arch, warm=warm, fed=chip.feed > 0.0),
        chosen.latency_us,
        family="gemm",
        lane=lane,
        regimes=gemm_regimes(chosen),
        hull=hull_of(**matrix_axes(table)),
        axes=matrix_axes(chosen),
        alike=(chosen["n"], chosen["k"]),
        **options,
    )
