"""The frozen parts of the public kernel tables: what a fit may see and what it is judged on.

A row is *train*, or judged as *unseen* (a weight shape or head count the fit never saw) or *beyond* (outside the
fitted range of tokens or context). A row that is both counts as beyond. Never fit, tune or choose a form on a
judged row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from .table import KernelTable, Mask

JUDGED_WIDTHS: Final = (2560, 3584, 5120, 10240)
"""A GEMM with such an n or k is an unseen shape."""
JUDGED_HEADS: Final = (5, 10, 12, 20, 24, 40)
"""Attention with so many query heads has an unseen head count."""
LARGEST_M: Final = 2048
"""GEMM rows above this are beyond the fit."""
LONGEST_CONTEXT: Final = 2048
"""Attention contexts above this are beyond the fit."""
ATTENTION: Final = ("attn_decode", "attn_prefill")
LATENT: Final = ("mla_decode", "mla_prefill")
JUDGED_LATENT_HEADS: Final = (16, 64)
"""Latent attention with so many heads a rank has an unseen head count."""

PARTS: Final = ("train", "unseen", "beyond")


def part(table: KernelTable) -> Mapping[str, Mask]:
    """Return a mask for each of ``PARTS``; together they cover the rows of the dense families once.

    Only GEMM and attention rows, latent ones too, are ever judged here; others are all ``train`` (all-reduce is
    judged by leaving one size out, mixtures of experts by leaving one model out).

    Examples
    --------
    >>> gemm = KernelTable.of({"op": ["gemm"] * 3, "m": [1, 1, 4096], "n": [4096, 5120, 5120],
    ...                        "k": [4096] * 3, "latency_us": [1.0] * 3})
    >>> [name for row in range(3) for name, mask in part(gemm).items() if mask[row]]
    ['train', 'unseen', 'beyond']
    """
    gemm, attention = table["op"] == "gemm", np.isin(table["op"].astype(str), ATTENTION)
    latent = np.isin(table["op"].astype(str), LATENT)
    widths = np.isin(table["n"], JUDGED_WIDTHS) | np.isin(table["k"], JUDGED_WIDTHS)
    unseen = (gemm & widths) | (attention & np.isin(table["n_heads"], JUDGED_HEADS))
    unseen |= latent & np.isin(table["n_heads"], JUDGED_LATENT_HEADS)
    beyond = (gemm & (table["m"] > LARGEST_M)) | ((attention | latent) & (table["kv_len"] > LONGEST_CONTEXT))
    return {"train": ~unseen & ~beyond, "unseen": unseen & ~beyond, "beyond": beyond}


def train(table: KernelTable) -> KernelTable:
    """Return the rows that a fit may see."""
    return table.where(part(table)["train"])
