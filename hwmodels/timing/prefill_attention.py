"""Time of prefill attention: chunks of new tokens over their own cached prefix, causal, one kernel for all chunks.

Query tiles of 128 rows each walk over the keys they may see. A key costs a tile the smooth maximum of matrix work
and exponentials; a tile also has a fixed time and a fill. The tiles of all chunks share the device, and the last
causal tile alone is a floor. The tile time meets the bytes moved in GEMM's smooth maximum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from .form import MICRO, Chip, KernelTime, LaneLike, pn, power_shares

_TILE = 128
_REFERENCE_UNITS = 132
"""Compute units of the device whose exponential rate ``sx`` is quoted for (H100 SXM)."""


@dataclass(frozen=True, slots=True)
class PrefillParams:
    """Fitted parameters of one prefill-attention lane.

    Attributes
    ----------
    t0, tt : fixed time of a call and of a query tile [s]
    ec : share of peak of the matrix work [-]
    sx : time of the exponentials of one key and tile on a device of 132 units [s]
    occ : tiles resident per compute unit [-]
    wq : weight of wave quantisation [-]
    q2 : sharpness of the maximum of matrix work and exponentials [-]
    k0 : fill, in keys [tokens]
    eb, q : share of HBM bandwidth and sharpness, pinned from the GEMM lane: a free share transfers worse [-]
    io : factor on query and output bytes (MLA) [-]
    """

    t0: float
    ec: float
    sx: float
    occ: float
    wq: float
    q2: float
    tt: float
    k0: float
    eb: float
    q: float
    io: float = 1.0

    @classmethod
    def from_lane(cls, lane: LaneLike, gemm: LaneLike) -> PrefillParams:
        """Read a ``prefill_attention`` lane, with ``eb`` and ``q`` of the device's ``gemm`` lane."""
        p, g = lane.params, gemm.params
        return cls(
            t0=p["t0_us"] * MICRO,
            ec=p["ec"],
            sx=p.get("sx", 0.0) * 1e-9,
            occ=p.get("occ", 1.0),
            wq=p.get("wq", 0.0),
            q2=p.get("q2", 2.0),
            tt=p.get("tt_us", 0.0) * MICRO,
            k0=p.get("k0", 0.0),
            eb=p.get("eb", g["eb"]),
            q=p.get("q", g.get("q", 3.0)),
        )


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """Per-device shape of a prefill-attention layer.

    Attributes
    ----------
    n_heads, n_kv_heads : heads of the device
    flop_per_key_row : matrix work per key and query row: 2 x (key width + value width) [FLOP]
    kv_bytes_per_key, io_bytes_per_token : bytes of KV read per key, of queries and outputs per new token [B]
    window : keys a query can see; 0 is all of them [tokens]
    packed : rows of a tile may come from different heads of one KV head (GQA packing)
    dtype : compute dtype
    """

    n_heads: int
    n_kv_heads: int
    flop_per_key_row: float
    kv_bytes_per_key: float
    io_bytes_per_token: float
    window: int = 0
    packed: bool = True
    dtype: str = "bf16"


def prefill_shape(
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    kv_width: float = 2.0,
    v_head_dim: int | None = None,
    window: int = 0,
    dtype: str = "bf16",
) -> PrefillShape:
    """Return the shape of (grouped-query) attention with per-device heads; ``kv_width`` is bytes per KV element."""
    v_dim = head_dim if v_head_dim is None else v_head_dim
    return PrefillShape(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        flop_per_key_row=2.0 * (head_dim + v_dim),
        kv_bytes_per_key=(head_dim + v_dim) * n_kv_heads * kv_width,
        io_bytes_per_token=2.0 * (head_dim + v_dim) * n_heads,
        window=window,
        dtype=dtype,
    )


@dataclass(frozen=True, slots=True)
class PrefillForm:
    """Prefill attention of one layer shape on one device, ready to be asked for batches of chunks.

    Attributes
    ----------
    per_key : time of one key and tile on one unit [s]; ``matrix_share`` of it counts as compute
    """

    params: PrefillParams
    shape: PrefillShape
    per_key: float
    slots: float
    seconds_per_byte: float

    def terms(self, chunks: Iterable[tuple[int, int]]) -> tuple[float, float, float, float]:
        """Return ``(tile time, its fixed part, KV read time, query and output time)`` of a batch of chunks [s].

        ``chunks`` are pairs (new tokens, tokens cached before).
        """
        p, shape = self.params, self.shape
        heads, kv_heads, window = shape.n_heads, shape.n_kv_heads, shape.window
        group = heads / kv_heads
        tiles = work = keys_read = rows = 0.0
        last = 0.0
        for new, cached in chunks:
            n_tiles = -(-new // _TILE) * heads
            if shape.packed:
                n_tiles = min(math.ceil(new * group / _TILE) * kv_heads, n_tiles)
            mean_keys, most_keys = cached + 0.5 * (new + _TILE), cached + new
            if window:
                mean_keys, most_keys, span = _windowed(new, cached, window)
            else:
                span = most_keys
            tiles += n_tiles
            work += n_tiles * mean_keys
            keys_read += span
            rows += new
            last = max(last, most_keys)
        if not tiles:
            return 0.0, 0.0, 0.0, 0.0
        w = tiles / self.slots
        waves = (1.0 - p.wq) * max(w, 1.0) + p.wq * math.ceil(w)
        mean = work / tiles
        fixed = p.k0 * self.per_key + p.tt
        shared = waves * (mean * self.per_key + fixed)
        alone = last * self.per_key + fixed
        if alone > shared:
            tile_time, tile_fixed = alone, fixed
        else:
            tile_time, tile_fixed = shared, waves * fixed
        spb = self.seconds_per_byte
        return (
            tile_time,
            tile_fixed,
            keys_read * shape.kv_bytes_per_key * spb,
            rows * shape.io_bytes_per_token * p.io * spb,
        )

    def body(self, chunks: Iterable[tuple[int, int]]) -> float:
        """Return the kernel's time without ``t0`` [s]; 0 for no chunks."""
        tile_time, _, t_kv, t_io = self.terms(chunks)
        return pn(tile_time, t_kv + t_io, self.params.q) if tile_time else 0.0

    def time(self, chunks: Iterable[tuple[int, int]]) -> KernelTime:
        """Return the kernel's time split by cause, ``t0`` included [s]."""
        tile_time, tile_fixed, t_kv, t_io = self.terms(chunks)
        if not tile_time:
            return KernelTime()
        body = pn(tile_time, t_kv + t_io, self.params.q)
        on_tiles, in_memory = power_shares(self.params.q, tile_time, t_kv + t_io)
        of_fixed = tile_fixed / tile_time
        of_kv = t_kv / (t_kv + t_io)
        return KernelTime(
            hbm_kv=body * in_memory * of_kv,
            hbm_activations=body * in_memory * (1.0 - of_kv),
            compute=body * on_tiles * (1.0 - of_fixed),
            latency=self.params.t0 + body * on_tiles * of_fixed,
            hbm_demand=t_kv + t_io,
            compute_demand=body,
        )


def prefill_form(chip: Chip, params: PrefillParams, shape: PrefillShape) -> PrefillForm:
    """Bind a prefill-attention lane to a chip and a layer shape.

    On a chip without comparable units the tile time is plain FLOP over its share of peak.
    """
    if chip.roofline3:
        params = replace(params, wq=0.0, tt=0.0, k0=0.0)
        units, exponentials = 1.0, 0.0
    else:
        units, exponentials = chip.units, params.sx * _REFERENCE_UNITS / chip.units
    matrix = _TILE * shape.flop_per_key_row / (params.ec * chip.peak(shape.dtype) / units)
    return PrefillForm(
        params=params,
        shape=shape,
        per_key=pn(matrix, exponentials, params.q2) if exponentials else matrix,
        slots=(1.0 if chip.roofline3 else params.occ) * units,
        seconds_per_byte=1.0 / (params.eb * chip.bandwidth),
    )


def _windowed(new: int, cached: int, window: int) -> tuple[float, float, float]:
    """Return mean keys of a tile, most keys of a tile, and distinct keys read, under a sliding window [tokens].

    A tile of 128 rows that ends at position e walks over the keys from ``e - 127 - window`` to e, where they exist:
    ``min(e, window + 128)`` of them; the mean over the chunk's tiles is taken in closed form.
    """
    cap = window + _TILE
    first, last = cached + 0.5 * _TILE, cached + new + 0.5 * _TILE
    if last <= cap:
        mean = 0.5 * (first + last)
    elif first >= cap:
        mean = float(cap)
    else:
        mean = (0.5 * (first + cap) * (cap - first) + cap * (last - cap)) / (last - first)
    return mean, float(min(cached + new, cap)), float(min(cached + new, window + new))
