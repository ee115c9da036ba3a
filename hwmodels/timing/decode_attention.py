"""Time of decode attention: one new token per sequence against its cached keys and values.

Memory time, matrix time (the query group padded to the matrix tile) and the serial time of one thread block
(fixed part plus a latency per block of keys) meet in a smooth maximum. For a batch of mixed lengths the
summed KV is in the first two. In the third is the longest sequence, and before it, where there are more blocks than
units hold at once, waves of mean ones: what a unit does in turn is at most that (Graham's bound for list scheduling).

Only the summed context changes from one decode step to the next, so the form is evaluated in two stages:
``decode_terms`` for a given batch and number of key blocks of the longest and the mean sequence, then
``DecodeTerms.body`` for any summed context, with the same arithmetic for a number and for an array. Shape, batch and
longest sequence may be arrays as well: a calibration times a table of unlike calls at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .form import (
    MICRO,
    Chip,
    Demands,
    KernelTime,
    LaneLike,
    Value,
    floor,
    larger,
    power_shares,
    smaller,
    whole,
)
from .splits import flash2_splits


@dataclass(frozen=True, slots=True)
class DecodeParams:
    """Fitted parameters of one decode-attention lane.

    Attributes
    ----------
    t0, tb, ts, tcta : fixed time of a call, latency of one key block at head size 128, extra of a KV split,
        fixed time of a thread block [s]
    eb, ec : shares of HBM bandwidth and of peak [-]
    q : sharpness of the smooth maximum [-]
    occ : thread blocks resident per compute unit [-]
    wq : weight of wave quantisation [-]
    oe : how fast bandwidth falls when few blocks run [-]
    l2f, l2b, l2q : share of L2 that keeps KV between warm repeats, its rate over HBM's, and how sharply that ends
        where KV outgrows it [-]
    gp : rows that a query group is padded to [-]; bounds how much a group of queries per KV head saves
    cr : rewriting of partial results per split, over the query and output bytes [-]
    x : further passes over queries and outputs (MLA) [-]
    key_block : keys per step of the inner loop [tokens]
    split : whether the kernel splits the KV of a sequence over thread blocks (a lane fact)
    flash2 : whether it does by FlashAttention-2's rule (a lane fact; ``split`` of the lane is 2)
    qr : sharpness of the maximum in the 3-parameter form; 1 is a sum (CPU) [-]
    tq, tg : extra fixed time of a call of several sequences and KV heads, whose queries are first copied into their
        groups (for one of either that is a view), and of one whose groups outgrow the smallest tile of 16 rows [s]
    ks : fewest key blocks of a split (a lane fact) [-]
    """

    t0: float
    eb: float
    q: float
    occ: float
    wq: float
    oe: float
    gp: float
    ec: float
    tb: float
    ts: float
    tcta: float
    cr: float
    l2f: float = 0.0
    l2b: float = 1.0
    x: float = 0.0
    key_block: int = 128
    split: bool = True
    qr: float = 16.0
    l2q: float = 2.0
    tq: float = 0.0
    tg: float = 0.0
    ks: float = 1.0
    flash2: bool = False

    @classmethod
    def from_lane(cls, lane: LaneLike) -> DecodeParams:
        """Read the parameters of a device's ``decode_attention`` or ``mla_decode`` lane."""
        p = lane.params
        return cls(
            t0=p["t0_us"] * MICRO,
            eb=p["eb"],
            q=p.get("q", 16.0),
            occ=p.get("occ", 1.0),
            wq=p.get("wq", 0.0),
            oe=p.get("oe", 0.0),
            gp=p.get("gp", 1.0),
            ec=p["ec"],
            tb=p.get("tb_us", 0.0) * MICRO,
            ts=p.get("ts_us", 0.0) * MICRO,
            tcta=p.get("tcta_us", 0.0) * MICRO,
            cr=p.get("cr", 0.0),
            l2f=p.get("l2f", 0.0),
            l2b=p.get("l2b", 1.0),
            x=p.get("x", 0.0),
            key_block=64 if "hm" in p else 128,
            split=p.get("split", 1.0) > 0.5,
            qr=p.get("qr", 16.0),
            l2q=p.get("l2q", 2.0),
            tq=p.get("tq_us", 0.0) * MICRO,
            tg=p.get("tg_us", 0.0) * MICRO,
            ks=p.get("ks", 1.0),
            flash2=p.get("split", 1.0) > FLASH2 - 0.5,
        )


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """Per-device shape of a decode-attention layer.

    Attributes
    ----------
    units_per_sequence : independent (KV head or head tile) blocks of one sequence [-]
    kv_bytes_per_key : bytes read per key of a sequence, over all KV heads of the device [B]
    io_bytes_per_sequence : query in and output out [B]
    flop_per_key : matrix work per key of a sequence as executed, padding included [FLOP]
    serial_scale : factor on the latency of a key block (head size relative to 128) [-]
    dtype : compute dtype
    score_bytes_per_key : naive attention: score matrix to and from HBM, per key of a sequence [B]
    large_group : whether more than 16 query heads share a KV head
    """

    units_per_sequence: Value
    kv_bytes_per_key: Value
    io_bytes_per_sequence: Value
    flop_per_key: Value
    serial_scale: Value
    dtype: str = "bf16"
    score_bytes_per_key: float = 0.0
    large_group: Value = 0.0


def decode_shape(
    params: DecodeParams,
    n_heads: Value,
    n_kv_heads: Value,
    head_dim: Value,
    kv_width: Value = 2.0,
    v_head_dim: Value | None = None,
    dtype: str = "bf16",
) -> DecodeShape:
    """Return the shape of grouped-query attention with a rank's heads; ``kv_width`` in bytes per element.

    Numbers describe one shape, arrays one a row.
    """
    v_dim = head_dim if v_head_dim is None else v_head_dim
    group = n_heads / n_kv_heads
    return DecodeShape(
        units_per_sequence=n_kv_heads,
        kv_bytes_per_key=(head_dim + v_dim) * n_kv_heads * kv_width,
        io_bytes_per_sequence=2.0 * (head_dim + v_dim) * n_heads,
        flop_per_key=2.0 * (head_dim + v_dim) * n_kv_heads * larger(group, params.gp),
        serial_scale=((head_dim + v_dim) / 256.0) ** 0.5,
        large_group=floor(smaller(group / (SMALLEST_TILE + 1.0), 1.0)),
        dtype=dtype,
    )


FLASH2 = 2.0
"""``split`` of a lane whose kernel follows FlashAttention-2's rule; 1 of one that splits, 0 of one that does not."""
SMALLEST_TILE = 16
"""Query rows of the smallest matrix tile."""
SCORE_BYTES = 12.0
"""Six passes of two bytes over every element of a score matrix in HBM [B]."""
SUM_BYTES = 4.0
"""A sum of scores that an evicting cache keeps of an entry [B]."""
OFFSET_GRID = 64.0
"""Query and output bytes count as keys, in so many parts of one, so that adding a context is exact."""


def mla_decode_shape(
    params: DecodeParams,
    lane: LaneLike,
    n_heads: Value,
    latent: int,
    value: int,
    entry_bytes: float,
    dtype: str = "bf16",
) -> DecodeShape:
    """Return the shape of absorbed latent attention: one cached vector a token, shared by all heads.

    Parameters
    ----------
    params, lane : an ``mla_decode`` lane; ``hm`` heads share a pass (``hs`` where there are at most twice as many:
        the kernels that TensorRT-LLM keeps for few heads on Blackwell), each further pass rereads ``rr`` of the cache
    n_heads : query heads of the rank
    latent, value : widths of the cached vector and of a head's output (576 and 512 for DeepSeek) [elements]
    entry_bytes : cached bytes of one token [B]
    dtype : compute dtype
    """
    tiles: Value = whole(n_heads / lane.params["hm"])
    few = lane.params.get("hs", 0.0)
    if few:
        narrow = whole(n_heads / few)
        tiles = narrow if isinstance(n_heads, float | int) and n_heads <= 2.0 * few else tiles
        if isinstance(n_heads, np.ndarray):
            tiles = np.where(n_heads <= 2.0 * few, narrow, tiles)
    return DecodeShape(
        units_per_sequence=tiles,
        kv_bytes_per_key=entry_bytes * (1.0 + (tiles - 1) * lane.params["rr"]),
        io_bytes_per_sequence=2.0 * n_heads * (latent + value),
        flop_per_key=2.0 * larger(n_heads, params.gp) * (latent + value),
        serial_scale=1.0,
        dtype=dtype,
    )


def with_scores(shape: DecodeShape, n_heads: int, summed: int = 0) -> DecodeShape:
    """Return the shape with six passes over 16-bit scores: out, mask and softmax both ways, in.

    ``summed`` KV heads keep a 32-bit sum of what every entry has drawn, read and written with them.
    """
    return replace(shape, score_bytes_per_key=SCORE_BYTES * n_heads + 2.0 * SUM_BYTES * summed)


@dataclass(frozen=True, slots=True)
class DecodeTerms:
    """Decode attention of a batch size and longest sequence, as a function of the summed context x.

    The smooth maximum of ``T_m``, ``T_c`` and ``T_s`` is ``slope ((x + offset)^q + constant)^(1/q)``.

    Approximation: ``T_m`` grows with x plus query and output bytes, ``T_c`` with x alone; their q-powers are
    folded into one with the offset that is right to first order (below 1e-4 of the call wherever the two
    matter; see tests).

    Attributes
    ----------
    q, slope, offset, constant : as in the formula [-, s/key, keys, keys^q]
    memory_slope, memory_fixed, compute_slope, serial : ``T_m = memory_slope x + memory_fixed``, ``T_c``,
        ``T_s`` [s]
    split_latency, split_memory : second pass of a KV split (and of MLA's outputs), outside the smooth maximum
        [s]
    kv_share : share of ``memory_slope`` that is cached keys and values; naive attention has scores beside
        them [-]
    t0 : fixed time of the call [s]
    held : share of compute units that have a block [-]
    """

    q: float
    slope: Value
    offset: Value
    constant: Value
    memory_slope: Value
    memory_fixed: Value
    compute_slope: Value
    serial: Value
    split_latency: Value = 0.0
    split_memory: Value = 0.0
    t0: Value = 0.0
    held: Value = 1.0
    kv_share: Value = 1.0

    @property
    def extra(self) -> Value:
        """Time of the split's second pass, outside the smooth maximum [s]."""
        return self.split_latency + self.split_memory

    def body(self, x: Value) -> Value:
        """Return the smooth maximum of memory, compute and serial time at summed context ``x`` [s]."""
        return ((x + self.offset) ** self.q + self.constant) ** (1.0 / self.q) * self.slope

    def seconds(self, x: Value) -> Value:
        """Return the whole call, ``t0`` included [s]."""
        return self.t0 + self.body(x) + self.extra

    def demands(self, x: float) -> Demands:
        """Return the call without ``t0``, and what it takes of HBM and of the units, at one summed context [s]."""
        body = float(self.body(x))
        memory = float(x * self.memory_slope + self.memory_fixed)
        split = float(self.split_memory)
        return Demands(body + float(self.split_latency) + split, memory + split, body * float(self.held))

    def time(self, x: Value) -> KernelTime:
        """Return the whole call split by cause."""
        memory = x * self.memory_slope + self.memory_fixed
        in_memory, in_compute, in_serial = power_shares(
            self.q, memory, x * self.compute_slope, self.serial + 0.0 * memory
        )
        body = self.body(x)
        of_kv = x * self.memory_slope * self.kv_share / memory
        return KernelTime(
            hbm_kv=body * in_memory * of_kv,
            hbm_activations=body * in_memory * (1.0 - of_kv) + self.split_memory,
            compute=body * in_compute,
            latency=self.t0 + self.split_latency + body * in_serial,
            hbm_demand=memory + self.split_memory,
            compute_demand=body * self.held,
        )


def _terms(
    q: float, memory_slope: Value, memory_fixed: Value, compute_slope: Value, serial: Value, **others: Any
) -> DecodeTerms:
    """Fold memory, compute and serial time into the form of ``DecodeTerms``, whose ``others`` are as given."""
    most, least = larger(memory_slope, compute_slope), smaller(memory_slope, compute_slope)
    slope = most * (1.0 + (least / most) ** q) ** (1.0 / q)
    offset = memory_fixed / memory_slope * (memory_slope / slope) ** q
    return DecodeTerms(
        q=q,
        slope=slope,
        offset=floor(offset * OFFSET_GRID + 0.5) / OFFSET_GRID,
        constant=(serial / slope) ** q,
        memory_slope=memory_slope,
        memory_fixed=memory_fixed,
        compute_slope=compute_slope,
        serial=serial,
        **others,
    )


def one_wave(chip: Chip, params: DecodeParams, shape: DecodeShape) -> float:
    """Return the most sequences whose blocks all run at once: to them ``decode_terms`` are the same at any ``mean``."""
    if chip.roofline3:
        return math.inf
    if params.flash2:
        return 0  # its parts may be more than run at once
    slots, batch = params.occ * chip.units, 0
    while params.wq <= 1.0:
        units = (batch + 1) * shape.units_per_sequence
        if units * max(1, math.floor(slots / units)) > slots:
            break
        batch += 1
    return batch


def decode_terms(
    chip: Chip,
    params: DecodeParams,
    shape: DecodeShape,
    batch: Value,
    longest: Value,
    mean: Value | None = None,
    *,
    resident: Value = 0.0,
) -> DecodeTerms:
    """Return the terms for ``batch`` sequences of which the longest has ``longest`` keys.

    They depend on ``longest`` and ``mean`` only through their numbers of key blocks: a caller may cache them by those.

    Parameters
    ----------
    mean : keys of the mean sequence; all are alike if not given [tokens]
    resident : share of the KV that is still in L2 (``warm_share``); 0 in a serving step [-]
    """
    p = params
    key_blocks = -(-longest // p.key_block)
    slots = p.occ * chip.units
    units = batch * shape.units_per_sequence
    parts = whole(key_blocks / p.ks)
    splits: Value = 1
    if p.flash2:
        splits = flash2_splits(units, parts, chip.units)
    elif p.split:
        splits = larger(1, smaller(floor(slots / units), parts))
    w = units * splits / slots
    waves = whole(w)
    soft = (1.0 - p.wq) * w + p.wq * waves
    filled = larger(w, 1.0)
    loss = ((1.0 - p.wq) * filled + p.wq * waves) / filled
    bandwidth = p.eb * chip.bandwidth * (1.0 - resident + resident * p.l2b)
    if chip.roofline3:
        return _roofline3_terms(chip, p, shape, batch)
    block = p.tb * shape.serial_scale
    mean_blocks = key_blocks if mean is None else smaller(-(-mean // p.key_block), key_blocks)
    serial = p.tcta + -(-key_blocks // splits) * block
    serial = serial + (larger(1.0, soft) - 1.0) * (p.tcta + -(-mean_blocks // splits) * block)
    memory = loss / (bandwidth * smaller(w, 1.0) ** p.oe)
    io = batch * shape.io_bytes_per_sequence
    second_pass = splits > 1  # a bool, or an array of them: a factor of 0 or 1
    copied = (batch > 1) * (shape.units_per_sequence > 1)
    return _terms(
        p.q,
        memory_slope=(shape.kv_bytes_per_key + shape.score_bytes_per_key) * memory,
        memory_fixed=io * memory,
        compute_slope=shape.flop_per_key / (p.ec * chip.peak(shape.dtype)) * loss,
        serial=serial,
        kv_share=shape.kv_bytes_per_key / (shape.kv_bytes_per_key + shape.score_bytes_per_key),
        split_latency=p.ts * second_pass,
        split_memory=p.x * io / chip.bandwidth + second_pass * (p.cr * io * splits / (p.eb * chip.bandwidth)),
        t0=p.t0 + p.tq * copied + p.tg * shape.large_group,
        held=smaller(w, 1.0),
    )


def _roofline3_terms(chip: Chip, p: DecodeParams, shape: DecodeShape, batch: Value) -> DecodeTerms:
    """Return the terms of ``t0 + pn(FLOP/(ec C), bytes/(eb B); qr)``.

    Approximation: without a ``qr`` of its own, the hard maximum is a smooth one with q = 16 (at most 4.4 % above
    it, where both are equal), so that the same arithmetic serves every device.
    """
    memory = 1.0 / (p.eb * chip.bandwidth)
    return _terms(
        p.qr,
        memory_slope=(shape.kv_bytes_per_key + shape.score_bytes_per_key) * memory,
        memory_fixed=batch * shape.io_bytes_per_sequence * memory,
        compute_slope=shape.flop_per_key / (p.ec * chip.peak(shape.dtype)),
        serial=0.0,
        t0=p.t0,
    )


def warm_share(
    chip: Chip, params: DecodeParams, shape: DecodeShape, batch: Value, context_sum: Value
) -> Value:
    """Return the share of its bytes that a back-to-back repeat finds in L2 (kernel tables only) [-]."""
    if params.l2f <= 0.0 or chip.l2_bytes <= 0.0:
        return 0.0
    moved = shape.kv_bytes_per_key * context_sum + shape.io_bytes_per_sequence * batch
    return 1.0 / (1.0 + (moved / (params.l2f * chip.l2_bytes)) ** params.l2q)
