"""Prefix affinity: where most of the prompt was seen before, unless that replica is overloaded."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from .base import ClusterView, Router, least

if TYPE_CHECKING:
    from ..engine.request import Request


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
        self._seen: OrderedDict[int, int] = OrderedDict()

    def route(self, request: Request, view: ClusterView) -> int:
        chosen = None if self._unbalanced(view) else self._match(request, view)
        if chosen is None:
            chosen = self._last = least(view.ready, view.outstanding, self._last)
        self._remember(request, chosen)
        return chosen

    def gone(self, replica: int) -> None:
        self._seen = OrderedDict((key, home) for key, home in self._seen.items() if home != replica)

    def _unbalanced(self, view: ClusterView) -> bool:
        loads = [view.outstanding[each] for each in view.ready]
        most, fewest = max(loads), min(loads)
        return most - fewest > self.balance_abs_threshold and most > self.balance_rel_threshold * fewest

    def _match(self, request: Request, view: ClusterView) -> int | None:
        """Return the replica that was last sent the longest seen prefix, if it is long enough and ready."""
        keys, matched, home = request.block_hashes, 0, None
        for key in keys:
            found = self._seen.get(key)
            if found is None:
                break
            matched, home = matched + 1, found
        if home is None or matched < self.cache_threshold * len(keys) or home not in view.ready:
            return None
        return home

    def _remember(self, request: Request, replica: int) -> None:
        seen = self._seen
        for key in request.block_hashes:
            seen[key] = replica
            seen.move_to_end(key)
        while len(seen) > self.max_tree_size:
            seen.popitem(last=False)
