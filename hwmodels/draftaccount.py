"""Where the time of steps went that verify drafted tokens and draft the next ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from .account import Rows, StepAccount, StepColumns, flop_of, over_peaks, step_times, summed_up
from .speculation import LOOKUP_S_PER_TOKEN, SpeculativeStepModel
from .timing.form import Array, KernelTime


def account_speculative(
    model: SpeculativeStepModel, columns: StepColumns
) -> tuple[StepAccount, NDArray[np.int64]]:
    """Attribute the time of steps that verify, and count their work.

    Drafting is charged to the same causes as the target. Its FLOP and bytes, and those of rejected tokens
    (``columns.rejected``), are work that nobody asked for: they are in the time and in what monitors show, not in
    ``flop``, ``weight_bytes`` and ``kv_bytes``.

    Parameters
    ----------
    model : target and draft
    columns : rows of one step each; ``n_decode`` sequences of ``model.queries`` tokens

    Returns
    -------
    The account, and the time that drafting took in each step, shape (steps,) [ns]
    """
    rows = Rows.of(columns)
    time, host, seen = step_times(model.verify, columns, rows)
    draft, lookup, executed = _drafting(model, columns, rows)
    whole, host = time + draft, host + lookup
    found = summed_up(model.verify, columns, rows, whole, host, seen)
    total = np.maximum(np.asarray(whole.seconds) + host, 1e-300)
    share = (np.asarray(draft.seconds) + lookup) / total
    return (
        replace(found, tensor_active_s=found.tensor_active_s + executed),
        np.rint(share * columns.duration_ns).astype(np.int64),
    )


def _drafting(
    model: SpeculativeStepModel, columns: StepColumns, rows: Rows
) -> tuple[KernelTime, Array, Array]:
    """Return each step's draft kernels, host time of lookups, and matrix work over its peak [s]."""
    sequences = columns.n_decode + rows.chunks
    reach = np.zeros(len(rows.chunks), dtype=np.int64)
    most = columns.longest.copy()
    if len(rows.with_chunks):
        ends = columns.prefill_new + columns.prefill_cached
        starts = columns.prefill_starts[rows.with_chunks]
        reach[rows.with_chunks] = np.add.reduceat(ends, starts)
        most[rows.with_chunks] = np.maximum(most[rows.with_chunks], np.maximum.reduceat(ends, starts))
    total = columns.context_sum + reach
    nothing: Array = np.zeros(len(sequences))
    if model.first is None or model.later is None:
        lookup: Array = LOOKUP_S_PER_TOKEN * total.astype(np.float64)
        return KernelTime().map(lambda value: nothing + value), lookup, nothing
    first = replace(columns, sampled=sequences, rejected=None)
    time, _, seen = step_times(model.first, first, rows)
    executed = over_peaks(model.first, flop_of(model.first, first, rows, seen)[1])
    if model.passes > 1:
        later = replace(
            first,
            n_decode=sequences,
            context_sum=total,
            longest=most,
            sampled=sequences * model.width,
            prefill_starts=np.zeros_like(columns.prefill_starts),
            contexts=_all_contexts(columns),
        )
        plain = Rows.of(later)
        each, _, seen = step_times(model.later, later, plain)
        time = time + each.times(float(model.passes - 1))
        executed = executed + (model.passes - 1) * over_peaks(
            model.later, flop_of(model.later, later, plain, seen)[1]
        )
    return time, nothing, executed


def _all_contexts(columns: StepColumns) -> list[list[int] | None] | None:
    """Return the contexts of each row's decoding sequences and of its chunks, where they are kept [tokens]."""
    if columns.contexts is None:
        return None
    ends = (columns.prefill_new + columns.prefill_cached).tolist()
    starts = columns.prefill_starts.tolist()
    return [
        None if known is None else [*known, *ends[starts[row] : starts[row + 1]]]
        for row, known in enumerate(columns.contexts)
    ]
