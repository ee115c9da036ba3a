"""From a resolved scenario to what a record says of its making: prices, thresholds, hardware, provenance."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from ..hwmodels.power import power_model
from .record import Setup

if TYPE_CHECKING:
    from ..hwmodels.device import DeviceProfile
    from .scenario import ResolvedScenario

LEVELS: tuple[str, ...] = (
    "measured", "bridged", "prior", "transferred_same_arch", "transferred_cross_arch",
)  # fmt: skip
"""How well a lane's numbers are known, best first."""

FAMILIES: tuple[str, ...] = ("gemm", "decode_attention", "prefill_attention")


def setup_of(resolved: ResolvedScenario) -> Setup:
    """Return the facts that metrics need, of a resolved scenario."""
    scenario, parallel = resolved.scenario, resolved.scenario.parallelism
    return Setup(
        gpus_per_replica=parallel.tensor_parallel_size * parallel.pipeline_parallel_size,
        replicas=scenario.cluster.replicas * parallel.data_parallel_size,
        hbm_bandwidth=resolved.device.hbm_bandwidth,
        power=power_model(resolved.device),
        usd_per_gpu_hour=resolved.usd_per_gpu_hour,
        price_source=resolved.price_note,
        client_overhead_s=resolved.engine.client_overhead_s if resolved.engine.scope == "full" else None,
        max_num_seqs=resolved.scheduler.max_num_seqs,
        slo_classes=resolved.slo_classes,
        slo_attainment=scenario.slo.attainment if scenario.slo else None,
    )


def provenance_of(resolved: ResolvedScenario, families: Iterable[str] = FAMILIES) -> dict[str, Any]:
    """Return what made the run.

    Parameters
    ----------
    resolved : the resolved scenario
    families : kernel families that the step model took: ``lanes`` says how well each is known, and the least known
        is the run's ``level``
    """
    lanes = levels_of(resolved.device, resolved.engine.lane, families)
    return {
        "version": _version(),
        "device": resolved.device.id,
        "device_hash": resolved.device.digest,
        "model": resolved.model.id,
        "engine": resolved.engine.id,
        "seed": resolved.scenario.simulation.seed,
        "level": max(lanes.values(), key=LEVELS.index),
        "lanes": lanes,
        **_load(resolved),
    }


def level_of(device: DeviceProfile, lane: str, families: Iterable[str]) -> str:
    """Return the level of the least known of some kernel families.

    Examples
    --------
    >>> from ..hwmodels.device import load_device                               # doctest: +SKIP
    >>> level_of(load_device("h200_sxm"), "vllm", ["gemm"])                     # doctest: +SKIP
    'transferred_same_arch'
    """
    return max(levels_of(device, lane, families).values(), key=LEVELS.index)


def levels_of(device: DeviceProfile, lane: str, families: Iterable[str]) -> dict[str, str]:
    """Return the level of each of some kernel families, by name."""
    return {family: device.lane(family, lane).level for family in sorted(families)}


def _load(resolved: ResolvedScenario) -> dict[str, Any]:
    """Return rate, burstiness and concurrency of drawn arrivals, under vLLM's names."""
    workload = resolved.scenario.workload
    arrivals = workload.arrivals if workload else None
    found = {
        "request_rate_per_s": getattr(arrivals, "rate_per_s", None),
        "burstiness": getattr(arrivals, "cv", 1.0) ** -2,
        "max_concurrency": getattr(arrivals, "concurrency", None),
    }
    return {name: value for name, value in found.items() if value is not None}


def _version() -> str | None:
    try:
        return version("membound")
    except PackageNotFoundError:
        return None
