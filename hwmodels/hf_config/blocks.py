"""Building blocks: the matrices of attention, feed-forward and experts, fused the way engines fuse them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..spec import FFN, Attention, DenseFFN, LayerGroup, Linear, Mixer, MoEFFN


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer as a family reader describes it; equal layers are grouped afterwards."""

    mixer: Mixer
    ffn: FFN
    norm_params: int = 0


def group_layers(layers: Iterable[Layer]) -> tuple[tuple[LayerGroup, ...], tuple[int, ...]]:
    """Count equal layers; return the groups in order of appearance and the group of each layer."""
    index: dict[Layer, int] = {}
    order = tuple(index.setdefault(layer, len(index)) for layer in layers)
    groups = tuple(
        LayerGroup(order.count(i), layer.mixer, layer.ffn, layer.norm_params) for layer, i in index.items()
    )
    return groups, order


def softmax_attention(
    hidden: int,
    n_heads: int,
    n_kv_heads: int,
    head_dim: int,
    v_head_dim: int = 0,
    *,
    qkv_bias: bool = False,
    o_bias: bool = False,
    window: int = 0,
    chunked: bool = False,
    kv_shared: bool = False,
    values_are_keys: bool = False,
    query_gate: bool = False,
    sinks: bool = False,
    norm_over_heads: bool = False,
    extra: tuple[Linear, ...] = (),
) -> Attention:
    """Attention with one fused q/k/v matrix and an output matrix.

    Parameters
    ----------
    hidden, n_heads, n_kv_heads, head_dim, v_head_dim : widths [elements]; v_head_dim 0 means head_dim
    window, chunked, kv_shared, sinks, norm_over_heads : as in ``Attention``
    values_are_keys : values come from the key matrix; both are cached all the same (Gemma 4's full layers)
    query_gate : the query matrix also makes an output gate of the same width (Qwen3-Next)
    extra : further matrices (a gate per head)
    """
    values = v_head_dim or head_dim
    width = n_heads * head_dim * (2 if query_gate else 1)
    if not kv_shared:
        width += n_kv_heads * (head_dim + (0 if values_are_keys else values))
    return Attention(
        n_heads=n_heads,
        n_kv_heads=n_kv_heads,
        head_dim=head_dim,
        v_head_dim=values,
        window=window,
        chunked=chunked and window > 0,
        kv_shared=kv_shared,
        linears=(
            Linear("qkv_proj", width, hidden, "column", bias=qkv_bias),
            Linear("o_proj", hidden, n_heads * values, "row", bias=o_bias),
            *extra,
        ),
        sinks=sinks,
        norm_over_heads=norm_over_heads,
    )


def ffn_linears(
    hidden: int, intermediate: int, gated: bool, bias: bool = False, prefix: str = ""
) -> tuple[Linear, ...]:
    """The two matrices of a feed-forward layer: (gate and) up, then down."""
    up = "gate_up_proj" if gated else "up_proj"
    return (
        Linear(prefix + up, intermediate * (2 if gated else 1), hidden, "column", bias=bias),
        Linear(prefix + "down_proj", hidden, intermediate, "row", bias=bias),
    )


def dense_ffn(
    hidden: int, intermediate: int, gated: bool, bias: bool = False, extra: tuple[Linear, ...] = ()
) -> DenseFFN:
    """A feed-forward layer of two (gated: three) matrices."""
    return DenseFFN(intermediate, gated, (*ffn_linears(hidden, intermediate, gated, bias), *extra))


def moe_ffn(
    hidden: int,
    n_experts: int,
    top_k: int,
    intermediate: int,
    *,
    gated: bool = True,
    shared: int = 0,
    shared_gate: bool = False,
    router_bias: bool = False,
    expert_bias: bool = False,
) -> MoEFFN:
    """Routed experts, their router and the shared experts (``shared``: their summed width, 0 for none).

    ``shared_gate`` is the one-row matrix that weighs the shared expert (Qwen2-MoE, Qwen3-Next).
    """
    always = (Linear("router", n_experts, hidden, "replicated", bias=router_bias, quantized=False),)
    if shared:
        always += ffn_linears(hidden, shared, gated, prefix="shared_")
    if shared and shared_gate:
        always += (Linear("shared_gate", 1, hidden, "replicated", quantized=False),)
    return MoEFFN(
        n_experts=n_experts,
        top_k=top_k,
        intermediate=intermediate,
        gated=gated,
        shared_intermediate=shared,
        linears=always,
        expert_linears=ffn_linears(hidden, intermediate, gated, expert_bias, prefix="expert_"),
    )
