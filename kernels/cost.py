"""FLOP and bytes of a timed kernel: a plan of that one kernel, lowered as any step of a model is."""

from __future__ import annotations

from functools import lru_cache

from ..hwmodels.kernelcall import KernelCall, OpCost, StepBatch, lower_step
from ..hwmodels.lowering import (
    AttentionShape,
    LayerPlan,
    LinearShape,
    ModelPlan,
    MoEShape,
    Parallelism,
    Streaming,
    lower_model,
)
from ..hwmodels.precision import Precision, Quantization, linear_precision, plain_precision
from ..hwmodels.routing import BalancedStride
from ..hwmodels.spec import Attention, DenseFFN, LayerGroup, Linear, ModelSpec
from .errors import KernelError
from .shape import KernelShape

PLAIN = ("bfloat16", "float16", "float32")
_SCHEMES = {"fp8": "fp8", "int8": "w8a8", "int8_wo": "w8a16", "int4_wo": "w4a16"}
_NOTHING = Streaming()
STREAMING = ("rmsnorm", "rotary", "swiglu", "embedding")
SAMPLING = ("sample_greedy", "sample_topp")
DECODER_LAYERS = 2
"""Layers of the timed decoder step."""
COPIES = ("copy_h2d", "copy_d2h", "copy_d2d", "copy_blocks")
ATTENTION = ("attn_prefill", "attn_decode", "attn_mixed")
OPERATIONS = ("gemm", *ATTENTION, "moe", "allreduce", "decoder_step", *STREAMING, *SAMPLING, *COPIES)
"""Operations that have a kernel here."""


@lru_cache(maxsize=64)
def precision_of(dtype: str) -> Precision:
    """Return widths and compute dtype of a table's ``dtype``.

    >>> precision_of("bfloat16").weight_bytes, precision_of("int4_wo").compute
    (2.0, 'bf16')
    """
    if dtype in PLAIN:
        return plain_precision(_model(dtype))
    if dtype not in _SCHEMES:
        raise KernelError(f"no kernel for dtype {dtype!r}; allowed: {', '.join((*PLAIN, *_SCHEMES))}")
    return linear_precision(_model("bfloat16"), Quantization(weights=_SCHEMES[dtype]))


def kernel_calls(shape: KernelShape) -> list[KernelCall]:
    """Return the ``KernelCall`` of a shape (two for a mixed batch).

    Raises
    ------
    KernelError : an operation or dtype that no model has
    """
    if shape.op == "gemm":
        linear = LinearShape("timed", shape.n, shape.k, precision_of(shape.dtype))
        return lower_step(_plan(outside=(linear,)), _prefill(shape.m))[:1]
    if shape.op in ATTENTION:
        return lower_step(_plan(LayerPlan(1, (), _NOTHING, _attention(shape))), _attention_batch(shape))[:-1]
    if shape.op == "moe":
        plan = LayerPlan(1, (), _NOTHING, moe=_experts(shape))
        return lower_step(_plan(plan), _prefill(shape.num_tokens), BalancedStride())[:1]
    if shape.op == "allreduce":
        width = precision_of(shape.dtype).output_bytes
        plan = _plan(LayerPlan(1, (), _NOTHING, allreduces=1), message=width, group=shape.world_size)
        return lower_step(plan, _prefill(int(shape.bytes / width)))[:1]
    if shape.op == "decoder_step":
        plan = lower_model(_decoder(shape), Parallelism(), Quantization())
        return lower_step(plan, StepBatch(shape.batch, shape.batch * shape.kv_len, shape.kv_len))[:-1]
    moved = moved_bytes(shape)
    return [
        KernelCall("elementwise", shape.op, shape.dtype, {"bytes": moved}, 1, OpCost(activation_bytes=moved))
    ]


def cost_of(shape: KernelShape) -> OpCost:
    """Return the necessary work of one call.

    >>> cost_of(KernelShape("gemm", "torch_mm", "bfloat16", m=2, n=4, k=8)).flop
    128.0
    """
    return sum((call.cost.times(call.count) for call in kernel_calls(shape)), start=OpCost())


def moved_bytes(shape: KernelShape) -> float:
    """Return the bytes that a streaming kernel or a copy moves, reads and writes together [B].

    Raises
    ------
    KernelError : an operation that is not one of them
    """
    if shape.op in COPIES:
        # A copy between host and device passes each memory once, one within a memory twice.
        return float(shape.bytes) * (1.0 if shape.op in ("copy_h2d", "copy_d2h") else 2.0)
    if shape.op in SAMPLING:
        return float(shape.num_tokens) * shape.hidden * 4.0  # float32 scores, read once
    if shape.op == "embedding":
        return (
            lower_model(_layer(shape), Parallelism(), Quantization()).embedding_bytes_per_token
            * shape.num_tokens
        )
    if shape.op not in STREAMING:
        raise KernelError(f"no kernel for operation {shape.op!r}; allowed: {', '.join(OPERATIONS)}")
    norm, _, rotary, gate = (
        lower_model(_layer(shape), Parallelism(), Quantization()).layers[0].streaming.moves
    )
    return {"rmsnorm": norm, "rotary": rotary, "swiglu": gate}[shape.op] * shape.num_tokens


def _prefill(tokens: int) -> StepBatch:
    return StepBatch(prefill=((tokens, 0),))


def _attention_batch(shape: KernelShape) -> StepBatch:
    if shape.op == "attn_prefill":
        return StepBatch(prefill=((shape.q_len, shape.kv_len - shape.q_len),) * shape.batch)
    chunk = ((shape.q_len, shape.num_tokens - shape.q_len),) if shape.op == "attn_mixed" else ()
    return StepBatch(shape.batch, shape.batch * shape.kv_len, shape.kv_len, chunk)


def _attention(shape: KernelShape) -> AttentionShape:
    width = precision_of(shape.kv_dtype or shape.dtype).output_bytes
    return AttentionShape(
        kind="gqa",
        n_heads=shape.n_heads,
        n_kv_heads=shape.n_kv_heads,
        head_dim=shape.head_dim,
        v_head_dim=shape.head_dim,
        kv_width=width,
        kv_bytes_per_token=0.0,  # the timed kernels find the new keys in the cache
        dtype=precision_of(shape.dtype).compute,
    )


def _experts(shape: KernelShape) -> MoEShape:
    return MoEShape(
        shape.hidden, shape.inter, shape.n_experts, shape.topk, True, 1, 1, precision_of(shape.dtype)
    )


def _plan(
    *layers: LayerPlan, outside: tuple[LinearShape, ...] = (), message: float = 0.0, group: int = 1
) -> ModelPlan:
    head = LinearShape("none", 0, 0, precision_of("bfloat16"))
    return ModelPlan(layers, outside, head, 0, 0.0, message, group)


def _model(dtype: str) -> ModelSpec:
    return ModelSpec("timed", "llama", 1, 1, 1, (), True, 1, dtype=dtype)


def _decoder(shape: KernelShape) -> ModelSpec:
    """Return the decoder of a timed step: ``DECODER_LAYERS`` layers without rotary positions or a head."""
    inner, kv = shape.n_heads * shape.head_dim, shape.n_kv_heads * shape.head_dim
    qkv = Linear("qkv_proj", inner + 2 * kv, shape.hidden)
    o = Linear("o_proj", shape.hidden, inner, "row")
    mixer = Attention(shape.n_heads, shape.n_kv_heads, shape.head_dim, shape.head_dim, linears=(qkv, o))
    up = Linear("gate_up_proj", 2 * shape.inter, shape.hidden)
    down = Linear("down_proj", shape.hidden, shape.inter, "row")
    group = LayerGroup(DECODER_LAYERS, mixer, DenseFFN(shape.inter, True, (up, down)))
    return ModelSpec("timed", "llama", shape.hidden, 1, 1, (group,), True, shape.hidden, dtype=shape.dtype)


def _layer(shape: KernelShape) -> ModelSpec:
    """Return a model of one layer that holds the streaming kernels of a shape."""
    heads, kv_heads, width = max(shape.n_heads, 1), max(shape.n_kv_heads, 1), max(shape.head_dim, 1)
    group = LayerGroup(1, Attention(heads, kv_heads, width, width), DenseFFN(max(shape.inter, 1), True))
    hidden = max(shape.hidden, 1)
    return ModelSpec(
        "timed", "llama", hidden, 1, 1, (group,), True, hidden, rotary_dim=width, dtype=shape.dtype
    )
