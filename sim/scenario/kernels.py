"""What a scenario's ``kernels`` section asks of the rest, and what to say of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..fields import ScenarioError

if TYPE_CHECKING:
    from ...hwmodels.engine import EngineProfile
    from ...hwmodels.model import ModelSpec
    from .schema import Scenario


def check_cascade(scenario: Scenario, engine: EngineProfile, model: ModelSpec) -> list[str]:
    """Return what a user should know of ``kernels.disable_cascade_attn: false``.

    Raises
    ------
    ScenarioError : a combination that is not built, or an engine that has no such flag
    """
    from ...hwmodels.spec import Attention

    if scenario.kernels.disable_cascade_attn is not False:
        return []
    where = "kernels.disable_cascade_attn: false"
    refused = {
        "engine": (engine.engine != "vllm", f"it is a flag of vLLM, not of {engine.id}"),
        "kernels.attention": (scenario.kernels.attention != "flash", "allowed with it: flash"),
        "kv_cache.allocator": (scenario.kv_cache.allocator != "paged", "allowed with it: paged"),
        "speculative": (scenario.speculative is not None, "allowed with it: null"),
        "compute_split": (scenario.compute_split is not None, "allowed with it: null"),
        "parallelism.pipeline_parallel_size": (
            scenario.parallelism.pipeline_parallel_size > 1,
            "allowed with it: 1",
        ),
    }
    for leaf, (there, allowed) in refused.items():
        if there:
            raise ScenarioError(f"{where} is not built for what {leaf} says; {allowed}")
    mixers = [mixer for _, mixer in model.mixers()]
    if not all(isinstance(mixer, Attention) and not mixer.window for mixer in mixers):
        return [f"{where}: not all layers of {model.id} keep keys of all tokens, so vLLM never takes it"]
    if scenario.kv_cache.enable_prefix_caching is False:
        return [f"{where}: without prefix caching no blocks are shared; it changes nothing"]
    return [
        f"{where} is an unvalidated lever: no such kernel was measured; chunks of prompts still read their prefix "
        "each, and leaving CUDA graphs for such steps is not charged"
    ]
