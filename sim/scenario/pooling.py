"""What ``cluster.pools`` asks of the replicas for prefill and for decode."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..fields import AUTO, ScenarioError
from .parallel import machine_gpus

if TYPE_CHECKING:
    from ...hwmodels.timing.hop import Network
    from .resolved import ResolvedScenario
    from .schema import Scenario

ONE_MACHINE = "node"


def check_pools(scenario: Scenario, prefill: ResolvedScenario, decode: ResolvedScenario) -> None:
    """Refuse pools that cannot exchange KV, and what is not built where requests move between replicas.

    Raises
    ------
    MemboundError : one line: which key, and what is allowed
    """
    alike = {
        "model": (prefill.model.id, decode.model.id),
        "quantization.kv_cache": tuple(own.scenario.quantization.kv_cache for own in (prefill, decode)),
        "kv_cache.max_model_len": tuple(own.kv_cache.max_model_len for own in (prefill, decode)),
    }
    for key, (one, other) in alike.items():
        if one != other:
            raise ScenarioError(
                f"cluster.pools.decode.{key}: {other}, but prefill replicas have {one}; allowed: the same on both, as "
                "KV goes from one to the other"
            )
    for phase, own in (("prefill", prefill), ("decode", decode)):
        _check_kind(f"cluster.pools.{phase}", own)
    if kv_network(scenario) is None:
        _check_machine(scenario, prefill, decode)


def _check_kind(where: str, resolved: ResolvedScenario) -> None:
    own = resolved.scenario
    for key, given, allowed in (
        ("scheduler.name", resolved.scheduler.name != "vllm_v1", "vllm_v1"),
        ("scheduler.preemption_mode", own.scheduler.preemption_mode == "swap", "recompute"),
        ("kv_cache.allocator", own.kv_cache.allocator != "paged", "paged"),
        ("kv_cache.tiers", bool(own.kv_cache.tiers), "[]"),
        ("kv_cache.eviction", own.kv_cache.eviction is not None, "null"),
        ("parallelism.pipeline_parallel_size", own.parallelism.pipeline_parallel_size > 1, "1"),
        ("parallelism.data_parallel_size", own.parallelism.data_parallel_size > 1, "1"),
        ("speculative", own.speculative is not None, "null"),
        ("simulation.fidelity", own.simulation.fidelity == "kernel", "step"),
        ("compute_split", own.compute_split is not None, "null"),
        ("colocated", own.colocated is not None, "null"),
    ):
        if given:
            raise ScenarioError(f"{where}: {key}: what it says is not built yet in pools; allowed: {allowed}")


def _check_machine(scenario: Scenario, prefill: ResolvedScenario, decode: ResolvedScenario) -> None:
    pools = scenario.cluster.pools
    assert pools is not None
    ranks = [own.scenario.parallelism.tensor_parallel_size for own in (prefill, decode)]
    gpus = pools.prefill.replicas * ranks[0] + pools.decode.replicas * ranks[1]
    if gpus > machine_gpus(scenario):
        raise ScenarioError(
            f"cluster.pools.link: node, but {gpus} GPUs do not fit a machine of node.gpus {machine_gpus(scenario)}; "
            "allowed: auto, infiniband, roce, ethernet, a bandwidth (25GB/s)"
        )
    if prefill.device.id != decode.device.id:
        raise ScenarioError(
            f"cluster.pools.link: node, but one machine has GPUs of one kind, not {prefill.device.id} and "
            f"{decode.device.id}; allowed: auto, infiniband, roce, ethernet, a bandwidth (25GB/s)"
        )


def kv_network(scenario: Scenario) -> Network | None:
    """Return what KV goes over from prefill to decode replicas; None: the link inside one machine.

    Raises
    ------
    CatalogError : neither a name nor a bandwidth
    """
    from ...hwmodels.links import network

    assert scenario.cluster.pools is not None
    link, between = scenario.cluster.pools.link, scenario.node.inter_node_link
    if link == ONE_MACHINE:
        return None
    if link == AUTO:
        return network("infiniband" if between == AUTO else between)
    return network(link, "cluster.pools.link")
