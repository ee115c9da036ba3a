"""Which shapes of each operation are worth timing: the ones always timed, and a space to fill evenly.

A space gives random candidates and the coordinates (mostly logarithms) in which they should lie far apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..kernels.shape import KernelShape
from .machine import Lane, Machine

Rng = np.random.Generator
Heads = tuple[int, int, int]
"""Query heads, KV heads, width of a head."""

_GPU_HEADS: tuple[Heads, ...] = (
    (32, 8, 128), (32, 32, 128), (64, 8, 128), (8, 1, 128), (16, 2, 128), (40, 8, 128), (16, 16, 64), (32, 8, 64),
)  # fmt: skip
_CPU_HEADS: tuple[Heads, ...] = (
    (8, 2, 128),
    (16, 4, 128),
    (4, 1, 128),
    (8, 1, 128),
    (16, 8, 128),
    (4, 2, 128),
)
"""Of one lane: a minute on a CPU is enough for one head size, not for four."""
_MODEL_MATRICES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (1280, 8192), (8192, 1024))
_MODEL_TOKENS = (144, 256, 500, 1000)
_VOCABULARIES = (32_000, 128_256, 151_936)
_GPU_EXPERTS = ((2048, 768, 8, 128), (4096, 14336, 2, 8), (2048, 1408, 6, 64), (4096, 1536, 8, 128))
_CPU_EXPERTS = ((256, 256, 2, 8), (512, 128, 4, 16), (512, 256, 8, 32), (256, 512, 2, 8))
_BLOCK = 16 * 8 * 128 * 2


@dataclass(frozen=True, slots=True)
class Space:
    """The shapes of one operation.

    Attributes
    ----------
    always : shapes that pin a parameter each, most important first
    draw : one random shape
    place : coordinates of a shape
    """

    always: Callable[[Machine, Lane], list[KernelShape]]
    draw: Callable[[Machine, Lane, Rng], KernelShape]
    place: Callable[[KernelShape], tuple[float, ...]]


def log_uniform(rng: Rng, low: float, high: float, step: int = 1) -> int:
    """Return a whole multiple of ``step``, even in its logarithm."""
    value = math.exp(rng.uniform(math.log(low), math.log(high)))
    return max(step, round(value / step) * step)


def _gemm_shape(lane: Lane, m: int, n: int, k: int) -> KernelShape:
    return KernelShape(*lane, m=m, n=n, k=k)


def _gemm_always(machine: Machine, lane: Lane) -> list[KernelShape]:
    step = 128  # a multiple of every kernel's alignment
    beyond_cache = _up(math.sqrt(4.4 * machine.cache_bytes / 2.0), step)
    least = 32 if lane[2] == "int8" else 1  # the int8 kernel of GPUs takes no fewer rows than 17
    sizes = [(least, 128, 128), (max(least, 8), 128, 128)]
    sizes += [(max(least, m), beyond_cache, beyond_cache) for m in (1, 8, 32)]
    if machine.kind == "cuda":
        sizes += [(8192, 8192, 8192), (32, 128, 16384), (64, 256, 28672)]
        sizes += [(m, *_MODEL_MATRICES[(i + j) % 6]) for i, m in enumerate(_MODEL_TOKENS) for j in (0, 3)]
    else:
        sizes = [(least, 256, 512), *sizes[2:], (512, 512, 512), (16, 256, 8192), (1, 4096, 1024)]
    return [_gemm_shape(lane, *size) for size in sizes]


def _gemm_draw(machine: Machine, lane: Lane, rng: Rng) -> KernelShape:
    """Draw m, n and k; on a CPU k from 512, the narrowest that models have: below, the cost of each output shows."""
    most_m, least, most = (8192, 128, 32768) if machine.kind == "cuda" else (4096, 512, 8192)
    m = log_uniform(rng, 32 if lane[2] == "int8" else 1, most_m)
    k_step = 128 if lane[2] == "int4_wo" else 16
    return _gemm_shape(lane, m, log_uniform(rng, least // 2, most, 16), log_uniform(rng, least, most, k_step))


def _gemm_place(shape: KernelShape) -> tuple[float, ...]:
    return math.log(shape.m), math.log(shape.n), math.log(shape.k)


def _heads(machine: Machine) -> tuple[Heads, ...]:
    return _GPU_HEADS if machine.kind == "cuda" else _CPU_HEADS


def _decode_shape(lane: Lane, heads: Heads, batch: int, kv_len: int) -> KernelShape:
    h, kv, d = heads
    return KernelShape(
        *lane, lane[2], batch=batch, q_len=1, kv_len=kv_len, n_heads=h, n_kv_heads=kv, head_dim=d
    )


def _decode_always(machine: Machine, lane: Lane) -> list[KernelShape]:
    """Few, as many and many more blocks than units, each with keys and values inside and beyond the cache."""
    found: list[KernelShape] = []
    for heads in _heads(machine)[:2]:
        _, kv, d = heads
        for fill in (0.25, 1.0, 8.0):
            batch = max(1, round(fill * machine.units / kv))
            for cached in (0.25, 4.0):
                keys = cached * machine.cache_bytes / (4.0 * batch * kv * d)
                found.append(_decode_shape(lane, heads, batch, min(max(int(keys), 16), 65536)))
    return [_decode_shape(lane, _heads(machine)[0], 1, 16), *found]


def _decode_draw(machine: Machine, lane: Lane, rng: Rng) -> KernelShape:
    heads = _heads(machine)[rng.integers(len(_heads(machine)))]
    most_batch, least, most = (256, 32, 65536) if machine.kind == "cuda" else (32, 96, 8192)
    return _decode_shape(lane, heads, log_uniform(rng, 1, most_batch), log_uniform(rng, least, most))


def _decode_place(shape: KernelShape) -> tuple[float, ...]:
    group = shape.n_heads / shape.n_kv_heads
    return (
        math.log(shape.batch * shape.n_kv_heads),
        math.log(shape.kv_len),
        0.7 * math.log(group),
        math.log(shape.head_dim),
    )


def _prefill_shape(lane: Lane, heads: Heads, batch: int, new: int, cached: int) -> KernelShape:
    h, kv, d = heads
    return KernelShape(
        *lane, lane[2], batch=batch, q_len=new, kv_len=new + cached, n_heads=h, n_kv_heads=kv, head_dim=d
    )


def _prefill_always(machine: Machine, lane: Lane) -> list[KernelShape]:
    heads = _heads(machine)[0]
    lengths = (16, 128, 1024, 8192) if machine.kind == "cuda" else (64, 128, 512)
    cached = 4096 if machine.kind == "cuda" else 512
    return [_prefill_shape(lane, heads, 1, n, 0) for n in lengths] + [
        _prefill_shape(lane, heads, 1, 128, cached)
    ]


def _prefill_draw(machine: Machine, lane: Lane, rng: Rng) -> KernelShape:
    heads = _heads(machine)[rng.integers(len(_heads(machine)))]
    most_batch, least, most = (8, 16, 16384) if machine.kind == "cuda" else (4, 64, 1024)
    if lane[1] == "torch_naive":
        most //= 4
    cached = log_uniform(rng, 64, most) if rng.random() < 0.3 else 0
    return _prefill_shape(lane, heads, log_uniform(rng, 1, most_batch), log_uniform(rng, least, most), cached)


def _prefill_place(shape: KernelShape) -> tuple[float, ...]:
    group = shape.n_heads / shape.n_kv_heads
    return (
        math.log(shape.q_len),
        math.log(shape.kv_len),
        0.7 * math.log(shape.batch * shape.n_kv_heads),
        0.7 * math.log(group),
        0.7 * math.log(shape.head_dim),
    )


def _mixed_draw(machine: Machine, lane: Lane, rng: Rng) -> KernelShape:
    h, kv, d = _heads(machine)[rng.integers(4)]
    large = machine.kind == "cuda"
    new = log_uniform(rng, 16, 2048 if large else 256)
    cached = log_uniform(rng, 16, 8192 if large else 512) if rng.random() < 0.5 else 0
    return KernelShape(
        *lane,
        lane[2],
        batch=log_uniform(rng, 1, 128 if large else 16),
        q_len=new,
        kv_len=log_uniform(rng, 64, 8192 if large else 1024),
        n_heads=h,
        n_kv_heads=kv,
        head_dim=d,
        num_tokens=new + cached,
    )


def _mixed_place(shape: KernelShape) -> tuple[float, ...]:
    return tuple(
        math.log(x) for x in (shape.q_len, shape.num_tokens, shape.batch, shape.kv_len, shape.head_dim)
    )


def _stream_shape(machine: Machine, lane: Lane, tokens: int, hidden: int, heads: Heads) -> KernelShape:
    if lane[0] == "rotary":
        h, kv, d = heads
        return KernelShape(*lane, num_tokens=tokens, n_heads=h, n_kv_heads=kv, head_dim=d)
    if lane[0] == "swiglu":
        return KernelShape(*lane, num_tokens=tokens, inter=hidden)
    return KernelShape(*lane, num_tokens=tokens, hidden=hidden)


def _stream_always(machine: Machine, lane: Lane) -> list[KernelShape]:
    tokens, hidden = (8192, 8192) if machine.kind == "cuda" else (1024, 2048)
    return [_stream_shape(machine, lane, n, hidden, _heads(machine)[0]) for n in (1, tokens)]


def _stream_draw(machine: Machine, lane: Lane, rng: Rng) -> KernelShape:
    large = machine.kind == "cuda"
    heads = _heads(machine)[rng.integers(len(_heads(machine)))]
    hidden = log_uniform(rng, 1024 if large else 256, 16384 if large else 4096, 64)
    return _stream_shape(machine, lane, log_uniform(rng, 1, 8192 if large else 1024), hidden, heads)


def _stream_place(shape: KernelShape) -> tuple[float, ...]:
    width = max(shape.hidden, shape.inter, shape.n_heads * shape.head_dim)
    return math.log(shape.num_tokens), math.log(width)


def _sample_draw(machine: Machine, lane: Lane, rng: Rng) -> KernelShape:
    rows = log_uniform(rng, 1, 256 if machine.kind == "cuda" else 16)
    return KernelShape(*lane, num_tokens=rows, hidden=_VOCABULARIES[rng.integers(3)])


def _moe_draw(machine: Machine, lane: Lane, rng: Rng) -> KernelShape:
    large = machine.kind == "cuda"
    kinds = _GPU_EXPERTS if large else _CPU_EXPERTS
    hidden, inter, top_k, experts = kinds[rng.integers(len(kinds))]
    return KernelShape(
        *lane,
        num_tokens=log_uniform(rng, 1, 4096 if large else 512),
        hidden=hidden,
        inter=inter,
        topk=top_k,
        n_experts=experts,
        distribution="balanced",
    )


def _moe_place(shape: KernelShape) -> tuple[float, ...]:
    return tuple(math.log(x) for x in (shape.num_tokens, shape.hidden * shape.inter, shape.n_experts))


def _step_always(machine: Machine, lane: Lane) -> list[KernelShape]:
    """Few and many sequences in layers small and large: where launches show, and where they hide."""
    if machine.kind == "cuda":
        layers, batches = ((1024, 2816, 16, 8, 64), (4096, 14336, 32, 8, 128)), (1, 32, 128)
    else:
        layers, batches = ((256, 704, 4, 2, 64), (512, 1408, 8, 2, 64)), (1, 4)
    return [
        KernelShape(
            *lane,
            lane[2],
            batch=batch,
            kv_len=512,
            n_heads=h,
            n_kv_heads=kv,
            head_dim=d,
            hidden=hidden,
            inter=inter,
        )
        for hidden, inter, h, kv, d in layers
        for batch in batches
    ]


def _step_draw(machine: Machine, lane: Lane, rng: Rng) -> KernelShape:
    known = _step_always(machine, lane)
    return known[rng.integers(len(known))]


def allreduces(devices: int, kernel: str) -> list[KernelShape]:
    """Return 20 message sizes for each group of 2, 4, 8, ... devices, 256 B to 1 GiB."""
    sizes = [1 << round(8 + i * 22 / 19) for i in range(20)]
    groups = [ranks for ranks in (2, 4, 8, 16) if ranks <= devices]
    return [
        KernelShape("allreduce", kernel, "bfloat16", bytes=size, world_size=ranks)
        for ranks in groups
        for size in sizes
    ]


def _copy_draw(machine: Machine, lane: Lane, rng: Rng) -> KernelShape:
    large = machine.kind == "cuda"
    step = _BLOCK if lane[0] == "copy_blocks" else 256
    return KernelShape(*lane, bytes=log_uniform(rng, step, 1 << 30 if large else 1 << 25, step))


def _copy_always(machine: Machine, lane: Lane) -> list[KernelShape]:
    step = _BLOCK if lane[0] == "copy_blocks" else 256
    return [KernelShape(*lane, bytes=size) for size in (step, 1 << 30 if machine.kind == "cuda" else 1 << 25)]


def _none(machine: Machine, lane: Lane) -> list[KernelShape]:
    return []


def _up(value: float, step: int) -> int:
    return math.ceil(value / step) * step


_STREAM = Space(_stream_always, _stream_draw, _stream_place)
_SAMPLE = Space(_none, _sample_draw, _stream_place)
_COPY = Space(_copy_always, _copy_draw, lambda shape: (math.log(shape.bytes),))
SPACES: dict[str, Space] = {
    "gemm": Space(_gemm_always, _gemm_draw, _gemm_place),
    "attn_decode": Space(_decode_always, _decode_draw, _decode_place),
    "attn_prefill": Space(_prefill_always, _prefill_draw, _prefill_place),
    "attn_mixed": Space(_none, _mixed_draw, _mixed_place),
    "decoder_step": Space(
        _step_always, _step_draw, lambda shape: (math.log(shape.batch), math.log(shape.hidden))
    ),
    "moe": Space(_none, _moe_draw, _moe_place),
    **dict.fromkeys(("rmsnorm", "rotary", "swiglu", "embedding"), _STREAM),
    **dict.fromkeys(("sample_greedy", "sample_topp"), _SAMPLE),
    **dict.fromkeys(("copy_h2d", "copy_d2h", "copy_d2d", "copy_blocks"), _COPY),
}
"""Space of each operation that a single device can run."""
