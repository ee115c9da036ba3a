"""A histogram of times with fixed log-spaced bins: any number of values in constant memory, in any order."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]

_STEPS_LOG2 = 8
_SHIFT = 52 - _STEPS_LOG2
_LOWEST = 1 << 9
_HIGHEST = (1 << 47) - 1
_INT64_SAFE = 1 << 62
_PENDING = 8192


def _key(value_ns: int) -> int:
    """Return exponent and leading mantissa bits of ``value_ns`` as one integer that grows with it."""
    return int(np.float64(value_ns).view(np.int64)) >> _SHIFT


_FIRST_KEY = _key(_LOWEST)
N_BINS = _key(_HIGHEST + 1) - _FIRST_KEY
RESOLUTION = 1.0 / (1 << _STEPS_LOG2)
"""Width of the widest bin as a share of its lower edge (0.39 %)."""


def bin_edges_ns() -> Int64Array:
    """Return the ``N_BINS + 1`` bin edges [ns]: 256 equal steps in every doubling from 512 ns to 1.4e5 s."""
    octave, step = np.divmod(np.arange(N_BINS + 1, dtype=np.int64), 1 << _STEPS_LOG2)
    return np.left_shift((1 << _STEPS_LOG2) + step, octave + 1, dtype=np.int64)


class LogHistogram:
    """Count times [ns] in bins at most 0.39 % wide, with an exact mean, minimum and maximum.

    Bin numbers come from the bits of the floating-point form of the integer (exponent and eight mantissa
    bits), so no logarithm is rounded and the same values give the same counts on every machine, in any
    order, however they are split over calls. Counts and the sum are integers. Times below 512 ns or above
    1.4e5 s share the outermost bins; mean, minimum and maximum stay exact for them.

    Examples
    --------
    >>> gaps = LogHistogram()
    >>> gaps.add(np.array([10_000_000, 12_000_000]), weights=np.array([3, 1]))
    >>> gaps.total, gaps.mean_ns()
    (4, 10500000.0)
    >>> round(gaps.percentile_ns(50) / 1e6, 1)
    10.0
    """

    __slots__ = ("_counts", "_max", "_min", "_pending", "_pending_size", "_sum", "_total")

    def __init__(self) -> None:
        self._counts: Int64Array = np.zeros(N_BINS, dtype=np.int64)
        self._total: int = 0
        self._sum: int = 0
        self._min: int = -1
        self._max: int = -1
        self._pending: list[tuple[Int64Array, Int64Array]] = []
        self._pending_size: int = 0

    def add(self, values_ns: npt.ArrayLike, weights: npt.ArrayLike | int = 1) -> None:
        """Add times. Small calls are collected and counted together, so a call costs one or two microseconds.

        Parameters
        ----------
        values_ns : non-negative whole times, shape (n,) or scalar [ns]
        weights : how often each occurred: non-negative integers, shape (n,), or one for all

        Raises
        ------
        ValueError
            The shapes differ; or a time or weight is negative (raised on counting, at the latest on reading).
        """
        values = np.array(values_ns, dtype=np.int64, ndmin=1)
        if isinstance(weights, int):
            weight = np.full(values.shape, weights, dtype=np.int64)
        else:
            weight = np.array(weights, dtype=np.int64, ndmin=1)
        if weight.shape != values.shape:
            raise ValueError(f"weights have shape {weight.shape}; allowed: {values.shape}, that of the times")
        self._pending.append((values, weight))
        self._pending_size += values.size
        if self._pending_size >= _PENDING:
            self._flush()

    def _flush(self) -> None:
        """Count what was collected."""
        if not self._pending:
            return
        values = np.concatenate([v for v, _ in self._pending])
        weights = np.concatenate([w for _, w in self._pending])
        self._pending, self._pending_size = [], 0
        if values.size == 0:
            return
        lightest = int(weights.min())
        if lightest < 0:
            raise ValueError(f"weight {lightest} is negative; allowed: 0 and above")
        if lightest == 0:
            values, weights = values[weights > 0], weights[weights > 0]
            if values.size == 0:
                return
        low, high, count = int(values.min()), int(values.max()), int(weights.sum())
        if low < 0:
            raise ValueError(f"time {low} ns is negative; allowed: 0 and above")
        np.add.at(self._counts, _bins(values, low, high), weights)
        self._take(count, exact_dot(values, weights, high * count), low, high)

    def _take(self, count: int, total_ns: int, low: int, high: int) -> None:
        """Add ``count`` times with sum ``total_ns`` between ``low`` and ``high`` to the running figures."""
        self._min = min(self._min, low) if self._total else low
        self._max = max(self._max, high)
        self._total += count
        self._sum += total_ns

    def merge(self, other: LogHistogram) -> None:
        """Add everything that ``other`` counted."""
        self._flush()
        other._flush()
        if other._total:
            self._counts += other._counts
            self._take(other._total, other._sum, other._min, other._max)

    @property
    def total(self) -> int:
        """How many times were added, weights counted."""
        self._flush()
        return self._total

    @property
    def sum_ns(self) -> int:
        """Their exact sum [ns]."""
        self._flush()
        return self._sum

    @property
    def min_ns(self) -> int | None:
        """The smallest [ns]; None when nothing was added."""
        self._flush()
        return self._min if self._total else None

    @property
    def max_ns(self) -> int | None:
        """The largest [ns]; None when nothing was added."""
        self._flush()
        return self._max if self._total else None

    def mean_ns(self) -> float:
        """Return the exact mean [ns], correctly rounded; NaN when nothing was added."""
        self._flush()
        return self._sum / self._total if self._total else math.nan

    def std_ns(self) -> float:
        """Return the standard deviation [ns]; NaN when nothing was added.

        Approximation: every time counts as the centre of its bin, at most 0.2 % off.
        """
        mean = self.mean_ns()
        low, high, counts = self.nonempty()
        centres = np.clip((low + high) / 2, self._min, self._max)
        squares = counts * (centres - mean) ** 2
        return math.sqrt(math.fsum(squares.tolist()) / self._total) if self._total else math.nan

    def percentile_ns(self, percent: float) -> float:
        """Return the ``percent`` percentile [ns]; NaN when nothing was added.

        Defined as numpy's default (linear interpolation between the two nearest of the sorted times), with
        the times of one bin spread evenly over it: within 0.39 % of the percentile of the times themselves.

        Raises
        ------
        ValueError
            ``percent`` is outside 0..100.
        """
        if not 0 <= percent <= 100:
            raise ValueError(f"percentile {percent} is outside 0..100")
        self._flush()
        if not self._total:
            return math.nan
        position = (self._total - 1) * percent / 100
        rank = math.floor(position)
        cumulative = np.cumsum(self._counts)
        below = self._order_statistic(cumulative, rank)
        if position == rank:
            return below
        above = self._order_statistic(cumulative, rank + 1)
        return below + (position - rank) * (above - below)

    def _order_statistic(self, cumulative: Int64Array, rank: int) -> float:
        """Return the estimate of the ``rank``-th smallest time, counted from 0 [ns]."""
        if rank <= 0:
            return float(self._min)
        if rank >= self._total - 1:
            return float(self._max)
        i = int(np.searchsorted(cumulative, rank, side="right"))
        inside = int(self._counts[i])
        before = int(cumulative[i]) - inside
        low, high = _edge_ns(i), _edge_ns(i + 1)
        at = low + (rank - before + 0.5) / inside * (high - low)
        return float(min(max(at, self._min), self._max))

    def nonempty(self) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return lower edges [ns], upper edges [ns] and counts of the bins in use."""
        self._flush()
        used = np.flatnonzero(self._counts)
        edges = bin_edges_ns()
        return edges[used], edges[used + 1], self._counts[used]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, LogHistogram):
            return NotImplemented
        mine = (self.total, self._sum, self._min, self._max)
        theirs = (other.total, other._sum, other._min, other._max)
        return mine == theirs and bool(np.array_equal(self._counts, other._counts))

    def __hash__(self) -> int:
        raise TypeError("a LogHistogram grows, so it has no hash")

    def __repr__(self) -> str:
        return f"LogHistogram({self.total} times, mean {self.mean_ns():.0f} ns)"


def _bins(values: Int64Array, low: int, high: int) -> Int64Array:
    """Return the bin of each time; ``low`` and ``high`` are the extremes of ``values`` [ns]."""
    inside = values if low >= _LOWEST and high <= _HIGHEST else np.clip(values, _LOWEST, _HIGHEST)
    # Non-negative doubles sort like their bit patterns, and every time below 2**53 ns is a double exactly.
    return (inside.astype(np.float64).view(np.int64) >> _SHIFT) - _FIRST_KEY


def _edge_ns(i: int) -> int:
    """Return the lower edge of bin ``i`` [ns]."""
    octave, step = divmod(i, 1 << _STEPS_LOG2)
    return ((1 << _STEPS_LOG2) + step) << (octave + 1)


def exact_sum(values: Int64Array) -> int:
    """Return the sum of integers as a Python int, without overflow.

    Examples
    --------
    >>> exact_sum(np.array([2**62, 2**62, 2**62])) == 3 * 2**62
    True
    """
    if values.size == 0:
        return 0
    if max(abs(int(values.min())), abs(int(values.max()))) * values.size < _INT64_SAFE:
        return int(values.sum(dtype=np.int64))
    return (int((values >> 32).sum()) << 32) + int((values & 0xFFFFFFFF).sum())


def exact_dot(values: Int64Array, weights: Int64Array, bound: int) -> int:
    """Return the sum of products of non-negative integers as a Python int, without overflow.

    Parameters
    ----------
    values, weights : integers, shape (n,)
    bound : a number that the sum of products is known not to exceed
    """
    if bound < _INT64_SAFE:
        return int(values @ weights)
    return sum(int(v) * int(w) for v, w in zip(values.tolist(), weights.tolist(), strict=True))
