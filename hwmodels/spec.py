"""What a model is: its layers and the weight matrices in them, read from a Hugging Face ``config.json``.

Every matrix of a layer is listed once, as a ``Linear``; parameter counts, weight bytes and GEMM shapes all
come from that list (``lowering`` is the only reader that turns it into FLOP and bytes).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Literal

Shard = Literal["column", "row", "replicated"]


@dataclass(frozen=True, slots=True)
class Linear:
    """One weight matrix, applied as an m x n x k GEMM to m tokens.

    Attributes
    ----------
    name : what engines call it (``qkv_proj``, ``o_proj``, ``gate_up_proj``, ``down_proj``, ``router``, ...)
    n, k : output and input width of the unsharded matrix [elements]
    shard : which side tensor parallelism divides: ``column`` n, ``row`` k, ``replicated`` neither
    bias : whether a bias of n elements is added
    quantized : whether a quantization_config covers it (routers and heads usually stay in the model dtype)
    """

    name: str
    n: int
    k: int
    shard: Shard = "column"
    bias: bool = False
    quantized: bool = True

    @property
    def params(self) -> int:
        """Weights and bias of this matrix [elements]."""
        return self.n * self.k + (self.n if self.bias else 0)


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
    sinks : True if every head has a learned sink logit (gpt-oss, MiMo); its parameters are in the group's
        ``norm_params``
    linears : qkv_proj, o_proj (and gates) of the layer
    kept : share of a sequence's entries that is kept and read at any time; below 1 where a budget evicts the others
    norm_over_heads : True if queries and keys are normed over all heads together, so that the ranks of a
        tensor-parallel group add up their squares (MiniMax-M2, OLMo 2)
    """

    n_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int
    window: int = 0
    chunked: bool = False
    kv_shared: bool = False
    linears: tuple[Linear, ...] = ()
    sinks: bool = False
    kept: Fraction = Fraction(1)
    norm_over_heads: bool = False


@dataclass(frozen=True, slots=True)
class MultiHeadLatentAttention:
    """DeepSeek-style attention, whose cache is one latent of ``kv_lora_rank + qk_rope_head_dim`` a token.

    Attributes
    ----------
    n_heads : query heads of the unsharded layer
    q_lora_rank : width of the query latent; 0 where the query is projected directly
    kv_lora_rank, qk_rope_head_dim, qk_nope_head_dim, v_head_dim : widths [elements]
    index_head_dim : width of the sparse indexer's key, cached beside the latent (DeepSeek-V3.2, GLM-5), or 0
    linears : projections of the layer, the two absorbed per-head ones (``kv_b_proj``) included
    index_heads, index_topk : heads of the indexer, and how many cached entries it lets a token read; 0: none
    window : entries kept uncompressed, the latest ones [tokens] (DeepSeek-V4); 0 means that all are
    compress_ratio : beyond ``window`` one entry (and one index key) stands for so many tokens (DeepSeek-V4:
        4 or 128); 0 with a window means that nothing is kept beyond it, 1 that every token has its entry
    """

    n_heads: int
    q_lora_rank: int
    kv_lora_rank: int
    qk_rope_head_dim: int
    qk_nope_head_dim: int
    v_head_dim: int
    index_head_dim: int = 0
    linears: tuple[Linear, ...] = ()
    index_heads: int = 0
    index_topk: int = 0
    window: int = 0
    compress_ratio: int = 1


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
    n_heads, head_dim, state_size : the state is ``n_heads`` matrices of head_dim x state_size; tensor
        parallelism divides the heads
    state_dtype : dtype of the recurrent state (``float32`` where the config asks for it), None: the model's
    """

    kind: str
    state_elements: int
    conv_elements: int
    other_params: int = 0
    linears: tuple[Linear, ...] = ()
    n_heads: int = 0
    head_dim: int = 0
    state_size: int = 0
    state_dtype: str | None = None


@dataclass(frozen=True, slots=True)
class DenseFFN:
    """A feed-forward layer that every token passes; ``gated`` has two input matrices (SwiGLU, GeGLU)."""

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

    @property
    def linears(self) -> tuple[Linear, ...]:
        """Every matrix a token passes in one layer of the group; of routed experts, none."""
        mixer = self.mixer.linears if self.mixer else ()
        return mixer + (self.ffn.linears if self.ffn else ())


@dataclass(frozen=True, slots=True)
class WeightQuantization:
    """What a ``quantization_config`` says; which matrices it covers is in ``Linear.quantized``.

    Attributes
    ----------
    method : ``fp8``, ``compressed-tensors``, ``modelopt``, ``gptq``, ``awq``, ``mxfp4``, ...
    weights, activations : ``fp8``, ``int8``, ``int4``, ``nvfp4``, ``mxfp4``; activations left alone: ``bf16``
    group_size : weights of a row that share a scale [elements]; 0 means one scale per row or tensor
    kv_cache : KV dtype that the checkpoint asks for (``fp8``), or None
    expert_weights : what routed experts are stored in where it differs (DeepSeek-V4: ``mxfp4``), or None
    """

    method: str
    weights: str
    activations: str
    group_size: int = 0
    kv_cache: str | None = None
    expert_weights: str | None = None


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
    other_params : parameters in no layer and no matrix above (learned positions, final norm, head bias, ...)
    vision_params : parameters of a vision or audio tower, loaded but idle for text
    rotary_dim : elements of a head that are rotated; 0 without rotary positions
    dtype : ``bfloat16``, ``float16`` or ``float32`` as stored
    quantization : the checkpoint's own quantization, or None
    notes : what could not be read or was assumed, one line each
    linears : matrices outside the layers but for the head (OPT-350M's projections, Gemma 3n's)
    per_layer_embedding_params : lookup tables beside the input embedding, one row read per token (Gemma 3n/4)
    order : index into ``layers`` of each layer from input to output (which stage of a pipeline holds what)
    mtp_layers : multi-token-prediction layers the config names; in no count here
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
    linears: tuple[Linear, ...] = ()
    per_layer_embedding_params: int = 0
    order: tuple[int, ...] = ()
    mtp_layers: int = 0

    @property
    def n_layers(self) -> int:
        """Number of layers [-]."""
        return sum(group.count for group in self.layers)

    @property
    def has_experts(self) -> bool:
        """Whether some layer is a mixture of experts."""
        return any(isinstance(group.ffn, MoEFFN) for group in self.layers)

    @property
    def head_params(self) -> int:
        """Weights of the output head [elements]; 0 where it is the input embedding."""
        return 0 if self.tied_embeddings else self.vocab * self.embedding_dim

    def mixers(self) -> Iterator[tuple[int, Attention | MultiHeadLatentAttention | Recurrent]]:
        """Yield (layers, mixer) of every group that has one."""
        for group in self.layers:
            if group.mixer is not None:
                yield group.count, group.mixer
