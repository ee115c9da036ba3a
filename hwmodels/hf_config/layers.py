"""All layers of a model: the common case, and the families that lay theirs out in their own way."""

from __future__ import annotations

from typing import cast

from ..errors import ModelConfigError
from ..spec import FFN, Mixer
from .blocks import Layer, dense_ffn, moe_ffn, softmax_attention
from .ffn import dense_layer_ffn, expert_ffn, ffns_of
from .gemma import gemma3n_layers, gemma4_layers
from .keys import Config
from .mixers import attention_biases, heads_of, is_new_falcon, mixers_of
from .recurrent import mamba, mamba2
from .traits import Traits


def layers_of(config: Config, traits: Traits, family: str) -> list[Layer]:
    """Every layer from input to output."""
    if family in ("gemma4", "gemma4_text"):
        return gemma4_layers(config, traits)
    if family in ("gemma3n", "gemma3n_text"):
        return gemma3n_layers(config, traits)
    if config.has("block_configs"):
        return _searched_layers(config, traits)
    if config.has("hybrid_override_pattern"):
        return _pattern_layers(config, traits)
    if config.has("attn_layer_period"):
        return _jamba_layers(config, traits)
    norms = _norms(config, traits, family) * traits.norm_width(config.size("hidden_size"))
    norms += _hyper_connections(config)
    return [
        Layer(mixer, ffn, norms + small)
        for (mixer, small), ffn in zip(
            mixers_of(config, traits, family), ffns_of(config, traits), strict=True
        )
    ]


def _norms(config: Config, traits: Traits, family: str) -> int:
    """Norms of hidden width per layer; the first Falcons run attention and feed-forward behind one."""
    if family in ("falcon", "RefinedWeb", "RefinedWebModel"):
        return 1 if config.flag("parallel_attn", True) and not is_new_falcon(config) else 2
    return traits.norms


def _hyper_connections(config: Config) -> int:
    """Parameters of DeepSeek-V4's hyper-connections in one layer: one mixing matrix per sub-layer."""
    streams = config.count("hc_mult", 0)
    mixes = (2 + streams) * streams
    return 2 * (mixes * streams * config.size("hidden_size") + mixes + 3) if streams else 0


def _pattern_layers(config: Config, traits: Traits) -> list[Layer]:
    """Nemotron-H: one letter per layer (M Mamba-2, * attention, - feed-forward, E experts), one norm each."""
    hidden = config.size("hidden_size")
    n_heads, n_kv, head_dim = heads_of(config, "nemotron_h")
    qkv_bias, o_bias = attention_biases(config, traits)
    pattern = config.text("hybrid_override_pattern")
    if len(pattern) != config.size("num_hidden_layers") or set(pattern) - set("M*-E"):
        raise ModelConfigError(
            f"{config.where}: hybrid_override_pattern {pattern!r} has {len(pattern)} letters; "
            + f"allowed: num_hidden_layers {config.size('num_hidden_layers')} letters out of M * - E"
        )
    parts: dict[str, tuple[Mixer, FFN]] = {}
    if "M" in pattern:
        parts["M"] = (mamba2(config), None)
    if "*" in pattern:
        attention = softmax_attention(hidden, n_heads, n_kv, head_dim, qkv_bias=qkv_bias, o_bias=o_bias)
        parts["*"] = (attention, None)
    if "-" in pattern:
        parts["-"] = (None, dense_layer_ffn(config, traits))
    if "E" in pattern:
        parts["E"] = (None, expert_ffn(config, traits))
    return [Layer(*parts[letter], hidden) for letter in pattern]


def _jamba_layers(config: Config, traits: Traits) -> list[Layer]:
    """Jamba: attention every ``attn_layer_period`` layers, Mamba elsewhere; experts every other layer."""
    hidden = config.size("hidden_size")
    attention = softmax_attention(hidden, *heads_of(config, "jamba"))
    recurrent = mamba(config)
    expert = moe_ffn(
        hidden,
        config.size("num_experts"),
        config.size("num_experts_per_tok"),
        config.size("intermediate_size"),
    )
    dense = dense_layer_ffn(config, traits)

    def chosen(i: int, kind: str) -> bool:
        return i % config.size(f"{kind}_layer_period") == config.count(f"{kind}_layer_offset", 0)

    return [
        Layer(
            attention if chosen(i, "attn") else recurrent,
            expert if chosen(i, "expert") else dense,
            2 * hidden,
        )
        for i in range(config.size("num_hidden_layers"))
    ]


def _searched_layers(config: Config, traits: Traits) -> list[Layer]:
    """Nemotron-Super (architecture search): each block states its attention and its width, or neither."""
    count = config.size("num_hidden_layers")
    layers: list[Layer] = []
    for i, block in enumerate(config.per_layer("block_configs", count)):
        if not isinstance(block, dict):
            raise ModelConfigError(f"{config.where}: block_configs[{i}] is {block!r}; allowed: an object")
        part = Config(cast("dict[str, object]", block), f"{config.where} (block {i})", config.notes)
        mixer, ffn = _searched_attention(config, part, traits), _searched_ffn(config, part)
        norms = config.size("hidden_size") * ((mixer is not None) + (ffn is not None))
        layers.append(Layer(mixer, ffn, norms))
    return layers


def _searched_attention(config: Config, block: Config, traits: Traits) -> Mixer:
    attention = block.section("attention")
    if attention is None or attention.flag("no_op", False):
        return None
    if attention.flag("replace_with_linear", False):
        config.note("attention replaced by a linear layer is left out")
        return None
    heads = config.size("num_attention_heads")
    group = attention.size("n_heads_in_group")
    hidden = config.size("hidden_size")
    qkv_bias, o_bias = attention_biases(config, traits)
    return softmax_attention(
        hidden, heads, heads // group, config.size("head_dim", hidden // heads),
        qkv_bias=qkv_bias, o_bias=o_bias, window=attention.count("window_length", 0),
    )  # fmt: skip


def _searched_ffn(config: Config, block: Config) -> FFN:
    ffn = block.section("ffn")
    if ffn is None or ffn.flag("no_op", False):
        return None
    if ffn.flag("replace_with_linear", False):
        config.note("a feed-forward layer replaced by a linear layer is left out")
        return None
    hidden = config.size("hidden_size")
    width = int(2 * ffn.number("ffn_mult", 4.0) * hidden / 3)
    return dense_ffn(hidden, -(-width // 256) * 256, gated=True)
