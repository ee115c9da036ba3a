"""Tiles that libraries choose by a rule: the dispatch of CUTLASS's fp8 kernels in engines, by rows and columns.

cuBLAS and DeepGEMM take the best of many tiles; these take one by the shape alone and never split k. What an engine
compiled is a fact of a lane, not fitted: with the wrong rule a lane errs up to twice as much.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from .form import Array

_ANY: Final = math.inf
Rule = tuple[tuple[float, int, tuple[tuple[float, int, int], ...]], ...]
"""Up to so many rows, tiles of rows in a cluster; up to so many columns, rows and columns of a tile."""

RULES: Final[dict[int, Rule]] = {
    1: (
        (64, 1, ((_ANY, 64, 64),)),
        (128, 1, ((_ANY, 64, 128),)),
        (_ANY, 2, ((_ANY, 128, 128),)),
    ),
    2: (
        (16, 1, ((8192, 16, 64), (16384, 16, 128), (_ANY, 32, 64))),
        (32, 1, ((8192, 32, 64), (16384, 32, 128), (_ANY, 32, 64))),
        (64, 1, ((8192, 64, 64), (16384, 64, 128), (_ANY, 64, 64))),
        (128, 1, ((8192, 64, 128), (16384, 128, 128), (_ANY, 128, 64))),
        (256, 1, ((4096, 64, 128), (_ANY, 128, 128))),
        (_ANY, 1, ((4096, 128, 128), (8192, 256, 128), (_ANY, 128, 128))),
    ),
}  # fmt: skip
"""1: Hopper, of vLLM and SGLang; 2: Ada, of vLLM. Source: scaled_mm_sm90_fp8_dispatch.cuh (without its narrower tile
for few columns, which the tables do not show) and scaled_mm_c2x_sm89_fp8_dispatch.cuh of vllm-project/vllm."""


def comes_in_pairs(rule: int) -> bool:
    """Return whether some tiles of a rule come together, so that rows without data fill them up."""
    return any(together > 1 for _, together, _ in RULES[rule])


def ruled_tiles(rule: int, m: Array, n: Array) -> tuple[Array, Array, Array]:
    """Return rows and columns of the tile that a rule takes, and the tiles of rows that come together.

    Parameters
    ----------
    rule : key of ``RULES``
    m, n : rows and columns of the product, broadcastable [elements]

    Examples
    --------
    >>> [each.tolist() for each in ruled_tiles(1, np.array([1.0, 257.0]), np.array([4096.0, 4096.0]))]
    [[64.0, 128.0], [64.0, 128.0], [1.0, 2.0]]
    """
    m, n = np.broadcast_arrays(m, n)
    u, v, together = (np.empty(m.shape) for _ in range(3))
    left = np.ones(m.shape, dtype=np.bool_)
    for most_rows, tiles, by_columns in RULES[rule]:
        of_rows = left & (m <= most_rows)
        left &= ~of_rows
        together[of_rows] = tiles
        for most_columns, rows, columns in by_columns:
            taken = of_rows & (n <= most_columns)
            of_rows &= ~taken
            u[taken], v[taken] = rows, columns
    return u, v, together
