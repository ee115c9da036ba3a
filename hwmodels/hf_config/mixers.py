"""The sequence mixer of every layer: which kind, how many heads, which window."""

from __future__ import annotations

from ..errors import ModelConfigError
from ..spec import Attention, Linear, Mixer
from .blocks import softmax_attention
from .keys import Config
from .mla import compressed_attention, latent_attention
from .recurrent import gated_delta_net
from .traits import QkNorm, Traits

_FALCONS = ("falcon", "RefinedWeb", "RefinedWebModel")


def heads_of(config: Config, family: str) -> tuple[int, int, int]:
    """Return (query heads, KV heads, head width); a declared ``head_dim`` wins, null means absent."""
    n_heads = config.size("num_attention_heads")
    n_kv = config.size("num_key_value_heads", n_heads)
    if (family in _FALCONS and not is_new_falcon(config)) or family == "gpt_bigcode":
        n_kv = 1 if config.flag("multi_query", True) else n_heads
    if family == "chatglm" and not config.flag("multi_query_attention", False):
        n_kv = n_heads
    hidden = config.size("hidden_size")
    if not config.has("head_dim") and hidden % n_heads:
        raise ModelConfigError(
            f"{config.where}: hidden_size {hidden} is no multiple of num_attention_heads {n_heads}; "
            + "allowed: a multiple of it, or an explicit head_dim"
        )
    head_dim = config.size("head_dim", hidden // n_heads)
    if n_heads % n_kv:
        raise ModelConfigError(
            f"{config.where}: num_attention_heads {n_heads} is no multiple of num_key_value_heads {n_kv}"
        )
    return n_heads, n_kv, head_dim


def is_new_falcon(config: Config) -> bool:
    """Whether a Falcon has grouped KV heads and two norms per layer (40B, 180B), which old files name."""
    return config.flag("new_decoder_architecture", config.has("num_key_value_heads"))


def windows_of(config: Config, traits: Traits, layers: int) -> list[tuple[int, bool]]:
    """Return (window, chunked) of each layer; window 0 is full attention.

    A window no shorter than ``max_position_embeddings`` never binds and counts as full.
    """
    window = config.count("sliding_window", 0)
    if traits.window_flag and not config.flag("use_sliding_window", False):
        window = 0
    if config.has("max_position_embeddings") and window >= config.size("max_position_embeddings"):
        window = 0
    chunk = config.count("attention_chunk_size", 0)
    kinds = config.per_layer("layer_types", layers)
    if kinds:
        table = {"sliding_attention": (window, False), "chunked_attention": (chunk, True)}
        known = {*table, "full_attention", "linear_attention" if config.has("linear_num_value_heads") else ""}
        for kind in sorted({str(kind) for kind in kinds} - known):
            config.note(f"layer_types: {kind!r} is not known here and read as full attention")
        return [table.get(str(kind), (0, False)) for kind in kinds]
    if config.has("no_rope_layers") or (chunk and not window):
        return _chunks(config, chunk, layers)
    every = config.count("sliding_window_pattern", traits.full_every)
    first = config.count("max_window_layers", 0) if traits.window_flag else 0
    return [(0 if i < first or (every and (i + 1) % every == 0) else window, False) for i in range(layers)]


def _chunks(config: Config, chunk: int, layers: int) -> list[tuple[int, bool]]:
    """Llama 4: layers without rotation (0; unlisted: every fourth) attend to all, others to a chunk."""
    rotated = config.per_layer("no_rope_layers", layers)
    if not rotated:
        config.note(
            "no_rope_layers not given: every fourth layer has full attention, as the class default says"
        )
        rotated = [int((i + 1) % 4 != 0) for i in range(layers)]
    return [(chunk, True) if flag else (0, False) for flag in rotated]


def attention_biases(config: Config, traits: Traits) -> tuple[bool, bool]:
    """Whether the q/k/v and the output projection have biases."""
    flag = config.flag("attention_bias", False)
    qkv = traits.qkv_bias or flag or config.flag("add_qkv_bias", False) or config.flag("qkv_bias", False)
    out = traits.o_bias or (flag and traits.attention_bias == "all")
    return qkv, out or config.flag("add_bias_linear", False)


def qk_norm_of(config: Config, traits: Traits) -> QkNorm:
    """Return how a family's queries and keys are normed."""
    flagged = any(config.flag(key, False) for key in ("use_qk_norm", "qk_ln", "attn_qk_ln"))
    return traits.qk_norm_flag if traits.qk_norm == "none" and flagged else traits.qk_norm


def small_params(attention: Attention, traits: Traits, config: Config) -> int:
    """Parameters of the query and key norms and of the sinks of one layer."""
    kind = qk_norm_of(config, traits)
    sinks = attention.n_heads if attention.sinks else 0
    if kind == "head":
        return sinks + traits.norm_width(attention.head_dim) * (1 if attention.kv_shared else 2)
    if kind != "none":
        return sinks + traits.norm_width((attention.n_heads + attention.n_kv_heads) * attention.head_dim)
    return sinks


def mixers_of(config: Config, traits: Traits, family: str) -> list[tuple[Mixer, int]]:
    """Return (mixer, its parameters outside matrices) of every layer."""
    layers = config.size("num_hidden_layers")
    if config.items("compress_ratios"):
        ratios = config.counts("compress_ratios", layers)
        return [compressed_attention(config, ratio) for ratio in ratios]
    if config.has("kv_lora_rank"):
        return [latent_attention(config)] * layers
    if config.items("hybrid_layer_pattern"):
        return _mimo(config, traits, layers)
    attention = _grouped(config, traits, family, layers)
    if not config.has("linear_num_value_heads"):
        return [(layer, small_params(layer, traits, config)) for layer in attention]
    kinds = config.per_layer("layer_types", layers)
    every = config.size("full_attention_interval", 4)
    linear = [kind == "linear_attention" for kind in kinds] or [(i + 1) % every != 0 for i in range(layers)]
    recurrent = gated_delta_net(config)
    return [
        (recurrent, 0) if is_linear else (layer, small_params(layer, traits, config))
        for is_linear, layer in zip(linear, attention, strict=True)
    ]


def _grouped(config: Config, traits: Traits, family: str, layers: int) -> list[Attention]:
    hidden = config.size("hidden_size")
    n_heads, n_kv, head_dim = heads_of(config, family)
    qkv_bias, o_bias = attention_biases(config, traits)
    gate: tuple[Linear, ...] = ()
    if config.flag("use_head_wise_attn_gate", False):
        gate = (Linear("head_gate", n_heads, hidden, "column"),)
    return [
        softmax_attention(
            hidden, n_heads, n_kv, head_dim, config.count("v_head_dim", 0),
            qkv_bias=qkv_bias, o_bias=o_bias, window=window, chunked=chunked, sinks=traits.sinks,
            query_gate=config.flag("attn_output_gate", traits.query_gate), extra=gate,
            norm_over_heads=qk_norm_of(config, traits) == "full",
        )
        for window, chunked in windows_of(config, traits, layers)
    ]  # fmt: skip


def _mimo(config: Config, traits: Traits, layers: int) -> list[tuple[Mixer, int]]:
    """MiMo-V2: pattern entries of 1 are window layers with heads (and sinks) of their own."""
    hidden = config.size("hidden_size")
    n_heads, n_kv, head_dim = heads_of(config, "")
    full = softmax_attention(
        hidden, n_heads, n_kv, head_dim, config.count("v_head_dim", 0),
        sinks=config.flag("add_full_attention_sink_bias", False),
    )  # fmt: skip
    window = softmax_attention(
        hidden,
        config.size("swa_num_attention_heads", n_heads),
        config.size("swa_num_key_value_heads", n_kv),
        config.size("swa_head_dim", head_dim),
        config.count("swa_v_head_dim", config.count("v_head_dim", 0)),
        window=config.size("sliding_window"),
        sinks=config.flag("add_swa_attention_sink_bias", False),
    )
    pattern = config.per_layer("hybrid_layer_pattern", layers)
    return [(m, small_params(m, traits, config)) for m in (window if flag else full for flag in pattern)]
