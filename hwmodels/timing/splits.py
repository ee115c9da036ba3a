"""Into how many parts decode attention cuts the keys of a sequence, so that more thread blocks have work.

Most kernels cut as often as blocks fit on the units at once. FlashAttention-2 follows a rule of its own.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np

from .form import Value

MOST_SPLITS: Final = 128
"""Parts that FlashAttention-2 cuts a sequence into at most."""
FULL: Final = 0.8
"""Blocks over slots from which it cuts nothing [-]."""
GOOD_ENOUGH: Final = 0.85
"""It takes the fewest parts whose waves are filled to this share of the best [-]."""
SLOTS_PER_UNIT: Final = 2
"""Blocks of 128 threads that it counts on per unit, whatever the device [-]."""


def flash2_splits(blocks: Value, key_blocks: Value, units: float) -> Value:
    """Return the parts that FlashAttention-2 cuts every sequence of a call into [-].

    Source: Dao, FlashAttention-2, ``csrc/flash_attn/flash_api.cpp``, ``num_splits_heuristic``.

    Parameters
    ----------
    blocks : thread blocks without a cut: sequences times KV heads, a number or an array [-]
    key_blocks : blocks of keys of the longest sequence, likewise [-]
    units : compute units of the device [-]

    Examples
    --------
    >>> flash2_splits(8, 32, 108), flash2_splits(200, 32, 108), flash2_splits(150, 32, 108)
    (16, 1, 4)
    """
    slots = max(int(SLOTS_PER_UNIT * units), 1)
    if not isinstance(blocks, np.ndarray) and not isinstance(key_blocks, np.ndarray):
        return _parts(int(blocks), int(key_blocks), slots)
    pairs = np.stack(np.broadcast_arrays(blocks, key_blocks), axis=-1).astype(np.int64)
    unlike, of = np.unique(pairs.reshape(-1, 2), axis=0, return_inverse=True)
    found = np.array([_parts(each, keys, slots) for each, keys in unlike.tolist()], dtype=np.float64)
    return found[of.ravel()].reshape(pairs.shape[:-1])


@lru_cache(maxsize=65536)
def _parts(blocks: int, key_blocks: int, slots: int) -> int:
    if blocks >= FULL * slots:
        return 1
    filled: dict[int, float] = {}
    for parts in range(1, min(MOST_SPLITS, slots, key_blocks) + 1):
        if parts == 1 or -(-key_blocks // parts) != -(-key_blocks // (parts - 1)):
            waves = blocks * parts / slots
            filled[parts] = waves / math.ceil(waves)
    best = max(filled.values(), default=0.0)
    return next((parts for parts, share in filled.items() if share >= GOOD_ENOUGH * best), 1)
