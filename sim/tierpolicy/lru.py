"""Least recently used goes first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from .base import TierPolicy


class LRU(TierPolicy):
    """Keep what was used last.

    What it optimises: reuse that comes soon. What it starves: what comes back after more new content than
    fits, as when a scan passes through. Source: every serving engine's default (vLLM ``LRUOffloadingManager``).

    Parameters
    ----------
    capacity : keys it can hold [blocks]

    >>> tier = LRU(2)
    >>> tier.add(1), tier.add(2), tier.touch(1), tier.add(3)
    (None, None, None, 2)
    """

    name = "lru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._keys: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def touch(self, key: int) -> None:
        """Make a key the last to go."""
        self._keys.move_to_end(key)

    def add(self, key: int) -> int | None:
        """Take in a key; the one used longest ago goes if there is no room."""
        self._keys[key] = None
        return self._keys.popitem(last=False)[0] if len(self._keys) > self.capacity else None

    def touch_all(self, keys: Iterable[int]) -> None:
        """Make keys the last to go, in their order; those it does not hold do not count."""
        held = self._keys
        for key in keys:
            if key in held:
                held.move_to_end(key)

    def add_all(self, keys: Iterable[int]) -> tuple[int, list[int]]:
        """Take in the keys it does not hold, one after the other; return how many, and which had to go."""
        held, added, gone = self._keys, 0, list[int]()
        for key in keys:
            if key not in held:
                held[key] = None
                added += 1
                if len(held) > self.capacity:
                    gone.append(held.popitem(last=False)[0])
        return added, gone
