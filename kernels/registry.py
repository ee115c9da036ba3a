"""All kernels, and which of them a device can run."""

from __future__ import annotations

import torch

from ..hwmodels.errors import unknown
from . import (
    copies,
    decode_attention,
    decoder_step,
    gemm,
    lowprecision,
    mixed_attention,
    moe,
    prefill_attention,
    sampling,
    streaming,
)
from .call import Call, Kernel
from .errors import KernelError
from .shape import KernelShape
from .source import Source

KERNELS: tuple[Kernel, ...] = (
    gemm.GEMM,
    lowprecision.FP8,
    lowprecision.INT8,
    lowprecision.INT8_WEIGHTS,
    lowprecision.INT4_WEIGHTS,
    prefill_attention.FUSED,
    prefill_attention.NAIVE,
    decode_attention.TRITON,
    decode_attention.TORCH,
    mixed_attention.TRITON,
    mixed_attention.TORCH,
    streaming.RMSNORM,
    streaming.ROTARY,
    streaming.SWIGLU,
    streaming.EMBEDDING,
    sampling.GREEDY,
    sampling.TOP,
    moe.GROUPED,
    copies.TO_DEVICE,
    copies.TO_HOST,
    copies.WITHIN,
    copies.BLOCKS,
    decoder_step.EAGER,
    decoder_step.GRAPH,
)
Lane = tuple[str, str, str]


def find(shape: KernelShape) -> Kernel:
    """Return the kernel of a shape.

    Raises
    ------
    KernelError : no kernel of that operation, name and dtype
    """
    for kernel in KERNELS:
        if (kernel.op, kernel.name) == (shape.op, shape.kernel) and shape.dtype in kernel.dtypes:
            return kernel
    known = [f"{kernel.op}/{kernel.name}/{dtype}" for kernel in KERNELS for dtype in kernel.dtypes]
    raise KernelError(unknown("kernel", f"{shape.op}/{shape.kernel}/{shape.dtype}", known, shown=40))


def make(shape: KernelShape, source: Source) -> Call:
    """Return a shape's kernel with its inputs."""
    return find(shape).make(shape, source)


def lanes(device: torch.device) -> tuple[list[Lane], dict[str, str]]:
    """Return the (op, kernel, dtype) that a device can run, and why each of the others cannot."""
    able: list[Lane] = []
    skipped: dict[str, str] = {}
    for kernel in KERNELS:
        for dtype in kernel.dtypes:
            reason = kernel.missing(device, dtype)
            if reason is None:
                able.append((kernel.op, kernel.name, dtype))
            else:
                skipped[f"{kernel.op}/{kernel.name}/{dtype}"] = reason
    return able, skipped
