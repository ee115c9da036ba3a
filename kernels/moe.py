"""The experts of one layer: tokens sorted by expert, two grouped multiplications, weighted sum back to tokens."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from .call import Call, Kernel, probe_failure, torch_dtype, wide
from .shape import KernelShape
from .source import Source


def picks(tokens: int, n_experts: int, top_k: int, device: torch.device) -> Tensor:
    """Return the experts of each token, shape (tokens, top_k), spread as ``BalancedStride`` counts them.

    >>> picks(2, 4, 2, torch.device("cpu")).tolist()
    [[0, 2], [1, 3]]
    """
    stride = -(-n_experts // top_k)
    first = torch.arange(tokens, device=device)
    if tokens < stride:
        first = first * stride // tokens
    return (first[:, None] + torch.arange(top_k, device=device) * stride) % n_experts


def _grouped(rows: Tensor, weights: Tensor, ends: Tensor) -> Tensor:
    """Multiply each expert's rows by its matrix: rows (rows, k), weights (experts, k, n), ends (experts,)."""
    multiply = getattr(torch.nn.functional, "grouped_mm", None) or torch._grouped_mm
    return multiply(rows, weights, offs=ends)


def _make(shape: KernelShape, source: Source) -> Call:
    dtype, experts, inter = torch_dtype(shape.dtype), shape.n_experts, shape.inter
    x = source.numbers((shape.num_tokens, shape.hidden), dtype)
    w_in = source.numbers((experts, 2 * inter, shape.hidden), dtype).transpose(1, 2)
    w_out = source.numbers((experts, shape.hidden, inter), dtype).transpose(1, 2)
    chosen = picks(shape.num_tokens, experts, shape.topk, source.device)
    share = torch.softmax(source.numbers(tuple(chosen.shape), dtype).float(), dim=-1)
    scale = shape.hidden**-0.5

    def run() -> Tensor:
        flat = chosen.flatten()
        order = flat.argsort()
        # Not bincount: it waits for the device to learn how long its answer is.
        ends = torch.zeros(experts, dtype=torch.int32, device=x.device)
        ends = ends.scatter_add_(0, flat, torch.ones_like(flat, dtype=torch.int32)).cumsum(
            0, dtype=torch.int32
        )
        token = order // shape.topk
        gate, up = _grouped(x[token], w_in, ends).mul_(scale).chunk(2, dim=-1)
        rows = _grouped(silu(gate) * up, w_out, ends) * share.flatten()[order, None]
        return torch.zeros(x.shape, device=x.device).index_add_(0, token, rows.float()).to(dtype)

    def reference() -> Tensor:
        out = torch.zeros_like(wide(x))
        for expert in range(experts):
            token, slot = (chosen == expert).nonzero(as_tuple=True)
            if len(token):
                gate, up = (wide(x[token]) @ wide(w_in[expert]) * scale).chunk(2, dim=-1)
                row = (silu(gate) * up) @ wide(w_out[expert])
                out.index_add_(0, token, row * share[token, slot, None].to(out.dtype))
        return out

    return Call(run, reference)


def _probe(device: torch.device) -> None:
    ones = torch.ones((16, 16), device=device, dtype=torch.bfloat16)
    weights = torch.ones((2, 16, 16), device=device, dtype=torch.bfloat16).transpose(1, 2)
    _grouped(ones, weights, torch.tensor([8, 16], device=device, dtype=torch.int32))


GROUPED = Kernel(
    "moe", "torch_grouped_mm", ("bfloat16",), _make, lambda d, _: probe_failure("torch_grouped_mm", _probe, d)
)
