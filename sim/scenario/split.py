"""What ``compute_split`` asks of the rest of a scenario."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..fields import ScenarioError
from .cluster import Cluster

if TYPE_CHECKING:
    from .schema import Scenario


def splitting(scenario: Scenario, filled: Scenario) -> Scenario:
    """Check a scenario whose prefill and decode are streams of their own; they compose their steps synchronously.

    Parameters
    ----------
    scenario, filled : as written, and with every ``auto`` replaced

    Raises
    ------
    ScenarioError : what two streams are not built for
    """
    if scenario.compute_split is None:
        return filled
    cache, scheduler = scenario.kv_cache, scenario.scheduler
    refused = {
        "scheduler.name": (filled.scheduler.name != "vllm_v1", "vllm_v1"),
        "scheduler.preemption_mode": (scheduler.preemption_mode != "recompute", "recompute"),
        "scheduler.async_scheduling": (scheduler.async_scheduling is True, "auto, false"),
        "kv_cache.allocator": (cache.allocator != "paged", "paged"),
        "kv_cache.tiers": (bool(cache.tiers), "[]"),
        "kv_cache.eviction": (cache.eviction is not None, "null"),
        "parallelism.pipeline_parallel_size": (scenario.parallelism.pipeline_parallel_size > 1, "1"),
        "parallelism.data_parallel_size": (scenario.parallelism.data_parallel_size > 1, "1"),
        "speculative": (scenario.speculative is not None, "null"),
        "cluster": (scenario.cluster != Cluster(), "one replica"),
    }
    for leaf, (there, allowed) in refused.items():
        if there:
            raise ScenarioError(
                f"{leaf}: what it says is not built yet beside compute_split; allowed: {allowed}"
            )
    return filled.model_copy(
        update={"scheduler": filled.scheduler.model_copy(update={"async_scheduling": False})}
    )
