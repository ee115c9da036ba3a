"""Kernels that only move activations: RMSNorm with its residual, rotary positions, SwiGLU, embedding."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import embedding, rms_norm, silu

from .call import Call, Kernel, torch_dtype, wide
from .shape import KernelShape
from .source import Source

EPS = 1e-6
"""Added to a norm's mean square."""
_VOCAB = 32_000
_ROTARY_BASE = 10_000.0


def _rmsnorm(shape: KernelShape, source: Source) -> Call:
    """Add the residual, then norm: both sums are written (two reads, two writes)."""
    dtype, size = torch_dtype(shape.dtype), (shape.num_tokens, shape.hidden)
    x, residual, weight = (
        source.numbers(size, dtype),
        source.numbers(size, dtype),
        source.numbers(size[1:], dtype),
    )
    added = source.empty(size, dtype)

    def run() -> Tensor:
        return rms_norm(torch.add(x, residual, out=added), size[1:], weight, EPS)

    def reference() -> Tensor:
        total = wide((wide(x) + wide(residual)).to(dtype))
        return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + EPS) * wide(weight)

    return Call(run, reference)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the halves of each head's row against each other; x is (tokens, heads, width)."""
    low, high = x.chunk(2, dim=-1)
    return torch.cat((low * cos - high * sin, high * cos + low * sin), dim=-1)


def rotations(length: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the positions below ``length``, each (length, 1, width / 2)."""
    position = torch.arange(length, device=device, dtype=torch.float64)
    steps = torch.arange(width // 2, device=device, dtype=torch.float64)
    angle = position[:, None, None] * _ROTARY_BASE ** (-2.0 * steps / width)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def _rotary(shape: KernelShape, source: Source) -> Call:
    dtype, width = torch_dtype(shape.dtype), shape.head_dim
    q = source.numbers((shape.num_tokens, shape.n_heads, width), dtype)
    k = source.numbers((shape.num_tokens, shape.n_kv_heads, width), dtype)
    cos, sin = rotations(shape.num_tokens, width, dtype, source.device)
    return Call(
        lambda: torch.cat((rotate(q, cos, sin), rotate(k, cos, sin)), dim=1),
        lambda: torch.cat(
            (rotate(wide(q), wide(cos), wide(sin)), rotate(wide(k), wide(cos), wide(sin))), dim=1
        ),
    )


def swiglu(x: Tensor, out: Tensor | None = None) -> Tensor:
    """Return the gated half of each row: the gate's columns come first."""
    gate, up = x.chunk(2, dim=-1)
    return torch.mul(silu(gate), up, out=out)


def _swiglu(shape: KernelShape, source: Source) -> Call:
    dtype = torch_dtype(shape.dtype)
    x = source.numbers((shape.num_tokens, 2 * shape.inter), dtype)
    gate, up = x.chunk(2, dim=-1)
    out = source.empty((shape.num_tokens, shape.inter), dtype)
    return Call(lambda: swiglu(x, out), lambda: silu(wide(gate)) * wide(up))


def _embedding(shape: KernelShape, source: Source) -> Call:
    table = source.numbers((_VOCAB, shape.hidden), torch_dtype(shape.dtype))
    ids = source.below(_VOCAB, (shape.num_tokens,))
    return Call(lambda: embedding(ids, table), lambda: wide(table[ids]))


_DTYPES = ("bfloat16", "float16", "float32")
RMSNORM = Kernel("rmsnorm", "torch_rmsnorm", _DTYPES, _rmsnorm)
ROTARY = Kernel("rotary", "torch_rotary", _DTYPES, _rotary)
SWIGLU = Kernel("swiglu", "torch_swiglu", _DTYPES, _swiglu)
EMBEDDING = Kernel("embedding", "torch_embedding", _DTYPES, _embedding)
