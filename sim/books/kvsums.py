"""How full KV pools were and what of them was wasted, as sums over time that add up over replicas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..metrics.histogram import exact_dot
from ..tiers.offload import figures_of

if TYPE_CHECKING:
    from ..kvcache.base import KVAllocator
    from .recorder import Recorder

WASTES = ("waste", "waste_reserved", "waste_internal", "waste_external")


@dataclass(frozen=True, slots=True)
class KVSums:
    """The KV pool of one replica over its time; of several, their sums.

    Attributes
    ----------
    peak_usage : largest share of a pool in use; None where there is no pool
    room_ns, used_ns, held_ns, scattered_ns : room there was, in use, held (what is shared once for each holder), and
        free while somebody waited whom it could not serve [tokens x ns]
    live_ns, promised_ns : tokens held, and tokens held or to come of requests whose room is reserved [tokens x ns]
    keeps_all : live tokens lie in held blocks, so that what is held and not live is waste
    counts : prefix tokens looked up and found, preemptions, blocks of the pool
    behind : what tiers and swap space say of themselves
    """

    peak_usage: float | None
    room_ns: int
    used_ns: int
    held_ns: int
    scattered_ns: int
    live_ns: int
    promised_ns: int
    keeps_all: bool
    counts: Mapping[str, int]
    behind: Mapping[str, Any]

    def figures(self) -> dict[str, Any]:
        """Return how full the pool was and what of it was wasted; None where nothing was ever held."""
        room, held = self.room_ns, self.held_ns
        return {
            "peak_usage": self.peak_usage,
            "mean_usage": self.used_ns / room if room else None,
            "internal_fragmentation": max(1 - self.live_ns / held, 0.0) if held and self.keeps_all else None,
            "external_fragmentation": self.scattered_ns / room if room else None,
            **self._waste(),
            **self.counts,
            **self.behind,
        }

    def _waste(self) -> dict[str, float | None]:
        """Return which share of the room that was held, or free and no use, held no token, and why."""
        held, scattered, promised = self.held_ns, self.scattered_ns, self.promised_ns
        taken = held + scattered
        if not (taken and self.keeps_all):
            return dict.fromkeys(WASTES)
        return {
            "waste": max(1 - self.live_ns / taken, 0.0),
            "waste_reserved": (promised - self.live_ns) / taken,
            "waste_internal": max((held - promised) / taken, 0.0),
            "waste_external": scattered / taken,
        }


def kv_sums(
    allocator: KVAllocator, recorder: Recorder, requests: Mapping[str, Any], num_gpu_blocks: int, wall_ns: int
) -> KVSums:
    """Return the sums of one replica.

    Approximation: what is reserved counts from a request's first step to its last token; a request that is
    stopped in between counts as if it had held its room all the time.

    Parameters
    ----------
    requests : columns of the requests that ended on it
    wall_ns : how long it was there [ns]
    """
    size, blocks, live_ns = allocator.block_size, allocator.num_blocks, recorder.live_token_ns
    held_ns = recorder.held_block_ns * size
    promised_ns = live_ns
    if allocator.reserves and allocator.keeps_all:
        served = requests["first_scheduled_ns"] >= 0
        needed = requests["input_tokens"] + requests["output_tokens"] - 1
        spans = requests["last_token_ns"] - requests["first_scheduled_ns"]
        bound = int(needed.max(initial=0)) * int(spans.sum())
        promised_ns = min(max(exact_dot(needed[served], spans[served], bound), live_ns), held_ns)
    return KVSums(
        peak_usage=recorder.peak_blocks / blocks if blocks else None,
        room_ns=blocks * size * wall_ns,
        used_ns=recorder.used_block_ns * size,
        held_ns=held_ns,
        scattered_ns=(blocks * recorder.limiter_ns["kv_blocks"] - recorder.short_used_block_ns) * size,
        live_ns=live_ns,
        promised_ns=promised_ns,
        keeps_all=allocator.keeps_all,
        counts={
            "prefix_queried_tokens": allocator.queried_tokens,
            "prefix_hit_tokens": allocator.hit_tokens,
            "preemptions": recorder.preemptions,
            "num_gpu_blocks": num_gpu_blocks,
        },
        behind=figures_of(allocator, wall_ns),
    )


def added(parts: Sequence[KVSums]) -> KVSums:
    """Return the sums of several replicas; what is behind their memories is said of each alone."""
    if len(parts) == 1:
        return parts[0]
    peaks = [part.peak_usage for part in parts if part.peak_usage is not None]
    return KVSums(
        peak_usage=max(peaks, default=None),
        room_ns=sum(part.room_ns for part in parts),
        used_ns=sum(part.used_ns for part in parts),
        held_ns=sum(part.held_ns for part in parts),
        scattered_ns=sum(part.scattered_ns for part in parts),
        live_ns=sum(part.live_ns for part in parts),
        promised_ns=sum(part.promised_ns for part in parts),
        keeps_all=all(part.keeps_all for part in parts),
        counts={name: sum(part.counts[name] for part in parts) for name in parts[0].counts},
        behind={},
    )
