"""Layers with a state of fixed size: Mamba (Jamba), Mamba-2 (Nemotron-H), gated delta net (Qwen3-Next).

Sources: the Mamba and Mamba-2 papers and the transformers implementations of the three families.
"""

from __future__ import annotations

import math

from ..spec import Linear, Recurrent
from .keys import Config


def mamba(config: Config) -> Recurrent:
    """A Mamba layer as in Jamba: its own widths, with norms on step size, input and output matrices."""
    hidden = config.size("hidden_size")
    inner = config.size("mamba_expand", 2) * hidden
    state, kernel = config.size("mamba_d_state", 16), config.size("mamba_d_conv", 4)
    auto = math.ceil(hidden / 16)
    rank = auto if config.get("mamba_dt_rank") in (None, "auto") else config.size("mamba_dt_rank")
    bias = config.flag("mamba_proj_bias", False)
    conv_bias = inner if config.flag("mamba_conv_bias", True) else 0
    return Recurrent(
        kind="mamba",
        state_elements=inner * state,
        conv_elements=inner * (kernel - 1),
        other_params=inner * kernel + conv_bias + inner * state + inner + rank + 2 * state,
        linears=(
            Linear("in_proj", 2 * inner, hidden, "column", bias=bias),
            Linear("x_proj", rank + 2 * state, inner, "row"),
            Linear("dt_proj", inner, rank, "column", bias=True),
            Linear("out_proj", hidden, inner, "row", bias=bias),
        ),
        n_heads=inner,
        head_dim=1,
        state_size=state,
        state_dtype=config.text("mamba_ssm_dtype") or None,
    )


def mamba2(config: Config) -> Recurrent:
    """A Mamba-2 layer: heads of ``mamba_head_dim`` x ``ssm_state_size``, B and C shared in groups."""
    hidden = config.size("hidden_size")
    heads, head_dim = config.size("mamba_num_heads"), config.size("mamba_head_dim")
    groups, state = config.size("n_groups", 1), config.size("ssm_state_size")
    kernel = config.size("conv_kernel", 4)
    inner = heads * head_dim
    channels = inner + 2 * groups * state
    bias = config.flag("mamba_proj_bias", False) or config.flag("use_bias", False)
    conv_bias = channels if config.flag("use_conv_bias", True) else 0
    return Recurrent(
        kind="mamba2",
        state_elements=inner * state,
        conv_elements=channels * (kernel - 1),
        other_params=channels * kernel + conv_bias + 3 * heads + inner,
        linears=(
            Linear("in_proj", inner + channels + heads, hidden, "column", bias=bias),
            Linear("out_proj", hidden, inner, "row", bias=bias),
        ),
        n_heads=heads,
        head_dim=head_dim,
        state_size=state,
        state_dtype=config.text("mamba_ssm_dtype") or None,
    )


def gated_delta_net(config: Config) -> Recurrent:
    """A gated delta net: value heads of ``linear_key_head_dim`` x ``linear_value_head_dim``."""
    hidden = config.size("hidden_size")
    key_dim, value_dim = config.size("linear_key_head_dim"), config.size("linear_value_head_dim")
    value_heads = config.size("linear_num_value_heads")
    keys = config.size("linear_num_key_heads") * key_dim
    values = value_heads * value_dim
    kernel = config.size("linear_conv_kernel_dim", 4)
    channels = 2 * keys + values
    return Recurrent(
        kind="gated_delta_net",
        state_elements=value_heads * key_dim * value_dim,
        conv_elements=channels * (kernel - 1),
        other_params=channels * kernel + 2 * value_heads + value_dim,
        linears=(
            Linear("in_proj_qkvz", channels + values, hidden, "column"),
            Linear("in_proj_ba", 2 * value_heads, hidden, "column", quantized=False),
            Linear("out_proj", hidden, values, "row"),
        ),
        n_heads=value_heads,
        head_dim=value_dim,
        state_size=key_dim,
        state_dtype=config.text("mamba_ssm_dtype") or None,
    )
