"""The KV tiers behind the device's memory: what they hold, what is found there, and the transfers that follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..metrics.figures import Figure, Unknown

if TYPE_CHECKING:
    from ..kvcache.runs import Piece
    from ..tierpolicy.base import TierPolicy
    from .mover import Mover
    from .route import Route


@dataclass(slots=True)
class Tier:
    """One tier: its keys, how it is filled, and what went in and out.

    Attributes
    ----------
    kind : name of the tier
    through : blocks are written when they are computed; else when the memory above lets go of them
    hit_blocks : blocks restored from here [blocks]
    written_blocks, evicted_blocks, peak_blocks : taken in, let go, most held [blocks]
    """

    kind: str
    route: Route
    policy: TierPolicy
    through: bool
    hit_blocks: int = 0
    written_blocks: int = 0
    evicted_blocks: int = 0
    peak_blocks: int = 0


def hit_rate(hit_tokens: int, queried_tokens: int) -> Figure:
    """Return the share of the prompt tokens looked up that was found [-]."""
    return hit_tokens / queried_tokens if queried_tokens else Unknown("no prefix was looked up")


class TierStack:
    """Tiers behind one pool of blocks, fastest first; a key found in several is served by the first.

    Writes into the first tier come from the device, over its host link; into those behind, from the host's
    memory, which slows nobody here. What is restored passes through the host's memory and stays in every tier
    on its way (promotion).

    Approximation: a block can be found in a tier from when its write is ordered, though it ends later: a block
    that is asked for again so soon is in the device's memory still.

    Parameters
    ----------
    tiers : fastest first
    mover : carries blocks between the first tier, or the tier they are found in, and the device
    """

    def __init__(self, tiers: Sequence[Tier], mover: Mover) -> None:
        self.tiers = tuple(tiers)
        self.mover = mover
        self.keeps_evicted = any(not tier.through for tier in tiers)
        """Whether letting go of a block in the device's memory starts a transfer."""

    def found(self, keys: Sequence[int], start: int, stop: int) -> int:
        """Count the keys from ``start`` on that some tier holds, up to the first that none does [blocks]."""
        at, before = start, -1
        while before < at < stop:
            before = at
            for tier in self.tiers:
                at = tier.policy.reach(keys, at, stop)
        return max(at - start, 0)

    def restore(self, keys: Sequence[int], start: int, stop: int) -> None:
        """Order the transfer of blocks that were found; each comes from the first tier that holds it."""
        blocks = [0] * len(self.tiers)
        if self.tiers[0].policy.reach(keys, start, stop) == stop:
            self.tiers[0].policy.touch(keys, start, stop)
            blocks[0] = stop - start
        else:
            levels = [self._level(keys, index) for index in range(start, stop)]
            for index in range(stop - 1, start - 1, -1):
                self._promote(keys, index, levels[index - start])
            for level in levels:
                blocks[level] += 1
        for tier, count in zip(self.tiers, blocks, strict=True):
            if count:
                tier.hit_blocks += count
                self.mover.before(f"read {tier.kind}", tier.route, "read", count)

    def _holds(self, number: int, keys: Sequence[int], index: int) -> bool:
        return self.tiers[number].policy.reach(keys, index, index + 1) > index

    def _level(self, keys: Sequence[int], index: int) -> int:
        """Return the number of the first tier that holds a block."""
        return next(number for number in range(len(self.tiers)) if self._holds(number, keys, index))

    def _promote(self, keys: Sequence[int], index: int, level: int) -> None:
        """Let every tier before the one that a block was found in take it in.

        That one too, if blocks of the same restore have pushed it out since.
        """
        if self._holds(level, keys, index):
            self.tiers[level].policy.touch(keys, index, index + 1)
            level -= 1
        for number in range(level, -1, -1):
            self._take_in(number, [(keys, index, index + 1)])

    def computed(self, keys: Sequence[int], start: int, stop: int) -> None:
        """Learn that blocks were computed: tiers that are written through take those they lack."""
        for number, tier in enumerate(self.tiers):
            if tier.through:
                count = self._take_in(number, [(keys, start, stop)])
                if count and not number:
                    self.mover.after(f"write {tier.kind}", tier.route, "write", count)

    def released(self, keys: Sequence[int], stop: int) -> None:
        """Learn that a request has let go of its first blocks: their last use was now, that of the first one latest."""
        for tier in self.tiers:
            tier.policy.touch(keys, 0, stop)

    def evicted(self, pieces: Sequence[Piece]) -> None:
        """Learn that the device's memory has let go of blocks, whose room the next step takes."""
        tier = self.tiers[0]
        if tier.through:
            return
        count = self._take_in(0, pieces)
        if count:
            self.mover.before(f"evict to {tier.kind}", tier.route, "write", count)

    def _take_in(self, number: int, pieces: Sequence[Piece]) -> int:
        """Let a tier hold the blocks that it lacks, and return how many [blocks].

        What has to go for them falls to the next tier if that takes what others let go.
        """
        tier = self.tiers[number]
        added = 0
        gone: list[Piece] = []
        for piece in pieces:
            more, went = tier.policy.add(*piece)
            added += more
            gone += went
        tier.written_blocks += added
        tier.evicted_blocks += sum(stop - start for _, start, stop in gone)
        tier.peak_blocks = max(tier.peak_blocks, len(tier.policy))
        below = number + 1
        if gone and below < len(self.tiers) and not self.tiers[below].through:
            self._take_in(below, gone)
        return added

    def figures(self, queried_tokens: int, block_size: int, wall_ns: int) -> dict[str, dict[str, Any]]:
        """Return what a run's summary says of each tier, by kind."""
        found: dict[str, dict[str, Any]] = {}
        for tier in self.tiers:
            hits, size = tier.hit_blocks * block_size, tier.route.bytes_of(1)
            rate = tier.route.profile.bandwidth("write")
            found[tier.kind] = {
                "capacity_bytes": tier.policy.capacity * size,
                "policy": tier.policy.name,
                "write": "through" if tier.through else "back",
                "hit_tokens": hits,
                "hit_rate": hit_rate(hits, queried_tokens),
                "read_bytes": tier.hit_blocks * size,
                "written_bytes": tier.written_blocks * size,
                "evicted_bytes": tier.evicted_blocks * size,
                "peak_usage": tier.peak_blocks / tier.policy.capacity,
                "write_load": tier.written_blocks * size / rate * 1e9 / wall_ns if wall_ns else 0.0,
            }
        return found
