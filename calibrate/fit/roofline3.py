"""The 3-parameter fits: fixed time, share of peak, share of bandwidth.

For devices without comparable units. A CPU adds compute and memory time (``qr = 1``): one thread computes or waits. A
hard maximum there errs by 15 % where the sum errs by 5. On GPUs the form is the baseline to beat.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from ...hwmodels.timing.form import Chip
from ..table import KernelTable
from .base import Array, FitResult, Parameter, hull_of, robust_fit
from .decode_attention import predict_decode_us
from .gemm import predict_gemm_us
from .prefill_attention import predict_prefill_us

SUM: Final = 1.0
_HULLS: Final = {
    "gemm": {"m": "m", "n": "n", "k": "k"},
    "decode_attention": {"batch": "batch", "context": "kv_len", "heads": "n_heads"},
    "prefill_attention": {"batch": "batch", "context": "q_len", "heads": "n_heads"},
}
_PREDICT: Final[dict[str, Callable[[Chip, Mapping[str, float], KernelTable], Array]]] = {
    "gemm": lambda chip, values, table: predict_gemm_us(chip, values, table, warm=False),
    "decode_attention": lambda chip, values, table: predict_decode_us(chip, values, table, warm=False),
    "prefill_attention": predict_prefill_us,
}


def roofline3_parameters(qr: float = math.inf) -> list[Parameter]:
    """Return starts and priors of the 3-parameter form: wide, nothing is known before.

    Parameters
    ----------
    qr : sharpness of the maximum, pinned; 1 is a sum, infinity a hard maximum [-]
    """
    params = [
        Parameter("t0_us", 5.0, 2.0, 0.01, 1e4),
        Parameter("ec", 0.5, 1.0, 0.002, 20.0),
        Parameter("eb", 0.7, 1.0, 0.01, 20.0),
    ]
    return params if math.isinf(qr) else [*params, Parameter("qr", qr, vary=False)]


def fit_roofline3_least_squares(
    family: str, table: KernelTable, chip: Chip, *, lane: str = "torch", qr: float = SUM, **options: Any
) -> FitResult:
    """Fit the 3-parameter form of one family.

    Parameters
    ----------
    family : ``gemm``, ``decode_attention`` or ``prefill_attention``
    table : rows of that family that a fit may see, screened
    chip : datasheet symbols; its units play no part
    lane : software lane
    qr : sharpness of the maximum, pinned [-]
    options : further arguments of ``robust_fit``
    """
    plain = replace(chip, roofline3=True)
    axes = {axis: column.astype(float) for axis, name in _HULLS[family].items() for column in (table[name],)}
    return robust_fit(
        lambda values: _PREDICT[family](plain, values, table),
        roofline3_parameters(qr),
        table.latency_us,
        family=family,
        lane=lane,
        hull=hull_of(**axes),
        **options,
    )
