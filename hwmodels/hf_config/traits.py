"""What a config does not say because the model's code says it: biases, norms and defaults by ``model_type``.

Source: the ``modeling_*.py`` and ``configuration_*.py`` of the transformers library and of the models' own
repositories, as publicly known; checked against published parameter counts in ``tests/hwmodels``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts of a family that its configs leave out.

    Attributes
    ----------
    gated : three feed-forward matrices (SwiGLU) instead of two
    norm : RMS (weight), layer norm (weight and bias), or layer norm without bias
    norms : norms of hidden width in a layer (one where attention and feed-forward run in parallel)
    qk_norm : norm of queries and keys, per head (one head wide) or over the full width
    qkv_bias, o_bias, mlp_bias, head_bias : biases that are always there
    attention_bias : what a config's ``attention_bias: true`` adds a bias to
    tied : the default of ``tie_word_embeddings``
    positions : learned position rows beyond ``max_position_embeddings``; None without learned positions
    rotary : whether queries and keys are rotated
    full_every : without ``layer_types``, every so-maniest layer has full attention and the others the window;
        0: all layers have the window
    window_flag : the window applies only with ``use_sliding_window: true``
    intermediate_factor : feed-forward over hidden width where the config gives none; 0: it must give it
    shared_gate : the shared expert is weighed by a one-row gate
    router_bias : the router has a bias of one element per expert (a correction bias counts)
    expert_bias : experts have biases
    query_gate : the query projection also makes an output gate
    sinks : a learned sink logit per head
    """

    gated: bool = True
    norm: Literal["rms", "layer", "layer_no_bias"] = "rms"
    norms: int = 2
    qk_norm: Literal["none", "head", "full"] = "none"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    attention_bias: Literal["qkv", "all"] = "all"
    tied: bool = False
    positions: int | None = None
    rotary: bool = True
    full_every: int = 0
    window_flag: bool = False
    intermediate_factor: float = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    query_gate: bool = False
    sinks: bool = False

    def norm_width(self, width: int) -> int:
        """Parameters of one norm over ``width`` elements."""
        return width * (2 if self.norm == "layer" else 1)


LLAMA = Traits()
_QWEN2 = Traits(qkv_bias=True, window_flag=True)
_QWEN3 = Traits(qk_norm="head", window_flag=True)
_DEEPSEEK = Traits(router_bias=True)

FAMILIES: dict[str, Traits] = {
    "llama": LLAMA,
    "mistral": LLAMA,
    "mistral3": LLAMA,
    "ministral3": LLAMA,
    "mixtral": LLAMA,
    "internlm2": LLAMA,
    "qwen2": _QWEN2,
    "qwen2_moe": Traits(qkv_bias=True, window_flag=True, shared_gate=True),
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_text": _QWEN3,
}
