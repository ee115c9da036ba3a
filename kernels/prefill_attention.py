"""Prefill attention: fused, and naive with the scores in memory; new tokens may follow a cached prefix."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention

from . import reference
from .call import Call, Kernel, torch_dtype
from .shape import KernelShape
from .source import Source


def inputs(shape: KernelShape, source: Source) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values, each (batch, heads, tokens, width)."""
    dtype, width = torch_dtype(shape.dtype), shape.head_dim
    q = source.numbers((shape.batch, shape.n_heads, shape.q_len, width), dtype)
    k = source.numbers((shape.batch, shape.n_kv_heads, shape.kv_len, width), dtype)
    v = source.numbers((shape.batch, shape.n_kv_heads, shape.kv_len, width), dtype)
    return q, k, v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return causal attention whose new tokens are the last keys, by torch's fused kernel."""
    grouped = q.shape[1] != k.shape[1]
    if q.shape[2] == k.shape[2]:
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
    mask = causal_lower_right(q.shape[2], k.shape[2])
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=grouped)


def naive(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Return the same in steps that each go through memory: scores, mask, softmax, values."""
    group = q.shape[1] // k.shape[1]
    if group > 1:
        k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    scores = torch.matmul(q, k.transpose(2, 3)) * q.shape[3] ** -0.5
    return torch.matmul(torch.softmax(scores + mask, dim=-1), v)


def _fused(shape: KernelShape, source: Source) -> Call:
    q, k, v = inputs(shape, source)
    return Call(lambda: fused(q, k, v), lambda: reference.attention(q, k, v))


def _naive(shape: KernelShape, source: Source) -> Call:
    q, k, v = inputs(shape, source)
    new, keys = shape.q_len, shape.kv_len
    mask = torch.full((new, keys), -torch.inf, dtype=q.dtype, device=q.device).triu(keys - new + 1)
    return Call(lambda: naive(q, k, v, mask), lambda: reference.attention(q, k, v))


_DTYPES = ("bfloat16", "float16", "float32")
FUSED = Kernel("attn_prefill", "torch_sdpa", _DTYPES, _fused)
NAIVE = Kernel("attn_prefill", "torch_naive", _DTYPES, _naive)
