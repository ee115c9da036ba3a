"""From a scenario to the KV tiers and the swap space of one engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...hwmodels.tier import TierProfile, host_link, load_tier
from ..fields import ScenarioError
from ..kvcache.paged import PagedAllocator
from ..policies import find_policy
from .mover import Mover
from .route import Route
from .swap import SwapSpace
from .tiers import Tier, TierStack, hit_rate

if TYPE_CHECKING:
    from ...hwmodels.pool import KVPool
    from ..kvcache.base import KVAllocator, PoolShape
    from ..scenario.resolve import ResolvedScenario
    from ..scenario.sections import Tier as TierSection

UNVALIDATED = (
    "KV tiers and swap: transfer times are datasheet values, not validated against a measured server; reads and "
    "writes of tiers behind the first share the host's memory without slowing each other"
)


def attach(resolved: ResolvedScenario, pool: KVPool, shape: PoolShape, allocator: KVAllocator) -> None:
    """Give an allocator the tiers and the swap space of its scenario, and what carries blocks to and fro.

    Raises
    ------
    MemboundError
        An allocator that has no prefix cache, a tier smaller than a block, a device without a host link.
    """
    section, swaps = resolved.scenario.kv_cache, resolved.scheduler.preemption_mode == "swap"
    if not (section.tiers or swaps):
        return
    if not isinstance(allocator, PagedAllocator):
        raise ScenarioError(
            f"kv_cache.allocator: {allocator.name} has neither tiers nor swap; allowed: paged and what is built on it"
        )
    host_link(resolved.device)
    layers = sum(count for count, _ in resolved.model.mixers())
    mover = allocator.mover = Mover(layers, layerwise=section.transfer_overlap == "layerwise")
    ranks = resolved.scenario.parallelism.tensor_parallel_size
    if section.tiers:
        if not resolved.kv_cache.enable_prefix_caching or not allocator.enable_prefix_caching:
            raise ScenarioError(
                "kv_cache.tiers: what they keep are prefixes; set enable_prefix_caching, paged"
            )
        tiers = [_tier(entry, resolved, shape, ranks) for entry in section.tiers]
        if len({tier.kind for tier in tiers}) < len(tiers):
            raise ScenarioError("kv_cache.tiers: two of one kind; give each kind once, fastest first")
        allocator.below = TierStack(tiers, mover)
    if swaps:
        route = Route(load_tier("dram"), resolved.device, shape.block_bytes, ranks)
        allocator.swap = SwapSpace(section.swap_space // shape.block_bytes, route, mover)


def mover_of(allocator: KVAllocator) -> Mover | None:
    """Return what carries an allocator's blocks to and from the memory behind the device's, None without."""
    return allocator.mover if isinstance(allocator, PagedAllocator) else None


def figures_of(allocator: KVAllocator, wall_ns: int) -> dict[str, Any]:
    """Return what a record's ``kv`` says of tiers and swap; nothing without them."""
    found: dict[str, Any] = {}
    if isinstance(allocator, PagedAllocator):
        if allocator.below is not None:
            queried = allocator.queried_tokens
            below = allocator.below.figures(queried, allocator.block_size, wall_ns)
            hits = allocator.hit_tokens - sum(tier["hit_tokens"] for tier in below.values())
            found["tiers"] = {"hbm": {"hit_tokens": hits, "hit_rate": hit_rate(hits, queried)}, **below}
        if allocator.swap is not None:
            found["swap"] = allocator.swap.figures()
    return found


def _tier(entry: TierSection, resolved: ResolvedScenario, shape: PoolShape, ranks: int) -> Tier:
    profile = _changed(load_tier(entry.kind), entry)
    route = Route(profile, resolved.device, shape.block_bytes, ranks)
    room = entry.capacity if entry.capacity is not None else profile.datasheet.capacity.value
    blocks = room // route.bytes_of(1)
    if blocks < 1:
        raise ScenarioError(
            f"kv_cache.tiers: {entry.kind} of {room} B is smaller than one block of {route.bytes_of(1)} B"
        )
    policy = find_policy("tierpolicy", _FILES.get(entry.policy, entry.policy), "kv_cache.tiers.policy")
    return Tier(profile.id, route, policy(blocks), entry.write == "through")


_FILES = {"2q": "two_q"}


def _changed(profile: TierProfile, entry: TierSection) -> TierProfile:
    """Return a kind of tier with the values that the scenario gives instead of its datasheet's."""
    sheet, update = profile.datasheet, dict[str, Any]()
    for key in ("read_bandwidth", "write_bandwidth", "latency", "queue_depth"):
        value = getattr(entry, key)
        if value is not None:
            known = getattr(sheet, key)
            update[key] = known.model_copy(update={"value": value, "source": "scenario"})
    return profile.model_copy(update={"datasheet": sheet.model_copy(update=update)}) if update else profile


def warnings_of(
    resolved: ResolvedScenario, allocator: KVAllocator, pool: KVPool, wall_ns: int
) -> tuple[str, ...]:
    """Return what a reader should know of a run with tiers or swap, one line each."""
    if not isinstance(allocator, PagedAllocator) or not (allocator.below or allocator.swap):
        return ()
    said = [UNVALIDATED]
    if pool.layout.groups and any(group.kind != "full" for group in pool.layout.groups):
        said.append("KV tiers and swap: windows and recurrent states of a restored prefix are not billed")
    if allocator.below:
        if resolved.workload is not None and resolved.workload.prefix is None:
            said.append(
                "kv_cache.tiers: the workload says nothing of shared prefixes (sessions, hash_ids, same_prompt), so "
                "nothing is offloaded"
            )
        for kind, figures in allocator.below.figures(0, allocator.block_size, wall_ns).items():
            if figures["write_load"] > 1:
                said.append(
                    f"kv_cache.tiers: {kind} is written to at {figures['write_load']:.1f} times its rate; a real one "
                    "would drop blocks that are found here"
                )
    return tuple(said)
