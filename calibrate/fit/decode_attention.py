"""Fit of decode attention: fourteen parameters of one kernel and head layout, warm tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.timing.decode_attention import DecodeParams, decode_shape, decode_terms, warm_share
from ...hwmodels.timing.form import Chip
from ..dtypes import kv_width
from ..table import KernelTable
from ..uncertainty import Predictive, of_fit
from .base import Array, FitResult, Parameter, errors, hull_of, robust_fit
from .beyond import NEAR, growth_beyond
from .gemm import Values
from .starts import DECODE, start

ROWS: Final = 3000
OCCUPANCIES: Final = (0.75, 1.0, 1.33, 2.0)
"""Blocks per unit that are tried, over the starting value."""
_TRIED_ROWS: Final = 1500
_BOUNDS: Final[dict[str, tuple[float, float]]] = {
    "t0_us": (0.05, 100.0), "eb": (0.05, 1.05), "q": (1.0, 12.0), "occ": (0.1, 8.0), "wq": (0.01, 1.0),
    "oe": (0.005, 1.5), "l2f": (0.02, 3.0), "l2b": (1.0, 12.0), "gp": (0.5, 128.0), "ec": (0.005, 1.2),
    "tb_us": (0.005, 20.0), "ts_us": (0.05, 50.0), "tcta_us": (0.05, 50.0), "cr": (0.02, 20.0), "l2q": (1.0, 20.0),
    "tq_us": (0.01, 20.0), "tg_us": (0.01, 20.0),
}  # fmt: skip


def decode_parameters(arch: str) -> list[Parameter]:
    """Return starts and priors of a decode-attention lane.

    ``eb`` is held close and below 1.05: it is confounded with ``q`` where fixed times matter, and the share of
    bandwidth is what a serving step and a what-if rest on.
    """
    tight = {"q": 0.1, "eb": 0.1, "ts_us": 0.1}
    own = {"l2f": 0.6, "l2q": 8.0, "tq_us": 1.0, "tg_us": 0.5}
    wide = {"l2f": 0.5, "l2q": 0.5, "tq_us": 1.5, "tg_us": 1.5}
    values = {**start(DECODE, arch), **own}
    return [
        Parameter(name, value, {**tight, **wide}.get(name, 0.3), *_BOUNDS[name])
        for name, value in values.items()
    ]


def seen_keys(table: KernelTable) -> Array:
    """Return the keys that each row's sequences see: the context, or the window [tokens]."""
    keys, window = table.numbers("kv_len", "window")
    return np.where(window > 0.0, np.minimum(keys, window), keys)


def predict_decode_us(
    chip: Chip, params: Mapping[str, float], table: KernelTable, *, warm: bool = True
) -> Array:
    """Return the time of decode-attention rows under given parameters [us]."""
    lane = DecodeParams.from_lane(Values(params))
    batch, heads, kv_heads, dim = table.numbers("batch", "n_heads", "n_kv_heads", "head_dim")
    keys = seen_keys(table)
    shape = decode_shape(lane, heads, kv_heads, dim, kv_width(table))
    share = warm_share(chip, lane, shape, batch, batch * keys) if warm else 0.0
    terms = decode_terms(chip, lane, shape, batch, keys, resident=share)
    return np.asarray(terms.seconds(batch * keys)) * 1e6


def decode_regimes(table: KernelTable, chip: Chip) -> NDArray[Any]:
    """Return the regime of each row: fixed time rules, the switch, bandwidth rules."""
    batch, kv_heads, dim = table.numbers("batch", "n_kv_heads", "head_dim")
    seconds = 2.0 * batch * seen_keys(table) * kv_heads * dim * kv_width(table) / chip.bandwidth
    return np.where(seconds < 5e-6, "latency", np.where(seconds < 50e-6, "switch", "bandwidth"))


def fit_decode_attention_least_squares(
    table: KernelTable,
    chip: Chip,
    arch: str,
    *,
    lane: str = "vllm",
    rows: int = ROWS,
    warm: bool = True,
    params: list[Parameter] | None = None,
    split: float = 1.0,
    key_blocks: float = 1.0,
    **options: Any,
) -> FitResult:
    """Fit a decode-attention lane: one kernel, one head layout; see ``fit_gemm_least_squares``.

    The blocks per unit are pinned. Splits and waves jump with them, so that a free value settles where it mends
    the steps of short calls, and then errs on long contexts: fitted up to 512 keys, contexts of 1024 and 2048 came
    out 9.7 % off on B200 against 6.5 with a pinned one, 8.4 against 6.3 on L40S, 8.6 against 7.6 on A100.

    Parameters
    ----------
    split, key_blocks : whether and by what rule a sequence is split (``split`` of a lane), and into parts of how many
        key blocks at least (facts)
    """
    facts = [Parameter("split", float(split), vary=False), Parameter("ks", key_blocks, vary=False)]
    chosen = table.sample(rows)
    chooses = params is None
    if params is None:
        params = _with_occupancy(table, chip, decode_parameters(arch), facts, warm)
    found = _fit(
        chosen,
        chip,
        [*params, *facts],
        warm,
        lane=lane,
        hull=hull_of(**_axes(table)),
        **options,
    )
    if not chooses:
        return found

    def fit(near: KernelTable, starts: list[Parameter]) -> FitResult:
        few = near.sample(_TRIED_ROWS)
        return _fit(few, chip, starts, warm, hull=hull_of(**_axes(few)), **_QUICK)

    def expect(fitted: FitResult, far: KernelTable) -> Predictive:
        return of_fit(
            fitted,
            lambda values: predict_decode_us(chip, values, far, warm=warm),
            regimes=decode_regimes(far, chip),
            axes=_axes(far),
        )

    shares = (NEAR, NEAR**2)
    growth = growth_beyond(table, seen_keys(table), [*params, *facts], fit, expect, shares=shares)
    return replace(found, growth=growth)


def _fit(table: KernelTable, chip: Chip, params: list[Parameter], warm: bool, **options: Any) -> FitResult:
    return robust_fit(
        lambda values: predict_decode_us(chip, values, table, warm=warm),
        params,
        table.latency_us,
        family="decode_attention",
        regimes=decode_regimes(table, chip),
        axes=_axes(table),
        alike=(table["n_heads"],),
        **options,
    )


def _axes(table: KernelTable) -> dict[str, Array]:
    batch, heads = table.numbers("batch", "n_heads")
    return {"batch": batch, "context": seen_keys(table), "heads": heads}


def _with_occupancy(
    table: KernelTable, chip: Chip, params: list[Parameter], facts: list[Parameter], warm: bool
) -> list[Parameter]:
    """Return the parameters with the blocks per unit pinned where short contexts predict long ones best."""
    keys = seen_keys(table)
    near = keys <= NEAR * keys.max()
    if near.sum() < 2 * len(params) or not (~near).any():
        return params
    fitted, parts = table.where(near).sample(_TRIED_ROWS), (table.where(near), table.where(~near))
    tried: list[tuple[float, list[Parameter]]] = []
    for factor in OCCUPANCIES:
        pinned = [replace(p, start=p.start * factor, vary=False) if p.name == "occ" else p for p in params]
        found = _fit(fitted, chip, [*pinned, *facts], warm, **_QUICK).params
        off = [predict_decode_us(chip, found, part, warm=warm) / part.latency_us for part in parts]
        tried.append((sum(errors(ratio)["mape"] for ratio in off), pinned))
    return min(tried, key=lambda each: each[0])[1]


_QUICK: Final[dict[str, Any]] = {"rounds": 2, "evaluations": 15}
