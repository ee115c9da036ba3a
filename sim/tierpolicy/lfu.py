"""Least frequently used goes first."""

from __future__ import annotations

from collections import OrderedDict

from .base import KeyPolicy


class LFU(KeyPolicy):
    """Keep what was used most often since it came; of equals the one used longest ago goes.

    What it optimises: content of steady popularity (system prompts) against scans. What it starves: new
    content that would become popular, and it keeps what was popular once. Source: O(1) form of Shah, Mitra and
    Matani, 2010.

    Parameters
    ----------
    capacity : keys it can hold [blocks]

    >>> tier = LFU(2)
    >>> tier.add_key(1), tier.add_key(2), tier.touch_key(1), tier.add_key(3)
    (None, None, None, 2)
    """

    name = "lfu"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._uses: dict[int, int] = {}
        self._by_uses: dict[int, OrderedDict[int, None]] = {}
        self._fewest = 1

    def __len__(self) -> int:
        return len(self._uses)

    def __contains__(self, key: int) -> bool:
        return key in self._uses

    def touch_key(self, key: int) -> None:
        """Count one more use of a key."""
        uses = self._uses[key]
        same = self._by_uses[uses]
        del same[key]
        if not same:
            del self._by_uses[uses]
            if self._fewest == uses:
                self._fewest = uses + 1
        self._uses[key] = uses + 1
        self._by_uses.setdefault(uses + 1, OrderedDict())[key] = None

    def add_key(self, key: int) -> int | None:
        """Take in a key with one use; the least used one goes first if there is no room."""
        gone: int | None = None
        if len(self._uses) >= self.capacity:
            same = self._by_uses[self._fewest]
            gone, _ = same.popitem(last=False)
            del self._uses[gone]
            if not same:
                del self._by_uses[self._fewest]
        self._uses[key] = self._fewest = 1
        self._by_uses.setdefault(1, OrderedDict())[key] = None
        return gone
