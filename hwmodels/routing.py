"""Which experts a batch of tokens visits: the routing that decides a mixture-of-experts layer's time.

A layer waits for its busiest rank, so what counts is that rank's touched experts, its rows, and its rows
rounded up to whole tiles. Kernel tables were timed with a pattern, not with an expectation: the pattern is an
object, the same for calibration and simulation, and its answers are deterministic and cached by (tokens,
experts, top-k, ranks).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from .errors import MemboundError, unknown

ROW_TILES = (16, 32, 64, 128)
"""Row tiles that the experts' kernels choose from."""
_DRAWS = 4
_POWER_DRAWS = 16
"""A table averages one to five draws of its own; their mean over many is what can be known of them."""
_GROUPED = 512
_GROUPED_DRAWS = 6
"""Tokens and draws from which the shares of a router with groups are taken."""
_SEQUENCE = 2048
"""Real-traffic routings draw one sequence of so many tokens; more tokens repeat its shares."""

Counts = NDArray[np.float64]


class RoutingError(MemboundError):
    """A routing that is unknown or not built."""


@dataclass(frozen=True, slots=True)
class RoutingStats:
    """What the busiest rank of one layer has to do; averages over draws, hence not whole numbers.

    Attributes
    ----------
    active : experts with at least one row
    rows : rows of all its experts
    tiles : whole row tiles, for each entry of ``ROW_TILES``
    """

    active: float
    rows: float
    tiles: tuple[float, ...]


class Routing(Protocol):
    """How tokens choose experts."""

    def statistics(self, tokens: int, n_experts: int, top_k: int, ranks: int) -> RoutingStats:
        """Return the busiest rank's statistics for a layer whose experts are dealt out over ``ranks``."""
        ...


@dataclass(frozen=True, slots=True)
class BalancedStride:
    """Deterministic spread (the tables' ``balanced``): token i picks experts ``(i + j ceil(E/k)) mod E``."""

    def statistics(self, tokens: int, n_experts: int, top_k: int, ranks: int) -> RoutingStats:
        """Return the statistics of rank 0, which holds the first ``n_experts / ranks`` experts."""
        return _balanced(tokens, n_experts, top_k, ranks)


@dataclass(frozen=True, slots=True)
class PowerLaw:
    """Expert counts drawn from a truncated power law with exponent ``a`` (the tables' ``power_law_a``).

    Attributes
    ----------
    a : exponent
    heaped : rows lost in rounding go to the hottest experts, as older tables had it, not round the ranks: a single
        token's experts then all lie on one rank
    """

    a: float = 1.2
    heaped: bool = False

    def statistics(self, tokens: int, n_experts: int, top_k: int, ranks: int) -> RoutingStats:
        """Return the statistics of the hottest rank, averaged over sixteen draws."""
        drawn = _heaped_power_law if self.heaped else _power_law
        return drawn(self.a, tokens, n_experts, top_k, ranks)


@dataclass(frozen=True, slots=True)
class GroupLimited:
    """A table's pattern under a router that lets a token visit only the best groups of experts (DeepSeek-V3).

    A group is as good as its two best experts. The tables' logits are 1 for a token's experts and 0 for the rest, so
    what the limit denies goes to the first experts of the groups kept: such a table is far more skewed than it says.

    Attributes
    ----------
    pattern : which experts the logits ask for
    groups, kept : groups of experts, and how many of them a token may visit
    """

    pattern: BalancedStride | PowerLaw
    groups: int = 8
    kept: int = 4

    def statistics(self, tokens: int, n_experts: int, top_k: int, ranks: int) -> RoutingStats:
        """Return the statistics of rank 0, the hottest before the limit; more than 512 tokens repeat its shares."""
        law = self.pattern.a if isinstance(self.pattern, PowerLaw) else None
        return _grouped(law, self.groups, self.kept, tokens, n_experts, top_k, ranks)


@dataclass(frozen=True, slots=True)
class Zipf:
    """Real traffic: popularity of the r-th expert falls as ``r^-s``; top-k without replacement.

    s = 0.8 (30 % prior) was chosen on serving runs of two models; s = 0 is uniform choice.
    """

    s: float = 0.8

    def statistics(self, tokens: int, n_experts: int, top_k: int, ranks: int) -> RoutingStats:
        """Return the statistics of the busiest rank, averaged over four draws.

        The first T tokens of one drawn sequence stand for a batch of T, so that touched experts and rows
        never fall when a batch grows.
        """
        return _zipf(self.s, tokens, n_experts, top_k, ranks)


def routing_of(kind: str, **parameters: float) -> Routing:
    """Return a routing by its name: ``zipf``, ``uniform``, ``balanced_stride``, ``power_law``.

    Raises
    ------
    RoutingError
        Unknown name, or ``trace``, which is not built.

    Examples
    --------
    >>> routing_of("zipf", s=0.8)
    Zipf(s=0.8)
    """
    makers: dict[str, Callable[[], Routing]] = {
        "zipf": lambda: Zipf(parameters.get("s", 0.8)),
        "uniform": lambda: Zipf(0.0),
        "balanced_stride": BalancedStride,
        "power_law": lambda: PowerLaw(parameters.get("a", 1.2)),
    }
    if kind == "trace":
        raise RoutingError(
            "workload.expert_routing.kind 'trace' is not built yet; allowed: " + ", ".join(makers)
        )
    if kind not in makers:
        raise RoutingError(unknown("expert routing", kind, makers, "workload.expert_routing"))
    return makers[kind]()


def busiest(counts: Counts, ranks: int) -> RoutingStats:
    """Return the statistics of the rank with most rows; rank r holds the r-th slice of the experts.

    Parameters
    ----------
    counts : rows of every expert, shape (experts,)
    ranks : ranks the experts are dealt out over
    """
    held = -(-len(counts) // ranks)
    padded = np.zeros(held * ranks)
    padded[: len(counts)] = counts
    by_rank = padded.reshape(ranks, held)
    return _stats(by_rank[int(np.argmax(by_rank.sum(axis=1)))])


def _stats(counts: Counts) -> RoutingStats:
    """Return the statistics of one rank's counts, averaged over draws if there are several (first axis)."""
    draws = len(counts) if counts.ndim > 1 else 1
    return RoutingStats(
        active=float(np.count_nonzero(counts)) / draws,
        rows=float(counts.sum()) / draws,
        tiles=tuple(float(np.ceil(counts / tile).sum()) / draws for tile in ROW_TILES),
    )


def _mean(stats: list[RoutingStats]) -> RoutingStats:
    n = len(stats)
    return RoutingStats(
        active=sum(s.active for s in stats) / n,
        rows=sum(s.rows for s in stats) / n,
        tiles=tuple(sum(s.tiles[i] for s in stats) / n for i in range(len(ROW_TILES))),
    )


@lru_cache(maxsize=65536)
def _balanced(tokens: int, n_experts: int, top_k: int, ranks: int) -> RoutingStats:
    picks = _strided(tokens, n_experts, top_k)
    counts = np.bincount(picks.ravel(), minlength=n_experts).astype(np.float64)
    return _stats(counts[: -(-n_experts // ranks)])


def _strided(tokens: int, n_experts: int, top_k: int) -> NDArray[np.int64]:
    """Return the experts of every token under ``BalancedStride``: int64 (tokens, top_k)."""
    stride = -(-n_experts // top_k)
    first = np.arange(tokens, dtype=np.int64)
    if tokens < stride:
        first = first * stride // tokens  # few tokens are spread evenly over the experts
    return (first[:, None] + np.arange(top_k) * stride) % n_experts


@lru_cache(maxsize=65536)
def _grouped(
    law: float | None, groups: int, kept: int, tokens: int, n_experts: int, top_k: int, ranks: int
) -> RoutingStats:
    few = min(tokens, _GROUPED)
    if law is None:
        asked = [_strided(few, n_experts, top_k)]
    else:
        drawn = _power_counts(law, few, n_experts, top_k)[:_GROUPED_DRAWS]
        asked = [_assigned(_hottest_first(counts, few, top_k, ranks), few, top_k) for counts in drawn]
    held = n_experts // ranks
    counts = [np.rint(_limited(picks, n_experts, groups, kept) * (tokens / few)) for picks in asked]
    return _mean([_stats(each[:held]) for each in counts])


def _limited(picks: NDArray[np.int64], n_experts: int, groups: int, kept: int) -> Counts:
    """Return the rows of every expert once each token is held to its ``kept`` best groups."""
    tokens, top_k = picks.shape
    size = n_experts // groups
    asked = np.zeros((tokens, n_experts))
    np.put_along_axis(asked, picks, 1.0, axis=1)
    best_two = np.minimum(asked.reshape(tokens, groups, size).sum(axis=2), 2.0)
    best = np.argsort(-best_two, axis=1, kind="stable")[:, :kept]
    open_ = np.zeros((tokens, groups))
    np.put_along_axis(open_, best, 1.0, axis=1)
    score = np.repeat(open_, size, axis=1) * (1.0 + asked)
    visited = np.argsort(-score, axis=1, kind="stable")[:, :top_k]
    return np.bincount(visited.ravel(), minlength=n_experts).astype(np.float64)


def _hottest_first(counts: Counts, tokens: int, top_k: int, ranks: int) -> Counts:
    """Return a draw's counts with the rest of the rounding dealt round the ranks and the hottest rank in front."""
    by_rank = counts.reshape(ranks, -1).copy()
    flat, base = by_rank.reshape(-1), by_rank.shape[1] * np.arange(ranks)[:, None]
    surplus = int(tokens * top_k - flat.sum())
    while surplus:
        sign = 1 if surplus > 0 else -1
        turn = (np.argsort(sign * by_rank, axis=1, kind="stable") + base).T.ravel()
        room = flat[turn] < tokens if surplus > 0 else flat[turn] > 0.0
        given = turn[room][: abs(surplus)]
        flat[given] += sign
        surplus -= sign * len(given)
    hottest = int(np.argmax(by_rank.sum(axis=1)))
    by_rank[[0, hottest]] = by_rank[[hottest, 0]]
    return by_rank.reshape(-1)


def _assigned(counts: Counts, tokens: int, top_k: int) -> NDArray[np.int64]:
    """Return experts for every token so that each expert gets its count: the fullest are dealt out first."""
    order = np.argsort(-counts, kind="stable")
    return np.repeat(order, counts[order].astype(np.int64)).reshape(top_k, tokens).T


def _power_counts(a: float, tokens: int, n_experts: int, top_k: int) -> Counts:
    """Return each draw's rows of every expert, rounded and at most ``tokens``, not yet ``tokens x top_k`` in all."""
    total = tokens * top_k
    low, high = (1.0, max(0.8 * tokens, 1.0 + 1e-9)) if total > n_experts else (0.01, 2.0)
    u = _uniform(n_experts)
    if abs(a - 1.0) < 1e-9:
        weights = low * (high / low) ** u
    else:
        weights = (low ** (1.0 - a) + u * (high ** (1.0 - a) - low ** (1.0 - a))) ** (1.0 / (1.0 - a))
    shares = weights / weights.sum(axis=1, keepdims=True)
    return np.minimum(np.rint(shares * total), float(tokens))


@lru_cache(maxsize=65536)
def _heaped_power_law(a: float, tokens: int, n_experts: int, top_k: int, ranks: int) -> RoutingStats:
    """Emulate older collectors: a rest is given to the hottest experts in turn, or taken from the coldest.

    Among equals the first comes first: where every count rounds to 0, all rows fall on the first experts.
    """
    found: list[RoutingStats] = []
    for counts in _power_counts(a, tokens, n_experts, top_k):
        hottest = np.argsort(-counts, kind="stable")
        surplus = int(tokens * top_k - counts.sum())
        if surplus > 0:
            counts += surplus // n_experts
            counts[hottest[: surplus % n_experts]] += 1.0
        while surplus < 0:
            taken = [expert for expert in hottest[::-1] if counts[expert] > 0.0][:-surplus]
            counts[taken] -= 1.0
            surplus += len(taken)
        found.append(busiest(counts, ranks))
    return _mean(found)


@lru_cache(maxsize=65536)
def _power_law(a: float, tokens: int, n_experts: int, top_k: int, ranks: int) -> RoutingStats:
    """Emulate the tables' collector: draw counts, round, cap at T, deal out what is missing or too much.

    Rounding leaves a rest that goes round the ranks one row at a time, to the least loaded expert below T
    (or, where it is negative, from the fullest); the rank with most rows is the one that was timed.
    """
    counts = _power_counts(a, tokens, n_experts, top_k)
    surplus: Counts = tokens * top_k - counts.sum(axis=1)
    taking = surplus[:, None] < 0  # from the fullest: dealing out to the emptiest, seen from above
    counts = np.where(taking, tokens - counts, counts)
    held = -(-n_experts // ranks)
    padded: Counts = np.zeros((_POWER_DRAWS, held * ranks))
    padded[surplus < 0] = tokens
    padded[:, :n_experts] = counts
    by_rank = padded.reshape(_POWER_DRAWS, ranks, held)
    given = _dealt(tokens * held - by_rank.sum(axis=2), np.abs(surplus))
    rows: Counts = by_rank.sum(axis=2) + given
    timed = np.argmax(np.where(taking, -rows, rows), axis=1)
    draws = np.arange(_POWER_DRAWS)
    filled = _filled(by_rank[draws, timed], given[draws, timed])
    return _stats(np.where(taking, tokens - filled, filled))


def _dealt(room: Counts, surplus: Counts) -> Counts:
    """Deal ``surplus`` rows round the ranks, one at a time, to those that have room: (draws, ranks)."""
    given = np.zeros_like(room)
    left = np.minimum(surplus, room.sum(axis=1))
    while left.any():
        open_ = given < room
        each, rest = np.divmod(left, np.maximum(open_.sum(axis=1), 1))
        turn = np.cumsum(open_, axis=1) <= rest[:, None]
        more = np.where(open_, np.minimum(room - given, each[:, None] + turn), 0.0)
        given += more
        left = left - more.sum(axis=1)
    return given


def _filled(counts: Counts, given: Counts) -> Counts:
    """Return each draw's counts, sorted, after the least of them got one of its ``given`` rows in turn."""
    level = np.sort(counts, axis=1)
    sums: Counts = np.cumsum(level, axis=1)
    position = np.arange(1.0, level.shape[1] + 1.0)
    needed = position * level - sums  # rows that lift all smaller ones to the i-th
    lifted = np.maximum(np.count_nonzero(needed <= given[:, None], axis=1), 1)
    below = np.take_along_axis(sums, lifted[:, None] - 1, axis=1)[:, 0]
    height, rest = np.divmod(given + below, lifted)
    raised = height[:, None] + (position <= rest[:, None])
    return np.where((position <= lifted[:, None]) & (given[:, None] > 0), raised, level)


@lru_cache(maxsize=65536)
def _zipf(s: float, tokens: int, n_experts: int, top_k: int, ranks: int) -> RoutingStats:
    if tokens <= 0:
        return RoutingStats(0.0, 0.0, (0.0,) * len(ROW_TILES))
    found: list[RoutingStats] = []
    for picks in _sequences(s, n_experts, top_k):
        counts = np.bincount(picks[:tokens].ravel(), minlength=n_experts).astype(np.float64)
        if tokens > len(picks):
            counts = np.rint(counts * (tokens / len(picks)))
        found.append(busiest(counts, ranks))
    return _mean(found)


@lru_cache(maxsize=64)
def _sequences(s: float, n_experts: int, top_k: int) -> tuple[NDArray[np.int64], ...]:
    """Draw the experts of a sequence of tokens, a few times (Gumbel top-k): int64 (tokens, top_k)."""
    found: list[NDArray[np.int64]] = []
    for draw in range(_DRAWS):
        rng = np.random.Generator(np.random.Philox(key=draw))
        popularity = -s * np.log(np.arange(1, n_experts + 1))
        logits = popularity[rng.permutation(n_experts)]
        scores = logits + rng.gumbel(size=(_SEQUENCE, n_experts))
        found.append(
            np.argpartition(-scores, top_k - 1, axis=1)[:, :top_k]
            if top_k < n_experts
            else np.tile(np.arange(n_experts), (_SEQUENCE, 1))
        )
    return tuple(found)


@lru_cache(maxsize=64)
def _uniform(n: int) -> Counts:
    """Return the draws of ``n`` experts: float64 (draws, experts)."""
    return np.stack([np.random.Generator(np.random.Philox(key=d)).random(n) for d in range(_POWER_DRAWS)])
