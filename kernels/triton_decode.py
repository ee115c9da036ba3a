"""Paged decode attention in Triton: keys split over thread blocks, partial results joined by a second kernel.

A thread block serves one KV head of one sequence for one split of its keys: the query group is padded to the
matrix tile, keys come in through the block table, and softmax is kept online. Sizes that differ from call to call are
plain arguments, not compile-time constants: a calibration asks for a hundred shapes and must not compile a hundred
kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from .decode_attention import BLOCK, Paged

_KEYS = 64
"""Keys per step of the inner loop."""
_LEAST_GROUP = 16
"""Rows of the smallest matrix tile."""
_BLOCKS_PER_UNIT = 2
_UNITS_WITHOUT_A_GPU = 8


@dataclass(frozen=True, slots=True)
class Workspace:
    """What the two kernels share.

    Attributes
    ----------
    partial : weighted values of each split, float32, shape (batch, heads, splits, width)
    scale : largest score and sum of weights of each split, float32, shape (batch, heads, splits, 2)
    out : shape (batch, heads, width)
    splits, keys_per_split : how the keys are dealt out
    """

    partial: Tensor
    scale: Tensor
    out: Tensor
    splits: int
    keys_per_split: int

    @classmethod
    def of(cls, batch: Paged, splits: int | None = None) -> Workspace:
        """Return a workspace; by default as many splits as fill the device twice."""
        n, heads, width = batch.q.shape
        steps = -(-batch.longest // _KEYS)
        if splits is None:
            splits = _BLOCKS_PER_UNIT * _units(batch.q.device) // (n * batch.k_cache.shape[1])
        splits = max(1, min(splits, steps))
        keys_per_split = -(-steps // splits) * _KEYS
        splits = -(-batch.longest // keys_per_split)
        made = {"device": batch.q.device, "dtype": torch.float32}
        return cls(
            partial=torch.empty((n, heads, splits, width), **made),
            scale=torch.empty((n, heads, splits, 2), **made),
            out=torch.empty_like(batch.q),
            splits=splits,
            keys_per_split=keys_per_split,
        )


def paged_decode(batch: Paged, workspace: Workspace) -> Tensor:
    """Return attention of each sequence's query over its own keys, shape (batch, heads, width)."""
    n, heads, width = batch.q.shape
    kv_heads = batch.k_cache.shape[1]
    group = heads // kv_heads
    _split_kernel[(n, kv_heads, workspace.splits)](
        batch.q,
        batch.k_cache,
        batch.v_cache,
        batch.table,
        batch.lengths,
        workspace.partial,
        workspace.scale,
        width**-0.5,
        batch.table.stride(0),
        workspace.keys_per_split,
        workspace.splits,
        kv_heads,
        group,
        ROWS=max(_LEAST_GROUP, triton.next_power_of_2(group)),
        WIDTH=width,
        PAGE=BLOCK,
        KEYS=_KEYS,
        # Only the interpreter runs on a CPU, and it multiplies 16-bit numbers by their bits.
        WIDEN=batch.q.device.type == "cpu",
    )
    _join_kernel[(n, heads)](
        workspace.partial,
        workspace.scale,
        workspace.out,
        workspace.splits,
        heads,
        PADDED=triton.next_power_of_2(workspace.splits),
        WIDTH=width,
    )
    return workspace.out


@triton.jit(do_not_specialize=["table_stride", "splits", "kv_heads", "group"])
def _split_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    length_ptr,
    partial_ptr,
    scale_ptr,
    softmax_scale,
    table_stride,
    keys_per_split,
    splits,
    kv_heads,
    group,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
    PAGE: tl.constexpr,
    KEYS: tl.constexpr,
    WIDEN: tl.constexpr,
):
    sequence, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    rows, columns, keys = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, KEYS)
    heads = (sequence * kv_heads + kv_head) * group + rows
    real = rows < group
    q = tl.load(q_ptr + heads[:, None] * WIDTH + columns[None, :], mask=real[:, None], other=0.0)
    if WIDEN:
        q = q.to(tl.float32)
    length = tl.load(length_ptr + sequence)
    first = split * keys_per_split
    last = tl.minimum(first + keys_per_split, length)
    largest = tl.full((ROWS,), -1.0e30, tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    values = tl.zeros((ROWS, WIDTH), tl.float32)
    for start in range(first, last, KEYS):
        at = start + keys
        seen = at < last
        page = tl.load(table_ptr + sequence * table_stride + at // PAGE, mask=seen, other=0).to(tl.int64)
        row = ((page * kv_heads + kv_head) * PAGE + at % PAGE)[:, None] * WIDTH + columns[None, :]
        k = tl.load(k_ptr + row, mask=seen[:, None], other=0.0)
        if WIDEN:
            k = k.to(tl.float32)
        scores = tl.dot(q, tl.trans(k)).to(tl.float32) * softmax_scale
        scores = tl.where(seen[None, :], scores, -1.0e30)
        higher = tl.maximum(largest, tl.max(scores, 1))
        weights = tl.exp(scores - higher[:, None])
        fade = tl.exp(largest - higher)
        v = tl.load(v_ptr + row, mask=seen[:, None], other=0.0)
        narrow = weights.to(v.dtype)
        if WIDEN:
            narrow, v = narrow.to(tl.float32), v.to(tl.float32)
        values = values * fade[:, None] + tl.dot(narrow, v).to(tl.float32)
        total = total * fade + tl.sum(weights, 1)
        largest = higher
    place = heads * splits + split
    tl.store(partial_ptr + place[:, None] * WIDTH + columns[None, :], values, mask=real[:, None])
    tl.store(scale_ptr + place * 2, largest, mask=real)
    tl.store(scale_ptr + place * 2 + 1, total, mask=real)


@triton.jit(do_not_specialize=["splits", "heads"])
def _join_kernel(
    partial_ptr,
    scale_ptr,
    out_ptr,
    splits,
    heads,
    PADDED: tl.constexpr,
    WIDTH: tl.constexpr,
):
    head = tl.program_id(0) * heads + tl.program_id(1)
    each, columns = tl.arange(0, PADDED), tl.arange(0, WIDTH)
    real = each < splits
    place = head * splits + each
    largest = tl.load(scale_ptr + place * 2, mask=real, other=-1.0e30)
    total = tl.load(scale_ptr + place * 2 + 1, mask=real, other=0.0)
    fade = tl.exp(largest - tl.max(largest, 0))
    values = tl.load(partial_ptr + place[:, None] * WIDTH + columns[None, :], mask=real[:, None], other=0.0)
    out = tl.sum(values * fade[:, None], 0) / tl.sum(total * fade, 0)
    tl.store(out_ptr + head * WIDTH + columns, out.to(out_ptr.dtype.element_ty))


def _units(device: torch.device) -> int:
    if device.type != "cuda":
        return _UNITS_WITHOUT_A_GPU
    return torch.cuda.get_device_properties(device).multi_processor_count
