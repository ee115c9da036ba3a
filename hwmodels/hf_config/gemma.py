"""Gemma 3n and Gemma 4: global and local layers of different shape, shared KV, per-layer embeddings.

Sources: transformers' ``modeling_gemma3n.py`` and ``modeling_gemma4.py``, and the model cards.
"""

from __future__ import annotations

from ..spec import FFN, Attention, Linear
from .blocks import Layer, dense_ffn, moe_ffn, softmax_attention
from .keys import Config
from .mixers import heads_of, windows_of
from .traits import Traits


def shared_from(config: Config) -> int:
    """First layer that reuses an earlier layer's KV."""
    return config.size("num_hidden_layers") - config.count("num_kv_shared_layers", 0)


def per_layer_linears(config: Config) -> tuple[Linear, ...]:
    """The two small matrices by which a layer takes in its own embedding; none without such embeddings."""
    width, hidden = config.count("hidden_size_per_layer_input", 0), config.size("hidden_size")
    if not width:
        return ()
    return (
        Linear("per_layer_input_gate", width, hidden, "replicated", quantized=False),
        Linear("per_layer_projection", hidden, width, "replicated", quantized=False),
    )


def per_layer_inputs(config: Config) -> tuple[tuple[Linear, ...], int, int]:
    """Return (matrices, lookup-table parameters, norm parameters) of the model's per-layer embeddings."""
    width = config.count("hidden_size_per_layer_input", 0)
    if not width:
        return (), 0, 0
    total = width * config.size("num_hidden_layers")
    projection = Linear(
        "per_layer_model_projection", total, config.size("hidden_size"), "replicated", quantized=False
    )
    rows = config.size("vocab_size_per_layer_input", config.size("vocab_size"))
    return (projection,), rows * total, width


def gemma4_layers(config: Config, traits: Traits) -> list[Layer]:
    """Local layers with ``head_dim``, global ones with ``global_head_dim`` and KV heads of their own."""
    hidden, count = config.size("hidden_size"), config.size("num_hidden_layers")
    n_heads, n_kv, head_dim = heads_of(config, "gemma4")
    wide = config.flag("use_double_wide_mlp", False)
    layers: list[Layer] = []
    for i, (window, _) in enumerate(windows_of(config, traits, count)):
        shared = i >= shared_from(config)
        same = config.flag("attention_k_eq_v", False) and not window
        attention = softmax_attention(
            hidden,
            n_heads,
            n_kv if window else config.size("num_global_key_value_heads", n_kv),
            head_dim if window else config.size("global_head_dim", head_dim),
            window=window,
            kv_shared=shared,
            values_are_keys=same,
        )
        ffn, extra = _gemma4_ffn(config, 2 if wide and shared else 1)
        per_layer = hidden if config.count("hidden_size_per_layer_input", 0) else 0
        norms = traits.norms * hidden + per_layer + extra + 1  # 1: the layer's output scale
        layers.append(Layer(attention, ffn, norms + _head_norms(attention)))
    return layers


def _head_norms(attention: Attention) -> int:
    return attention.head_dim * (1 if attention.kv_shared else 2)


def _gemma4_ffn(config: Config, factor: int) -> tuple[FFN, int]:
    """The feed-forward part and its extra norms; with experts, the dense network runs beside them."""
    hidden, width = config.size("hidden_size"), config.size("intermediate_size")
    if not config.flag("enable_moe_block", False):
        return dense_ffn(hidden, width * factor, gated=True, extra=per_layer_linears(config)), 0
    experts = config.size("num_experts")
    ffn = moe_ffn(
        hidden,
        experts,
        config.size("num_experts_per_tok"),
        config.size("moe_intermediate_size"),
        shared=width * factor,
    )
    return ffn, 3 * hidden + hidden + experts  # three norms, the router's input scale, a scale per expert


def gemma3n_layers(config: Config, traits: Traits) -> list[Layer]:
    """Gemma 3n: per-layer embeddings, low-rank learned residual (laurel), residual streams (altup)."""
    hidden, count = config.size("hidden_size"), config.size("num_hidden_layers")
    shape = heads_of(config, "gemma3n")
    streams, rank = config.size("altup_num_inputs", 4), config.size("laurel_rank", 64)
    listed = isinstance(config.get("intermediate_size"), list)
    widths = config.counts("intermediate_size", count) if listed else []
    extra = (
        *per_layer_linears(config),
        Linear("laurel_left", rank, hidden, "replicated"),
        Linear("laurel_right", hidden, rank, "replicated"),
        Linear("altup_router", streams, hidden, "replicated", quantized=False),
    )
    altup = streams * streams + streams**3 + 2 * hidden  # correction, prediction, router norm, output scale
    layers: list[Layer] = []
    for i, (window, _) in enumerate(windows_of(config, traits, count)):
        width = widths[i] if widths else config.size("intermediate_size")
        # Unlike Gemma 4, the checkpoint keeps the unused key and value matrices of layers that share KV.
        attention = softmax_attention(hidden, *shape, window=window)
        if i >= shared_from(config):
            attention = Attention(*shape, shape[2], window, kv_shared=True, linears=attention.linears)
        norms = traits.norms * hidden + 2 * hidden + altup + 2 * attention.head_dim
        layers.append(Layer(attention, dense_ffn(hidden, width, gated=True, extra=extra), norms))
    return layers


def altup_linears(config: Config) -> tuple[Linear, ...]:
    """The matrices that spread the embedding over Gemma 3n's residual streams and gather them at the end."""
    hidden, extra = config.size("hidden_size"), config.size("altup_num_inputs", 4) - 1
    return (
        Linear("altup_projections", extra * hidden, hidden, "replicated", quantized=False),
        Linear("altup_unembed_projections", hidden, extra * hidden, "replicated", quantized=False),
    )
