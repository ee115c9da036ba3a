"""The Triton decode kernel, run in Triton's interpreter: no GPU needed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from membound.kernels.call import tolerance
from membound.kernels.decode_attention import by_reference, paged
from membound.kernels.shape import KernelShape
from membound.kernels.source import Source

pytest.importorskip("triton", reason="the decode kernel of GPUs needs triton")
from membound.kernels import triton_decode as decode


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize(
    ("heads", "kv_heads", "width", "lengths", "splits"),
    [
        (4, 2, 64, [150, 33], 3),
        (8, 1, 32, [200], None),
        (2, 2, 32, [17, 1, 16], 1),
        (3, 3, 16, [64, 128], 2),
    ],
)
def test_the_decode_kernel_agrees_with_the_reference(dtype, heads, kv_heads, width, lengths, splits):
    shape = KernelShape(
        "attn_decode",
        "triton_paged",
        dtype,
        batch=len(lengths),
        kv_len=max(lengths),
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=width,
    )
    batch = paged(shape, Source(torch.device("cpu")), lengths)
    found = decode.paged_decode(batch, decode.Workspace.of(batch, splits))
    wanted = by_reference(batch)
    error = torch.linalg.vector_norm(found.to(wanted.dtype) - wanted) / torch.linalg.vector_norm(wanted)
    assert float(error) < tolerance(dtype)


def test_splits_cover_every_key_once():
    shape = KernelShape(
        "attn_decode", "x", "float32", batch=1, kv_len=1000, n_heads=2, n_kv_heads=1, head_dim=16
    )
    batch = paged(shape, Source(torch.device("cpu")))
    for asked in (1, 2, 3, 7, 100):
        workspace = decode.Workspace.of(batch, asked)
        assert (workspace.splits - 1) * workspace.keys_per_split < 1000
        assert workspace.splits * workspace.keys_per_split >= 1000


def test_both_kernels_compile_for_a_gpu_that_is_not_here():
    """The compiler ships its assembler: types and layouts are checked without a GPU."""
    source = Path(__file__).with_name("compile_decode.py")
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(source)], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["mma", "joined"]
