"""Bytes of weights on each rank, as stored: quantized matrices with their scales, tables, replicated parts.

What an engine prints as *model loading took* is this sum (source: vLLM's loaders; ``kv-pool.md``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from .spec import (
    Attention,
    DenseFFN,
    LayerGroup,
    Linear,
    ModelSpec,
    MoEFFN,
    MultiHeadLatentAttention,
    Recurrent,
)
from .stages import stage_layers
from .weightformat import DTYPE_BYTES, WeightFormat, stored_format

VOCAB_PADDING = 64
"""Engines pad the vocabulary to a multiple of this, so that any tensor parallelism divides it [entries]."""


@dataclass(frozen=True, slots=True)
class WeightShard:
    """Weights on one rank of one pipeline stage [B].

    Attributes
    ----------
    layers : matrices of attention, recurrent and dense feed-forward layers, shared experts and routers
    experts : routed experts
    embedding, head : input table (and per-layer tables) and output head; a tied head is counted once, on a
        pipeline a second time on the last stage
    small : norms, biases in no matrix, learned positions, recurrent parameters
    rotary : cos and sin tables
    absorbed : 16-bit copy of a quantized ``kv_b_proj``, which latent attention multiplies into its queries
    vision : vision or audio tower
    """

    layers: int = 0
    experts: int = 0
    embedding: int = 0
    head: int = 0
    small: int = 0
    rotary: int = 0
    absorbed: int = 0
    vision: int = 0

    @property
    def total(self) -> int:
        """Sum of all parts [B]."""
        return sum(getattr(self, part.name) for part in fields(self))


def linear_rank_shape(
    linear: Linear, tensor_parallel_size: int, attention: Attention | None = None
) -> tuple[int, int]:
    """Return (n, k) of a matrix on one rank; KV heads are replicated where there are fewer than ranks.

    >>> linear_rank_shape(Linear("o_proj", 4096, 4096, "row"), 4)
    (4096, 1024)
    """
    tp = tensor_parallel_size
    if linear.shard == "replicated" or tp == 1:
        return linear.n, linear.k
    if linear.shard == "row":
        return linear.n, -(-linear.k // tp)
    if linear.name == "qkv_proj" and attention is not None:
        kv = _kv_width(linear, attention)
        heads = -(-attention.n_kv_heads // tp)
        return -(-(linear.n - kv * attention.n_kv_heads) // tp) + kv * heads, linear.k
    return -(-linear.n // tp), linear.k


def _kv_width(linear: Linear, attention: Attention) -> int:
    """Rows one KV head adds to a fused q/k/v matrix: keys and values, keys alone, or none [elements]."""
    queries = attention.n_heads * attention.head_dim
    for width in (attention.head_dim + attention.v_head_dim, attention.head_dim):
        rest = linear.n - width * attention.n_kv_heads
        if not attention.kv_shared and rest > 0 and rest % queries == 0:
            return width
    return 0


def linear_bytes(
    linear: Linear,
    fmt: WeightFormat,
    dtype_bytes: int,
    tensor_parallel_size: int = 1,
    attention: Attention | None = None,
) -> int:
    """Return the bytes of one matrix and its bias on one rank [B].

    Parameters
    ----------
    linear : the unsharded matrix
    fmt : format of the matrices a quantization covers
    dtype_bytes : element size of the others, and of biases [B]
    tensor_parallel_size : ranks
    attention : layer it belongs to, for KV heads that are replicated
    """
    n, k = linear_rank_shape(linear, tensor_parallel_size, attention)
    body = fmt.matrix_bytes(n, k) if linear.quantized else n * k * dtype_bytes
    return body + (n * dtype_bytes if linear.bias else 0)


def weight_shards(
    model: ModelSpec,
    *,
    weights: str | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
    pipeline_partition: Sequence[int] | None = None,
    expert_parallel: bool = False,
    data_parallel_size: int = 1,
) -> tuple[WeightShard, ...]:
    """Return the weights on one tensor-parallel rank of each pipeline stage.

    Parameters
    ----------
    model : the model
    weights : format of the matrices a quantization may cover (``fp8``, ``w4a16``, ...); None: as stored
    tensor_parallel_size, pipeline_parallel_size : ranks
    pipeline_partition : layers on each stage where given
    expert_parallel : whole experts are dealt out over the ranks that share them instead of cut
    data_parallel_size : copies of the tensor-parallel group, which share the routed experts and nothing else

    Raises
    ------
    CapacityError
        Unknown format, or a partition that does not add up.

    Examples
    --------
    >>> spec = ModelSpec("m", "llama", 8, 64, 16, (), False, 8)
    >>> weight_shards(spec)[0].total
    2048
    """
    fmt = stored_format(model.quantization, model.dtype, weights)
    size = DTYPE_BYTES.get(model.dtype, 2)
    tp = tensor_parallel_size
    sharing = tp * data_parallel_size
    layers = [_layer(group, fmt, size, tp, sharing, expert_parallel) for group in model.layers]
    stages = stage_layers(model, pipeline_parallel_size, pipeline_partition)
    last = len(stages) - 1
    return tuple(
        _add(_ends(model, fmt, size, tp, i == 0, i == last), *(layers[group] for group in held))
        for i, held in enumerate(stages)
    )


def weight_bytes(
    model: ModelSpec,
    weights: str | None = None,
    tensor_parallel_size: int = 1,
    pipeline_parallel_size: int = 1,
) -> int:
    """Return the weights on the fullest rank; parameters and errors as in ``weight_shards`` [B]."""
    shards = weight_shards(
        model,
        weights=weights,
        tensor_parallel_size=tensor_parallel_size,
        pipeline_parallel_size=pipeline_parallel_size,
    )
    return max(shard.total for shard in shards)


def _add(*shards: WeightShard) -> WeightShard:
    return WeightShard(*(sum(getattr(shard, part.name) for shard in shards) for part in fields(WeightShard)))


def _layer(
    group: LayerGroup, fmt: WeightFormat, size: int, tp: int, sharing: int, expert_parallel: bool
) -> WeightShard:
    """Weights of one layer on one rank; ``sharing`` ranks share the routed experts."""
    mixer, ffn = group.mixer, group.ffn
    attention = mixer if isinstance(mixer, Attention) else None
    body = sum(linear_bytes(linear, fmt, size, tp, attention) for linear in mixer.linears) if mixer else 0
    experts = small = 0
    if isinstance(ffn, DenseFFN | MoEFFN):
        body += sum(linear_bytes(linear, fmt, size, tp) for linear in ffn.linears)
    if isinstance(ffn, MoEFFN):
        cut = 1 if expert_parallel else sharing
        held = -(-ffn.n_experts // sharing) if expert_parallel else ffn.n_experts
        experts = held * sum(linear_bytes(linear, fmt, size, cut) for linear in ffn.expert_linears)
    if isinstance(mixer, Recurrent):
        small = -(-mixer.other_params // tp) * size
    return WeightShard(
        layers=body,
        experts=experts,
        small=small + group.norm_params * size,
        absorbed=_absorbed(mixer, fmt, tp) if isinstance(mixer, MultiHeadLatentAttention) else 0,
    )


def _absorbed(mixer: MultiHeadLatentAttention, fmt: WeightFormat, tp: int) -> int:
    """Return the bytes of the 16-bit copy of ``kv_b_proj``; an unquantized one is used through views.

    Approximation: taken from how vLLM's latent attention prepares its weights, not from a printed size.
    """
    source = next((linear for linear in mixer.linears if linear.name == "kv_b_proj"), None)
    if source is None or not source.quantized or fmt.plain:
        return 0
    n, k = linear_rank_shape(source, tp)
    return 2 * n * k


def _ends(model: ModelSpec, fmt: WeightFormat, size: int, tp: int, first: bool, last: bool) -> WeightShard:
    """What a stage holds beside its layers: tables at the ends of the model, rotary tables everywhere."""
    vocab = -(-model.vocab // VOCAB_PADDING) * VOCAB_PADDING
    rows = -(-vocab // tp)
    table = rows * model.embedding_dim * size
    own_head = last and (not model.tied_embeddings or not first)
    return WeightShard(
        layers=sum(linear_bytes(linear, fmt, size, tp) for linear in model.linears) if first else 0,
        embedding=(table - (-model.per_layer_embedding_params // tp) * size) if first else 0,
        head=table if own_head else 0,
        small=model.other_params * size if last else 0,
        rotary=model.max_position * model.rotary_dim * size,
        vision=-(-model.vision_params // tp) * size if first else 0,
    )
