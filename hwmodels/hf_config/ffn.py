"""The feed-forward part of every layer: dense or experts, under the names that families gave the choice."""

from __future__ import annotations

from ..spec import FFN
from .blocks import dense_ffn, moe_ffn
from .keys import Config
from .traits import Traits

_SHARED_WIDTHS = (
    "shared_expert_intermediate_size",
    "moe_shared_expert_intermediate_size",
    "shared_intermediate_size",
    "share_expert_dim",
)


def is_moe_layer(config: Config, layers: int) -> list[bool]:
    """Which layers hold routed experts."""
    if not config.count("num_experts", 0):
        return [False] * layers
    if isinstance(config.get("moe_layer_freq"), list) and config.items("moe_layer_freq"):
        return [bool(flag) for flag in config.per_layer("moe_layer_freq", layers)]
    if config.items("mlp_layer_types"):
        return [kind == "sparse" for kind in config.per_layer("mlp_layer_types", layers)]
    if config.items("moe_layers"):
        chosen = set(config.counts("moe_layers"))
        return [i in chosen for i in range(layers)]
    if config.has("moe_layers_enum"):  # Step-3.5: numbers in one word
        chosen = {
            int(number) for number in config.text("moe_layers_enum").split(",") if number.strip().isdigit()
        }
        return [i in chosen for i in range(layers)]
    dense_first = config.count("first_k_dense_replace", 0)
    only_dense = config.counts("mlp_only_layers")
    step = config.size("decoder_sparse_step", config.size("interleave_moe_layer_step", 1))
    period = config.size("moe_layer_freq", 1)
    return [
        i >= dense_first and i not in only_dense and (i + 1) % step == 0 and i % period == 0
        for i in range(layers)
    ]


def intermediate_of(config: Config, traits: Traits) -> int:
    """Width of a dense feed-forward layer [elements]."""
    if config.has("intermediate_size_mlp"):  # Llama 4: intermediate_size is the experts'
        return config.size("intermediate_size_mlp")
    if traits.intermediate_factor and not config.has("intermediate_size"):
        factor = config.number("expansion_ratio", config.number("mlp_ratio", traits.intermediate_factor))
        return int(factor * config.size("hidden_size"))
    width = config.size("intermediate_size")
    return width // 2 if traits.half_intermediate else width


def _shared_width(config: Config, expert: int) -> int:
    for key in _SHARED_WIDTHS:
        if config.has(key):
            return config.count(key)
    if config.has("intermediate_size_mlp"):  # Llama 4: one shared expert as wide as a routed one
        return expert
    return config.count("n_shared_experts", 0) * expert


def expert_ffn(config: Config, traits: Traits) -> FFN:
    """The expert layer that the config describes."""
    width = config.size("moe_intermediate_size", config.size("intermediate_size", 1))
    return moe_ffn(
        config.size("hidden_size"),
        config.size("num_experts"),
        config.size("num_experts_per_tok"),
        width,
        gated=traits.gated,
        shared=_shared_width(config, width),
        shared_gate=traits.shared_gate,
        router_bias=traits.router_bias,
        expert_bias=traits.expert_bias,
    )


def dense_layer_ffn(config: Config, traits: Traits) -> FFN:
    """The dense feed-forward layer that the config describes."""
    bias = traits.mlp_bias or config.flag("mlp_bias", False) or config.flag("add_bias_linear", False)
    return dense_ffn(config.size("hidden_size"), intermediate_of(config, traits), traits.gated, bias)


def ffns_of(config: Config, traits: Traits) -> list[FFN]:
    """The feed-forward part of every layer; None in all where the config holds attention fields alone."""
    layers = config.size("num_hidden_layers")
    given = config.has("intermediate_size") or config.has("moe_intermediate_size")
    if not given and not traits.intermediate_factor and not config.has("vocab_size"):
        config.note(
            "partial config without intermediate_size and vocab_size: attention only, no parameter count"
        )
        return [None] * layers
    moe = is_moe_layer(config, layers)
    expert = expert_ffn(config, traits) if any(moe) else None
    dense = dense_layer_ffn(config, traits) if not all(moe) else None
    return [expert if flag else dense for flag in moe]
