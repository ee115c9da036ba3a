"""Random draws that belong to a request, not to a moment: counter-based, so nobody's draw shifts another's.

Every draw is a pure function of (seed, source, request index, k): a jump cut short, another policy or another
replica count changes who *asks* for a draw, never its value, and two scenarios with one seed share numbers.
The generator is Philox4x64-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), to the
bit that of ``numpy.random.Philox``. ``source`` names what is drawn ("arrivals", "input_tokens", ...) and it
picks the key.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Indices = range | NDArray[np.integer]

_M0, _M1 = 0xD2E7470EE14C6C93, 0xCA5A826395121157
_W0, _W1 = 0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B
_MASK = 0xFFFFFFFFFFFFFFFF
_ROUNDS = 10
_LANES = 4  # 64-bit words one counter value yields
_CHUNK = 1 << 16  # indices drawn at once: bounds scratch memory at 2 MB


@lru_cache(maxsize=256)
def _key(seed: int, source: str) -> tuple[int, int]:
    """Return the two 64-bit key words of a seed and a source name."""
    digest = hashlib.blake2b(source.encode(), digest_size=8).digest()
    return seed & _MASK, int.from_bytes(digest, "little")


def uniform(seed: int, source: str, indices: Indices, k: int = 0) -> NDArray[np.float64]:
    """Draw the ``k``-th uniform number of each request index.

    Parameters
    ----------
    seed : the scenario's seed
    source : what is drawn; another source is another independent stream
    indices : request indices, shape (n,); a ``range`` of step 1 is fastest, as numpy's own generator draws it
    k : which of the request's draws from this source, from 0

    Returns
    -------
    Numbers in [0, 1) with 53 random bits, shape (n,).

    >>> uniform(0, "arrivals", range(1000))[7] == uniform(0, "arrivals", range(7, 8))[0]
    np.True_
    """
    block, lane = divmod(k, _LANES)
    out = np.empty(len(indices))
    for start in range(0, len(indices), _CHUNK):
        part = indices[start : start + _CHUNK]
        out[start : start + len(part)] = _to_unit(_words(seed, source, part, block)[:, lane])
    return out


def table(seed: int, source: str, indices: range, count: int, first: int = 0) -> NDArray[np.float64]:
    """Draw uniform numbers ``first`` .. ``first + count - 1`` of each request index, shape (len(indices), count).

    ``first`` is a multiple of 4.

    >>> table(0, "acceptance", range(8), 6)[3, 5] == uniform(0, "acceptance", range(3, 4), 5)[0]
    np.True_
    """
    begin, end = first // _LANES, -(-(first + count) // _LANES)
    blocks = [_words(seed, source, indices, block) for block in range(begin, end)]
    return _to_unit(np.concatenate(blocks, axis=1)[:, :count])


def uniform_one(seed: int, source: str, index: int, k: int = 0) -> float:
    """Draw the ``k``-th uniform number of one request: the scalar form of `uniform`, without array overhead.

    >>> uniform_one(0, "think", 3) == uniform(0, "think", range(3, 4))[0]
    np.True_
    """
    block, lane = divmod(k, _LANES)
    k0, k1 = _key(seed, source)
    c0, c1, c2, c3 = index & _MASK, block, 0, 0
    for _ in range(_ROUNDS):
        p0, p1 = _M0 * c0, _M1 * c2
        c0, c1, c2, c3 = (p1 >> 64) ^ c1 ^ k0, p1 & _MASK, (p0 >> 64) ^ c3 ^ k1, p0 & _MASK
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return ((c0, c1, c2, c3)[lane] >> 11) * 2.0**-53


def exponential(seed: int, source: str, indices: Indices, k: int = 0) -> NDArray[np.float64]:
    """Draw exponential numbers of mean 1, shape (n,); finite, because 1 - u is never 0."""
    return -np.log1p(-uniform(seed, source, indices, k))


def standard_normal(seed: int, source: str, indices: Indices, k: int = 0) -> NDArray[np.float64]:
    """Draw standard normal numbers by Box and Muller from the draws 2k and 2k + 1, shape (n,)."""
    radius = np.sqrt(2.0 * exponential(seed, source, indices, 2 * k))
    return radius * np.cos(2.0 * np.pi * uniform(seed, source, indices, 2 * k + 1))


def standard_gamma(seed: int, source: str, indices: Indices, shape: float, k: int = 0) -> NDArray[np.float64]:
    """Draw gamma numbers of the given shape and scale 1 by inverting their distribution, shape (n,)."""
    from scipy.special import gammaincinv  # pyright: ignore[reportMissingTypeStubs]

    return np.asarray(gammaincinv(shape, uniform(seed, source, indices, k)), dtype=np.float64)


def _to_unit(words: NDArray[np.uint64]) -> NDArray[np.float64]:
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _words(seed: int, source: str, indices: Indices, block: int) -> NDArray[np.uint64]:
    """Return the four words at counter (index, block, 0, 0) of each index, shape (n, 4)."""
    key = _key(seed, source)
    if isinstance(indices, range) and indices.step == 1:
        # numpy adds one to the 256-bit counter before each block of four words.
        before = (indices.start + (block << 64) - 1) % (1 << 256)
        state = np.random.Philox(key=np.array(key, dtype=np.uint64), counter=_split(before))
        return state.random_raw(_LANES * len(indices)).reshape(-1, _LANES)
    return _philox(np.asarray(indices).astype(np.uint64), block, key)


def _split(counter: int) -> NDArray[np.uint64]:
    return np.array([(counter >> shift) & _MASK for shift in (0, 64, 128, 192)], dtype=np.uint64)


def _philox(index: NDArray[np.uint64], block: int, key: tuple[int, int]) -> NDArray[np.uint64]:
    """Run Philox4x64-10 for scattered indices, shape (n, 4)."""
    zero = np.zeros_like(index)
    c0, c1, c2, c3 = index, zero + np.uint64(block), zero, zero
    k0, k1 = key
    for _ in range(_ROUNDS):
        high0, low0 = _multiply(c0, _M0)
        high1, low1 = _multiply(c2, _M1)
        c0, c1, c2, c3 = high1 ^ c1 ^ np.uint64(k0), low1, high0 ^ c3 ^ np.uint64(k1), low0
        k0, k1 = (k0 + _W0) & _MASK, (k1 + _W1) & _MASK
    return np.stack([c0, c1, c2, c3], axis=1)


def _multiply(a: NDArray[np.uint64], b: int) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the high and low words of the 128-bit product a x b."""
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a0, a1 = a & mask, a >> half
    b0, b1 = np.uint64(b & 0xFFFFFFFF), np.uint64(b >> 32)
    low, middle = a0 * b0, a1 * b0
    middle2 = a0 * b1 + (middle & mask) + (low >> half)
    return a1 * b1 + (middle >> half) + (middle2 >> half), a * np.uint64(b)
