"""From a scenario to what the engine runs: entries loaded, every ``auto`` filled, the load read or drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Literal

from ...hwmodels.prices import list_price
from ..fields import AUTO, ScenarioError
from .colocated import share_memory, with_colocated
from .failing import check_failures
from .groups import with_groups
from .kernels import check_cascade
from .kvlevers import with_kv_levers
from .parallel import check_experts, check_parallelism, networks_of, unvalidated_parallelism, with_link
from .resolved import Group, KVCacheSettings, ResolvedScenario, SchedulerSettings
from .schema import Scenario
from .split import splitting

if TYPE_CHECKING:
    from ...hwmodels.device import DeviceProfile
    from ...hwmodels.drafting import Draft
    from ...hwmodels.engine import EngineDefaults, EngineProfile
    from ...hwmodels.model import ModelSpec
    from ..workload.workload import Workload

__all__ = ["SCHEDULER_LIMITS", "Group", "KVCacheSettings", "ResolvedScenario", "SchedulerSettings", "resolve"]

Purpose = Literal["simulate", "size"]

SCHEDULER_LIMITS = (
    "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "long_prefill_token_threshold",
    "scheduler_reserve_full_isl", "watermark", "scheduling_policy",
)  # fmt: skip
"""Leaves of the scheduler section that a policy follows if its constructor names them."""


def resolve(scenario: Scenario, purpose: Purpose = "simulate") -> ResolvedScenario:
    """Load what a scenario names and fill in what it leaves open.

    Parameters
    ----------
    scenario : the question
    purpose : ``simulate`` reads or draws the load; ``size`` leaves it alone and allows every parallelism

    Raises
    ------
    MemboundError : one line: an unknown device, engine or model, a trace that cannot be read, ...
    """
    resolved = _resolve_one(scenario, purpose)
    if purpose == "size":
        return resolved
    beside = with_colocated(resolved, lambda own: _resolve_one(own, purpose))
    whole = with_groups(beside, lambda own: _resolve_one(own, purpose, resolved.workload))
    check_failures(whole)
    return whole


def _resolve_one(scenario: Scenario, purpose: Purpose, workload: Workload | None = None) -> ResolvedScenario:
    """Resolve a scenario as one replica; ``workload`` is given where it is read or drawn already."""
    from ...hwmodels.device import load_device
    from ...hwmodels.engine import load_engine
    from ...hwmodels.model import load_model

    device = with_link(scenario, load_device(scenario.device))
    engine = load_engine(scenario.engine)
    model = load_model(scenario.model)
    check_experts(scenario, model)
    max_model_len, warnings = _max_model_len(scenario, model)
    model, scenario, of_levers = with_kv_levers(model, scenario, max_model_len)
    defaults = engine.resolve_defaults(
        device,
        scenario.parallelism.tensor_parallel_size,
        scenario.parallelism.pipeline_parallel_size,
        max_model_len=max_model_len,
        overrides=_given(scenario),
    )
    filled = _fill(
        share_memory(scenario, defaults.gpu_memory_utilization),
        asdict(defaults)
        | {
            "name": engine.defaults.scheduler,
            "max_model_len": max_model_len,
            "block_size": _block_size(scenario, device, engine, model, defaults),
        },
    )
    draft = draft_of(scenario, model)
    if purpose == "simulate":
        check_parallelism(scenario, model, filled.scheduler.name)
        filled = splitting(scenario, _speculating(scenario, filled))
    if purpose == "simulate" and workload is None:
        workload = _workload(filled, engine)
    price, note = _price(scenario, device)
    return ResolvedScenario(
        scenario=filled,
        device=device,
        engine=engine,
        model=model,
        scheduler=SchedulerSettings(**filled.scheduler.model_dump()),
        kv_cache=KVCacheSettings(
            **filled.kv_cache.model_dump(include=set(KVCacheSettings.__slots__) - {"eviction"}),
            eviction=filled.kv_cache.eviction,
        ),
        workload=workload,
        slo_classes={name: slo.thresholds() for name, slo in scenario.slo.classes.items()}
        if scenario.slo
        else {},
        usd_per_gpu_hour=price,
        price_note=note,
        warnings=(
            *_borrowed(engine, purpose),
            *_whatif(scenario),
            *_unfollowed(scenario, filled.scheduler.name, purpose),
            *warnings,
            *_unvalidated(scenario, purpose),
            *(unvalidated_parallelism(scenario, device, model) if purpose == "simulate" else ()),
            *of_levers,
            *check_cascade(scenario, engine, model),
            *(workload.report.warnings if workload else ()),
        ),
        draft=draft,
        networks=networks_of(scenario),
    )


def draft_of(scenario: Scenario, model: ModelSpec) -> Draft | None:
    """Return what drafts on the device for a scenario's model; None without speculation, and for n-grams.

    Raises
    ------
    MemboundError : an unknown draft model, one of another vocabulary, or a head that the target cannot have
    """
    from ...hwmodels.drafting import HEADS, Draft, head_of
    from ...hwmodels.model import load_model
    from ...hwmodels.precision import Quantization

    asked, formats = scenario.speculative, scenario.quantization
    if asked is None or asked.method == "ngram":
        return None
    if asked.method in HEADS:
        same = Quantization(formats.weights, formats.activations, formats.kv_cache)
        return Draft(head_of(model, asked.method), same, shared_tables=True)
    assert asked.draft_model is not None
    drafts = load_model(asked.draft_model, where="speculative.draft_model")
    return Draft(drafts, Quantization(weights=asked.quantization, kv_cache=formats.kv_cache))


def _speculating(scenario: Scenario, filled: Scenario) -> Scenario:
    """Check what speculation asks of scheduler and limits; n-gram lookup makes vLLM compose synchronously."""
    from ..policies import find_policy

    asked, scheduler = scenario.speculative, filled.scheduler
    if asked is None:
        return filled
    policy = find_policy("scheduler", scheduler.name, "scheduler.name")
    if not vars(policy).get(
        "supports_speculation"
    ):  # said by the policy itself: heirs change who gets the budget
        raise ScenarioError(
            f"scheduler.name: {scheduler.name!r} gives a request one token a step; allowed with speculative: vllm_v1"
        )
    if filled.kv_cache.allocator != "paged":
        raise ScenarioError(
            f"kv_cache.allocator: {filled.kv_cache.allocator!r} has no room for drafted tokens; allowed with "
            "speculative: paged"
        )
    tokens = 1 + asked.num_speculative_tokens * asked.width
    for name in ("max_num_batched_tokens", "long_prefill_token_threshold"):
        limit = getattr(scheduler, name)
        if 0 < limit < tokens:
            raise ScenarioError(
                f"speculative.num_speculative_tokens: a request verifies {tokens} tokens in a step; allowed: at most "
                f"scheduler.{name}, {limit}"
            )
    if asked.method != "ngram":
        return filled
    if scenario.scheduler.async_scheduling is True:
        raise ScenarioError(
            "scheduler.async_scheduling: true with method 'ngram', whose drafts are looked up on the host between two "
            "steps, as in vLLM; allowed: auto, false"
        )
    return filled.model_copy(update={"scheduler": scheduler.model_copy(update={"async_scheduling": False})})


def _unvalidated(scenario: Scenario, purpose: Purpose) -> list[str]:
    """Say of speculation that nothing here was measured against it, and what is not simulated."""
    if scenario.speculative is None or purpose == "size":
        return []
    return [
        "speculative decoding is an unvalidated lever: drafting and verification are timed with lanes fitted to plain "
        "steps, no such step was measured; acceptance is as given, quality is not simulated"
    ]


def _borrowed(engine: EngineProfile, purpose: Purpose) -> list[str]:
    """Say of an engine that is not known in full what a run borrows."""
    if engine.scope == "full" or purpose == "size":
        return []
    return [f"{engine.id}: {engine.notes or 'only the KV pool follows this engine, the rest is borrowed'}"]


def _whatif(scenario: Scenario) -> list[str]:
    """Say of a device that does not exist what it keeps of the one it varies, and what it costs."""
    asked = scenario.device
    if not isinstance(asked, dict):
        return []
    changed = ", ".join(f"{key} {value}" for key, value in asked.items() if key != "base")
    if not changed:
        return []
    priced = "" if scenario.price.usd_per_gpu_hour is not None else f", and the price of {asked['base']}"
    return [
        f"what-if device ({changed}): keeps the shares and fixed times that were fitted to {asked['base']}{priced}; "
        "intervals widen with |ln| of what changes"
    ]


def _unfollowed(scenario: Scenario, policy_name: str, purpose: Purpose) -> list[str]:
    """Say which settings of the scheduler section the policy has no use for.

    The two sizes of a batch are left out: the memory for activations follows them whatever the policy.
    """
    from ..policies import find_policy, parameters

    if purpose == "size":
        return []
    policy = find_policy("scheduler", policy_name, "scheduler.name")
    taken = parameters(policy)
    found = [
        name
        for name in SCHEDULER_LIMITS[2:]
        if name in _given(scenario) and taken is not None and name not in taken
    ]
    if scenario.scheduler.async_scheduling is True and not policy.supports_async:
        found.append("async_scheduling")
    return [f"scheduler.{name}: {policy_name} does not follow it" for name in found]


def _given(scenario: Scenario) -> dict[str, object]:
    """Return the scheduler settings that are not ``auto``: others' defaults follow from some of them."""
    return {key: value for key, value in scenario.scheduler.model_dump().items() if value != AUTO}


def _max_model_len(scenario: Scenario, model: ModelSpec) -> tuple[int, list[str]]:
    asked = scenario.kv_cache.max_model_len
    if asked == AUTO:
        if model.max_position < 1:
            raise ScenarioError(
                f"kv_cache.max_model_len: model {model.id} states no longest sequence; give one"
            )
        return model.max_position, []
    if 0 < model.max_position < asked:
        text = f"kv_cache.max_model_len {asked} is beyond the {model.max_position} positions of {model.id}"
        return asked, [f"{text}; an engine refuses that unless told otherwise"]
    return asked, []


def _block_size(
    scenario: Scenario,
    device: DeviceProfile,
    engine: EngineProfile,
    model: ModelSpec,
    defaults: EngineDefaults,
) -> int:
    """Return the tokens in a block: the allocator's own default, else the engine's.

    vLLM's latent attention kernels ask for larger ones than its default.
    """
    from ...hwmodels.bareengine import rules_of
    from ...hwmodels.capacity import default_block_size
    from ..policies import find_policy

    policy = find_policy("kvcache", scenario.kv_cache.allocator, "kv_cache.allocator")
    own: int | None = getattr(policy, "default_block_size", None)
    if own is not None:
        return own
    if engine.engine != "vllm":
        return defaults.block_size
    return default_block_size(device, model, expanded=rules_of(engine).latent_expanded)


def _fill(scenario: Scenario, known: Mapping[str, object]) -> Scenario:
    """Replace every ``auto`` of the scheduler and the KV cache by what the engine takes."""
    sections = {
        name: section.model_copy(
            update={
                key: known[key]
                for key, value in section.model_dump().items()
                if value == AUTO and key in known
            }
        )
        for name, section in (("scheduler", scenario.scheduler), ("kv_cache", scenario.kv_cache))
    }
    return scenario.model_copy(update=sections)


def _workload(scenario: Scenario, engine: EngineProfile) -> Workload:
    from ..workload.build import build_workload

    if scenario.workload is None:
        raise ScenarioError("workload: missing; give a trace (workload.trace.path), or arrivals and lengths")
    classes = tuple(scenario.slo.classes) if scenario.slo else ()
    turnaround_s = engine.client_overhead_s + engine.client_turnaround_s if engine.scope == "full" else 0.0
    load = build_workload(
        scenario.workload, scenario.simulation.seed, slo_classes=classes, turnaround_s=turnaround_s
    )
    for name in classes:
        if name not in load.slo_classes:
            known = ", ".join(load.slo_classes)
            raise ScenarioError(f"slo.classes.{name}: no request is of this class; allowed: {known}")
    return load


def _price(scenario: Scenario, device: DeviceProfile) -> tuple[float | None, str]:
    """Return what one GPU costs [USD/h], and where that is from."""
    asked = scenario.price
    if asked.usd_per_gpu_hour is not None:
        return asked.usd_per_gpu_hour, "set in the scenario"
    if asked.owned is not None:
        return asked.owned.usd_per_hour(device.tdp_w), "owned: written off, and fed at its power limit"
    spot = asked.plan == "spot"
    kind = "spot price" if spot else "list price" if asked.table is None else "price"
    offer = list_price(device.id, asked.table, spot=spot)
    if offer is None:
        where = "" if asked.table is None else f" in {asked.table}"
        return None, f"no {kind} known for {device.id}{where}; set price.usd_per_gpu_hour"
    return offer.of_plan(spot=spot), f"{kind}, {offer.provider}, {offer.dated}"
