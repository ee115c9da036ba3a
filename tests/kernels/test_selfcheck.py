"""Every kernel computes what its wide reference computes, on fresh random inputs each run."""

from __future__ import annotations

import importlib.util
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from membound.kernels.call import relative_error, tolerance
from membound.kernels.errors import KernelError
from membound.kernels.registry import KERNELS, find, lanes, make
from membound.kernels.shape import KernelShape
from membound.kernels.source import Pool, Source

_SPEC = importlib.util.spec_from_file_location("kernel_shapes", Path(__file__).with_name("shapes.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
shapes = importlib.util.module_from_spec(_SPEC)
sys.modules["kernel_shapes"] = shapes
_SPEC.loader.exec_module(shapes)

CPU = torch.device("cpu")
ABLE, SKIPPED = lanes(CPU)
CASES = [
    KernelShape(op, name, dtype, dtype if op.startswith("attn") else "", **sizes)
    for op, name, dtype in ABLE
    for sizes in shapes.SMALL[op]
]


@pytest.mark.parametrize("shape", CASES, ids=lambda shape: shape.key)
def test_a_kernel_agrees_with_its_reference(shape: KernelShape):
    assert relative_error(make(shape, Source(CPU))) < tolerance(shape.dtype)
    assert relative_error(make(shape, Pool(CPU, 1 << 20))) < tolerance(shape.dtype)


@pytest.mark.parametrize("shape", CASES[::5], ids=lambda shape: shape.key)
def test_a_second_run_on_the_same_inputs_gives_the_same(shape: KernelShape):
    call = make(shape, Source(CPU))
    assert torch.equal(call.run().clone(), call.run())


def test_every_dtype_of_every_kernel_runs_here_or_says_why_not():
    both = {f"{op}/{name}/{dtype}" for op, name, dtype in ABLE} | set(SKIPPED)
    assert both == {f"{kernel.op}/{kernel.name}/{dtype}" for kernel in KERNELS for dtype in kernel.dtypes}
    assert all(reason and "\n" not in reason for reason in SKIPPED.values())
    assert "fp8" in SKIPPED["gemm/torch_scaled_mm/fp8"]


def test_a_kernel_that_does_not_exist_is_refused_in_one_line():
    with pytest.raises(KernelError, match=r"unknown kernel 'gemm/torch_mm/int3'.*nearest.*allowed") as caught:
        find(KernelShape("gemm", "torch_mm", "int3"))
    assert "\n" not in str(caught.value)


def test_a_wrong_kernel_would_be_noticed():
    call = make(KernelShape("gemm", "torch_mm", "bfloat16", m=8, n=16, k=64), Source(CPU))
    wrong = type(call)(lambda: call.run() * 1.02, call.reference)
    assert relative_error(wrong) > tolerance("bfloat16")


def test_a_pool_walks_through_different_memory_and_counts_what_it_gives():
    pool = Pool(CPU, 1 << 16, seed=1)
    first, second = pool.numbers((64, 64), torch.bfloat16), pool.numbers((64, 64), torch.bfloat16)
    assert first.data_ptr() != second.data_ptr()
    assert pool.taken == 2 * 64 * 64 * 2
    pool.begin()
    large = pool.numbers((512, 512), torch.bfloat16)
    assert large.shape == (512, 512)
    assert abs(float(large.float().mean())) < 0.05


@pytest.mark.parametrize("sizes", [(3000, 3000, 3000), (9000, 9000), (100, 7000, 8000, 20_000), (8192, 1)])
def test_inputs_of_one_set_share_no_memory(sizes: tuple[int, ...]):
    pool = Pool(CPU, 1 << 14, seed=1)
    for _ in range(20):
        pool.begin()
        held = [pool.numbers((size,), torch.bfloat16) for size in sizes]
        spans = sorted((x.data_ptr(), x.data_ptr() + x.nbytes) for x in held)
        assert all(end <= start for (_, end), (start, _) in pairwise(spans))
