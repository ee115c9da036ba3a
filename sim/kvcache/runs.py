"""Runs of blocks: neighbours in one prompt that are held, kept and let go together, at the cost of one.

Keys of blocks are chained: an equal key means an equal prefix. So two runs that begin with one key are alike up to some
block and nowhere beyond, which a few comparisons find, and a run is found by its first key alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

Piece = tuple[Sequence[int], int, int]
"""Blocks of one prompt: its keys, the first block and the one after the last."""


class Run:
    """Blocks ``start`` to ``stop`` of a prompt with these keys."""

    __slots__ = ("keys", "start", "stop")

    def __init__(self, keys: Sequence[int], start: int, stop: int) -> None:
        self.keys = keys
        self.start = start
        self.stop = stop

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def first(self) -> int:
        """Key of the first block."""
        return self.keys[self.start]

    def alike(self, keys: Sequence[int], limit: int) -> int:
        """Return up to which block, at most ``limit``, it is the same as a prompt that shares its first key."""
        stop = min(self.stop, limit)
        mine = self.keys
        if mine is keys or mine[stop - 1] == keys[stop - 1]:
            return stop
        low, high = self.start, stop - 1
        while high - low > 1:
            middle = (low + high) // 2
            if mine[middle] == keys[middle]:
                low = middle
            else:
                high = middle
        return high


AnyRun = TypeVar("AnyRun", bound=Run)


class RunIndex(Generic[AnyRun]):
    """Runs by their first key; no block is in two of them."""

    __slots__ = ("by_first",)

    def __init__(self) -> None:
        self.by_first: dict[int, AnyRun] = {}

    def leading(self, keys: Sequence[int], limit: int) -> list[tuple[AnyRun, int]]:
        """Return the runs that hold the leading blocks of a prompt, each with the block it is alike up to."""
        found: list[tuple[AnyRun, int]] = []
        by_first, at = self.by_first, 0
        while at < limit:
            run = by_first.get(keys[at])
            if run is None:
                break
            at = run.alike(keys, limit)
            found.append((run, at))
        return found

    def within(self, keys: Sequence[int], start: int, stop: int) -> list[tuple[AnyRun, int, int]]:
        """Return the runs that hold any of the blocks ``start`` to ``stop``, each with the first and the end."""
        found: list[tuple[AnyRun, int, int]] = []
        by_first, at = self.by_first, 0
        while at < stop:
            run = by_first.get(keys[at])
            if run is None:
                at += 1
                if by_first.keys().isdisjoint(keys[at:stop]):  # as a rule nothing is held behind a gap
                    break
                continue
            begun = max(at, start)
            at = run.alike(keys, stop)
            if at > start:
                found.append((run, begun, at))
        return found


class Holder(Protocol):
    """Who holds runs of a pool, in the order of its prompt."""

    @property
    def runs(self) -> list[CachedRun]: ...


class CachedRun(Run):
    """Blocks of a pool whose content can be found, and who holds all of them: holders have them in their ``runs``."""

    __slots__ = ("holders",)

    def __init__(self, keys: Sequence[int], start: int, stop: int, holders: dict[Holder, None]) -> None:
        super().__init__(keys, start, stop)
        self.holders = holders


class PoolContent(RunIndex[CachedRun]):
    """What can be found in a pool of blocks.

    Who computes what is there already has a copy of its own, a block a run, found once all older ones are gone.
    """

    __slots__ = ("_copies",)

    def __init__(self) -> None:
        super().__init__()
        self._copies: dict[int, list[CachedRun]] = {}

    def split(self, run: CachedRun, at: int) -> CachedRun:
        """Make the blocks of a run before ``at`` a run of their own, with the same holders, and return it."""
        before = CachedRun(run.keys, run.start, at, dict(run.holders))
        self.by_first[before.first] = before
        run.start = at
        self.by_first[run.first] = run
        for holder in run.holders:
            holder.runs.insert(holder.runs.index(run), before)
        return before

    def add(self, holder: Holder, keys: Sequence[int], start: int, stop: int) -> None:
        """Make blocks findable that only ``holder`` has; it has those before them."""
        found = self.leading(keys, stop)
        known = max(found[-1][1] if found else 0, start)
        for index in range(start, known):
            copy = CachedRun(keys, index, index + 1, {holder: None})
            self._copies.setdefault(keys[index], []).append(copy)
            holder.runs.append(copy)
        if known == stop:
            return
        last = holder.runs[-1] if holder.runs else None
        if (
            last is not None
            and last.keys is keys
            and len(last.holders) == 1
            and self.by_first.get(last.first) is last
        ):
            last.stop = stop
            return
        new = CachedRun(keys, known, stop, {holder: None})
        self.by_first[new.first] = new
        holder.runs.append(new)

    def forget(self, run: CachedRun, count: int) -> list[Piece]:
        """Let the last blocks of a run go; return those of which there is no copy."""
        stop, first = run.stop, run.stop - count
        run.stop = first
        if not self._copies:
            if first == run.start:
                del self.by_first[run.first]
            return [(run.keys, first, stop)]
        lost: list[Piece] = []
        for index in range(stop - 1, first - 1, -1):
            lost += self._forget_one(run, index)
        return lost

    def _forget_one(self, run: CachedRun, index: int) -> list[Piece]:
        key = run.keys[index]
        copies = self._copies.get(key)
        if copies is None:
            if index == run.start:
                del self.by_first[key]
            return [(run.keys, index, index + 1)]
        if self.by_first.get(key) is not run and run in copies:
            copies.remove(run)
        else:
            self.by_first[key] = copies.pop(0)
        if not copies:
            del self._copies[key]
        return []
