"""What a config does not say because the model's code says it: biases, norms and defaults by ``model_type``.

Source: the ``modeling_*.py`` and ``configuration_*.py`` of the transformers library and of the models' own
repositories, as publicly known; checked against published parameter counts in ``tests/hwmodels``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

QkNorm = Literal["none", "head", "heads", "full"]


@dataclass(frozen=True, slots=True)
class Traits:
    """Facts of a family that its configs leave out.

    Attributes
    ----------
    gated : three feed-forward matrices (SwiGLU) instead of two
    norm : RMS (weight), layer norm (weight and bias), or layer norm without bias
    norms : norms of hidden width in a layer (one where attention and feed-forward run in parallel)
    qk_norm : norm of queries and keys: per head with one head's weights, per head with weights of their own, or over
        all heads together
    qk_norm_flag : what ``use_qk_norm: true`` (or ``qk_ln``) makes of it
    qkv_bias, o_bias, mlp_bias, head_bias : biases that are always there
    attention_bias : what a config's ``attention_bias: true`` adds a bias to
    tied : the default of ``tie_word_embeddings``
    positions : learned position rows beyond ``max_position_embeddings``; None without learned positions
    alibi : positions are biases of the attention scores: neither learned rows nor rotation
    rotary_share : default share of a head that is rotated; 0 without rotation
    full_every : without ``layer_types``, every so-maniest layer has full attention and the others the window;
        0: all layers have the window
    window_flag : the window applies only with ``use_sliding_window: true``
    intermediate_factor : feed-forward over hidden width where the config gives none; 0: it must give it
    shared_gate : the shared expert is weighed by a one-row gate
    router_bias : the router has a bias of one element per expert (a correction bias counts)
    expert_bias : experts have biases
    query_gate : the query projection also makes an output gate
    sinks : a learned sink logit per head
    final_norm, embedding_norm : a norm after the last layer, and one after the embedding
    half_intermediate : ``intermediate_size`` is the width of both input matrices together (Qwen 1)
    """

    gated: bool = True
    norm: Literal["rms", "layer", "layer_no_bias"] = "rms"
    norms: int = 2
    qk_norm: QkNorm = "none"
    qk_norm_flag: QkNorm = "head"
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    attention_bias: Literal["qkv", "all"] = "all"
    tied: bool = False
    positions: int | None = None
    alibi: bool = False
    rotary_share: float = 1.0
    full_every: int = 0
    window_flag: bool = False
    intermediate_factor: float = 0
    shared_gate: bool = False
    router_bias: bool = False
    expert_bias: bool = False
    query_gate: bool = False
    sinks: bool = False
    final_norm: bool = True
    embedding_norm: bool = False
    half_intermediate: bool = False

    def norm_width(self, width: int) -> int:
        """Parameters of one norm over ``width`` elements."""
        return width * (2 if self.norm == "layer" else 1)


LLAMA = Traits()
_QWEN2 = Traits(qkv_bias=True, window_flag=True)
_QWEN3 = Traits(qk_norm="head", window_flag=True)
_QWEN3_NEXT = Traits(qk_norm="head", query_gate=True, shared_gate=True, rotary_share=0.25)
_GPT2 = Traits(
    gated=False, norm="layer", qkv_bias=True, o_bias=True, mlp_bias=True, tied=True, positions=0,
    rotary_share=0, intermediate_factor=4,
)  # fmt: skip
_FALCON = Traits(gated=False, norm="layer", tied=True, intermediate_factor=4)
_MPT = replace(
    _FALCON, norm="layer_no_bias", positions=0, alibi=True, rotary_share=0, qk_norm_flag="full",
)  # fmt: skip
_PHI = Traits(
    gated=False, norm="layer", norms=1, qkv_bias=True, o_bias=True, mlp_bias=True, head_bias=True,
    intermediate_factor=4, rotary_share=0.5,
)  # fmt: skip
_DEEPSEEK = Traits(router_bias=True)
_GEMMA3 = Traits(norms=4, qk_norm="head", tied=True, full_every=6)
_COHERE = Traits(norm="layer_no_bias", norms=1, tied=True, qk_norm_flag="heads")
_OLMO2 = Traits(qk_norm="full")

FAMILIES: dict[str, Traits] = {
    # GPT-2 and its contemporaries
    "gpt2": _GPT2,
    "gpt_bigcode": _GPT2,
    "gptj": Traits(gated=False, norm="layer", norms=1, mlp_bias=True, head_bias=True, intermediate_factor=4),
    "gpt_neox": replace(_GPT2, positions=None, rotary_share=0.25, tied=False),
    "opt": replace(_GPT2, positions=2, intermediate_factor=0),
    "bloom": replace(_GPT2, positions=None, alibi=True, embedding_norm=True),
    "falcon": _FALCON,
    "RefinedWeb": _FALCON,
    "RefinedWebModel": _FALCON,
    "mpt": _MPT,
    "mosaic_gpt": _MPT,
    "phi": _PHI,
    "phi-msft": _PHI,
    "chatglm": Traits(rotary_share=0.5),
    "qwen": Traits(qkv_bias=True, half_intermediate=True),
    "starcoder2": Traits(gated=False, norm="layer", qkv_bias=True, o_bias=True, mlp_bias=True, tied=True),
    # Llama and those like it
    "llama": LLAMA,
    "mistral": LLAMA,
    "mistral3": LLAMA,
    "ministral3": LLAMA,
    "mixtral": LLAMA,
    "internlm2": LLAMA,
    "internlm3": LLAMA,
    "llava": LLAMA,
    "nemotron-nas": LLAMA,
    "phi3": LLAMA,
    "phimoe": Traits(norm="layer", head_bias=False),
    "llama4": LLAMA,
    "llama4_text": LLAMA,
    "granite": LLAMA,
    "cohere": _COHERE,
    "cohere2": replace(_COHERE, full_every=4),
    "olmo2": _OLMO2,
    "olmo3": replace(_OLMO2, full_every=4),
    "qwen2": _QWEN2,
    "qwen2_moe": replace(_QWEN2, shared_gate=True),
    "qwen2_vl": _QWEN2,
    "qwen2_5_vl": _QWEN2,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3,
    "qwen3_vl": _QWEN3,
    "qwen3_vl_text": _QWEN3,
    "qwen3_vl_moe": _QWEN3,
    "qwen3_vl_moe_text": _QWEN3,
    "qwen3_next": _QWEN3_NEXT,
    "qwen3_5": _QWEN3_NEXT,
    "qwen3_5_text": _QWEN3_NEXT,
    "qwen3_5_moe": _QWEN3_NEXT,
    "qwen3_5_moe_text": _QWEN3_NEXT,
    # Gemma
    "gemma": Traits(tied=True),
    "gemma2": Traits(norms=4, tied=True, full_every=2),
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gemma3n": replace(_GEMMA3, full_every=5),
    "gemma3n_text": replace(_GEMMA3, full_every=5),
    "gemma4": _GEMMA3,
    "gemma4_text": _GEMMA3,
    # latent attention, experts, hybrids
    "deepseek_v2": LLAMA,
    "deepseek_v3": _DEEPSEEK,
    "deepseek_v32": _DEEPSEEK,
    "deepseek_v4": Traits(router_bias=True, sinks=True),
    "kimi_k2": _DEEPSEEK,
    "kimi_k25": _DEEPSEEK,
    "glm_moe_dsa": _DEEPSEEK,
    "glm4_moe": Traits(router_bias=True, attention_bias="qkv", rotary_share=0.5),
    "minimax_m2": Traits(router_bias=True, qk_norm_flag="full"),
    "gpt_oss": Traits(router_bias=True, expert_bias=True, sinks=True, full_every=2),
    "mimo_v2_flash": _DEEPSEEK,
    "step3p5": Traits(router_bias=True, qk_norm="head"),
    "step3p7": Traits(router_bias=True, qk_norm="head"),
    "jamba": Traits(rotary_share=0),
    "nemotron_h": Traits(gated=False, norms=1, router_bias=True, rotary_share=0),
}


def family_of(architecture: str) -> str:
    """Return the ``model_type`` that an entry of ``architectures`` belongs to, or "".

    >>> family_of("Glm4MoeForCausalLM")
    'glm4_moe'
    """
    stem = re.sub(r"(ForCausalLM|ForConditionalGeneration|LMHeadModel|Model)$", "", architecture).lower()
    return {name.replace("_", "").replace("-", ""): name for name in FAMILIES}.get(stem, "")
