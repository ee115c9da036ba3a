"""One step as a list of kernels: what each computes, how often it runs, and the FLOP and bytes it needs.

The list is for people and for kernels that are run for real: the roofline chart, traces at kernel fidelity,
calibration. Time comes from the same plan through ``StepModel``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from .lowering import NORM_SUM_BYTES, AttentionShape, LayerPlan, LinearShape, ModelPlan
from .routing import Routing, Zipf

Chunk = tuple[int, int]


@dataclass(frozen=True, slots=True)
class OpCost:
    """Necessary work of one kernel call: FLOP, bytes of HBM by kind, bytes over the link."""

    flop: float = 0.0
    weight_bytes: float = 0.0
    kv_bytes: float = 0.0
    activation_bytes: float = 0.0
    link_bytes: float = 0.0

    @property
    def hbm_bytes(self) -> float:
        """All bytes to and from HBM [B]."""
        return self.weight_bytes + self.kv_bytes + self.activation_bytes

    @property
    def intensity(self) -> float:
        """Arithmetic intensity [FLOP/B]; infinite where nothing is moved."""
        return self.flop / self.hbm_bytes if self.hbm_bytes else float("inf")

    def __add__(self, other: OpCost) -> OpCost:
        """Return the cost of both."""
        return OpCost(*(getattr(self, part.name) + getattr(other, part.name) for part in fields(self)))

    def times(self, factor: float) -> OpCost:
        """Return the cost of ``factor`` such calls."""
        return OpCost(*(getattr(self, part.name) * factor for part in fields(self)))


@dataclass(frozen=True, slots=True)
class KernelCall:
    """One kernel of a step.

    Attributes
    ----------
    family : ``gemm``, ``decode_attention``, ``prefill_attention``, ``mla_decode``, ``mla_prefill``, ``moe``,
        ``elementwise``, ``recurrent``, ``allreduce``
    name : what it is in the model (``qkv_proj``, ``lm_head``, ...)
    dtype : compute dtype
    shape : its dimensions by name (m, n, k; batch, context_sum, heads; bytes, group)
    count : how often it runs in the step
    cost : work of one call
    """

    family: str
    name: str
    dtype: str
    shape: Mapping[str, float]
    count: int
    cost: OpCost = field(default_factory=OpCost)


@dataclass(frozen=True, slots=True)
class StepBatch:
    """What one step computes; see ``StepModel.step_ns``."""

    n_decode: int = 0
    context_sum: int = 0
    longest: int = 0
    prefill: Sequence[Chunk] = ()
    sampled: int = 0

    @property
    def tokens(self) -> int:
        """Tokens computed [tokens]."""
        return self.n_decode + sum(new for new, _ in self.prefill)

    @property
    def sequences(self) -> int:
        """Sequences with at least one token."""
        return self.n_decode + len(self.prefill)


def lower_step(plan: ModelPlan, batch: StepBatch, routing: Routing | None = None) -> list[KernelCall]:
    """Return the kernels of one step on one rank, layer by layer, padding left out.

    Parameters
    ----------
    plan : the lowered model
    batch : what the step computes
    routing : how tokens choose experts; real traffic if not given

    Notes
    -----
    Approximation: under sliding windows each decoding sequence is taken to see as much as the longest one
    does; the step model gets single contexts and does not need that.
    """
    calls: list[KernelCall] = []
    for layer in plan.layers:
        calls += _layer(plan, layer, batch, routing or Zipf())
    calls += [_gemm(matrix, batch.tokens, 1) for matrix in plan.outside]
    calls.append(_gemm(plan.head, batch.sampled, 1))
    return calls


def _layer(plan: ModelPlan, layer: LayerPlan, batch: StepBatch, routing: Routing) -> list[KernelCall]:
    m = batch.tokens
    calls = [_gemm(matrix, m, layer.count) for matrix in layer.linears]
    if layer.streaming.kernels:
        moved = layer.streaming.bytes_per_token * m
        shape = {"bytes": moved, "kernels": float(layer.streaming.kernels)}
        calls.append(
            KernelCall("elementwise", "streaming", "bf16", shape, layer.count, OpCost(activation_bytes=moved))
        )
    if layer.attention is not None:
        calls += _attention(layer.attention, layer.count, batch)
    if layer.recurrent is not None:
        cost = OpCost(
            flop=layer.recurrent.flop_per_token * m,
            kv_bytes=2.0 * layer.recurrent.state_bytes * batch.sequences,
            activation_bytes=layer.recurrent.io_bytes_per_token * m,
        )
        calls.append(KernelCall("recurrent", "scan", "bf16", {"m": float(m)}, layer.count, cost))
    if layer.moe is not None:
        calls.append(_experts(layer, plan.copies * m, routing))
    for name, dtype, width, times in (
        ("allreduce", "bf16", plan.message_bytes_per_token, layer.allreduces),
        ("norm sums", "fp32", NORM_SUM_BYTES, layer.norm_sums),
    ):
        if times:
            cost = OpCost(link_bytes=2.0 * (plan.group - 1) / plan.group * width * m)
            shape = {"bytes": width * m, "group": float(plan.group)}
            calls.append(KernelCall("allreduce", name, dtype, shape, layer.count * times, cost))
    if layer.exchanges:
        calls.append(_exchange(plan, layer, m))
    return calls


def _exchange(plan: ModelPlan, layer: LayerPlan, m: int) -> KernelCall:
    """Return the gathering of all copies' tokens for the experts and the sums that are dealt back."""
    message, ranks = plan.copies * plan.message_bytes_per_token * m, plan.copies * plan.group
    cost = OpCost(link_bytes=2.0 * (ranks - 1) / ranks * message)
    shape = {"bytes": message, "group": float(ranks)}
    return KernelCall("allreduce", "exchange", "bf16", shape, layer.count * layer.exchanges, cost)


def _gemm(matrix: LinearShape, m: int, count: int) -> KernelCall:
    precision = matrix.precision
    cost = OpCost(
        flop=matrix.flop_per_token * m,
        weight_bytes=matrix.weight_bytes if m else 0.0,
        activation_bytes=m * (matrix.k * precision.input_bytes + matrix.n * precision.output_bytes),
    )
    shape = {"m": float(m), "n": float(matrix.n), "k": float(matrix.k)}
    family = f"linear_{precision.name}" if precision.name else "gemm"
    return KernelCall(family, matrix.name, precision.compute, shape, count, cost)


def _attention(shape: AttentionShape, count: int, batch: StepBatch) -> list[KernelCall]:
    decode, prefill = (
        ("mla_decode", "mla_prefill") if shape.kind == "mla" else ("decode_attention", "prefill_attention")
    )
    io = 2.0 * (shape.head_dim + shape.v_head_dim) * shape.n_heads
    per_key = shape.kv_bytes_read_per_key
    calls: list[KernelCall] = []
    if batch.n_decode:
        seen = batch.context_sum
        if not shape.window:
            seen = shape.keys_kept(seen)
        else:
            seen = min(seen, batch.n_decode * min(shape.window, batch.longest))
        cost = OpCost(
            flop=shape.flop_per_pair * seen,
            kv_bytes=per_key * seen + shape.kv_bytes_per_token * batch.n_decode,
            activation_bytes=io * batch.n_decode,
        )
        dims = {"batch": float(batch.n_decode), "context_sum": float(seen), "longest": float(batch.longest)}
        calls.append(KernelCall(decode, "attention", shape.dtype, dims, count, cost))
    if batch.prefill:
        new = sum(chunk[0] for chunk in batch.prefill)
        pairs = sum(prefill_pairs(n, cached, shape.window) for n, cached in batch.prefill)
        read = sum(keys_read(n, cached, shape.window) for n, cached in batch.prefill)
        cost = OpCost(
            flop=shape.flop_per_pair * pairs,
            kv_bytes=per_key * read + shape.kv_bytes_per_token * new,
            activation_bytes=io * new,
        )
        dims = {"chunks": float(len(batch.prefill)), "new": float(new), "pairs": float(pairs)}
        calls.append(KernelCall(prefill, "attention", shape.dtype, dims, count, cost))
    return calls


def _experts(layer: LayerPlan, m: int, routing: Routing) -> KernelCall:
    moe = layer.moe
    assert moe is not None
    stats = routing.statistics(m, moe.n_experts, moe.top_k, moe.expert_parallel)
    cost = OpCost(
        flop=moe.flop_per_pair * stats.rows,
        weight_bytes=moe.expert_bytes * stats.active,
        activation_bytes=2.0 * m * moe.hidden * (moe.top_k + 1.0),
    )
    shape = {"tokens": float(m), "active": stats.active, "rows": stats.rows}
    return KernelCall("moe", "experts", moe.precision.compute, shape, layer.count, cost)


def prefill_pairs(new: int, cached: int, window: int = 0) -> int:
    """Return the (query, key) pairs of a causal chunk, inside a window if there is one.

    >>> prefill_pairs(3, 2), prefill_pairs(3, 2, 4)
    (12, 11)
    """
    growing = min(max(window - cached, 0), new) if window else new
    return growing * cached + growing * (growing + 1) // 2 + (new - growing) * window


def keys_read(new: int, cached: int, window: int = 0) -> int:
    """Return the distinct keys that a chunk reads.

    >>> keys_read(3, 100), keys_read(3, 100, 10)
    (103, 12)
    """
    return min(cached + new, window + new - 1) if window else cached + new
