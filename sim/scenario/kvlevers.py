"""The levers of a scenario that change what is kept in the KV cache: applied to its model, and what to say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..fields import AUTO, ScenarioError

if TYPE_CHECKING:
    from ...hwmodels.model import ModelSpec
    from .schema import Scenario
    from .sections import Eviction

UNMEASURED = {"int8", "int4", "fp4", "nvfp4"}
"""KV dtypes of which no attention kernel was measured."""


def with_kv_levers(
    model: ModelSpec, scenario: Scenario, max_model_len: int
) -> tuple[ModelSpec, Scenario, list[str]]:
    """Return the model as its KV cache is kept, the scenario as it can then be run, and what a user should know.

    Raises
    ------
    MemboundError : a combination that cannot be
    """
    from ...hwmodels.kvlevers import keep_share, keep_window, share_layers

    cache, said = scenario.kv_cache, list[str]()
    dtype = scenario.quantization.kv_cache
    if dtype in UNMEASURED:
        said.append(
            f"quantization.kv_cache {dtype} is an unvalidated lever: no attention kernel with it was measured, it is "
            "timed as the 8-bit lane with its bytes, unpacking not charged beyond that; quality is not simulated"
        )
    if cache.cross_layer_sharing > 1:
        model = share_layers(model, cache.cross_layer_sharing)
        said.append(
            "kv_cache.cross_layer_sharing is an unvalidated lever: capacity alone, all weights and reads stay; quality "
            "is not simulated"
        )
    eviction = cache.eviction
    if eviction is None:
        return model, scenario, said
    if eviction.keeps_all(max_model_len):
        return model, scenario.replace(kv_cache__eviction=None), said
    _check(scenario, eviction)
    if eviction.kind == "snapkv":
        _check_selection(scenario, model)
    said.append(_said_of(eviction))
    if cache.enable_prefix_caching == AUTO:
        scenario = scenario.replace(kv_cache__enable_prefix_caching=False)
        said.append("kv_cache.enable_prefix_caching: off, what eviction leaves is no prefix")
    if eviction.kind == "snapkv":
        return model, scenario, said
    if eviction.budget is not None:
        return keep_share(model, eviction.budget), scenario, said
    sinks = eviction.seen - eviction.latest
    return keep_window(model, eviction.latest, sinks), scenario, said


def _check(scenario: Scenario, eviction: Eviction) -> None:
    cache = scenario.kv_cache
    if cache.enable_prefix_caching is True:
        raise ScenarioError(
            f"kv_cache.enable_prefix_caching: true with eviction {eviction.kind}, which leaves no prefixes; "
            "allowed: auto, false"
        )
    if cache.tiers:
        raise ScenarioError(
            f"kv_cache.tiers: they keep prefixes, which eviction {eviction.kind} does not leave; "
            "allowed with eviction: []"
        )
    if scenario.speculative is not None:
        raise ScenarioError(
            "kv_cache.eviction: what a rejected draft has evicted cannot come back; allowed with speculative: null"
        )
    if eviction.kind in ("window", "sinks") and scenario.scheduler.preemption_mode == "swap":
        raise ScenarioError(
            f"scheduler.preemption_mode: a ring of {eviction.kind} is never preempted; allowed: recompute"
        )


def _check_selection(scenario: Scenario, model: ModelSpec) -> None:
    """Refuse what cannot drop a part of a prompt when it ends."""
    from ...hwmodels.spec import Attention, MultiHeadLatentAttention

    mixers = [mixer for _, mixer in model.mixers()]
    if any(isinstance(mixer, MultiHeadLatentAttention) for mixer in mixers) or any(
        isinstance(mixer, Attention) and mixer.window for mixer in mixers
    ):
        raise ScenarioError(
            f"kv_cache.eviction.kind: snapkv, but {model.id} keeps latents or windows, of which nothing is chosen; "
            "allowed: models whose attention sees all keys"
        )
    if scenario.kv_cache.allocator != "paged":
        raise ScenarioError(
            f"kv_cache.allocator: {scenario.kv_cache.allocator!r} takes nothing back of a request that runs; allowed "
            "with eviction snapkv: paged"
        )
    if scenario.scheduler.preemption_mode == "swap":
        raise ScenarioError(
            "scheduler.preemption_mode: swapping what eviction snapkv has left of a request is not built yet; allowed: "
            "recompute"
        )


def attention_of(scenario: Scenario) -> str:
    """Return the attention that runs: whoever evicts by scores all along needs them, which flash does not write."""
    eviction = scenario.kv_cache.eviction
    if eviction is not None and eviction.kind == "h2o" and eviction.budget != 1:
        return "naive"
    return scenario.kernels.attention


def _said_of(eviction: Eviction) -> str:
    what = (
        f"kv_cache.eviction {eviction.kind} is an unvalidated lever, no such run was measured; quality is not "
        "simulated"
    )
    if eviction.kind == "snapkv":
        return f"{what}; no kernel that chooses a prompt's entries was measured, it is timed by its bytes"
    if eviction.budget is None:
        return what
    return f"{what}; scores are needed, so attention is timed as naive: the score matrix goes through memory"
