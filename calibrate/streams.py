"""Bytes that the rows of streaming kernels move, by the counts of the kernels themselves."""

from __future__ import annotations

from typing import Final

import numpy as np

from ..kernels.cost import STREAMING, moved_bytes
from ..kernels.shape import KernelShape
from .fit.base import Array
from .table import KernelTable

STREAMS: Final = STREAMING
"""Operations of a decoder layer that only move activations."""
_SIZES: Final = ("n_heads", "n_kv_heads", "head_dim", "num_tokens", "hidden", "inter")


def moved_bytes_of(table: KernelTable) -> Array:
    """Return the bytes that each row's kernel reads and writes [B].

    Examples
    --------
    >>> row = {"op": ["rmsnorm"], "kernel_source": ["torch_rmsnorm"], "dtype": ["bfloat16"], "num_tokens": [2],
    ...        "hidden": [64], "latency_us": [1.0]}
    >>> moved_bytes_of(KernelTable.of(row)).tolist()
    [1024.0]
    """
    names = ("op", "kernel_source", "dtype", "kv_dtype")
    rows = zip(*(table[name].tolist() for name in (*names, *_SIZES)), strict=True)
    moved = [moved_bytes(KernelShape(*row[:4], **dict(zip(_SIZES, row[4:], strict=True)))) for row in rows]
    return np.array(moved, dtype=np.float64)
