"""Prefix affinity: where most of the prompt was seen before, unless that replica is overloaded."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from ..kvcache.runs import Run, RunIndex
from .base import ClusterView, Router, least, loads_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..engine.request import Request


class _Sent(Run):
    """Blocks of a prompt that were sent to ``home`` together and nowhere since; the first of them is the oldest."""

    __slots__ = ("home",)

    def __init__(self, keys: Sequence[int], home: int) -> None:
        super().__init__(keys, 0, len(keys))
        self.home = home


class PrefixAffinity(Router):
    """Send a request to the replica that was sent the longest prefix of its prompt, if that is long enough.

    What it optimises: prefix caches, without asking them: the router remembers what it sent where. What it
    starves: balance, up to the stated imbalance, beyond which the load decides alone.
    Source: the cache-aware policy of SGLang's router (its option names and defaults).

    Parameters
    ----------
    cache_threshold : least share of the prompt's blocks that must have been seen together
    balance_abs_threshold, balance_rel_threshold : load decides alone while the most loaded replica has so many
        requests more, and so many times as many, as the least loaded
    max_tree_size : block keys that are remembered; the least recently used is forgotten first
    """

    name = "prefix_affinity"

    def __init__(
        self,
        *,
        cache_threshold: float = 0.5,
        balance_abs_threshold: int = 32,
        balance_rel_threshold: float = 1.0001,
        max_tree_size: int = 1 << 20,
    ) -> None:
        self.cache_threshold = cache_threshold
        self.balance_abs_threshold = balance_abs_threshold
        self.balance_rel_threshold = balance_rel_threshold
        self.max_tree_size = max_tree_size
        self._last = -1
        self._seen = RunIndex[_Sent]()
        self._oldest_first: OrderedDict[_Sent, None] = OrderedDict()
        self._remembered = 0

    def route(self, request: Request, view: ClusterView) -> int:
        chosen = None if self._unbalanced(view) else self._match(request, view)
        if chosen is None:
            chosen = self._last = least(view.ready, view.outstanding, self._last)
        self._remember(request, chosen)
        return chosen

    def gone(self, replica: int) -> None:
        for run in [run for run in self._oldest_first if run.home == replica]:
            self._forget(run, len(run))

    def _unbalanced(self, view: ClusterView) -> bool:
        loads = loads_of(view.ready, view.outstanding)
        most, fewest = max(loads), min(loads)
        return most - fewest > self.balance_abs_threshold and most > self.balance_rel_threshold * fewest

    def _match(self, request: Request, view: ClusterView) -> int | None:
        """Return the replica that was last sent the longest seen prefix, if it is long enough and ready."""
        keys = request.block_hashes
        found = self._seen.leading(keys, len(keys))
        if not found:
            return None
        run, matched = found[-1]
        if matched < self.cache_threshold * len(keys) or run.home not in view.ready:
            return None
        return run.home

    def _remember(self, request: Request, replica: int) -> None:
        keys = request.block_hashes
        if not keys:
            return
        for run, first, end in self._seen.within(keys, 0, len(keys)):
            self._forget(run, end - first)
        sent = _Sent(keys, replica)
        self._seen.by_first[sent.first] = sent
        self._oldest_first[sent] = None
        self._remembered += len(sent)
        while (beyond := self._remembered - self.max_tree_size) > 0:
            oldest = next(iter(self._oldest_first))
            self._forget(oldest, min(beyond, len(oldest)))

    def _forget(self, run: _Sent, count: int) -> None:
        """Forget the first blocks of a run."""
        del self._seen.by_first[run.first]
        self._remembered -= count
        run.start += count
        if len(run):
            self._seen.by_first[run.first] = run
        else:
            del self._oldest_first[run]
