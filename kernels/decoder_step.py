"""A whole decode step of a small decoder, launched kernel by kernel: what the launches and the host cost.

The kernels are those that are timed alone, so that step time minus their sum is the rest. On CUDA the same step is
also replayed from a captured graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor
from torch.nn.functional import rms_norm, silu

from . import decode_attention, reference
from .call import Call, Kernel, torch_dtype, wide
from .cost import DECODER_LAYERS
from .shape import KernelShape
from .source import Source

_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class _Layer:
    qkv: Tensor
    o: Tensor
    up: Tensor
    down: Tensor
    cache: decode_attention.Paged


def _layer(shape: KernelShape, source: Source) -> _Layer:
    dtype, hidden, inner = torch_dtype(shape.dtype), shape.hidden, shape.n_heads * shape.head_dim
    wide_qkv = (shape.n_heads + 2 * shape.n_kv_heads) * shape.head_dim

    def matrix(n: int, k: int) -> Tensor:
        return source.numbers((n, k), dtype).mul(k**-0.5).t()

    cache = decode_attention.paged(replace(shape, q_len=1), source)
    qkv, o = matrix(wide_qkv, hidden), matrix(hidden, inner)
    return _Layer(qkv, o, matrix(2 * shape.inter, hidden), matrix(hidden, shape.inter), cache)


def _step(x: Tensor, layers: list[_Layer], shape: KernelShape, attend) -> Tensor:
    """Return the hidden state after all layers; ``attend`` takes a batch with its queries in place."""
    size, inner = (shape.hidden,), shape.n_heads * shape.head_dim
    for layer in layers:
        normed = rms_norm(x, size, None, _EPS)
        q = (normed @ layer.qkv.to(x.dtype))[:, :inner].reshape(-1, shape.n_heads, shape.head_dim)
        x = x + attend(replace(layer.cache, q=q)).reshape(-1, inner).to(x.dtype) @ layer.o.to(x.dtype)
        gate, up = (rms_norm(x, size, None, _EPS) @ layer.up.to(x.dtype)).chunk(2, dim=-1)
        x = x + (silu(gate) * up) @ layer.down.to(x.dtype)
    return x


def _make(shape: KernelShape, source: Source) -> Call:
    x = source.numbers((shape.batch, shape.hidden), torch_dtype(shape.dtype))
    layers = [_layer(shape, source) for _ in range(DECODER_LAYERS)]

    def plainly(batch: decode_attention.Paged) -> Tensor:
        k, v = (part.to(batch.q.dtype) for part in batch.gathered())
        return reference.attention(batch.q[:, :, None], k, v)[:, :, 0]

    return Call(
        lambda: _step(x, layers, shape, decode_attention.by_torch),
        lambda: _step(wide(x), layers, shape, plainly),
    )


EAGER = Kernel("decoder_step", "torch_eager", ("bfloat16", "float16", "float32"), _make, captured=False)
GRAPH = Kernel(
    "decoder_step",
    "torch_graph",
    ("bfloat16", "float16", "float32"),
    _make,
    lambda device, _: None if device.type == "cuda" else "graphs of launches exist on CUDA only",
)
