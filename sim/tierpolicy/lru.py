"""Least recently used goes first."""

from __future__ import annotations

from collections.abc import Sequence

from ..kvcache.runs import Piece, Run, RunIndex
from .base import TierPolicy


class _Used(Run):
    """Blocks that were used together; its last one is the oldest."""

    __slots__ = ("newer", "older")

    newer: _Used
    older: _Used


class LRU(TierPolicy):
    """Keep what was used last.

    What it optimises: reuse that comes soon. What it starves: what comes back after more new content than
    fits, as when a scan passes through. Source: every serving engine's default (vLLM ``LRUOffloadingManager``).

    Blocks that were used together stay together until some of them are used again or go: a prompt costs as much as a
    block.

    Parameters
    ----------
    capacity : blocks it can hold [blocks]

    >>> tier = LRU(2)
    >>> tier.add([11, 12], 0, 2), tier.touch([11], 0, 1), tier.add([21], 0, 1)
    ((2, []), None, (1, [([11, 12], 1, 2)]))
    """

    name = "lru"

    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._runs = RunIndex[_Used]()
        self._held = 0
        self._ends = _Used((), 0, 0)
        self._ends.newer = self._ends.older = self._ends

    def __len__(self) -> int:
        return self._held

    def reach(self, keys: Sequence[int], start: int, stop: int) -> int:
        """Return up to which block a prompt is held without a gap."""
        for _, first, end in self._runs.within(keys, start, stop):
            if first > start:
                break
            start = end
        return start

    def touch(self, keys: Sequence[int], start: int, stop: int) -> None:
        """Make blocks the last to go, the first of them the very last."""
        newest: _Used | None = None
        for run, first, end in reversed(self._runs.within(keys, start, stop)):
            if end < run.stop:
                self._split(run, end)
            part = run if first == run.start else self._split(run, first)
            _unlink(part)
            if newest is not None and newest.start == end:
                # Used together, they are one from now on.
                _unlink(newest)
                del self._runs.by_first[newest.first]
                part.keys, part.stop = keys, newest.stop
            self._link(part, self._ends)
            newest = part

    def add(self, keys: Sequence[int], start: int, stop: int) -> tuple[int, list[Piece]]:
        """Take in the blocks it does not hold, the last first; the ones used longest ago go if there is no room."""
        added = 0
        gone: list[Piece] = []
        held = self._runs.within(keys, start, stop)
        while stop > start:
            first, end = start, start
            if held:
                run, first, end = held[-1]
                end = max(first, min(end, run.stop))  # what went meanwhile has to come again
            if end < stop:
                new = _Used(keys, end, stop)
                self._runs.by_first[new.first] = new
                self._link(new, self._ends)
                added += stop - end
                self._held += stop - end
                self._let_go(gone)
                stop = end
            else:
                held.pop()
                stop = first
        return added, gone

    def _let_go(self, gone: list[Piece]) -> None:
        while self._held > self.capacity:
            oldest = self._ends.newer
            count = min(self._held - self.capacity, len(oldest))
            gone.append((oldest.keys, oldest.stop - count, oldest.stop))
            self._held -= count
            if count == len(oldest):
                del self._runs.by_first[oldest.first]
                _unlink(oldest)
            oldest.stop -= count

    def _split(self, run: _Used, at: int) -> _Used:
        """Make the blocks of a run from ``at`` on a run of their own, as old as they were."""
        rest = _Used(run.keys, at, run.stop)
        run.stop = at
        self._runs.by_first[rest.first] = rest
        self._link(rest, run)
        return rest

    @staticmethod
    def _link(run: _Used, newer: _Used) -> None:
        """Put a run before another one; before the ends it is the newest."""
        run.newer, run.older = newer, newer.older
        newer.older.newer = run
        newer.older = run


def _unlink(run: _Used) -> None:
    run.older.newer, run.newer.older = run.newer, run.older
