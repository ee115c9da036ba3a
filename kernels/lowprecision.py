"""Linear layers in low precision: fp8 and int8 on both sides, and weights of 8 or 4 bits with wide activations.

fp8 and int8 quantise their activations in the timed call, as the forms that are fitted to them say.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .call import Call, Kernel, probe_failure
from .shape import KernelShape
from .source import Source

GROUP = 128
"""Weights along k that share a scale in the 4-bit format [elements]."""
_BF16, _FP8 = torch.bfloat16, torch.float8_e4m3fn
_FP8_LARGEST, _INT8_LARGEST = 448.0, 127.0


def _fp8(shape: KernelShape, source: Source) -> Call:
    """Scale rows of activations to fp8, multiply with fp8 weights that have one scale."""
    x = source.numbers((shape.m, shape.k), _BF16)
    w = source.numbers((shape.n, shape.k), _FP8).t()
    one = torch.ones((), device=source.device)

    def quantised() -> tuple[Tensor, Tensor]:
        scale = x.abs().amax().float() / _FP8_LARGEST
        return (x / scale).to(_FP8), scale

    def run() -> Tensor:
        narrow, scale = quantised()
        return torch._scaled_mm(narrow, w, scale_a=scale, scale_b=one, out_dtype=_BF16)

    def reference() -> Tensor:
        narrow, scale = quantised()
        return narrow.float() @ w.float() * scale

    return Call(run, reference)


def _int8(shape: KernelShape, source: Source) -> Call:
    """Scale rows of activations to int8, multiply in int32, scale back."""
    x = source.numbers((shape.m, shape.k), _BF16)
    w = source.numbers((shape.n, shape.k), torch.int8).t()
    scales = source.numbers((shape.n,), _BF16).abs() + 0.5

    def quantised() -> tuple[Tensor, Tensor]:
        scale = x.abs().amax(dim=1, keepdim=True) / _INT8_LARGEST
        return torch.round(x / scale).to(torch.int8), scale

    def run() -> Tensor:
        narrow, scale = quantised()
        return (torch._int_mm(narrow, w) * (scale.float() * scales.float())).to(_BF16)

    def reference() -> Tensor:
        narrow, scale = quantised()
        return narrow.float() @ w.float() * (scale.float() * scales.float())

    return Call(run, reference)


def _int8_weights(shape: KernelShape, source: Source) -> Call:
    """Read 8-bit weights, widen them, multiply, scale the columns."""
    x = source.numbers((shape.m, shape.k), _BF16)
    w = source.numbers((shape.n, shape.k), torch.int8)
    scales = source.numbers((shape.n,), _BF16).abs() + 0.5
    return Call(
        lambda: torch.mm(x, w.to(_BF16).t()) * scales,
        lambda: x.float() @ w.float().t() * scales.float(),
    )


def _int4_weights(shape: KernelShape, source: Source) -> Call:
    """Read two weights a byte, widen and scale them by groups along k, multiply."""
    x = source.numbers((shape.m, shape.k), _BF16)
    packed = source.numbers((shape.n, shape.k // 2), torch.uint8)
    scales = source.numbers((shape.n, shape.k // GROUP, 1), _BF16).abs() + 0.5

    def weights(dtype: torch.dtype) -> Tensor:
        pairs = torch.stack((packed & 15, packed >> 4), dim=-1).view(shape.n, -1, GROUP)
        return ((pairs.to(dtype) - 8.0) * scales.to(dtype)).view(shape.n, shape.k)

    return Call(lambda: torch.mm(x, weights(_BF16).t()), lambda: x.float() @ weights(torch.float32).t())


def _fp8_probe(device: torch.device) -> None:
    if device.type == "cpu":
        raise RuntimeError("the CPU has no fp8 matrix units")
    ones, scale = torch.ones((32, 32), device=device).to(_FP8), torch.ones((), device=device)
    torch._scaled_mm(ones, ones.t(), scale_a=scale, scale_b=scale, out_dtype=_BF16)


def _int8_probe(device: torch.device) -> None:
    ones = torch.ones((32, 32), device=device, dtype=torch.int8)
    torch._int_mm(ones, ones.t())


FP8 = Kernel(
    "gemm", "torch_scaled_mm", ("fp8",), _fp8, lambda d, _: probe_failure("torch_scaled_mm", _fp8_probe, d)
)
INT8 = Kernel(
    "gemm", "torch_int_mm", ("int8",), _int8, lambda d, _: probe_failure("torch_int_mm", _int8_probe, d)
)
INT8_WEIGHTS = Kernel("gemm", "torch_dequantise_mm", ("int8_wo",), _int8_weights)
INT4_WEIGHTS = Kernel("gemm", "torch_dequantise_mm", ("int4_wo",), _int4_weights)
