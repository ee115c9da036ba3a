"""What replicas that fail cannot be combined with yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..fields import ScenarioError

if TYPE_CHECKING:
    from .resolved import ResolvedScenario


def check_failures(resolved: ResolvedScenario) -> None:
    """Refuse failures of replicas that are not there, and of replicas whose parts fail in ways that are not built.

    Raises
    ------
    ScenarioError : one line: which key, and what is allowed
    """
    cluster = resolved.scenario.cluster
    if cluster.failures is None:
        return
    for number, each in enumerate(cluster.failures.at):
        if each.replica >= cluster.total:
            raise ScenarioError(
                f"cluster.failures.at.{number}.replica: {each.replica}; allowed: 0 to {cluster.total - 1}"
            )
    for kind in resolved.kinds:
        own = kind.resolved.scenario
        for key, given, allowed in (
            ("kv_cache.tiers", bool(own.kv_cache.tiers), "[]"),
            ("scheduler.preemption_mode", own.scheduler.preemption_mode == "swap", "recompute"),
            ("parallelism.data_parallel_size", own.parallelism.data_parallel_size > 1, "1"),
            ("parallelism.pipeline_parallel_size", own.parallelism.pipeline_parallel_size > 1, "1"),
            ("simulation.fidelity", own.simulation.fidelity == "kernel", "step"),
        ):
            if given:
                raise ScenarioError(
                    f"{key}: is not built yet where replicas fail; allowed with cluster.failures: {allowed}"
                )
