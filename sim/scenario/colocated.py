"""The ``colocated`` section: a second model on the same device, as a scenario of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from ...hwmodels.errors import MemboundError
from ..fields import AUTO, Auto, ScenarioError, Section
from ..workload.spec import WorkloadSpec
from .cluster import Cluster
from .errors import Where, one_line
from .resolved import ResolvedScenario
from .sections import Kernels, KVCacheSection, QuantizationSection, SchedulerSection, Slo, Speculative

if TYPE_CHECKING:
    from .schema import Scenario

LEAST_SHARE = 0.05
SEED_APART = 1_000_000_007
"""Between the seeds of the two models: their loads are drawn independently."""


class Colocated(Section):
    """A second model on the same GPUs, with a load of its own; device, parallelism and node are the first one's.

    Attributes
    ----------
    name : what it is called in results; default: its model
    model : id, Hugging Face name, or path of a ``config.json``
    engine : serving engine version; auto: the first one's
    quantization : number formats of weights, activations and KV cache
    kernels : which kernels run
    scheduler : which requests compute how many tokens in a step
    kv_cache : its KV cache; gpu_memory_utilization is its share of the device's memory, auto: what the first model
        leaves of the engine's default, or half of it where neither says
    speculative : speculative decoding
    workload : what is asked of it
    slo : what counts as good
    """

    name: str | None = None
    model: str
    engine: str | Auto = AUTO
    quantization: QuantizationSection = QuantizationSection()
    kernels: Kernels = Kernels()
    scheduler: SchedulerSection = SchedulerSection()
    kv_cache: KVCacheSection = KVCacheSection()
    speculative: Speculative | None = None
    workload: WorkloadSpec | None = None
    slo: Slo | None = None


def with_colocated(
    resolved: ResolvedScenario, resolve_one: Callable[[Scenario], ResolvedScenario]
) -> ResolvedScenario:
    """Return a resolved scenario with the model beside it resolved too."""
    asked = resolved.scenario.colocated
    if asked is None:
        return resolved
    _refuse_beside(resolved.scenario)
    second = _second(resolved.scenario, asked)
    try:
        return replace(resolved, colocated=resolve_one(second))
    except MemboundError as error:
        raise ScenarioError(f"colocated: {error}") from None


def share_memory(scenario: Scenario, default: float) -> Scenario:
    """Return a scenario in which both models state their share of the device's memory.

    Parameters
    ----------
    default : share that the engine takes of a device of its own [-]

    Raises
    ------
    ScenarioError : the shares are more than there is
    """
    asked = scenario.colocated
    if asked is None:
        return scenario
    first, second = (part.kv_cache.gpu_memory_utilization for part in (scenario, asked))
    if first == AUTO and second == AUTO:
        first = second = default / 2
    elif first == AUTO:
        first = _rest(default, float(second), "kv_cache", "colocated.kv_cache")
    elif second == AUTO:
        second = _rest(default, float(first), "colocated.kv_cache", "kv_cache")
    if float(first) + float(second) > 1.0 + 1e-12:
        raise ScenarioError(
            f"colocated.kv_cache.gpu_memory_utilization: {second} and the first model's {first} are "
            f"{float(first) + float(second):.2f} of the device; allowed: together at most 1"
        )
    return scenario.model_copy(
        update={
            "kv_cache": _with_share(scenario.kv_cache, first),
            "colocated": asked.model_copy(update={"kv_cache": _with_share(asked.kv_cache, second)}),
        }
    )


def _rest(default: float, taken: float, of: str, other: str) -> float:
    if default - taken < LEAST_SHARE:
        raise ScenarioError(
            f"{of}.gpu_memory_utilization: auto leaves {max(default - taken, 0.0):.2f} of the device beside "
            f"{other}.gpu_memory_utilization {taken}; allowed: at least {LEAST_SHARE}, so give both, together at most 1"
        )
    return default - taken


def _with_share(section: KVCacheSection, share: Any) -> KVCacheSection:
    return section.model_copy(update={"gpu_memory_utilization": share})


def _second(base: Scenario, asked: Colocated) -> Scenario:
    """Return the scenario of the second model alone."""
    from .schema import Scenario

    own = asked.model_dump(mode="json")
    data: dict[str, Any] = (
        base.to_dict() | own | {"cluster": Cluster().model_dump(mode="json"), "colocated": None}
    )
    data["engine"] = base.engine if asked.engine == AUTO else asked.engine
    data["name"] = asked.name or asked.model
    data["simulation"]["seed"] = base.simulation.seed + SEED_APART
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        raise one_line(error, data, Scenario, Where("colocated")) from None


def _refuse_beside(scenario: Scenario) -> None:
    """Refuse what cannot run on a device that two models share."""
    if scenario.compute_split is not None:
        raise ScenarioError(
            "compute_split: prefill and decode on split units beside a second model is not built yet; allowed with "
            "colocated: null"
        )
    if scenario.cluster != Cluster():
        raise ScenarioError(
            "cluster: several replicas beside a second model are not built yet; allowed with colocated: 1"
        )
    if scenario.parallelism.data_parallel_size > 1:
        raise ScenarioError(
            "parallelism.data_parallel_size: copies beside a second model are not built yet; allowed with colocated: 1"
        )
    if scenario.parallelism.pipeline_parallel_size > 1:
        raise ScenarioError(
            "parallelism.pipeline_parallel_size: stages that share devices with a second model are not built yet; "
            "allowed with colocated: 1"
        )
    assert scenario.colocated is not None
    for where, part in (("kv_cache", scenario), ("colocated.kv_cache", scenario.colocated)):
        if part.kv_cache.tiers or part.scheduler.preemption_mode == "swap":
            raise ScenarioError(
                f"{where}: tiers and swap on a device that two models share are not built yet; allowed with colocated: "
                "tiers [], preemption_mode recompute"
            )
