"""Time of prefill attention: chunks of new tokens over their own cached prefix, one kernel for all.

Query tiles of 128 rows each walk over the keys they may see. A key costs a tile the smooth maximum of matrix
work and exponentials; a tile also has a fixed time and a fill. The tiles of all chunks share the device, and
the last causal tile alone is a floor. The bytes moved (queries, outputs, keys and values, and the new ones
written to the cache, which the timed calls include; what the kernels before have just written may still be in the
last-level cache) come on top of the tile time: with q = 1 the starting
values err by 9 % on H100, with GEMM's q = 3 by 29 % (28 % too fast at every length below 4k), so q is a
parameter of the lane and 1 by default.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .form import (
    MICRO,
    NO_DEMANDS,
    Array,
    Chip,
    Demands,
    KernelTime,
    LaneLike,
    Value,
    pn,
    power_shares,
    soft_waves,
)

_TILE = 128
_KEYS = 128.0
_KEYS_FLASH2 = 64.0
"""A tile walks over whole blocks of keys: at least one."""
_ABSORBED_ABOVE = 700.0
_SMALLEST_TILE = 16
_KEYS_ON_CHIP = 64
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
    eb : share of HBM bandwidth, pinned from the GEMM lane: a free share transfers worse [-]
    q : sharpness of the maximum of tile time and bytes; 1 is their sum [-]
    io : factor on query and output bytes (MLA) [-]
    cache : factor on the bytes of new cache entries (MLA: one vector for all heads) [-]
    l2f, l2b : share of the last-level cache that holds what the kernels before have just written, its rate over
        ``eb`` of HBM's [-]; 0 and 1 where that does not show
    packed : whether a tile takes rows of several heads of one KV head (a lane fact)
    single : FlashAttention-2, which does so for calls of one token a sequence alone, and walks over keys in blocks of
        64 (a lane fact)
    tile : most query rows of a tile (a lane fact) [-]
    tq : extra fixed time of such a call of several sequences and KV heads, whose queries are first copied [s]
    odd : extra time of calls and tiles whose queries of a KV head are not a power of two, as a share [-]
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
    q: float = 1.0
    io: float = 1.0
    cache: float = 0.0
    l2f: float = 0.0
    l2b: float = 1.0
    packed: bool = True
    single: bool = False
    tile: int = _TILE
    tq: float = 0.0
    odd: float = 0.0

    @classmethod
    def from_lane(cls, lane: LaneLike, gemm: LaneLike) -> PrefillParams:
        """Read a ``prefill_attention`` lane, with the ``eb`` of the device's ``gemm`` lane."""
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
            q=p.get("q", 1.0),
            io=p.get("x", 1.0),
            cache=p.get("xc", 0.0),
            l2f=p.get("l2f", 0.0),
            l2b=p.get("l2b", 1.0),
            packed=p.get("packed", 1.0) > 0.5,
            single=p.get("single", 0.0) > 0.5,
            tile=int(p.get("rows", _TILE)),
            tq=p.get("tq_us", 0.0) * MICRO,
            odd=p.get("odd", 0.0),
        )


@dataclass(frozen=True, slots=True)
class PrefillShape:
    """Per-device shape of a prefill-attention layer.

    Attributes
    ----------
    n_heads, n_kv_heads : heads of the device
    flop_per_key_row : matrix work per key and query row: 2 x (key width + value width) [FLOP]
    kv_bytes_per_key : bytes of KV read per key [B]
    io_bytes_per_token : queries in, outputs out, new keys and values in and to the cache, per new token [B]
    window : keys a query can see; 0 is all of them [tokens]
    packed : rows of a tile may come from different heads of one KV head (GQA packing)
    dtype : compute dtype
    score_bytes_per_pair : naive attention: score matrix to and from HBM, per query and key [B]
    entry_bytes_per_token : a new cache entry, read as computed and written as stored, where ``io`` has none [B]
    """

    n_heads: int
    n_kv_heads: int
    flop_per_key_row: float
    kv_bytes_per_key: float
    io_bytes_per_token: float
    window: int = 0
    packed: bool = True
    dtype: str = "bf16"
    score_bytes_per_pair: float = 0.0
    entry_bytes_per_token: float = 0.0

    @property
    def odd_group(self) -> bool:
        """Whether the query heads of a KV head are not a power of two."""
        return (self.n_heads // self.n_kv_heads).bit_count() != 1


def prefill_shape(
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    kv_width: float = 2.0,
    v_head_dim: int | None = None,
    window: int = 0,
    dtype: str = "bf16",
) -> PrefillShape:
    """Return the shape of grouped-query attention with a rank's heads; ``kv_width`` in bytes per element."""
    v_dim = head_dim if v_head_dim is None else v_head_dim
    return PrefillShape(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        flop_per_key_row=2.0 * (head_dim + v_dim),
        kv_bytes_per_key=(head_dim + v_dim) * n_kv_heads * kv_width,
        io_bytes_per_token=(head_dim + v_dim) * (2.0 * n_heads + (2.0 + kv_width) * n_kv_heads),
        window=window,
        dtype=dtype,
    )


def mla_prefill_shape(
    lane: LaneLike, n_heads: int, expanded_dim: int, latent_dim: int, entry_bytes: float, dtype: str = "bf16"
) -> PrefillShape:
    """Return the shape of latent attention's prefill: expanded or absorbed, as the lane's ``d`` says.

    Parameters
    ----------
    lane : an ``mla_prefill`` lane; ``d`` is the key plus value width it was timed with (320 expanded, 1088
        absorbed)
    n_heads : query heads of the rank
    expanded_dim, latent_dim : key plus value width of a head, expanded and absorbed [elements]
    entry_bytes : cached bytes of one token [B]
    dtype : compute dtype
    """
    absorbed = lane.params.get("d", 0.0) > _ABSORBED_ABOVE
    width = latent_dim if absorbed else expanded_dim
    return PrefillShape(
        n_heads=n_heads,
        n_kv_heads=1 if absorbed else n_heads,
        flop_per_key_row=2.0 * width,
        kv_bytes_per_key=entry_bytes if absorbed else 2.0 * width * n_heads,
        io_bytes_per_token=2.0 * width * n_heads,
        packed=absorbed,
        dtype=dtype,
        entry_bytes_per_token=2.0 * entry_bytes,
    )


@dataclass(frozen=True, slots=True)
class PrefillForm:
    """Prefill attention of one layer shape on one device, ready to be asked for batches of chunks.

    Attributes
    ----------
    params, shape : lane and layer
    tile : query rows of a tile [-]
    per_key : time of one key and tile on one unit [s]
    slots : tiles resident on the device [-]
    seconds_per_byte : inverse of the bandwidth reached [s/B]
    io_bytes : queries in, outputs out and cache entries of one new token, as charged [B]
    cache_bytes : last-level cache that holds what the kernels before have just written [B]; 0 for none
    """

    params: PrefillParams
    shape: PrefillShape
    tile: int
    per_key: float
    slots: float
    seconds_per_byte: float
    io_bytes: float
    cache_bytes: float = 0.0

    def body(self, chunks: Iterable[tuple[int, int]]) -> float:
        """Return one kernel's time without ``t0``, for chunks of (new, cached) tokens; 0 for none [s]."""
        kernel, copies, _, _ = self._one(chunks)
        return kernel + copies

    def demands(self, chunks: Iterable[tuple[int, int]]) -> Demands:
        """Return one kernel's time, ``t0`` included, and what it takes of HBM and units; nothing for none [s]."""
        kernel, copies, moved, held = self._one(chunks)
        return Demands(self.params.t0 + copies + kernel, moved, kernel * held) if held else NO_DEMANDS

    def _one(self, chunks: Iterable[tuple[int, int]]) -> tuple[float, float, float, float]:
        """Return a kernel's time [s], that of its copies [s], of its bytes from HBM [s], and the share of units held.

        The same sums as ``time_many``, in plain numbers: a step has one or two chunks, where arrays cost ten
        times more.
        """
        p, shape, tile = self.params, self.shape, self.tile
        heads, kv_heads, window = shape.n_heads, shape.n_kv_heads, shape.window
        group = heads / kv_heads
        tiles = work = keys_read = rows = last = pairs = 0.0
        count = 0
        for new, cached in chunks:
            count += 1
            n_tiles = -(-new // tile) * heads
            if shape.packed or (p.single and new == 1):
                n_tiles = min(math.ceil(new * group / tile) * kv_heads, n_tiles)
            if window:
                mean, most, span = (float(v) for v in _windowed(float(new), float(cached), window, tile))
            else:
                most = span = cached + new
                if p.single:
                    mean = max(cached + 0.5 * (new + min(new, tile)), _KEYS_FLASH2)
                else:
                    mean = max(cached + 0.5 * (new + tile), _KEYS)
            tiles += n_tiles
            work += n_tiles * mean
            keys_read += span
            rows += new
            pairs += new * (cached + new)
            if most > last:
                last = most
        if not tiles:
            return 0.0, 0.0, 0.0, 0.0
        w = tiles / self.slots
        waves = (1.0 - p.wq) * max(w, 1.0) + p.wq * math.ceil(w)
        fixed = p.k0 * self.per_key + p.tt
        tile_time = max(waves * (work / tiles * self.per_key + fixed), last * self.per_key + fixed)
        fresh = rows * (shape.kv_bytes_per_key + self.io_bytes)
        t_cached = 0.0
        if self.cache_bytes:
            resident = 1.0 / (1.0 + (fresh / self.cache_bytes) ** 3)
            t_cached = fresh * self.seconds_per_byte * resident / p.l2b
            fresh *= 1.0 - resident + resident / p.l2b
        t_memory = (fresh + (keys_read - rows) * shape.kv_bytes_per_key) * self.seconds_per_byte
        if shape.score_bytes_per_pair:
            t_memory += pairs * shape.score_bytes_per_pair * self.seconds_per_byte
        copies = p.tq if p.single and rows == count > 1 and kv_heads > 1 else 0.0
        kernel = (tile_time**p.q + t_memory**p.q) ** (1.0 / p.q)
        return kernel, copies, t_memory - t_cached, min(w, 1.0)

    def time_many(self, new: Array, cached: Array, starts: NDArray[np.int64]) -> KernelTime:
        """Return the times of many kernels at once, split by cause, ``t0`` included [s].

        Parameters
        ----------
        new, cached : new tokens and tokens cached before of every chunk, kernel after kernel [tokens]
        starts : index of each kernel's first chunk; no kernel is empty

        Returns
        -------
        KernelTime of arrays, one entry a kernel; the sum is that of ``body`` and ``t0``
        """
        p, shape = self.params, self.shape
        n_tiles = np.ceil(new / self.tile) * shape.n_heads
        if shape.packed or p.single:
            group = shape.n_heads / shape.n_kv_heads
            grouped = np.minimum(np.ceil(new * group / self.tile) * shape.n_kv_heads, n_tiles)
            n_tiles = np.where(shape.packed | (new == 1.0), grouped, n_tiles)
        mean, most, span = np.maximum(cached + 0.5 * (new + self.tile), _KEYS), cached + new, cached + new
        if p.single:
            mean = np.maximum(cached + 0.5 * (new + np.minimum(new, self.tile)), _KEYS_FLASH2)
        if shape.window:
            mean, most, span = _windowed(new, cached, shape.window, self.tile)
        tiles = np.add.reduceat(n_tiles, starts)
        mean_keys = np.add.reduceat(n_tiles * mean, starts) / tiles
        waves = soft_waves(tiles / self.slots, p.wq)
        fixed = p.k0 * self.per_key + p.tt
        shared = waves * (mean_keys * self.per_key + fixed)
        alone = np.maximum.reduceat(most, starts) * self.per_key + fixed
        tile_time = np.maximum(shared, alone)
        of_fixed = np.where(alone > shared, 1.0, waves) * fixed / tile_time
        rows = np.add.reduceat(new, starts)
        resident = self._resident(rows)
        at_rate = 1.0 - resident + resident / p.l2b
        old = (np.add.reduceat(span, starts) - rows) * shape.kv_bytes_per_key
        t_kv = (old + rows * shape.kv_bytes_per_key * at_rate) * self.seconds_per_byte
        t_io = rows * self.io_bytes * at_rate * self.seconds_per_byte
        t_cached = rows * (shape.kv_bytes_per_key + self.io_bytes) * self.seconds_per_byte * resident / p.l2b
        if shape.score_bytes_per_pair:
            pairs = np.add.reduceat(new * (cached + new), starts)
            t_io = t_io + pairs * shape.score_bytes_per_pair * self.seconds_per_byte
        body = pn(tile_time, t_kv + t_io, p.q)
        on_tiles, in_memory = power_shares(p.q, tile_time, t_kv + t_io)
        of_kv = t_kv / (t_kv + t_io)
        return KernelTime(
            hbm_kv=body * in_memory * of_kv,
            hbm_activations=body * in_memory * (1.0 - of_kv),
            compute=body * on_tiles * (1.0 - of_fixed),
            latency=p.t0 + self._copies(rows, starts, len(new)) + body * on_tiles * of_fixed,
            hbm_demand=t_kv + t_io - t_cached,
            compute_demand=body * np.minimum(tiles / self.slots, 1.0),
        )

    def _copies(self, rows: Array, starts: NDArray[np.int64], chunks: int) -> Array:
        """Return the extra fixed time of calls of one token a sequence [s]."""
        count = np.diff(starts, append=chunks)
        copied = self.params.single & (rows == count) & (count > 1) & (self.shape.n_kv_heads > 1)
        return np.where(copied, self.params.tq, 0.0)

    def _resident(self, rows: Array) -> Array:
        """Return the share of the new tokens' queries, keys and values that is found in the cache [-]."""
        if not self.cache_bytes:
            return 0.0 * rows
        fresh = rows * (self.shape.kv_bytes_per_key + self.io_bytes)
        return 1.0 / (1.0 + (fresh / self.cache_bytes) ** 3)


def prefill_form(chip: Chip, params: PrefillParams, shape: PrefillShape) -> PrefillForm:
    """Bind a prefill-attention lane to a chip and a layer shape.

    A tile has 128 rows, or half as many until queries, one block of keys and one of values fit the on-chip
    memory of a unit. On a chip without comparable units the tile time is plain FLOP over its share of peak.
    """
    if chip.roofline3:
        params = replace(params, wq=0.0, tt=0.0, k0=0.0)
        units, exponentials = 1.0, 0.0
    else:
        units = chip.units
        exponentials = params.sx * _REFERENCE_UNITS / (units / chip.unit_share)
    if not params.packed:
        shape = replace(shape, packed=False)
    slower = 1.0
    if params.odd and shape.odd_group:
        slower += params.odd
        params = replace(params, t0=slower * params.t0, tt=slower * params.tt)
    tile = _tile_rows(chip, shape, params.tile)
    matrix = _TILE * shape.flop_per_key_row / (params.ec * chip.peak(shape.dtype) / units)
    per_key = pn(matrix, exponentials, params.q2) if exponentials else matrix
    seconds_per_byte = 1.0 / (params.eb * chip.bandwidth)
    return PrefillForm(
        params=params,
        shape=shape,
        tile=tile,
        per_key=float(per_key) * slower * tile / _TILE,
        slots=(1.0 if chip.roofline3 else params.occ) * units,
        seconds_per_byte=seconds_per_byte,
        io_bytes=shape.io_bytes_per_token * params.io + shape.entry_bytes_per_token * params.cache,
        cache_bytes=params.l2f * chip.l2_bytes if params.l2b > 1.0 else 0.0,
    )


def _tile_rows(chip: Chip, shape: PrefillShape, most: int) -> int:
    """Return the query rows of a tile that fits on chip, with 64 keys and values in 16 bit beside it."""
    tile, per_row = most, shape.flop_per_key_row  # 2 bytes x (key width + value width)
    while (
        chip.onchip_bytes
        and tile > _SMALLEST_TILE
        and (tile / 2 + _KEYS_ON_CHIP) * per_row > chip.onchip_bytes
    ):
        tile //= 2
    return tile


def _windowed(new: Value, cached: Value, window: int, tile: int) -> tuple[Array, Array, Array]:
    """Return mean and most keys of a tile, and distinct keys read, under a sliding window [tokens].

    A tile of rows that ends at position e walks over ``min(e, window + tile)`` keys; the mean over the
    chunk's tiles is the mean of that over e, in closed form.
    """
    cap = float(window + tile)
    first, last = cached + 0.5 * tile, cached + new + 0.5 * tile
    bend = np.clip(cap, first, last)
    mean = (0.5 * (first + bend) * (bend - first) + cap * (last - bend)) / (last - first)
    return (
        np.maximum(mean, min(_KEYS, cap)),
        np.minimum(cached + new, cap),
        np.minimum(cached + new, window + new),
    )
