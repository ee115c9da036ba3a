"""How many parameters a model has, and where: pure sums over a ``ModelSpec``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .spec import DenseFFN, LayerGroup, Linear, ModelSpec, MoEFFN, Recurrent


@dataclass(frozen=True, slots=True)
class ParameterCount:
    """Parameters by where they are [elements].

    Attributes
    ----------
    total : everything that is loaded, vision tower included, multi-token-prediction layers excluded
    active : what one text token uses: all but the vision tower, the experts it does not visit and the
        per-layer lookup tables; input embedding and head count in full, as in most published figures
    embedding, head : input embedding; output head, 0 where tied
    per_layer_embedding : lookup tables beside the embedding (Gemma 3n/4)
    mixers : attention and recurrent layers, their convolutions and state parameters included
    dense_ffn, router, shared_experts, routed_experts : feed-forward parts
    norms : norms inside layers, sinks and other per-layer vectors
    other : final norm, learned positions, biases of the head, matrices between embedding and layers
    vision : vision tower and projector
    """

    total: int
    active: int
    embedding: int
    head: int
    per_layer_embedding: int
    mixers: int
    dense_ffn: int
    router: int
    shared_experts: int
    routed_experts: int
    norms: int
    other: int
    vision: int


def linear_params(linears: Iterable[Linear]) -> int:
    """Weights and biases of some matrices [elements]."""
    return sum(linear.params for linear in linears)


def parameter_count(model: ModelSpec) -> ParameterCount:
    """Count a model's parameters.

    Examples
    --------
    >>> from membound.hwmodels.model import load_model
    >>> from membound.hwmodels.params import parameter_count
    >>> parameter_count(load_model("llama-3.1-8b")).total
    8030261248
    """
    layers = model.layers
    embedding = model.vocab * model.embedding_dim
    routed = sum(g.count * _routed(g) for g in layers)
    visited = sum(g.count * _visited(g) for g in layers)
    parts = {
        "embedding": embedding,
        "head": model.head_params,
        "per_layer_embedding": model.per_layer_embedding_params,
        "mixers": sum(g.count * _mixer(g) for g in layers),
        "dense_ffn": sum(
            g.count * linear_params(g.ffn.linears) for g in layers if isinstance(g.ffn, DenseFFN)
        ),
        "router": sum(g.count * _always_on(g, router=True) for g in layers),
        "shared_experts": sum(g.count * _always_on(g, router=False) for g in layers),
        "routed_experts": routed,
        "norms": sum(g.count * g.norm_params for g in layers),
        "other": model.other_params + linear_params(model.linears),
        "vision": model.vision_params,
    }
    total = sum(parts.values())
    active = total - routed + visited - model.vision_params - model.per_layer_embedding_params
    return ParameterCount(total=total, active=active, **parts)


def _mixer(group: LayerGroup) -> int:
    if group.mixer is None:
        return 0
    extra = group.mixer.other_params if isinstance(group.mixer, Recurrent) else 0
    return linear_params(group.mixer.linears) + extra


def _routed(group: LayerGroup) -> int:
    ffn = group.ffn
    return ffn.n_experts * linear_params(ffn.expert_linears) if isinstance(ffn, MoEFFN) else 0


def _visited(group: LayerGroup) -> int:
    ffn = group.ffn
    return ffn.top_k * linear_params(ffn.expert_linears) if isinstance(ffn, MoEFFN) else 0


def _always_on(group: LayerGroup, router: bool) -> int:
    if not isinstance(group.ffn, MoEFFN):
        return 0
    return linear_params(linear for linear in group.ffn.linears if (linear.name == "router") == router)
