"""Decode attention over a paged cache: one new token per sequence, keys and values found through a block table.

The cache is (blocks, kv_heads, block, width). On CUDA the kernel is ours, in Triton; on the CPU the blocks are
gathered and torch's fused attention does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from . import reference
from .call import Call, Kernel, probe_failure, torch_dtype
from .shape import KernelShape
from .source import Source

BLOCK = 16
"""Tokens of a cache block."""


@dataclass(frozen=True, slots=True)
class Paged:
    """A batch of decoding sequences.

    Attributes
    ----------
    q : queries, shape (batch, heads, width)
    k_cache, v_cache : shape (blocks, kv_heads, BLOCK, width)
    table : blocks of each sequence in order, int32, shape (batch, blocks per sequence)
    lengths : keys of each sequence, int32, shape (batch,)
    longest : the largest of them
    """

    q: Tensor
    k_cache: Tensor
    v_cache: Tensor
    table: Tensor
    lengths: Tensor
    longest: int

    def gathered(self) -> tuple[Tensor, Tensor]:
        """Return keys and values in order, each (batch, kv_heads, longest, width)."""
        batch, kv_heads, width = self.q.shape[0], self.k_cache.shape[1], self.q.shape[2]
        return (
            self.k_cache[self.table]
            .transpose(1, 2)
            .reshape(batch, kv_heads, -1, width)[:, :, : self.longest],
            self.v_cache[self.table]
            .transpose(1, 2)
            .reshape(batch, kv_heads, -1, width)[:, :, : self.longest],
        )


def paged(shape: KernelShape, source: Source, lengths: list[int] | None = None) -> Paged:
    """Return a batch with random contents and a shuffled block table; all as long as ``kv_len`` unless given."""
    dtype = torch_dtype(shape.dtype)
    blocks = -(-shape.kv_len // BLOCK)
    size = (shape.batch * blocks, shape.n_kv_heads, BLOCK, shape.head_dim)
    return Paged(
        q=source.numbers((shape.batch, shape.n_heads, shape.head_dim), dtype),
        k_cache=source.numbers(size, dtype),
        v_cache=source.numbers(size, dtype),
        table=source.permutation(size[0]).view(shape.batch, blocks),
        lengths=torch.tensor(
            lengths or [shape.kv_len] * shape.batch, dtype=torch.int32, device=source.device
        ),
        longest=shape.kv_len,
    )


def by_torch(batch: Paged) -> Tensor:
    """Gather the blocks and attend; sequences of one length only."""
    k, v = batch.gathered()
    grouped = batch.q.shape[1] != k.shape[1]
    return scaled_dot_product_attention(batch.q[:, :, None], k, v, enable_gqa=grouped)[:, :, 0]


def by_reference(batch: Paged) -> Tensor:
    """Attend in wide numbers, each sequence over its own keys."""
    k, v = batch.gathered()
    rows = [
        reference.attention(batch.q[i : i + 1, :, None], k[i : i + 1, :, :n], v[i : i + 1, :, :n])
        for i, n in enumerate(batch.lengths.tolist())
    ]
    return torch.cat(rows)[:, :, 0]


def _torch(shape: KernelShape, source: Source) -> Call:
    batch = paged(shape, source)
    return Call(lambda: by_torch(batch), lambda: by_reference(batch))


def _triton(shape: KernelShape, source: Source) -> Call:
    from .triton_decode import Workspace, paged_decode

    batch = paged(shape, source)
    workspace = Workspace.of(batch)
    return Call(lambda: paged_decode(batch, workspace), lambda: by_reference(batch))


def _triton_probe(device: torch.device) -> None:
    if device.type != "cuda":
        raise RuntimeError(
            "Triton compiles for GPUs; elsewhere only its interpreter runs, which tells no time"
        )
    shape = KernelShape(
        "attn_decode", "triton_paged", "bfloat16", batch=1, kv_len=40, n_heads=2, n_kv_heads=1, head_dim=64
    )
    _triton(shape, Source(device)).run()


_DTYPES = ("bfloat16", "float16", "float32")
TRITON = Kernel(
    "attn_decode",
    "triton_paged",
    ("bfloat16", "float16"),
    _triton,
    lambda device, _: probe_failure("triton_paged", _triton_probe, device),
)
TORCH = Kernel("attn_decode", "torch_paged", _DTYPES, _torch)
