"""Least recently used goes first."""

from __future__ import annotations


class LRU:
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
        self.capacity = capacity
        self._keys: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int) -> bool:
        return key in self._keys

    def touch(self, key: int) -> None:
        """Make a key the last to go."""
        del self._keys[key]
        self._keys[key] = None

    def add(self, key: int) -> int | None:
        """Take in a key; the one used longest ago goes if there is no room."""
        keys = self._keys
        keys[key] = None
        if len(keys) <= self.capacity:
            return None
        oldest = next(iter(keys))
        del keys[oldest]
        return oldest
