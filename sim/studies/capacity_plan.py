"""The plan file: a load, an SLO, and the configurations that might serve it."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

from annotated_types import Ge, Le
from pydantic import Field, ValidationError

from ...hwmodels.units import Rate, Unbounded
from ..fields import Section
from ..scenario.errors import Where, one_line
from ..scenario.load import read_scenario, read_sections
from ..scenario.schema import Scenario, leaf
from ..scenario.sections import Slo
from ..workload.spec import MOST_REQUESTS
from .study import Settings, StudyError, moved, varied

SHORT: Mapping[str, str] = {
    "device": "device",
    "model": "model",
    "engine": "engine",
    "tensor_parallel_size": "parallelism.tensor_parallel_size",
    "quantization": "quantization.weights",
    "kv_cache_dtype": "quantization.kv_cache",
    "scheduler": "scheduler.name",
    "max_num_seqs": "scheduler.max_num_seqs",
    "max_num_batched_tokens": "scheduler.max_num_batched_tokens",
}
"""What candidates may be called beside their scenario leaf."""
MOST_CONFIGURATIONS = 10_000
"""Most configurations of a plan; each takes at least one run."""


class Load(Section):
    """What is to be served, all replicas together.

    Attributes
    ----------
    rate_per_s : mean rate of requests; lengths and the kind of arrivals are the base scenario's [requests/s]
    """

    rate_per_s: Rate


class PlanFile(Section):
    """A capacity plan.

    Attributes
    ----------
    name : shown above results
    base : the scenario file whose workload is to be served
    load : how much of it
    slo : what counts as good; without it, the base scenario's
    candidates : leaf, or its short name, to the values it may have; every combination is a configuration
    prices : USD per GPU hour by device; others take their list price
    requests : requests of one probe; few are quick, many are sure
    """

    name: str = ""
    base: str
    load: Load
    slo: Slo | None = None
    candidates: dict[str, Any]
    prices: dict[str, Annotated[float, Ge(0), Le(1e6)]] = Field(default_factory=dict[str, float])
    requests: Annotated[Unbounded, Le(MOST_REQUESTS)] = 1000


@dataclass(frozen=True, slots=True)
class CapacityPlan:
    """What a plan file comes down to.

    Attributes
    ----------
    name : the plan's, or its file's
    rate_per_s : load of all replicas together [requests/s]
    settings : leaf to value, of each configuration
    scenarios : the scenario of each, for one replica
    requests : requests of one probe
    """

    name: str
    rate_per_s: float
    settings: tuple[Settings, ...]
    scenarios: tuple[Scenario, ...]
    requests: int


def load_plan(path: str | os.PathLike[str], sets: Sequence[str] = ()) -> CapacityPlan:
    """Read a plan file and make the scenario of every configuration.

    Parameters
    ----------
    path : the YAML file; paths in it are relative to its folder
    sets : assignments ``a.b=value`` that change the base; what candidates set wins over them

    Raises
    ------
    StudyError, ScenarioError : one line: what is wrong, what is allowed, the nearest match, and where
    """
    data, where = read_sections(path, "plan", "base, load, candidates, …")
    try:
        plan = PlanFile.model_validate(data)
    except ValidationError as error:
        raise one_line(error, data, PlanFile, where) from None
    base, base_where = read_scenario(Path(path).parent / plan.base)
    if plan.slo is not None:
        base["slo"] = plan.slo.model_dump(mode="json", exclude_none=True)
    if not leaf(base, "slo.classes"):
        raise StudyError(
            f"{path}: slo: missing, here and in {plan.base}; give slo: {{classes: {{default: …}}}}"
        )
    settings = [moved(each, Path(path).parent) for each in _configurations(plan, str(path))]
    scenarios: list[Scenario] = []
    for each in settings:
        price = plan.prices.get(str(each.get("device", base.get("device"))))
        priced = {} if price is None else {"price.usd_per_gpu_hour": price}
        scenarios.append(varied(base, base_where, sets, each | priced, f"{path}: candidates"))
    _check_prices(plan, scenarios, str(path))
    _check_load(scenarios, plan.base)
    return CapacityPlan(
        plan.name or Path(path).stem, plan.load.rate_per_s, tuple(settings), tuple(scenarios), plan.requests
    )


def plan_of(
    scenario: Scenario, rate_per_s: float, candidates: Mapping[str, Sequence[Any]], *, requests: int = 1000
) -> CapacityPlan:
    """Return the plan that serves a scenario's workload and SLO at a rate.

    Parameters
    ----------
    scenario : one replica, with a workload and an SLO
    rate_per_s : load of all replicas together [requests/s]
    candidates : leaf, or its short name, to the values it may have; every combination is a configuration
    requests : requests of one probe

    Raises
    ------
    StudyError, ScenarioError : one line: what is wrong
    """
    if not (scenario.slo and scenario.slo.classes):
        raise StudyError("slo: missing; a plan needs thresholds, such as classes: {default: {ttft_s: 500ms}}")
    asked = PlanFile(
        base="",
        load=Load(rate_per_s=rate_per_s),
        candidates={name: list(each) for name, each in candidates.items()},
    )
    settings = _configurations(asked, "plan")
    data = scenario.to_dict()
    scenarios = tuple(varied(data, Where(), (), each, "plan") for each in settings)
    _check_load(scenarios, "plan")
    return CapacityPlan(scenario.name, rate_per_s, tuple(settings), scenarios, requests)


def _configurations(plan: PlanFile, where: str) -> list[Settings]:
    axes: list[list[tuple[str, Any]]] = []
    for key, values in plan.candidates.items():
        listed = cast("list[Any]", values) if isinstance(values, list) else [values]
        if not listed:
            raise StudyError(f"{where}: candidates.{key}: []; allowed: one value or more")
        seen: set[str] = set()
        for value in listed:
            if (word := repr(value)) in seen:
                raise StudyError(f"{where}: candidates.{key}: {word} twice; allowed: each value once")
            seen.add(word)
        axes.append([(SHORT.get(key, key), value) for value in listed])
    if not axes:
        raise StudyError(f"{where}: candidates: nothing to choose from; such as device: [h100_sxm, l40s]")
    count = math.prod(len(axis) for axis in axes)
    if count > MOST_CONFIGURATIONS:
        raise StudyError(f"{where}: candidates: {count:,} configurations; allowed: {MOST_CONFIGURATIONS:,}")
    return [dict(each) for each in itertools.product(*axes)]


def _check_prices(plan: PlanFile, scenarios: Sequence[Scenario], where: str) -> None:
    devices = {str(each.device) for each in scenarios}
    unused = [name for name in plan.prices if name not in devices]
    if unused:
        raise StudyError(
            f"{where}: prices: {unused[0]!r} is no candidate; allowed: {', '.join(sorted(devices))}"
        )


def _check_load(scenarios: Sequence[Scenario], base: str) -> None:
    several = max(scenario.cluster.total for scenario in scenarios)
    if several > 1:
        raise StudyError(
            f"{base}: cluster.replicas: {several}; allowed: 1, as a plan counts the replicas itself"
        )
    if any(scenario.cluster.autoscale is not None for scenario in scenarios):
        raise StudyError(f"{base}: cluster.autoscale: allowed: null, as a plan counts the replicas itself")
    workload = scenarios[0].workload
    if workload is None:
        raise StudyError(f"{base}: workload: missing; a plan serves the base scenario's workload")
    if workload.trace is None and not hasattr(workload.arrivals, "rate_per_s"):
        raise StudyError(f"{base}: workload.arrivals: a plan needs arrivals with a rate_per_s, or a trace")
