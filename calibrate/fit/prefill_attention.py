"""Fit of prefill attention: eight parameters of one kernel, head layout and head size.

The share of bandwidth is pinned to the device's GEMM lane: a free one fits better and transfers worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.timing.form import Chip
from ...hwmodels.timing.prefill_attention import PrefillParams, prefill_form, prefill_shape
from ..dtypes import kv_width
from ..table import KernelTable
from ..uncertainty import Predictive, of_fit
from .base import Array, FitResult, Parameter, hull_of, robust_fit
from .beyond import NEAR, growth_beyond
from .gemm import Values
from .starts import PREFILL, start

ROWS: Final = 1500
_TRIED_ROWS: Final = 600
_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "t0_us": (0.05, 100.0), "ec": (0.05, 1.2), "sx": (0.05, 60.0), "occ": (0.2, 4.0), "wq": (0.01, 1.0),
    "q2": (1.0, 12.0), "tt_us": (0.005, 20.0), "k0": (0.5, 600.0), "l2f": (0.02, 3.0), "l2b": (1.0, 12.0),
    "tq_us": (0.01, 20.0), "odd": (0.002, 1.0),
}  # fmt: skip
_SHAPE: Final = ("n_heads", "n_kv_heads", "head_dim", "window")


def prefill_parameters(
    arch: str,
    eb: float,
    q: float = 1.0,
    *,
    cached: bool = False,
    packed: bool = True,
    single: bool = False,
    tile: int = 128,
    uneven: bool = False,
) -> list[Parameter]:
    """Return starts and priors of a prefill-attention lane, with bandwidth and sharpness pinned.

    Parameters
    ----------
    arch : architecture, for the starting values
    eb : share of bandwidth of the device's GEMM lane [-]
    q : sharpness of the maximum of tile time and bytes; a sum fits best by far: unseen heads of the fitted part
        6.8 % against 11.5 with the q of the GEMM lane (H100), 14.8 against 19.6 (A100) [-]
    cached : a large last-level cache holds queries, keys and values that were just written: 15.9 % against 26.9
        on L40S; nothing on H100, A100 and B200
    packed, single, tile : how the kernel makes tiles (facts). FlashAttention-2's own way errs by 7.5 % on the fitted
        rows of A100 and 9.3 on L40S, packing of all groups into tiles of 128 rows by 12.4 and 15.7
    uneven : groups of heads that are not a power of two take longer (a fact): on B200 the fitted rows of 3 and 96
        heads, left out, are 2.6 instead of 7.2 % too fast, those of 6 and 48 heads 2.1 too slow instead of 4 too fast
    """
    tight = {"k0": 0.1}
    wide = {"tt_us": 0.6, "occ": 0.3}
    params = [
        Parameter(name, value, tight.get(name, wide.get(name, 0.3)), *_BOUNDS[name])
        for name, value in start(PREFILL, arch).items()
    ]
    if cached:
        params += [Parameter("l2f", 0.4, 0.6, *_BOUNDS["l2f"]), Parameter("l2b", 2.5, 0.5, *_BOUNDS["l2b"])]
    if single:
        params.append(Parameter("tq_us", 1.0, 1.5, *_BOUNDS["tq_us"]))
    if uneven:
        params.append(Parameter("odd", 0.08, 0.7, *_BOUNDS["odd"]))
    facts = {"eb": eb, "q": q, "packed": float(packed), "single": float(single), "rows": float(tile)}
    plain = {"packed": 1.0, "single": 0.0, "rows": 128.0}
    return params + [Parameter(k, v, vary=False) for k, v in facts.items() if v != plain.get(k)]


def predict_prefill_us(chip: Chip, params: Mapping[str, float], table: KernelTable) -> Array:
    """Return the time of prefill-attention rows under given parameters [us]; ``eb`` is one of them."""
    lane = PrefillParams.from_lane(Values(params), Values(params))
    widths = kv_width(table)
    in_fp8 = table["dtype"] == "fp8"
    keys = np.column_stack([table[name] for name in _SHAPE] + [widths, in_fp8])
    shapes, member = np.unique(keys, axis=0, return_inverse=True)
    batch, new = table["batch"], table["q_len"]
    cached = np.maximum(table["kv_len"] - new, 0)
    out = np.empty(len(table))
    for i, (heads, kv_heads, dim, window, width, fp8) in enumerate(shapes):
        rows = np.flatnonzero(member.ravel() == i)
        shape = prefill_shape(
            int(heads),
            int(kv_heads),
            int(dim),
            float(width),
            window=max(int(window), 0),
            dtype="fp8" if fp8 and "fp8" in chip.peak_flops else "bf16",
        )
        form = prefill_form(chip, lane, shape)
        times = batch[rows]
        starts = np.r_[0, np.cumsum(times)[:-1]]
        chunks = (np.repeat(column[rows], times).astype(np.float64) for column in (new, cached))
        out[rows] = form.time_many(*chunks, starts).seconds
    return out * 1e6


def prefill_regimes(table: KernelTable) -> NDArray[Any]:
    """Return the regime of each row by query tokens of the call: short calls are fixed time, long ones tiles."""
    tokens = table["batch"] * table["q_len"]
    return np.where(tokens < 512, "short", np.where(tokens < 8192, "medium", "long"))


def fit_prefill_attention_least_squares(
    table: KernelTable,
    chip: Chip,
    arch: str,
    eb: float,
    *,
    q: float = 1.0,
    lane: str = "vllm",
    rows: int = ROWS,
    params: list[Parameter] | None = None,
    **options: Any,
) -> FitResult:
    """Fit a prefill-attention lane: one kernel, head layout and head size; see ``fit_gemm_least_squares``.

    Parameters
    ----------
    eb : share of bandwidth of the device's GEMM lane, pinned [-]
    q : sharpness of the maximum of tile time and bytes, pinned [-]
    """
    starts, notes = params or prefill_parameters(arch, eb, q), options.pop("notes", ())

    def fit(rows: KernelTable, params: list[Parameter], **options: Any) -> FitResult:
        return robust_fit(
            lambda values: predict_prefill_us(chip, values, rows),
            params,
            rows.latency_us,
            family="prefill_attention",
            lane=lane,
            regimes=prefill_regimes(rows),
            axes=_axes(rows),
            alike=(rows["n_heads"],),
            notes=("eb is pinned to the gemm lane", *notes),
            **{"hull": hull_of(**_axes(rows)), **options},
        )

    def near(rows: KernelTable, params: list[Parameter]) -> FitResult:
        return fit(rows.sample(_TRIED_ROWS), params, rounds=2, evaluations=15)

    def expect(found: FitResult, rows: KernelTable) -> Predictive:
        return of_fit(
            found,
            lambda values: predict_prefill_us(chip, values, rows),
            regimes=prefill_regimes(rows),
            axes=_axes(rows),
        )

    found = fit(table.sample(rows), starts, hull=hull_of(**_axes(table)), **options)
    keys = table["q_len"]
    return replace(found, growth=growth_beyond(table, keys, starts, near, expect, shares=(NEAR, NEAR**2)))


def _axes(table: KernelTable) -> dict[str, Array]:
    batch, new, heads = table.numbers("batch", "q_len", "n_heads")
    return {"batch": batch, "context": new, "heads": heads}
