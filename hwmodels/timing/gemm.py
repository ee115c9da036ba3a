"""Time of a matrix multiplication: the best of the library's tiles and k-splits, each a smooth roofline.

For m x n x k with tile u x v and split s: ``t0 + pn(T_c, T_m; q) + [s > 1] ts``. T_c charges whole tiles
(with weak wave quantisation and k0 columns of pipeline fill), T_m the bytes moved, slowed when too few blocks
run to keep the memory busy. Everything fitted is dimensionless or a time.

Small tiles reuse less of what on-chip memory feeds to the matrix units, at a rate that the datasheet gives. A
column of k takes ``2 u v`` FLOP and ``u + v`` operands. Where the matrix unit reads them itself (Hopper, Blackwell)
the longer of the two counts, where warps first load them into registers, each twice (Ampere, Ada), their sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from .form import MICRO, Array, Chip, KernelTime, LaneLike, pn, power_shares, soft_waves
from .tiles import ruled_tiles

_TILES = ((64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))
_SPLITS = (1, 2, 4, 8, 16)
_U, _V, _S = (
    np.array(column, dtype=np.float64)
    for column in zip(*((u, v, s) for u, v in _TILES for s in _SPLITS), strict=True)
)
_MIN_K_PER_SPLIT = 128
_LARGE = 128.0 * 128.0
_WAITING, _STREAMING = (2.0, 1.0), (1.0, 4.0)
"""How often an operand is loaded, and how sharp the maximum of matrix work and loads is; 1 is a sum."""


@dataclass(frozen=True, slots=True)
class GemmParams:
    """Fitted parameters of one GEMM lane; symbols as in the module's formula.

    Attributes
    ----------
    t0, ts : fixed time of a call, and extra of a k-split [s]
    ec : share of peak at a 128 x 256 tile [-]
    eb : share of HBM bandwidth [-]
    q : sharpness of the smooth maximum [-]
    k0 : pipeline fill, in columns of k [elements]
    ct : loss of small tiles [elements], for lanes without ``fd``
    fd : operands fed to the matrix units, over the fewest a tile needs [-]; 0 for none
    sat, oe : blocks per unit that saturate memory, and how fast bandwidth falls below it [-]
    cs : share of the split's partial sums that reach HBM [-]
    wq, ws : weight of wave quantisation, and of that of tiles below 128 x 128, of which several share a unit; None:
        the same [-]
    l2f, l2b, l2q, l2c : share of L2 that holds warm operands, its rate over HBM's, how sharply that ends where they
        outgrow it, and through how many copies of the weights the timing loop rotates [-]; only for warm tables
    gv : share of a tile's time that a matrix-vector product takes, m = 1 [-]
    pad : how much more than a row with data one costs that only fills tiles which come together up [-]
    by_m : number of the rule by which the library picks its tile and never splits k (``tiles.RULES``); 0 for the best
    qr : sharpness of the maximum in the 3-parameter form; infinity is a hard one, 1 a sum (CPU) [-]
    """

    t0: float
    ec: float
    eb: float
    q: float
    k0: float = 0.0
    ts: float = 0.0
    ct: float = 0.0
    sat: float = 1.5
    oe: float = 0.0
    cs: float = 0.5
    wq: float = 0.1
    l2f: float = 0.0
    l2b: float = 1.0
    l2q: float = 3.0
    l2c: float = 1.0
    gv: float = 1.0
    fd: float = 0.0
    ws: float | None = None
    pad: float = 0.0
    by_m: int = 0
    qr: float = math.inf

    @classmethod
    def from_lane(cls, lane: LaneLike) -> GemmParams:
        """Read the parameters of a device's ``gemm`` (or linear) lane."""
        p = lane.params
        return cls(
            t0=p["t0_us"] * MICRO,
            ec=p["ec"],
            eb=p["eb"],
            q=p.get("q", 3.0),
            k0=p.get("k0", 0.0),
            ts=p.get("ts_us", 0.0) * MICRO,
            ct=p.get("ct", 0.0),
            sat=p.get("sat", 1.5),
            oe=p.get("oe", 0.0),
            cs=p.get("cs", 0.5),
            wq=p.get("wq", 0.1),
            l2f=p.get("l2f", 0.0),
            l2b=p.get("l2b", 1.0),
            l2q=p.get("l2q", 3.0),
            l2c=p.get("l2c", 1.0),
            gv=p.get("gv", 1.0),
            fd=p.get("fd", 0.0),
            ws=p.get("ws"),
            pad=p.get("pad", 0.0),
            by_m=round(p.get("by_m", 0.0)),
            qr=p.get("qr", math.inf),
        )


@dataclass(frozen=True, slots=True)
class GemmWidths:
    """Bytes per element of weights, inputs and outputs of a GEMM [B]."""

    weight: float = 2.0
    inputs: float = 2.0
    output: float = 2.0


BF16_WIDTHS = GemmWidths()


def gemm_time(
    chip: Chip,
    params: GemmParams,
    m: Array | float,
    n: Array | float,
    k: Array | float,
    *,
    dtype: str = "bf16",
    widths: GemmWidths = BF16_WIDTHS,
    warm: bool = False,
    compute_factor: float = 1.0,
) -> KernelTime:
    """Return the time of C[m, n] = A[m, k] W[n, k] for broadcastable ``m``, ``n``, ``k``, split by cause [s].

    Parameters
    ----------
    chip, params : the device's datasheet symbols and its fitted lane
    m, n, k : tokens, output width and input width of the shard [elements], scalars or arrays of one shape
    dtype : compute dtype, which sets the peak
    widths : bytes per element; weight-only quantisation shrinks ``weight`` and nothing else
    warm : operands may still be in L2 (kernel tables are timed so); a serving step reads weights cold
    compute_factor : multiplies the compute rate (the engine's ``engine_gemm_efficiency``) [-]

    Returns
    -------
    KernelTime of arrays of the broadcast shape

    Examples
    --------
    >>> h100 = Chip({"bf16": 989e12}, 3.35e12, 132, 50e6)
    >>> lane = GemmParams(t0=2.5e-6, ec=0.86, eb=0.89, q=3.0, k0=170, ts=2.5e-6, ct=3, oe=0.08)
    >>> round(float(gemm_time(h100, lane, 1, 5120, 17408).seconds) * 1e6, 1)
    65.1
    """
    rate = chip.peak(dtype) * compute_factor
    weights, inputs, outputs = widths.weight * n * k, widths.inputs * m * k, widths.output * m * n
    if chip.roofline3:
        return _roofline3(params, rate, chip.bandwidth, 2.0 * m * n * k, weights, inputs + outputs)
    m, n, k, weights, plain = (
        np.asarray(a, dtype=np.float64)[..., None]
        for a in np.broadcast_arrays(m, n, k, weights, inputs + outputs)
    )
    tiles = _tiles(params, m, n)
    splits = tiles[-1]
    by_tile = rate / _tile_loss(chip, params, chip.peak(dtype), widths.inputs, tiles)
    t_compute, t_memory, split_bytes, w = _terms(chip, params, m, n, k, weights, plain, by_tile, warm, tiles)
    longer = np.maximum(t_compute, t_memory)
    power_sum = 1.0 + (np.minimum(t_compute, t_memory) / longer) ** params.q
    body = longer * power_sum ** (1.0 / params.q)
    split = np.where(splits > 1, params.ts, 0.0)
    allowed = (splits == 1) | (k / splits >= _MIN_K_PER_SPLIT)
    best = np.argmin(np.where(allowed, body + split, np.inf), axis=-1)[..., None]

    def chosen(a: Array) -> Array:
        return np.take_along_axis(np.broadcast_to(a, body.shape), best, axis=-1)[..., 0]

    share = (chosen(t_compute) / chosen(longer)) ** params.q / chosen(power_sum)
    busy = chosen(body)
    fill = params.k0 / (chosen(k / splits) + params.k0)
    moved = (weights + plain)[..., 0] + chosen(split_bytes)
    in_memory = busy * (1.0 - share)
    by_weights = weights[..., 0] / moved
    return KernelTime(
        hbm_weights=in_memory * by_weights,
        hbm_activations=in_memory * (1.0 - by_weights),
        compute=busy * share * (1.0 - fill),
        latency=params.t0 + chosen(split) + busy * share * fill,
        hbm_demand=chosen(t_memory),
        compute_demand=busy * np.minimum(chosen(w), 1.0),
    )


def _tiles(p: GemmParams, m: Array, n: Array) -> tuple[Array, Array, Array, Array]:
    """Return the tiles that the library may take: rows, columns, tiles of rows together, k-splits (last axis)."""
    return (*ruled_tiles(p.by_m, m, n), _S[:1]) if p.by_m else (_U, _V, _S[:1], _S)


def _tile_loss(
    chip: Chip, p: GemmParams, peak: float, width: float, tiles: tuple[Array, Array, Array, Array]
) -> Array:
    """Return how much longer a column of k takes per FLOP than in a tile of 128 x 256, by tile and split [-]."""
    operands = 1.0 / tiles[0] + 1.0 / tiles[1]
    if p.fd <= 0.0 or chip.feed <= 0.0:
        return (1.0 + p.ct * operands) / (1.0 + 3.0 * p.ct / 256.0)
    loads, sharpness = _WAITING if chip.feed_waits else _STREAMING
    fed = p.fd * loads * width * peak / chip.feed / 2.0
    return _fed_time(fed * operands, sharpness) / _fed_time(np.array(fed * 3.0 / 256.0), sharpness)


def _fed_time(ratio: Array, sharpness: float) -> Array:
    """Return the time of a column over that of its matrix work, from the time to feed it over the same [-]."""
    return np.asarray((1.0 + ratio**sharpness) ** (1.0 / sharpness))


def _terms(
    chip: Chip,
    p: GemmParams,
    m: Array,
    n: Array,
    k: Array,
    weights: Array,
    plain: Array,
    rate: Array,
    warm: bool,
    tiles: tuple[Array, Array, Array, Array],
) -> tuple[Array, Array, Array, Array]:
    """Return T_c, T_m [s], bytes of partial sums [B] and blocks per unit, by tile and split (last axis)."""
    rows, columns, together, splits = tiles
    whole = np.ceil(m / (rows * together)) * together
    blocks = whole * np.ceil(n / columns) * splits
    w = blocks / chip.units
    waves = soft_waves(w, p.wq if p.ws is None else np.where(rows * columns < _LARGE, p.ws, p.wq))
    t_compute = waves * (2.0 * rows * columns) * (k / splits + p.k0) * chip.units / (rate * p.ec)
    filled = np.where((together > 1) & (w > 1.0), 1.0 + p.pad * (1.0 - m / (whole * rows)), 1.0)
    t_compute = filled * t_compute
    if p.gv != 1.0:
        t_compute = np.where(m > 1, t_compute, p.gv * t_compute)
    split_bytes = np.where(splits > 1, p.cs * 4.0 * splits, 0.0) * m * n
    total = weights + plain + split_bytes
    bandwidth = p.eb * chip.bandwidth
    if warm and p.l2f > 0.0 and chip.l2_bytes > 0.0:
        resident = 1.0 / (1.0 + ((total + (p.l2c - 1.0) * weights) / (p.l2f * chip.l2_bytes)) ** p.l2q)
        bandwidth = bandwidth * (1.0 - resident + resident * p.l2b)
    t_memory = total / bandwidth / np.minimum(w / p.sat, 1.0) ** p.oe
    return t_compute, t_memory, split_bytes, w


def _roofline3(
    p: GemmParams,
    rate: float,
    bandwidth: float,
    flop: Array | float,
    weights: Array | float,
    plain: Array | float,
) -> KernelTime:
    """Return the 3-parameter time ``t0 + pn(FLOP/(ec C), bytes/(eb B); qr)``; a hard maximum has one cause."""
    t_compute = np.asarray(flop, dtype=np.float64) / (p.ec * rate)
    t_memory = np.asarray(weights + plain) / (p.eb * bandwidth)
    of_weights = weights / (weights + plain)
    if math.isinf(p.qr):
        busy, in_compute = np.maximum(t_compute, t_memory), np.where(t_compute > t_memory, 1.0, 0.0)
    else:
        busy = np.asarray(pn(t_compute, t_memory, p.qr))
        in_compute = np.asarray(power_shares(p.qr, t_compute, t_memory)[0])
    return KernelTime(
        hbm_weights=busy * (1.0 - in_compute) * of_weights,
        hbm_activations=busy * (1.0 - in_compute) * (1.0 - of_weights),
        compute=busy * in_compute,
        latency=np.full(np.shape(t_compute), p.t0),
        hbm_demand=t_memory,
        compute_demand=t_compute,
    )
