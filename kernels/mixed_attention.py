"""Mixed attention: one prefill chunk and a batch of decodes, as an engine's step with chunked prefill has them."""

from __future__ import annotations

from dataclasses import replace

import torch

from . import decode_attention, prefill_attention
from .call import Call, Kernel
from .shape import KernelShape
from .source import Source


def _parts(shape: KernelShape) -> tuple[KernelShape, KernelShape]:
    """Return the chunk and the decodes as operations of their own."""
    chunk = replace(shape, op="attn_prefill", batch=1, kv_len=shape.num_tokens, num_tokens=-1)
    return chunk, replace(shape, op="attn_decode", q_len=1, num_tokens=-1)


def _mixed(decode: Kernel, shape: KernelShape, source: Source) -> Call:
    chunk_shape, decode_shape = _parts(shape)
    first, second = prefill_attention.FUSED.make(chunk_shape, source), decode.make(decode_shape, source)

    def both(chunk: torch.Tensor, decodes: torch.Tensor) -> torch.Tensor:
        # A step's attention output is one row a token: (new + decodes, heads, width).
        return torch.cat((chunk[0].transpose(0, 1), decodes))

    return Call(lambda: both(first.run(), second.run()), lambda: both(first.reference(), second.reference()))


TRITON = Kernel(
    "attn_mixed",
    "torch_sdpa+triton_paged",
    decode_attention.TRITON.dtypes,
    lambda shape, source: _mixed(decode_attention.TRITON, shape, source),
    decode_attention.TRITON.missing,
)
TORCH = Kernel(
    "attn_mixed",
    "torch_sdpa+torch_paged",
    decode_attention.TORCH.dtypes,
    lambda shape, source: _mixed(decode_attention.TORCH, shape, source),
)
