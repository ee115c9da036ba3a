"""Fit of latent attention (DeepSeek style): absorbed decode and expanded or absorbed prefill.

Decode is flat up to 64 heads a rank, because the heads are the rows of one matrix tile; whether a kernel splits
the cache of a sequence, and how many heads share a pass, are facts of a lane and not fitted. Prefill reads and
writes one cache entry a token whatever the heads, which is all of its time at few heads.

Held out are 16 and 64 heads and contexts above 2048; a few rows of the tables are spikes (1.5 ms in a row of
20 us) and go by their neighbours in heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.timing.decode_attention import DecodeParams, decode_terms, mla_decode_shape, warm_share
from ...hwmodels.timing.form import Chip
from ...hwmodels.timing.prefill_attention import PrefillParams, mla_prefill_shape, prefill_form
from ..dtypes import element_width
from ..errors import CalibrationError
from ..table import KernelTable
from .base import Array, FitResult, Parameter, hull_of, robust_fit
from .beyond import pinned_by_the_long
from .gemm import Values

LATENT: Final = 576
"""Cached elements of a token: 512 of the latent vector, 64 of the rotary key."""
VALUE: Final = 512
EXPANDED: Final = 320
"""Key plus value width of a head once expanded: 192 + 128."""
ABSORBED: Final = LATENT + VALUE
_STEPS: Final = (0.1, 0.03, 0.01)
"""Splits change in jumps as parameters do: derivatives over a wide step first, or a fit stops at the first jump."""
_EDGE: Final = 1e-3
_SPIKE: Final = 3.0
_SHORT: Final = 128
OCCUPANCIES: Final = (0.5, 0.6, 0.85, 1.0, 1.2)
"""Blocks per unit that are tried: a free value stops at the first jump."""
_SHORT_WEIGHT: Final = 0.3
"""Weight of contexts below one tile: half of a table's rows, and nothing but fixed time."""


def without_spikes(table: KernelTable) -> KernelTable:
    """Return the rows that are not three times slower than both half and twice their heads."""
    keys = [
        tuple(row)
        for row in zip(
            *(table[name].tolist() for name in ("gpu", "framework", "dtype", "kv_dtype", "op")),
            *(table[name].tolist() for name in ("batch", "q_len", "kv_len", "n_heads")),
            strict=True,
        )
    ]
    timed = dict(zip(keys, table.latency_us.tolist(), strict=True))
    kept = np.ones(len(table), dtype=np.bool_)
    for i, key in enumerate(keys):
        near = [timed.get((*key[:-1], heads)) for heads in (key[-1] // 2, 2 * key[-1])]
        around = [us for us in near if us is not None]
        kept[i] = not around or timed[key] <= _SPIKE * max(around)
    return table.where(kept)


def mla_decode_parameters(
    *, tile_heads: int, split: bool, sharp_cache: bool = False, few_heads: int = 0
) -> list[Parameter]:
    """Return starts and priors of a decode lane; heads to a tile and splitting are pinned.

    With ``sharp_cache`` the share of the cache that repeats find in L2 may end as sharply as the data say.
    """
    sharpness = [Parameter("l2q", 3.0, 0.5, 1.0, 12.0)] if sharp_cache else []
    return [
        Parameter("t0_us", 8.0, 0.5, 0.5, 100.0),
        Parameter("eb", 0.9, 0.1, 0.2, 1.2),
        Parameter("q", 2.0, 0.3, 1.0, 8.0),
        Parameter("occ", 0.85, 0.3, 0.2, 4.0),
        Parameter("wq", 0.3, 0.7, 0.01, 1.0),
        Parameter("oe", 0.2, 0.8, 0.01, 1.5),
        Parameter("gp", 64.0, 0.5, 4.0, 256.0),
        Parameter("ec", 0.7, 0.4, 0.05, 1.2),
        Parameter("tb_us", 0.7, 0.6, 0.02, 20.0),
        Parameter("ts_us", 2.0, 0.7, 0.02, 60.0),
        Parameter("tcta_us", 3.0, 0.6, 0.05, 30.0),
        Parameter("cr", 0.8, 0.7, 0.02, 8.0),
        Parameter("x", 1.0, 0.8, 0.02, 8.0),
        Parameter("rr", 0.3, 0.8, 0.005, 1.0),
        Parameter("l2f", 0.3, 0.7, 0.02, 1.0),
        Parameter("l2b", 1.5, 0.4, 1.0, 6.0),
        *sharpness,
        Parameter("hm", float(tile_heads), vary=False),
        Parameter("hs", float(few_heads), vary=False),
        Parameter("split", float(split), vary=False),
    ]


def mla_prefill_parameters(eb: float, *, absorbed: bool) -> list[Parameter]:
    """Return starts and priors of a prefill lane; the form it computes in and its share of bandwidth are pinned."""
    return [
        Parameter("t0_us", 10.0, 0.5, 0.5, 200.0),
        Parameter("ec", 0.6, 0.4, 0.05, 1.2),
        Parameter("sx", 3.0, 0.5, 0.1, 20.0),
        Parameter("occ", 1.0, 0.4, 0.2, 4.0),
        Parameter("wq", 0.7, 0.5, 0.01, 1.0),
        Parameter("q2", 2.5, 0.4, 1.0, 12.0),
        Parameter("tt_us", 0.5, 0.8, 0.005, 20.0),
        Parameter("k0", 25.0, 0.7, 1.0, 500.0),
        Parameter("x", 1.0, 0.5, 0.02, 8.0),
        Parameter("q", 1.5, 0.5, 1.0, 8.0),
        Parameter("xc", 1.0, 0.5, 0.05, 10.0),
        Parameter("eb", eb, vary=False),
        Parameter("d", float(ABSORBED if absorbed else EXPANDED), vary=False),
    ]


def predict_mla_decode_us(
    chip: Chip, params: Mapping[str, float], table: KernelTable, *, warm: bool = True
) -> Array:
    """Return the time of decode rows under given parameters [us]."""
    values = Values(params)
    lane = DecodeParams.from_lane(values)
    found = np.zeros(len(table))
    for rows, width in _by_width(table):
        batch, keys, heads = table.take(rows).numbers("batch", "kv_len", "n_heads")
        shape = mla_decode_shape(lane, values, heads, LATENT, VALUE, LATENT * width)
        share = warm_share(chip, lane, shape, batch, batch * keys) if warm else 0.0
        terms = decode_terms(chip, lane, shape, batch, keys, resident=share)
        found[rows] = np.asarray(terms.seconds(batch * keys)) * 1e6
    return found


def predict_mla_prefill_us(chip: Chip, params: Mapping[str, float], table: KernelTable) -> Array:
    """Return the time of prefill rows under given parameters [us]."""
    lane = Values(params)
    fitted = PrefillParams.from_lane(lane, lane)
    found = np.zeros(len(table))
    for rows, width in _by_width(table):
        for heads in np.unique(table["n_heads"][rows]):
            chosen = rows[table["n_heads"][rows] == heads]
            shape = mla_prefill_shape(lane, int(heads), EXPANDED, ABSORBED, LATENT * width)
            form = prefill_form(chip, fitted, shape)
            batch, new, keys = (table[name][chosen] for name in ("batch", "q_len", "kv_len"))
            starts = np.cumsum(batch) - batch
            time = form.time_many(
                np.repeat(new, batch).astype(np.float64),
                np.repeat(keys - new, batch).astype(np.float64),
                starts,
            )
            found[chosen] = np.asarray(time.seconds) * 1e6
    return found


def mla_regimes(table: KernelTable) -> NDArray[Any]:
    """Return the regime of each row: contexts below and above 128, batches up to 16, up to 128 and above."""
    context = np.where(table["kv_len"] < _SHORT, "context<128", "context>=128")
    batch = table["batch"]
    return np.char.add(
        context, np.where(batch <= 16, " batch<=16", np.where(batch <= 128, " batch<=128", " batch>128"))
    )


def fit_mla_decode_least_squares(
    table: KernelTable,
    chip: Chip,
    *,
    tile_heads: int = 64,
    split: bool = True,
    sharp_cache: bool = False,
    few_heads: int = 0,
    lane: str = "trtllm",
    **options: Any,
) -> FitResult:
    """Fit a lane of latent decode attention.

    Parameters
    ----------
    table : rows that a fit may see, of one KV dtype, without spikes
    chip : the device's datasheet symbols
    tile_heads : heads that share one pass over the cache
    split : the kernel divides the cache of a sequence over thread blocks
    sharp_cache : L2 is large beside HBM's rate (L40S: 96 MB at four times it), its edge shows
    few_heads : heads that share one pass where there are at most twice as many; 0 for none
    lane : software lane
    options : further arguments of ``robust_fit``

    Raises
    ------
    CalibrationError : too few rows, or times that are not positive
    """

    def fit(rows: KernelTable, params: list[Parameter], **options: Any) -> FitResult:
        return robust_fit(
            lambda values: predict_mla_decode_us(chip, values, rows),
            params,
            rows.latency_us,
            family="mla_decode",
            lane=lane,
            weights=np.where(rows["kv_len"] < _SHORT, _SHORT_WEIGHT, 1.0),
            regimes=mla_regimes(rows),
            hull=hull_of(**_axes(rows)),
            **{"rounds": 4, "evaluations": 60, "steps": _STEPS, **options},
        )

    def predict(found: FitResult, rows: KernelTable) -> Array:
        return predict_mla_decode_us(chip, found.params, rows)

    params = mla_decode_parameters(
        tile_heads=tile_heads, split=split, sharp_cache=sharp_cache, few_heads=few_heads
    )
    whole = [_whole_blocks(occ, chip) for occ in OCCUPANCIES]
    params = pinned_by_the_long(table, "occ", tuple(whole), params, fit, predict)
    return fit(table, params, **options)


def _whole_blocks(occupancy: float, chip: Chip) -> float:
    """Return an occupancy whose resident blocks lie between two whole numbers.

    Splits depend on whole blocks alone; rounded for printing, a value where one more block begins may fall to the
    other side and double a call's time.
    """
    return float((np.floor(occupancy * chip.units + _EDGE) + 0.5) / chip.units)


def fit_mla_prefill_least_squares(
    table: KernelTable,
    chip: Chip,
    eb: float,
    *,
    absorbed: bool = False,
    lane: str = "trtllm",
    **options: Any,
) -> FitResult:
    """Fit a lane of latent prefill attention.

    Parameters
    ----------
    table : rows that a fit may see, of one KV dtype, without spikes
    chip : the device's datasheet symbols
    eb : share of HBM bandwidth, from the GEMM lane of the same software; the lane keeps it [-]
    absorbed : queries meet the latent vectors themselves (SGLang on Hopper), not expanded heads
    lane : software lane
    options : further arguments of ``robust_fit``

    Raises
    ------
    CalibrationError : too few rows, or times that are not positive
    """
    return robust_fit(
        lambda values: predict_mla_prefill_us(chip, values, table),
        mla_prefill_parameters(eb, absorbed=absorbed),
        table.latency_us,
        family="mla_prefill",
        lane=lane,
        regimes=mla_regimes(table),
        hull=hull_of(**_axes(table)),
        **{"rounds": 2, "evaluations": 25, **options},
    )


def _axes(table: KernelTable) -> dict[str, Array]:
    batch, context, heads = table.numbers("batch", "kv_len", "n_heads")
    return {"batch": batch, "context": context, "heads": heads}


def _by_width(table: KernelTable) -> list[tuple[NDArray[np.int64], float]]:
    """Return the rows of each KV dtype, and the bytes of its elements."""
    if not len(table):
        raise CalibrationError("no rows of latent attention")
    return [
        (np.flatnonzero(table["kv_dtype"] == name), element_width(name or "bfloat16"))
        for name in sorted(set(table["kv_dtype"].tolist()))
    ]
