"""The one place that counts FLOP and bytes: from a model to the kernels of its layers, on one rank.

``lower_model`` says once what every layer does per token (matrices, streaming kernels, attention, experts,
all-reduces), sharded over the tensor-parallel group. Time tables, attribution, utilisation and the kernel
list of a step all read that plan.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from .errors import MemboundError
from .kvcaches import KV_DTYPE_BITS, kv_dtype, layer_caches
from .precision import Precision, QuantizationLike, linear_precision, plain_precision, without_units
from .spec import (
    Attention,
    LayerGroup,
    Linear,
    Mixer,
    ModelSpec,
    MoEFFN,
    MultiHeadLatentAttention,
    Recurrent,
)
from .weights import VOCAB_PADDING, linear_rank_shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

Keys = TypeVar("Keys", int, "NDArray[np.int64]")

NORM_SUM_BYTES = 8.0
"""A token's message where queries and keys are normed over the heads of all ranks: two sums of squares in fp32 [B].

Source: ``MiniMaxText01RMSNormTP.forward_qk`` of vLLM. Approximation: OLMo 2, whose queries and keys vLLM gathers
instead, sends as little.
"""


class ParallelismLike(Protocol):
    """The scenario's ``parallelism`` section."""

    @property
    def tensor_parallel_size(self) -> int:
        """Ranks that share every layer."""
        ...

    @property
    def pipeline_parallel_size(self) -> int:
        """Stages that share the layers."""
        ...

    @property
    def data_parallel_size(self) -> int:
        """Copies of everything but the routed experts, which all of them share."""
        ...

    @property
    def expert_parallel(self) -> bool:
        """Whether whole experts are dealt out over the ranks instead of being cut."""
        ...


@dataclass(frozen=True, slots=True)
class Parallelism:
    """How one model is spread over a group of devices."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel: bool = False


class UnsupportedError(MemboundError):
    """A combination that the step model does not know how to time yet."""


@dataclass(frozen=True, slots=True)
class LinearShape:
    """One matrix on one rank: n x k, and how its numbers are stored."""

    name: str
    n: int
    k: int
    precision: Precision

    @property
    def weight_bytes(self) -> float:
        """Bytes of the matrix, scales included [B]."""
        return self.n * self.k * self.precision.weight_bytes

    @property
    def flop_per_token(self) -> float:
        """Multiplications and additions of one token [FLOP]."""
        return 2.0 * self.n * self.k


@dataclass(frozen=True, slots=True)
class Streaming:
    """Kernels that only move activations: how many, and what each one with a size moves per token [B]; norms first."""

    kernels: int = 0
    moves: tuple[float, ...] = ()
    norms: int = 0

    @property
    def bytes_per_token(self) -> float:
        """What all of them move per token [B]."""
        return sum(self.moves)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """Softmax attention of one layer on one rank.

    Attributes
    ----------
    kind : ``gqa`` or ``mla`` (one shared latent per token, absorbed into queries and outputs)
    n_heads, n_kv_heads : heads of the rank
    head_dim, v_head_dim : widths of a key and of a value as attention sees them [elements]
    kv_width : bytes per cached element [B]
    kv_bytes_per_token : bytes that one token adds to this layer's cache on this rank [B]; 0 where it adds
        none
    prefill_dim : MLA: summed key and value width of a head where keys and values are expanded [elements]
    window : keys that a query can see; 0 means all [tokens]
    chunked : the window is a chunk of the sequence, not the latest tokens
    kept : share of a sequence's entries that decode reads, the others being evicted
    """

    kind: Literal["gqa", "mla"]
    n_heads: int
    n_kv_heads: int
    head_dim: int
    v_head_dim: int
    kv_width: float
    kv_bytes_per_token: float
    window: int = 0
    chunked: bool = False
    dtype: str = "bf16"
    prefill_dim: int = 0
    kept: Fraction = Fraction(1)

    def keys_kept(self, keys: Keys) -> Keys:
        """Return how many of so many keys are kept: the share of them, rounded up [tokens]."""
        return -(-keys * self.kept.numerator // self.kept.denominator)

    @property
    def kv_bytes_read_per_key(self) -> float:
        """Bytes read per key that a query sees: those of an earlier layer where the cache is shared [B]."""
        if self.kind == "mla":
            return self.kv_bytes_per_token
        return self.n_kv_heads * (self.head_dim + self.v_head_dim) * self.kv_width

    @property
    def flop_per_pair(self) -> float:
        """Necessary work of one query row against one key, over the rank's heads [FLOP]."""
        return 2.0 * self.n_heads * (self.head_dim + self.v_head_dim)

    @property
    def score_flop_per_pair(self) -> float:
        """Part of that work that gives the scores alone [FLOP]."""
        return 2.0 * self.n_heads * self.head_dim

    @property
    def key_bytes_per_key(self) -> float:
        """Bytes of a cached key without its value, over the rank's KV heads [B]."""
        return self.n_kv_heads * self.head_dim * self.kv_width


@dataclass(frozen=True, slots=True)
class RecurrentShape:
    """A layer with a fixed state, on one rank.

    Attributes
    ----------
    state_bytes : state of one sequence, read and written once a step [B]
    flop_per_token : update and read-out of the state by one token [FLOP]
    io_bytes_per_token : inputs and outputs of one token [B]
    """

    state_bytes: float
    flop_per_token: float
    io_bytes_per_token: float


@dataclass(frozen=True, slots=True)
class MoEShape:
    """Routed experts of one layer: widths of the whole model, and how they are spread over the ranks."""

    hidden: int
    intermediate: int
    n_experts: int
    top_k: int
    gated: bool
    tensor_parallel: int
    expert_parallel: int
    precision: Precision

    @property
    def expert_bytes(self) -> float:
        """Weights of one expert on a rank that holds it (cut by tensor parallelism) [B]."""
        matrices = 3 if self.gated else 2
        return matrices * self.hidden * self.intermediate / self.tensor_parallel * self.precision.weight_bytes

    @property
    def flop_per_pair(self) -> float:
        """Work of one token in one of its experts, on one rank [FLOP]."""
        return 2.0 * (3 if self.gated else 2) * self.hidden * self.intermediate / self.tensor_parallel


@dataclass(frozen=True, slots=True)
class LayerPlan:
    """What ``count`` identical layers do, on one rank.

    Attributes
    ----------
    linears : matrices that every token passes
    streaming : norms, rotary positions, gating, cache writes
    attention, recurrent, moe : the other parts, where the layer has them
    allreduces : messages of ``2 m hidden`` bytes summed over the tensor-parallel group
    exchanges : times that all copies' tokens are gathered for the experts and their outputs summed and dealt back
    norm_sums : all-reduces of the squares of a token's queries and of its keys (``NORM_SUM_BYTES``)
    """

    count: int
    linears: tuple[LinearShape, ...]
    streaming: Streaming
    attention: AttentionShape | None = None
    recurrent: RecurrentShape | None = None
    moe: MoEShape | None = None
    allreduces: int = 0
    exchanges: int = 0
    norm_sums: int = 0


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A model, or one stage of it, as one rank runs it.

    Attributes
    ----------
    layers : the layers, in the order of the model's groups
    outside : matrices outside the layers that every token passes
    head : output head, applied to the rows that are sampled; of width 0 on a stage before the last
    vocab : entries of the padded vocabulary, all ranks together
    embedding_bytes_per_token : rows of the embedding tables that one token reads and writes; 0 behind the first
        stage [B]
    message_bytes_per_token : one all-reduced row [B]
    group : tensor-parallel ranks
    sent_bytes_per_token : activations that go on to the next stage, all ranks together; 0 on the last [B]
    copies : data-parallel groups whose tokens meet in the experts; 1 without experts
    """

    layers: tuple[LayerPlan, ...]
    outside: tuple[LinearShape, ...]
    head: LinearShape
    vocab: int
    embedding_bytes_per_token: float
    message_bytes_per_token: float
    group: int
    sent_bytes_per_token: float = 0.0
    copies: int = 1

    @property
    def ends(self) -> tuple[float, ...]:
        """What the kernels before the first and behind the last layer move per token: embedding, final norm [B]."""
        embedding = (self.embedding_bytes_per_token,) if self.embedding_bytes_per_token else ()
        return embedding + ((2.0 * self.message_bytes_per_token,) if self.head.n else ())

    @property
    def kv_bytes_per_token(self) -> float:
        """KV bytes that one token of full attention adds on this rank [B]."""
        return sum(
            layer.count * layer.attention.kv_bytes_per_token
            for layer in self.layers
            if layer.attention is not None
        )

    @property
    def flop_per_token(self) -> dict[str, float]:
        """Work of one token outside attention and head, by dtype; of experts, an even share [FLOP]."""
        found: dict[str, float] = {}
        for count, matrices in ((1, self.outside), *((layer.count, layer.linears) for layer in self.layers)):
            for matrix in matrices:
                dtype = matrix.precision.compute
                found[dtype] = found.get(dtype, 0.0) + count * matrix.flop_per_token
        for layer in self.layers:
            if layer.recurrent is not None:
                found["bf16"] = found.get("bf16", 0.0) + layer.count * layer.recurrent.flop_per_token
            if layer.moe is not None:
                dtype, moe = layer.moe.precision.compute, layer.moe
                work = layer.count * self.copies * moe.top_k * moe.flop_per_pair / moe.expert_parallel
                found[dtype] = found.get(dtype, 0.0) + work
        return found

    @property
    def state_bytes(self) -> float:
        """Recurrent states of one sequence on this rank [B]."""
        return sum(
            layer.count * layer.recurrent.state_bytes for layer in self.layers if layer.recurrent is not None
        )

    @property
    def dense_weight_bytes(self) -> float:
        """Weights that every step reads whatever it computes, head included [B]."""
        layers = sum(
            layer.count * sum(matrix.weight_bytes for matrix in layer.linears) for layer in self.layers
        )
        return layers + sum(matrix.weight_bytes for matrix in self.outside) + self.head.weight_bytes

    @property
    def weight_bytes(self) -> float:
        """All weights of the rank that steps read, untouched experts included; of tables, nothing [B]."""
        experts = sum(
            layer.count * layer.moe.n_experts / layer.moe.expert_parallel * layer.moe.expert_bytes
            for layer in self.layers
            if layer.moe is not None
        )
        return self.dense_weight_bytes + experts

    @property
    def link_bytes_per_token(self) -> float:
        """What one token's all-reduces send over the link from each rank, as in a ring [B]."""
        sent = sum(
            layer.count * (layer.allreduces * self.message_bytes_per_token + layer.norm_sums * NORM_SUM_BYTES)
            for layer in self.layers
        )
        return 2.0 * (self.group - 1) / self.group * sent


def has_experts(model: ModelSpec) -> bool:
    """Tell whether any layer of a model routes its tokens to experts."""
    return any(isinstance(group.ffn, MoEFFN) and group.ffn.n_experts > 0 for group in model.layers)


def lower_model(
    model: ModelSpec,
    parallelism: ParallelismLike,
    quantization: QuantizationLike,
    dtypes: Collection[str] | None = None,
) -> ModelPlan:
    """Return what one tensor-parallel rank does with ``model``, all of its layers on one stage.

    Parameters
    ----------
    model, parallelism, quantization : what runs, over how many ranks, and its number formats
    dtypes : dtypes that the device has matrix units for; None: all

    Raises
    ------
    UnsupportedError
        More ranks than attention heads.
    CapacityError
        An unknown weight format, activation or KV dtype.
    """
    tp = parallelism.tensor_parallel_size
    heads = [
        mixer.n_heads
        for _, mixer in model.mixers()
        if isinstance(mixer, Attention | MultiHeadLatentAttention)
    ]
    if heads and tp > min(heads):
        raise UnsupportedError(
            f"parallelism.tensor_parallel_size is {tp}; allowed: at most {min(heads)}, "
            f"the attention heads of {model.id}"
        )
    plain = plain_precision(model)
    covered = linear_precision(model, quantization)
    if dtypes is not None:
        covered = without_units(covered, plain, dtypes)
    kv = float(KV_DTYPE_BITS[kv_dtype(model, quantization.kv_cache)] / 8)
    vocab = -(-model.vocab // VOCAB_PADDING) * VOCAB_PADDING
    copies = parallelism.data_parallel_size if has_experts(model) else 1
    lower = _Lowering(model, tp, copies, parallelism.expert_parallel, plain, covered, kv, quantization)
    return ModelPlan(
        layers=tuple(lower.layer(group) for group in model.layers),
        outside=tuple(lower.linear(matrix) for matrix in model.linears),
        head=LinearShape("lm_head", -(-vocab // tp), model.embedding_dim, plain),
        vocab=vocab,
        embedding_bytes_per_token=2.0 * model.embedding_dim * plain.weight_bytes,
        message_bytes_per_token=model.hidden * plain.output_bytes,
        group=tp,
        copies=copies,
    )


@dataclass(frozen=True, slots=True)
class _Lowering:
    """What all layers of one model share while they are lowered."""

    model: ModelSpec
    tp: int
    copies: int
    expert_parallel: bool
    plain: Precision
    covered: Precision
    kv_width: float
    quantization: QuantizationLike

    def linear(self, matrix: Linear, attention: Attention | None = None) -> LinearShape:
        """Shard one matrix."""
        n, k = linear_rank_shape(matrix, self.tp, attention)
        return LinearShape(matrix.name, n, k, self.covered if matrix.quantized else self.plain)

    def layer(self, group: LayerGroup) -> LayerPlan:
        """Lower one group of identical layers."""
        mixer, ffn = group.mixer, group.ffn
        attention = mixer if isinstance(mixer, Attention) else None
        linears = [self.linear(matrix, attention) for matrix in (mixer.linears if mixer else ())]
        linears += [self.linear(matrix) for matrix in (ffn.linears if ffn else ())]
        shape = self._attention(mixer) if isinstance(mixer, Attention | MultiHeadLatentAttention) else None
        moe = self._moe(ffn) if isinstance(ffn, MoEFFN) and ffn.n_experts else None
        exchanged = moe is not None and self.copies > 1
        sublayers = (mixer is not None) + (ffn is not None and not exchanged)
        return LayerPlan(
            count=group.count,
            linears=tuple(matrix for matrix in linears if matrix.n and matrix.k),
            streaming=self._streaming(group, shape),
            attention=shape,
            recurrent=self._recurrent(mixer) if isinstance(mixer, Recurrent) else None,
            moe=moe,
            allreduces=sublayers if self.tp > 1 else 0,
            exchanges=int(exchanged),
            norm_sums=int(self._sums_norms(mixer)),
        )

    def _attention(self, mixer: Attention | MultiHeadLatentAttention) -> AttentionShape:
        """Return the rank's share of an attention layer."""
        dtype = "fp16" if self.plain.compute == "fp16" else "bf16"
        heads = -(-mixer.n_heads // self.tp)
        if isinstance(mixer, MultiHeadLatentAttention):
            latent = mixer.kv_lora_rank + mixer.qk_rope_head_dim
            return AttentionShape(
                kind="mla",
                n_heads=heads,
                n_kv_heads=1,
                head_dim=latent,
                v_head_dim=mixer.kv_lora_rank,
                kv_width=self.kv_width,
                kv_bytes_per_token=self._latent_bytes(mixer),
                # Approximation: a sparse indexer lets a query see its best ``index_topk`` entries; reading
                # the indexer's own keys (a fifth of the latent's bytes) and the gather are not timed.
                window=mixer.index_topk * max(mixer.compress_ratio, 1) or self._latent_window(mixer),
                dtype=dtype,
                prefill_dim=mixer.qk_nope_head_dim + mixer.qk_rope_head_dim + mixer.v_head_dim,
            )
        kv_heads = -(-mixer.n_kv_heads // self.tp)
        return AttentionShape(
            kind="gqa",
            n_heads=heads,
            n_kv_heads=kv_heads,
            head_dim=mixer.head_dim,
            v_head_dim=mixer.v_head_dim,
            kv_width=self.kv_width,
            kv_bytes_per_token=0.0
            if mixer.kv_shared
            else kv_heads * (mixer.head_dim + mixer.v_head_dim) * self.kv_width,
            window=mixer.window,
            chunked=mixer.chunked,
            dtype=dtype,
            kept=mixer.kept,
        )

    def _latent_window(self, mixer: MultiHeadLatentAttention) -> int:
        """Return the window of a latent layer that keeps nothing beyond it, else 0 [tokens]."""
        return mixer.window if mixer.window and not mixer.compress_ratio else 0

    def _latent_bytes(self, mixer: MultiHeadLatentAttention) -> float:
        """Return what one token adds to the latent cache; every rank holds all of it [B].

        Approximation: of a layer that compresses beyond a window, the window's own entries (128 tokens) are
        left out.
        """
        dtype = kv_dtype(self.model, self.quantization.kv_cache)
        caches = layer_caches(mixer, dtype, self.model.dtype, self.tp)
        latents = [cache for cache in caches if cache.label == "latent"]
        growing = [cache for cache in latents if cache.kind == "full"] or latents
        return float(sum(cache.bytes_per_token for cache in growing))

    def _recurrent(self, mixer: Recurrent) -> RecurrentShape:
        """Return the rank's share of a recurrent layer."""
        (cache,) = layer_caches(mixer, "bf16", self.model.dtype, self.tp)
        width = mixer.n_heads * mixer.head_dim or self.model.hidden
        return RecurrentShape(
            state_bytes=float(cache.entry_bytes),
            # Decay, outer-product update and read-out: three multiply-adds an element.
            flop_per_token=6.0 * mixer.state_elements / self.tp,
            io_bytes_per_token=4.0 * width / self.tp * self.plain.output_bytes,
        )

    def _moe(self, ffn: MoEFFN) -> MoEShape:
        """Return the routed experts, cut or dealt out over the ranks."""
        return MoEShape(
            hidden=self.model.hidden,
            intermediate=ffn.intermediate,
            n_experts=ffn.n_experts,
            top_k=ffn.top_k,
            gated=ffn.gated,
            tensor_parallel=1 if self.expert_parallel else self.tp * self.copies,
            expert_parallel=self.tp * self.copies if self.expert_parallel else 1,
            precision=self.covered if all(m.quantized for m in ffn.expert_linears) else self.plain,
        )

    def _streaming(self, group: LayerGroup, attention: AttentionShape | None) -> Streaming:
        """Count the kernels of a layer that only move activations: norms, rotary, cache write, gate.

        A norm is fused with the residual addition (two reads, two writes of the hidden state).
        """
        hidden, width = self.model.hidden, self.plain.output_bytes
        mixer, ffn = group.mixer, group.ffn
        norms = (mixer is not None) + (ffn is not None)
        if self.model.architecture.startswith("gemma") and group.norm_params >= 4 * hidden:
            norms = 4
        kernels, moves = norms, [4.0 * hidden * width] * norms
        if attention is not None:
            row = attention.head_dim * width
            queries, keys = 2.0 * attention.n_heads * row, 2.0 * attention.n_kv_heads * row
            if self._has_qk_norm(group):
                kernels, moves = kernels + 2, [*moves, queries, keys]
            if self._sums_norms(mixer):  # squares are added up before the ranks' sums meet
                kernels, moves = kernels + 2, [*moves, queries / 2.0, keys / 2.0]
            if self.model.rotary_dim:
                kernels, moves = kernels + 1, [*moves, queries + keys]
            if attention.kv_bytes_per_token:
                kernels += (
                    1  # the cache write; its bytes are in the attention lanes, which were timed with it
                )
        if isinstance(mixer, Recurrent):
            kernels += 2  # convolution, gated norm
        if isinstance(mixer, MultiHeadLatentAttention):
            kernels += 1  # of the two absorbed multiplications, one is the ``kv_b_proj`` among the matrices
        inner = (
            0 if ffn is None else (ffn.shared_intermediate if isinstance(ffn, MoEFFN) else ffn.intermediate)
        )
        if ffn is not None and inner:
            kernels, moves = kernels + 1, [*moves, (3.0 if ffn.gated else 2.0) * inner / self.tp * width]
        return Streaming(kernels, tuple(moves), norms)

    def _sums_norms(self, mixer: Mixer) -> bool:
        """Tell whether the ranks of a group have to meet for the norms of queries and keys."""
        return self.tp > 1 and isinstance(mixer, Attention) and mixer.norm_over_heads

    def _has_qk_norm(self, group: LayerGroup) -> bool:
        """Tell whether queries and keys are normed per head: a few weights beyond whole hidden-size norms."""
        mixer = group.mixer
        if isinstance(mixer, MultiHeadLatentAttention):
            return True
        if not isinstance(mixer, Attention) or self.model.hidden == 0:
            return False
        beyond = group.norm_params % self.model.hidden - (mixer.n_heads if mixer.sinks else 0)
        return beyond >= mixer.head_dim
