"""Time of a mixture-of-experts layer on one rank: two grouped GEMMs, passes between them, routing.

``t0 + t1/(1 + (Tc/T)^2) + te E + [g(G I/tp, H) + g(H, I/tp)] al + (xl Bl + xg Bg)/B + tr T k``, with g the
best of twelve tiles, each a smooth roofline over the rows and experts of the busiest rank. t1 is the switch
of the routing kernels to their multi-launch path: a step in T, not a slope.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..routing import ROW_TILES, RoutingStats
from .form import MICRO, Array, Chip, KernelTime, LaneLike, Value, soft_waves

_COLUMNS = (64, 128, 256)
_TILE = tuple((i, float(u), float(v)) for i, u in enumerate(ROW_TILES) for v in _COLUMNS)
_WHICH, _U, _V = (np.array(column) for column in zip(*_TILE, strict=True))


@dataclass(frozen=True, slots=True)
class MoEParams:
    """Fitted parameters of one expert lane; symbols as in the module's formula.

    Attributes
    ----------
    t0, t1, te, tr : fixed time, further launches above ``tc`` tokens, per expert, per routed row [s]
    tc : tokens at which the routing kernels switch [tokens]
    ec : share of peak at a 128 x 256 tile [-]; ct, k0 : loss of small tiles, pipeline fill [elements]
    eb, q : share of HBM bandwidth and sharpness [-]
    sat, oe, wq : as for GEMM [-]
    xl, xg : passes over the activations between the GEMMs, and over gathered and summed rows [-]
    al : factor where the cut width is no multiple of 16 [-]
    allrows : rows of all ranks are written (Triton), not only the rank's own
    l2f, l2b : as for GEMM; only for warm tables
    """

    t0: float
    t1: float
    tc: float
    te: float
    ec: float
    ct: float
    k0: float
    eb: float
    q: float
    sat: float
    oe: float
    wq: float
    xl: float
    xg: float
    tr: float
    al: float
    allrows: bool
    l2f: float = 0.0
    l2b: float = 1.0

    @classmethod
    def from_lane(cls, lane: LaneLike) -> MoEParams:
        """Read a device's ``moe`` lane."""
        p = lane.params
        return cls(
            t0=p["t0_us"] * MICRO,
            t1=p["t1_us"] * MICRO,
            tc=p["tc"],
            te=p["te_ns"] * 1e-9,
            ec=p["ec"],
            ct=p["ct"],
            k0=p["k0"],
            eb=p["eb"],
            q=p["q"],
            sat=p["sat"],
            oe=p["oe"],
            wq=p["wq"],
            xl=p["xl"],
            xg=p["xg"],
            tr=p["tr_ns"] * 1e-9,
            al=p.get("al", 1.0),
            allrows=p.get("allrows", 0.0) > 0.5,
            l2f=p.get("l2f", 0.0),
            l2b=p.get("l2b", 1.0),
        )


@dataclass(frozen=True, slots=True)
class MoEWork:
    """A layer's widths and number formats, as one rank sees them.

    Arrays, one entry for each number of tokens, describe many layers at once: a table is then one call.

    Attributes
    ----------
    hidden, intermediate : model width, and width of one expert cut by tensor parallelism [elements]
    n_experts, top_k : experts of the model, and how many a token visits
    gated : two input matrices per expert
    weight_bytes, input_bytes : bytes per element [B]
    dtype : compute dtype
    """

    hidden: Value
    intermediate: Value
    n_experts: Value
    top_k: Value
    gated: bool | NDArray[np.bool_]
    weight_bytes: float = 2.0
    input_bytes: float = 2.0
    dtype: str = "bf16"


def moe_time(
    chip: Chip,
    params: MoEParams,
    work: MoEWork,
    tokens: Array,
    routing: Sequence[RoutingStats],
    *,
    warm: bool = False,
) -> KernelTime:
    """Return the time of the layer for each number of tokens, split by cause [s].

    Parameters
    ----------
    chip, params, work : device, lane and layer
    tokens : tokens of the step, shape (n,)
    routing : statistics of the busiest rank for each of them
    warm : touched experts may still be in L2 (kernel tables); a serving step reads them cold

    Returns
    -------
    KernelTime of arrays of shape (n,); times of all-to-all exchanges are not in it
    """
    p = params
    inputs = np.where(work.gated, 2.0, 1.0)
    active = np.array([stats.active for stats in routing])
    rows = np.array([stats.rows for stats in routing])
    tiles = np.array([stats.tiles for stats in routing])[:, _WHICH]
    written = tokens * work.top_k if p.allrows else rows
    inner, hidden = (np.asarray(width, dtype=np.float64) for width in (work.intermediate, work.hidden))
    hit = np.zeros(len(tokens))
    if warm and p.l2f > 0.0 and chip.l2_bytes > 0.0:
        touched = active * (inputs + 1.0) * hidden * inner * work.weight_bytes
        hit = 1.0 / (1.0 + (touched / (p.l2f * chip.l2_bytes)) ** 3)
    up = _grouped(chip, p, work, active, rows, written, tiles, inputs * inner, hidden, hit)
    down = _grouped(chip, p, work, active, rows, written, tiles, hidden, inner, hit)
    gemms = (up + down).times(np.where(inner % 16.0, p.al, 1.0))
    between = 2.0 * written * (inputs + 1.0) * inner
    gathered = 2.0 * tokens * hidden * (work.top_k + 1.0)
    passes = (p.xl * between + p.xg * gathered) / chip.bandwidth
    fixed = p.t0 + p.t1 / (1.0 + (p.tc / tokens) ** 2) + p.te * work.n_experts + p.tr * tokens * work.top_k
    return gemms + KernelTime(hbm_activations=passes, latency=fixed, hbm_demand=passes, compute_demand=passes)


def _grouped(
    chip: Chip,
    p: MoEParams,
    work: MoEWork,
    active: Array,
    rows: Array,
    written: Array,
    tiles: Array,
    n: Array,
    k: Array,
    hit: Array,
) -> KernelTime:
    """Return the time of one grouped GEMM, n outputs from k inputs per row, over the rank's experts [s]."""
    blocks = tiles * np.ceil(n[..., None] / _V)
    w = blocks / chip.units
    rate = chip.peak(work.dtype) * p.ec * (1.0 + 3.0 * p.ct / 256.0) / (1.0 + p.ct * (1.0 / _U + 1.0 / _V))
    t_compute = soft_waves(w, p.wq) * 2.0 * _U * _V * (k + p.k0)[..., None] * chip.units / rate
    weights = active * n * k * work.weight_bytes
    moved = weights + rows * k * work.input_bytes + written * n * 2.0
    bandwidth = p.eb * chip.bandwidth * (1.0 + hit * (p.l2b - 1.0))
    t_memory = (moved / bandwidth)[:, None] / np.minimum(np.maximum(w, 1e-9) / p.sat, 1.0) ** p.oe
    power_sum = t_compute**p.q + t_memory**p.q
    best = np.argmin(power_sum, axis=1)[:, None]

    def chosen(a: Array) -> Array:
        return np.take_along_axis(np.broadcast_to(a, power_sum.shape), best, axis=1)[:, 0]

    total = chosen(power_sum)
    body = total ** (1.0 / p.q)
    share = chosen(t_compute) ** p.q / total
    fill = p.k0 / (k + p.k0)
    in_memory, of_weights = body * (1.0 - share), weights / moved
    return KernelTime(
        hbm_weights=in_memory * of_weights,
        hbm_activations=in_memory * (1.0 - of_weights),
        compute=body * share * (1.0 - fill),
        latency=body * share * fill,
        hbm_demand=np.minimum(chosen(t_memory), body),
        compute_demand=body * np.minimum(chosen(w), 1.0),
    )
