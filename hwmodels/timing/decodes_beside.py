"""Decodes in one call with chunks of prompt, as FlashAttention-2 serves them: tiles of one row among full ones.

Alone, decodes have their query heads packed and their keys split. One call for both does neither: every decode
and query head is a tile of its own that walks over all its keys, and the grid is as deep for each sequence as the
longest chunk is, so that a decode starts thread blocks that find nothing to do and end. Tiles of chunks and of
decodes share the device, and the KV of both is read once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .form import MICRO, Array, KernelTime, LaneLike, Value
from .prefill_attention import PrefillForm

_KEYS = 64.0
"""A tile walks over whole blocks of keys: at least one."""


@dataclass(frozen=True, slots=True)
class BesideParams:
    """What decodes take beside chunks; a lane's ``td_us``, ``tk`` and ``te_us``.

    Attributes
    ----------
    td : fixed time of a decode's tile [s]
    tk : time of a key in it over that of a key in a full tile [-]
    te : time of a thread block without work [s]
    """

    td: float
    tk: float
    te: float

    @classmethod
    def from_lane(cls, lane: LaneLike) -> BesideParams:
        """Read a device's ``mixed_attention`` lane."""
        p = lane.params
        return cls(td=p["td_us"] * MICRO, tk=p["tk"], te=p["te_us"] * MICRO)


@dataclass(frozen=True, slots=True)
class Chunks:
    """The chunks of one call, or of many (arrays of one length).

    Attributes
    ----------
    longest : new tokens of the longest chunk
    tiles, keys : tiles of all chunks, and keys that these walk over together
    most : keys of the longest tile
    """

    longest: Value
    tiles: Value
    keys: Value
    most: Value

    @classmethod
    def of(cls, form: PrefillForm, new: Array, cached: Array, starts: NDArray[np.int64]) -> Chunks:
        """Sum the chunks of each call; parameters as in ``PrefillForm.time_many``."""
        tiles = np.ceil(new / form.tile) * form.shape.n_heads
        keys = np.maximum(cached + 0.5 * (new + np.minimum(new, form.tile)), _KEYS)
        return cls(
            np.maximum.reduceat(new, starts),
            np.add.reduceat(tiles, starts),
            np.add.reduceat(tiles * keys, starts),
            np.maximum.reduceat(cached + new, starts),
        )

    @classmethod
    def one_call(cls, form: PrefillForm, chunks: Sequence[tuple[int, int]]) -> Chunks:
        """Sum the chunks of one call, (new, cached) tokens each, in plain numbers."""
        tiles = [-(-new // form.tile) * form.shape.n_heads for new, _ in chunks]
        keys = (max(cached + 0.5 * (new + min(new, form.tile)), _KEYS) for new, cached in chunks)
        return cls(
            float(max(new for new, _ in chunks)),
            float(sum(tiles)),
            float(sum(each * seen for each, seen in zip(tiles, keys, strict=True))),
            float(max(new + cached for new, cached in chunks)),
        )


def beside_time(
    form: PrefillForm, params: BesideParams, chunks: Chunks, decodes: Value, keys: Value, longest: Value
) -> KernelTime:
    """Return what decodes add to the call of some chunks, split by cause [s].

    Fitted to the calls of the RTX 4090's mixed table with contexts up to 2,048 (chunks of 16 to 2,048 tokens, 1 to 256
    decodes, 131,072 keys) the form errs by 9 %, so many times the decodes' time alone by 23 %; on the RTX PRO 6000 by
    27 and 44 %. Beyond those keys the RTX 4090's calls take 1.7 times as long.

    Approximation: a window shortens what a chunk's tiles see, which plays no part in how far they fill the device.

    Parameters
    ----------
    form : the chunks' kernel
    decodes : decoding sequences [-]
    keys, longest : keys they read, all together and by the longest [tokens]
    """
    heads, kv_bytes = form.shape.n_heads, form.shape.kv_bytes_per_key
    fixed = form.params.k0 * form.per_key + form.params.tt
    per_key = form.per_key * params.tk
    empty = np.maximum(np.ceil(chunks.longest / form.tile) - 1.0, 0.0) * params.te
    at_tiles = decodes * heads / form.slots * (params.td + empty)
    at_keys = np.maximum(keys, decodes * _KEYS) * heads / form.slots * per_key
    shared = (chunks.keys * form.per_key + chunks.tiles * fixed) / form.slots
    waves = chunks.tiles / form.slots
    last = chunks.most * form.per_key + fixed
    alone = np.maximum(np.maximum(1.0 / waves, 1.0) * shared, last)
    own = np.maximum(longest, _KEYS) * per_key + params.td
    added = np.maximum(np.maximum(shared + at_tiles + at_keys, own) - alone, 0.0)
    of_keys = at_keys / np.maximum(at_tiles + at_keys, 1e-300)
    moved = (keys * kv_bytes + decodes * form.io_bytes) * form.seconds_per_byte
    return KernelTime(
        hbm_kv=moved,
        compute=added * of_keys,
        latency=added * (1.0 - of_keys),
        hbm_demand=moved,
        compute_demand=added + moved,
    )
