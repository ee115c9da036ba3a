"""Matrix multiplications: plain ones of three dtypes, as a linear layer calls them."""

from __future__ import annotations

import torch

from .call import Call, Kernel, torch_dtype, wide
from .shape import KernelShape
from .source import Source


def _make(shape: KernelShape, source: Source) -> Call:
    dtype = torch_dtype(shape.dtype)
    x = source.numbers((shape.m, shape.k), dtype)
    w = source.numbers((shape.n, shape.k), dtype).t()
    out = source.empty((shape.m, shape.n), dtype)
    return Call(lambda: torch.mm(x, w, out=out), lambda: wide(x) @ wide(w))


def _missing(device: torch.device, dtype: str) -> str | None:
    if (
        dtype == "bfloat16"
        and device.type == "cuda"
        and not torch.cuda.is_bf16_supported(including_emulation=False)
    ):
        return f"{device} has no bfloat16 matrix units"
    return None


GEMM = Kernel("gemm", "torch_mm", ("bfloat16", "float16", "float32"), _make, _missing)
"""``out = x w^T`` through the vendor's library; float32 in full precision (tf32 stays off, torch's default)."""
