"""From a resolved scenario to what a record says of its making: prices, thresholds, hardware, provenance."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any, TypeVar

from ..hwmodels.power import power_model
from .books.record import Setup

if TYPE_CHECKING:
    from ..hwmodels.device import DeviceProfile
    from ..hwmodels.power import PowerModel
    from .scenario import ResolvedScenario

_Fact = TypeVar("_Fact")

LEVELS: tuple[str, ...] = (
    "measured", "bridged", "prior", "transferred_same_arch", "transferred_cross_arch",
)  # fmt: skip
"""How well a lane's numbers are known, best first."""

FAMILIES: tuple[str, ...] = ("gemm", "decode_attention", "prefill_attention")


def setup_of(resolved: ResolvedScenario, replicas: Sequence[ResolvedScenario] = ()) -> Setup:
    """Return the facts that metrics need.

    Parameters
    ----------
    resolved : the question
    replicas : what each replica is; empty: one, as the question says
    """
    scenario, each = resolved.scenario, list(replicas) or [resolved]
    gpus = [_gpus(replica) for replica in each]
    return Setup(
        gpus_per_replica=_common(gpus) or 0,
        replicas=len(each),
        all_gpus=sum(gpus),
        hbm_bandwidth=_common([replica.device.hbm_bandwidth for replica in each]),
        power=_least_known([power_model(replica.device) for replica in each]),
        usd_per_gpu_hour=_mean([replica.usd_per_gpu_hour for replica in each], gpus),
        price_source="; ".join(dict.fromkeys(replica.price_note for replica in each)),
        client_overhead_s=resolved.engine.client_overhead_s if resolved.engine.scope == "full" else None,
        max_num_seqs=_common([replica.scheduler.max_num_seqs for replica in each]),
        slo_classes=resolved.slo_classes,
        slo_attainment=scenario.slo.attainment if scenario.slo else None,
    )


def _gpus(resolved: ResolvedScenario) -> int:
    """GPUs of one engine; each data-parallel copy is one."""
    parallel = resolved.scenario.parallelism
    return parallel.tensor_parallel_size * parallel.pipeline_parallel_size


def _common(values: Sequence[_Fact]) -> _Fact | None:
    """Return what all values are, None where they differ."""
    return values[0] if all(value == values[0] for value in values) else None


def _least_known(models: Sequence[PowerModel | None]) -> PowerModel | None:
    """Return the power model that is known least, None where one is not known at all."""
    known = [model for model in models if model is not None]
    return max(known, key=lambda model: model.spread) if len(known) == len(models) else None


def _mean(values: Sequence[float | None], gpus: Sequence[int]) -> float | None:
    """Return the mean over GPUs, None where one is not known."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    if all(value == known[0] for value in known):
        return known[0]
    return sum(value * count for value, count in zip(known, gpus, strict=True)) / sum(gpus)


def provenance_of(
    resolved: ResolvedScenario,
    families: Iterable[str] = FAMILIES,
    others: Sequence[tuple[ResolvedScenario, Iterable[str]]] = (),
) -> dict[str, Any]:
    """Return what made the run.

    Parameters
    ----------
    resolved : the resolved scenario
    families : kernel families that the step model took: ``lanes`` says how well each is known, and the least known
        is the run's ``level``
    others : other kinds of replicas, and the families they took
    """
    kinds = [(resolved, families), *others]
    each = [levels_of(kind.device, kind.engine.lane, taken) for kind, taken in kinds]
    lanes: dict[str, str] = {}
    for known in each:
        for family, level in known.items():
            lanes[family] = max(lanes.get(family, level), level, key=LEVELS.index)
    return {
        "version": _version(),
        "device": _names(kind.device.id for kind, _ in kinds),
        "device_hash": _names(kind.device.digest for kind, _ in kinds),
        "model": _names(kind.model.id for kind, _ in kinds),
        "engine": _names(kind.engine.id for kind, _ in kinds),
        "seed": resolved.scenario.simulation.seed,
        "level": max(lanes.values(), key=LEVELS.index),
        "lanes": lanes,
        **_load(resolved),
    }


def _names(values: Iterable[str]) -> str:
    return " + ".join(dict.fromkeys(values))


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
