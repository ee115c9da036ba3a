"""Who drafts in speculative decoding: a model of its own, or a head of one layer on top of the target."""

from __future__ import annotations

from dataclasses import dataclass, replace

from .errors import MemboundError
from .precision import Quantization
from .spec import Attention, LayerGroup, Linear, ModelSpec, MultiHeadLatentAttention

HEADS = ("eagle", "mtp")
"""Methods whose draft is a head of the target."""


@dataclass(frozen=True, slots=True)
class Draft:
    """What drafts, and how it is held.

    Attributes
    ----------
    model : the draft model, or a head written as a model of one layer
    quantization : its number formats; the KV cache is of the target's dtype
    shared_tables : embedding and output head are the target's
    """

    model: ModelSpec
    quantization: Quantization
    shared_tables: bool = False


def head_of(target: ModelSpec, method: str) -> ModelSpec:
    """Return the draft head of a model: one of its layers on two concatenated hidden states, and its LM head.

    EAGLE (Li et al., ICML 2024) and DeepSeek's multi-token prediction both join the target's hidden state with the
    next token's embedding (a matrix of 2 x hidden by hidden), run one decoder layer, and share embedding and LM head.

    Approximation: the layer is the last of the target that keeps a KV cache of its own, as it is; EAGLE heads of
    models with experts are trained with a dense layer instead, and EAGLE-3 heads with a smaller vocabulary.

    Raises
    ------
    MemboundError
        ``mtp`` of a model whose config names no such layer, or a model without attention.
    """
    if method == "mtp" and not target.mtp_layers:
        raise MemboundError(
            f"speculative.method: 'mtp', but the config of {target.id} names no multi-token-prediction layer; "
            "allowed: draft, ngram, eagle"
        )
    order = target.order or tuple(range(len(target.layers)))
    layer = next((target.layers[at] for at in reversed(order) if _has_own_cache(target.layers[at])), None)
    if layer is None:
        raise MemboundError(
            f"speculative.method: {method!r} needs a layer with attention; {target.id} has none; allowed: draft, ngram"
        )
    join = Linear("fc", target.hidden, 2 * target.hidden, "replicated", quantized=False)
    return replace(
        target,
        id=f"{target.id} {method} head",
        layers=(replace(layer, count=1),),
        order=(0,),
        linears=(join,),
        tied_embeddings=True,
        other_params=target.hidden,
        vision_params=0,
        per_layer_embedding_params=0,
        mtp_layers=0,
    )


def _has_own_cache(layer: LayerGroup) -> bool:
    mixer = layer.mixer
    if isinstance(mixer, Attention):
        return not mixer.kv_shared
    return isinstance(mixer, MultiHeadLatentAttention)
