"""Which prompts share a prefix: from a trace's hash ids to content keys of the allocator's blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]

_SPLITMIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


@dataclass(frozen=True, slots=True)
class PrefixIds:
    """The leading content of each prompt, as ids of blocks of ``block_tokens`` tokens.

    Two prompts share their first k blocks where their first k ids agree. Tokens beyond the ids are nobody
    else's.

    Attributes
    ----------
    offsets : the ids of request i are ``ids[offsets[i]:offsets[i + 1]]``, shape (n + 1,)
    ids : all ids, shape (offsets[-1],)
    block_tokens : tokens one id covers; the last id of a prompt covers what is left of it [tokens]
    """

    offsets: NDArray[np.int64]
    ids: NDArray[np.unsignedinteger]
    block_tokens: int

    def block_keys(
        self, start: int, stop: int, input_tokens: NDArray[np.int64], block_size: int
    ) -> tuple[Keys, NDArray[np.int64]]:
        """Return the keys of the full KV blocks of the requests ``start`` to ``stop``.

        A key depends on all ids up to the last token of its block, and on its place, so equal keys mean equal
        prefixes (but for collisions of 64-bit hashes: below 1e-5 for ten million blocks).

        Approximation: where ``block_size`` does not divide ``block_tokens``, a block over the border of two
        ids is shared only if both agree; ids of 512 tokens against blocks of 16 to 512 never meet that.

        Parameters
        ----------
        input_tokens : prompt lengths of these requests, shape (stop - start,) [tokens]
        block_size : tokens in a KV block

        Returns
        -------
        Keys of all requests, and the offsets at which those of each request start, shape (stop - start + 1,).
        """
        offsets = self.offsets[start : stop + 1]
        ids = self.ids[offsets[0] : offsets[-1]].astype(np.uint64)
        first = offsets[:-1] - offsets[0]
        counts = np.diff(offsets)
        place = np.arange(len(ids)) - np.repeat(first, counts)
        chained = _chain(ids, place, first, counts)
        covered = np.minimum(input_tokens, counts * self.block_tokens)
        blocks = covered // block_size
        ends = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(blocks)])
        block = np.arange(int(ends[-1])) - np.repeat(ends[:-1], blocks)
        id_of_block = ((block + 1) * block_size - 1) // self.block_tokens
        keys = _mix(chained[np.repeat(first, blocks) + id_of_block] ^ _mix(block.astype(np.uint64)))
        return keys, ends


def _chain(ids: Keys, place: NDArray[np.int64], first: NDArray[np.int64], counts: NDArray[np.int64]) -> Keys:
    """Return, for each id, a hash of its request's ids up to it: a running sum of hashes of (id, place)."""
    running = np.cumsum(_mix(ids ^ _mix(place.astype(np.uint64))), dtype=np.uint64)
    before = np.concatenate([np.zeros(1, dtype=np.uint64), running])[first]
    return running - np.repeat(before, counts)


def _mix(x: Keys) -> Keys:
    """Hash 64-bit numbers (the finaliser of SplitMix64; Steele et al., OOPSLA 2014)."""
    x = x + _SPLITMIX[0]
    x = (x ^ (x >> np.uint64(30))) * _SPLITMIX[1]
    x = (x ^ (x >> np.uint64(27))) * _SPLITMIX[2]
    return x ^ (x >> np.uint64(31))
