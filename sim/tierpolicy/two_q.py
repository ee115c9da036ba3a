"""Two queues: what is new has to come back before it is kept for long."""

from __future__ import annotations

from collections import OrderedDict

from .base import KeyPolicy


class TwoQ(KeyPolicy):
    """New keys pass through a first-in, first-out queue; only one that comes back after leaving it is kept by LRU.

    What it optimises: reuse beside scans, without counting. What it starves: content whose second use comes
    after it has been forgotten altogether. Source: Johnson and Shasha, VLDB 1994 (full version), with their
    proposed sizes: a quarter of the room for the first queue, names remembered for half of it.

    Parameters
    ----------
    capacity : keys it can hold [blocks]

    >>> tier = TwoQ(4)
    >>> [tier.add_key(key) for key in (1, 2, 3, 4, 5)], tier.add_key(1), 1 in tier
    ([None, None, None, None, 1], 2, True)
    """

    name = "two_q"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._first_room = max(capacity // 4, 1)
        self._names_room = max(capacity // 2, 1)
        self._first: OrderedDict[int, None] = OrderedDict()
        self._kept: OrderedDict[int, None] = OrderedDict()
        self._names: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._first) + len(self._kept)

    def __contains__(self, key: int) -> bool:
        return key in self._kept or key in self._first

    def touch_key(self, key: int) -> None:
        """Make a kept key the last to go; uses inside the first queue are of one piece and do not count."""
        if key in self._kept:
            self._kept.move_to_end(key)

    def add_key(self, key: int) -> int | None:
        """Take in a key: for long if its name is remembered, else into the first queue."""
        gone = self._make_room() if len(self) >= self.capacity else None
        if key in self._names:
            del self._names[key]
            self._kept[key] = None
        else:
            self._first[key] = None
        return gone

    def _make_room(self) -> int:
        """Let one key go: from the first queue if that is long, remembering its name; else the LRU of the others."""
        if len(self._first) > self._first_room or not self._kept:
            gone, _ = self._first.popitem(last=False)
            self._names[gone] = None
            if len(self._names) > self._names_room:
                self._names.popitem(last=False)
            return gone
        return self._kept.popitem(last=False)[0]
