"""What replicas that fail, or come and go, cannot be combined with yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..fields import ScenarioError

if TYPE_CHECKING:
    from .resolved import ResolvedScenario


def check_failures(resolved: ResolvedScenario) -> None:
    """Refuse failures of replicas that are not there, and replicas whose parts fail or end in ways that are not built.

    Raises
    ------
    ScenarioError : one line: which key, and what is allowed
    """
    cluster = resolved.scenario.cluster
    if cluster.failures is None and cluster.autoscale is None:
        return
    if cluster.autoscale is not None and (cluster.pools is not None or not isinstance(cluster.replicas, int)):
        raise ScenarioError(
            "cluster.autoscale: beside pools or groups of replicas is not built yet; allowed: replicas of one kind"
        )
    if cluster.autoscale is not None and cluster.autoscale.metric == "slo" and not resolved.slo_classes:
        raise ScenarioError(
            "cluster.autoscale.metric: slo, but the scenario has no slo.classes; give thresholds"
        )
    there = cluster.total if cluster.autoscale is None else cluster.autoscale.max
    for number, each in enumerate(cluster.failures.at if cluster.failures else ()):
        if each.replica >= there:
            raise ScenarioError(
                f"cluster.failures.at.{number}.replica: {each.replica}; allowed: 0 to {there - 1}"
            )
    why = "replicas fail" if cluster.failures else "replicas come and go"
    section = "cluster.failures" if cluster.failures else "cluster.autoscale"
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
                raise ScenarioError(f"{key}: is not built yet where {why}; allowed with {section}: {allowed}")
