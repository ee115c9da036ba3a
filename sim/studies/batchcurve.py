"""What a larger batch of decodes brings: weights are read once for all of them, keys and values for each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...hwmodels.account import StepColumns, account

if TYPE_CHECKING:
    from ...hwmodels.stepmodel import StepModel
    from ..kvcache.base import KVAllocator
    from ..scenario.resolve import ResolvedScenario

LARGEST = 1 << 16
"""Largest batch that is looked at for the ridge."""


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """A decode step of so many sequences of one length, on one GPU.

    Attributes
    ----------
    batch : sequences
    tpot_s : time of the step, and between the tokens of a sequence [s]
    tokens_per_s : of all sequences, on all ranks together [tokens/s]
    bytes_per_token, kv_bytes_per_token : necessary HBM bytes of a rank for each token, and those of KV in it [B]
    intensity : FLOP over HBM bytes [FLOP/B]
    mfu, mbu : work over peak, bytes over bandwidth, as shares of the step [-]
    fits : whether the KV pool holds so many sequences, and the scheduler takes them
    """

    batch: int
    tpot_s: float
    tokens_per_s: float
    bytes_per_token: float
    kv_bytes_per_token: float
    intensity: float
    mfu: float
    mbu: float
    fits: bool


@dataclass(frozen=True, slots=True)
class BatchCurve:
    """Decode steps by batch size, at the mean context of the load.

    Attributes
    ----------
    context_tokens : keys that each sequence reads: mean prompt and half of the mean answer [tokens]
    points : batch by batch: powers of two, and the batches named below
    ridge_batch : smallest batch whose work takes the peak longer than its bytes take HBM; None: no batch up to
        ``LARGEST``, since keys and values grow with it
    limit_intensity : that of a batch of ``LARGEST``, where keys and values alone count [FLOP/B]
    ridge_context : longest context at which a batch of up to ``LARGEST`` crosses the ridge; None: none does [tokens]
    kv_batch : most sequences of that context in the KV pool
    max_num_seqs : most that the scheduler takes
    """

    context_tokens: int
    points: tuple[BatchPoint, ...]
    ridge_batch: int | None
    limit_intensity: float
    ridge_context: int | None
    kv_batch: int
    max_num_seqs: int


def batch_curve(resolved: ResolvedScenario, model: StepModel, allocator: KVAllocator) -> BatchCurve:
    """Return the batch-amortisation curve of a scenario.

    Parameters
    ----------
    resolved : the scenario with its load
    model : its step model
    allocator : its KV pool, empty
    """
    workload = resolved.workload
    assert workload is not None
    context = max(round(float(workload.input_tokens.mean() + workload.output_tokens.mean() / 2)), 1)
    most = allocator.num_blocks // max(allocator.blocks_of(context), 1)
    limit = resolved.scheduler.max_num_seqs
    ridge = _first(lambda batch: _crossed(model, batch, context), LARGEST)
    end = max(2 * most, 2 * min(ridge or 0, 4 * most), 1)
    named = {batch for batch in (most, limit, ridge) if batch and batch <= end}
    batches = sorted({1 << power for power in range(end.bit_length())} | named)
    return BatchCurve(
        context_tokens=context,
        points=decode_points(model, batches, context, min(most, limit)),
        ridge_batch=ridge,
        limit_intensity=decode_points(model, [LARGEST], context, most)[0].intensity,
        ridge_context=_longest_crossing(model, resolved.kv_cache.max_model_len),
        kv_batch=most,
        max_num_seqs=limit,
    )


def _longest_crossing(model: StepModel, longest: int) -> int | None:
    """Return the longest context, up to ``longest``, at which the largest batch is beyond the ridge [tokens]."""
    if _crossed(model, LARGEST, longest):
        return longest
    first_below = _first(lambda context: not _crossed(model, LARGEST, context), longest)
    return first_below - 1 if first_below and first_below > 1 else None


def decode_points(
    model: StepModel, batches: Sequence[int], context: int, most: int
) -> tuple[BatchPoint, ...]:
    """Return decode steps of so many sequences.

    Parameters
    ----------
    model : the step model
    batches : sequences of each step
    context : keys that each of them reads [tokens]
    most : sequences that fit
    """
    columns = _columns(model, batches, context)
    found = account(model, columns)
    seconds = columns.duration_ns / 1e9
    flop = np.sum(np.array(list(found.flop.values())), axis=0)
    tokens = columns.n_decode * model.queries
    rows = zip(
        batches,
        seconds.tolist(),
        (tokens / seconds).tolist(),
        (found.useful_bytes / tokens).tolist(),
        (found.kv_bytes / tokens).tolist(),
        (flop / found.useful_bytes).tolist(),
        (found.useful_flop_seconds / seconds).tolist(),
        (found.useful_bytes / model.chip.bandwidth / seconds).tolist(),
        strict=True,
    )
    return tuple(BatchPoint(*row, fits=row[0] <= most) for row in rows)


def _columns(model: StepModel, batches: Sequence[int], context: int) -> StepColumns:
    count = np.array(batches, dtype=np.int64)
    nothing = np.zeros(len(batches), dtype=np.int64)
    alike = [[context] * batch for batch in batches] if model.needs_contexts else None
    each = alike or [None] * len(batches)
    return StepColumns(
        steps=nothing + 1,
        n_decode=count,
        context_sum=count * context,
        longest=nothing + context,
        sampled=count * model.queries,
        prefill_starts=np.zeros(len(batches) + 1, dtype=np.int64),
        prefill_new=nothing[:0],
        prefill_cached=nothing[:0],
        duration_ns=np.array(
            [
                model.step_ns(batch, batch * context, context, [], batch * model.queries, contexts)
                for batch, contexts in zip(batches, each, strict=True)
            ],
            dtype=np.int64,
        ),
        contexts=alike,
    )


def _crossed(model: StepModel, batch: int, context: int) -> bool:
    """Tell whether a step's work takes the peak at least as long as its bytes take HBM."""
    found = account(model, _columns(model, [batch], context))
    return bool(found.useful_flop_seconds[0] >= found.useful_bytes[0] / model.chip.bandwidth)


def _first(holds: Callable[[int], bool], most: int) -> int | None:
    """Return the smallest number from 1 to ``most`` of which something holds that holds of all above it; or None."""
    powers = (min(1 << power, most) for power in range(most.bit_length() + 1))
    high = next((number for number in powers if holds(number)), None)
    if high is None:
        return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
