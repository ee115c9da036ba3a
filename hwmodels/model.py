"""What a model is: its layers and the weight matrices in them, read from a Hugging Face ``config.json``.

Every matrix of a layer is listed once, as a ``Linear``; parameter counts, weight bytes and GEMM shapes all come
from that list (``lowering`` is the only reader that turns it into FLOP and bytes).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

Shard = Literal["column", "row", "replicated"]


@dataclass(frozen=True, slots=True)
class Linear:
    """One weight matrix, applied as an m x n x k GEMM to m tokens.

    Attributes
    ----------
    name : what engines call it (``qkv_proj``, ``o_proj``, ``gate_up_proj``, ``down_proj``, ``router``, ...)
    n, k : output and input width of the unsharded matrix [elements]
    shard : which side tensor parallelism divides: ``column`` divides n, ``row`` divides k, ``replicated`` neither
    bias : whether a bias of n elements is added
    quantized : whether a quantization_config covers it (routers, heads and embeddings usually stay in model dtype)
    """

    name: str
    n: int
    k: int
    shard: Shard = "column"
    bias: bool = False
    quantized: bool = True


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention with its own or grouped KV heads (MHA, GQA, MQA).

    Attributes
    ----------
    n_heads, n_kv_heads : query and KV heads of the unsharded layer
    head_dim, v_head_dim : width of one key head and of one value head [elements]
    window : sliding window [tokens]; 0 means full attention
    chunked : True if ``window`` is a chunk (Llama 4: tokens see their own chunk) rather than a sliding window
    kv_shared : True if the layer reuses the KV of an earlier layer and stores none of its own
    linears : qkv_proj, o_proj (and gates) of the layer
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int = 0
    chunked: bool = False
    kv_shared: bool = False
    linears: tuple[Linear, ...] = ()


@dataclass(frozen=True, slots=True)
class MultiHeadLatentAttention:
    """DeepSeek-style attention whose cache is one latent vector of ``kv_lora_rank + qk_rope_head_dim`` a token.

    Attributes
    ----------
    n_heads : query heads of the unsharded layer
    q_lora_rank : width of the query latent; 0 where the query is projected directly
    kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim : widths [elements]
    index_head_dim : width of the sparse indexer's key, cached beside the latent (DeepSeek-V3.2, GLM-5); 0 if none
    linears : projections of the layer, the two absorbed per-head ones (``kv_b_proj``) included
    """

    n_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    index_head_dim: int = 0
    linears: tuple[Linear, ...] = ()


@dataclass(frozen=True, slots=True)
class Recurrent:
    """A layer with a fixed-size state instead of a KV cache (Mamba, Mamba-2, gated delta net).

    Attributes
    ----------
    kind : ``mamba``, ``mamba2``, ``gated_delta_net``, ...
    state_elements : elements of the recurrent state of one sequence in one layer
    conv_elements : elements of the convolution state of one sequence in one layer
    other_params : parameters that are in no ``Linear`` (A, D, dt bias, convolution kernels)
    linears : projections of the layer
    """

    kind: str
    state_elements: int
    conv_elements: int
    other_params: int = 0
    linears: tuple[Linear, ...] = ()


@dataclass(frozen=True, slots=True)
class DenseFFN:
    """A feed-forward layer that every token passes through; ``gated`` has two input matrices (SwiGLU, GeGLU)."""

    intermediate: int
    gated: bool
    linears: tuple[Linear, ...] = ()


@dataclass(frozen=True, slots=True)
class MoEFFN:
    """A mixture of experts, with shared experts that every token passes through.

    Attributes
    ----------
    n_experts, top_k : routed experts and how many of them a token visits
    intermediate : width of one routed expert [elements]
    gated : two input matrices per expert (SwiGLU)
    shared_intermediate : summed width of the shared experts; 0 if none
    linears : router and shared experts; the routed experts are ``expert_linears``, once per expert
    """

    n_experts: int
    top_k: int
    intermediate: int
    gated: bool
    shared_intermediate: int = 0
    linears: tuple[Linear, ...] = ()
    expert_linears: tuple[Linear, ...] = ()


Mixer = Attention | MultiHeadLatentAttention | Recurrent | None
FFN = DenseFFN | MoEFFN | None


@dataclass(frozen=True, slots=True)
class LayerGroup:
    """``count`` identical layers: a sequence mixer, then a feed-forward part (either may be missing)."""

    count: int
    mixer: Mixer
    ffn: FFN
    norm_params: int = 0


@dataclass(frozen=True, slots=True)
class WeightQuantization:
    """What a ``quantization_config`` says: method, weight and activation dtype, group size, layers left alone."""

    method: str
    weights: str
    activations: str
    group_size: int = 0
    kv_cache: str | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """One model, unsharded, as its ``config.json`` describes it.

    Attributes
    ----------
    id : short id (``llama-3.1-8b``)
    architecture : ``model_type`` of the config
    hidden : residual width [elements]
    vocab : vocabulary entries
    max_position : longest sequence the config allows [tokens]
    layers : groups of identical layers, in the order in which they first appear
    tied_embeddings : whether the output head is the input embedding
    embedding_dim : width of the input embedding where it differs from ``hidden`` (OPT-350M)
    other_params : parameters in no layer and no matrix above (learned positions, final norm, ...)
    vision_params : parameters of a vision or audio tower, loaded but idle for text
    dtype : ``bfloat16``, ``float16`` or ``float32`` as stored
    quantization : the checkpoint's own quantization, or None
    notes : what could not be read or was assumed, one line each
    """

    id: str
    architecture: str
    hidden: int
    vocab: int
    max_position: int
    layers: tuple[LayerGroup, ...]
    tied_embeddings: bool
    embedding_dim: int
    other_params: int = 0
    vision_params: int = 0
    rotary_dim: int = 0
    dtype: str = "bfloat16"
    quantization: WeightQuantization | None = None
    notes: tuple[str, ...] = field(default=())

    @property
    def n_layers(self) -> int:
        """Number of layers [-]."""
        return sum(group.count for group in self.layers)
