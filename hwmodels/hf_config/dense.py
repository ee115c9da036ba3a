"""Layers of the Llama-like majority: attention with grouped heads, then a dense or an expert network."""

from __future__ import annotations

from ..errors import ModelConfigError
from ..spec import FFN, Attention
from .blocks import Layer, dense_ffn, moe_ffn, softmax_attention
from .keys import Config
from .traits import Traits


def heads_of(config: Config, family: str) -> tuple[int, int, int]:
    """Return (query heads, KV heads, head width); a declared ``head_dim`` wins, null means absent."""
    n_heads = config.size("num_attention_heads")
    n_kv = config.size("num_key_value_heads", n_heads)
    if family in ("falcon", "RefinedWeb", "RefinedWebModel", "gpt_bigcode"):
        # Falcon-7B and SantaCoder name no KV heads but say multi_query; Falcon-40B names them.
        named = config.get("num_key_value_heads") is not None
        if config.flag("multi_query", False) and not (
            config.flag("new_decoder_architecture", False) and named
        ):
            n_kv = 1
    if family == "chatglm" and not config.flag("multi_query_attention", False):
        n_kv = n_heads
    hidden = config.size("hidden_size")
    if not config.has("head_dim") and hidden % n_heads:
        raise ModelConfigError(
            f"{config.where}: hidden_size {hidden} is no multiple of num_attention_heads {n_heads}; allowed: one, "
            + "or an explicit head_dim"
        )
    head_dim = config.size("head_dim", hidden // n_heads)
    if n_heads % n_kv:
        raise ModelConfigError(
            f"{config.where}: num_attention_heads {n_heads} is no multiple of num_key_value_heads {n_kv}"
        )
    return n_heads, n_kv, head_dim


def windows_of(config: Config, traits: Traits, layers: int) -> list[tuple[int, bool]]:
    """Return (window, chunked) of each layer; window 0 is full attention.

    A window no shorter than ``max_position_embeddings`` never binds and counts as full.
    """
    window = config.count("sliding_window", 0)
    if traits.window_flag and not config.flag("use_sliding_window", False):
        window = 0
    if config.has("max_position_embeddings") and window >= config.size("max_position_embeddings"):
        window = 0
    kinds = config.per_layer("layer_types", layers)
    if kinds:
        chunk = config.count("attention_chunk_size", 0)
        table = {"sliding_attention": (window, False), "chunked_attention": (chunk, True)}
        return [table.get(str(kind), (0, False)) for kind in kinds]
    every = config.count("sliding_window_pattern", traits.full_every)
    first = config.count("max_window_layers", 0) if traits.window_flag else 0
    return [(0 if i < first or (every and (i + 1) % every == 0) else window, False) for i in range(layers)]


def attention_norms(traits: Traits, config: Config, attention: Attention) -> int:
    """Parameters of the query and key norms and of the sinks of one layer."""
    sinks = attention.n_heads if attention.sinks else 0
    kind = traits.qk_norm
    if kind == "none" and (config.flag("use_qk_norm", False) or config.flag("qk_ln", False)):
        kind = "head"
    if kind == "head":
        return sinks + traits.norm_width(attention.head_dim) * (1 if attention.kv_shared else 2)
    if kind == "full":
        width = (attention.n_heads + attention.n_kv_heads) * attention.head_dim
        return sinks + traits.norm_width(width)
    return sinks


def is_moe_layer(config: Config, layers: int) -> list[bool]:
    """Which layers hold routed experts, under the names different families gave that choice."""
    if not config.count("num_experts", 0):
        return [False] * layers
    if isinstance(config.get("moe_layer_freq"), list):
        return [bool(flag) for flag in config.per_layer("moe_layer_freq", layers)]
    dense_first = config.count("first_k_dense_replace", 0)
    only_dense = config.indices("mlp_only_layers")
    step = config.size("decoder_sparse_step", config.size("interleave_moe_layer_step", 1))
    period = config.size("moe_layer_freq", 1)
    return [
        i >= dense_first and i not in only_dense and (i + 1) % step == 0 and i % period == 0
        for i in range(layers)
    ]


def shared_width(config: Config, expert: int) -> int:
    """Summed width of the shared experts [elements]; 0 if there are none."""
    for key in (
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
        "share_expert_dim",
    ):
        if config.has(key):
            return config.count(key)
    return config.count("n_shared_experts", 0) * expert


def expert_ffn(config: Config, traits: Traits) -> FFN:
    """The expert layer that the config describes."""
    hidden = config.size("hidden_size")
    width = config.size("moe_intermediate_size", config.size("intermediate_size", 1))
    return moe_ffn(
        hidden,
        config.size("num_experts"),
        config.size("num_experts_per_tok"),
        width,
        gated=traits.gated,
        shared=shared_width(config, width),
        shared_gate=traits.shared_gate,
        router_bias=traits.router_bias,
        expert_bias=traits.expert_bias,
    )


def intermediate_of(config: Config, traits: Traits) -> int:
    """Width of a dense feed-forward layer [elements]."""
    hidden = config.size("hidden_size")
    if traits.intermediate_factor and not config.has("intermediate_size"):
        factor = config.number("expansion_ratio", config.number("mlp_ratio", traits.intermediate_factor))
        return int(factor * hidden)
    return config.size("intermediate_size")


def dense_layer_ffn(config: Config, traits: Traits) -> FFN:
    """The dense feed-forward layer that the config describes."""
    bias = traits.mlp_bias or config.flag("mlp_bias", False)
    return dense_ffn(config.size("hidden_size"), intermediate_of(config, traits), traits.gated, bias)


def attention_biases(config: Config, traits: Traits) -> tuple[bool, bool]:
    """Whether the q/k/v and the output projection have biases."""
    flag = config.flag("attention_bias", False)
    return traits.qkv_bias or flag, traits.o_bias or (flag and traits.attention_bias == "all")


def dense_layers(config: Config, traits: Traits, family: str) -> list[Layer]:
    """Every layer of a model whose layers are attention + feed-forward."""
    hidden = config.size("hidden_size")
    count = config.size("num_hidden_layers")
    n_heads, n_kv, head_dim = heads_of(config, family)
    v_head_dim = config.count("v_head_dim", 0)
    qkv_bias, o_bias = attention_biases(config, traits)
    moe = is_moe_layer(config, count)
    expert = expert_ffn(config, traits) if any(moe) else None
    dense = dense_layer_ffn(config, traits) if not all(moe) else None
    layers: list[Layer] = []
    for i, (window, chunked) in enumerate(windows_of(config, traits, count)):
        attention = softmax_attention(
            hidden, n_heads, n_kv, head_dim, v_head_dim,
            qkv_bias=qkv_bias, o_bias=o_bias, window=window, chunked=chunked, sinks=traits.sinks,
        )  # fmt: skip
        norms = traits.norms * traits.norm_width(hidden) + attention_norms(traits, config, attention)
        layers.append(Layer(attention, expert if moe[i] else dense, norms))
    return layers
