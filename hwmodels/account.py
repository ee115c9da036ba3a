"""Where the time of steps went and what work they did: after the fact, in bulk.

The simulator's hot path asks only for durations. This module works out, for rows of equal steps, each step's
nanoseconds by cause (summing exactly to the duration it is given), its FLOP and bytes, and how long the
device's resources were busy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .attentiontimes import MOST_BLOCKS, AttentionKind
from .stepmodel import StepModel
from .timing.decode_attention import DecodeTerms
from .timing.decodes_beside import Chunks
from .timing.form import CAUSES, KERNEL_TIME_FIELDS, Array, KernelTime, Value

Int64Array = NDArray[np.int64]

STEP_CAUSES = (*CAUSES, "host")
"""Columns of ``StepAccount.causes_ns``; a step is never idle, transferring or in a pipeline bubble."""
_FIELDS_OF = attrgetter(*DecodeTerms.__dataclass_fields__)  # q is the first


@dataclass(frozen=True, slots=True)
class StepColumns:
    """Rows of steps: one step each, or a run of decode steps in which every context grows by one.

    Attributes
    ----------
    steps : steps of each row, int64 (rows,)
    n_decode, context_sum, longest, sampled : of the row's first step, as in ``StepModel.step_ns``, int64
        (rows,)
    prefill_starts : index of each row's first chunk, int64 (rows + 1,)
    prefill_new, prefill_cached : chunks of all rows, int64 (chunks,) [tokens]
    duration_ns : duration of every step, int64 (sum of steps,) [ns]
    contexts : single contexts of each row's first step, where ``StepModel.needs_contexts``
    rejected : drafted tokens of each step that were not accepted, None: nothing was drafted [tokens]
    selecting : of each row's first step, as in ``StepModel.step_ns``, int64 (rows, 2), zeros where no prompt ends;
        None: nothing is chosen [tokens]
    shared : leading keys that all decoding sequences of a row read once, as in ``StepModel.step_ns``, int64 (rows,);
        None: nobody shares [tokens]
    """

    steps: Int64Array
    n_decode: Int64Array
    context_sum: Int64Array
    longest: Int64Array
    sampled: Int64Array
    prefill_starts: Int64Array
    prefill_new: Int64Array
    prefill_cached: Int64Array
    duration_ns: Int64Array
    contexts: Sequence[Sequence[int] | None] | None = None
    rejected: Array | None = None
    selecting: Int64Array | None = None
    shared: Int64Array | None = None


@dataclass(frozen=True, slots=True)
class StepAccount:
    """What each step was spent on; arrays have one entry a step.

    Attributes
    ----------
    causes_ns : int64 (steps, causes) in the order of ``STEP_CAUSES``; a row sums exactly to the step's
        duration [ns]
    flop : work of the tokens that were asked for, by compute dtype, padding left out [FLOP]
    useful_flop_seconds : that work over the peak of its dtype [s]
    weight_bytes, kv_bytes : necessary HBM bytes: weights once, cached keys and values read once, new ones
        written [B]
    kernel_busy_s, sm_active_s, tensor_active_s, dram_active_s : time any kernel runs; compute units held over
        all; matrix work as executed over its peak; memory interface at its reachable rate [s]
    """

    causes_ns: Int64Array
    flop: dict[str, Array]
    useful_flop_seconds: Array
    weight_bytes: Array
    kv_bytes: Array
    kernel_busy_s: Array
    sm_active_s: Array
    tensor_active_s: Array
    dram_active_s: Array

    @property
    def useful_bytes(self) -> Array:
        """Necessary HBM bytes of each step [B]."""
        return self.weight_bytes + self.kv_bytes


def account(model: StepModel, columns: StepColumns) -> StepAccount:
    """Attribute the time of steps and count their work.

    Durations may be longer than the model's own (contention): every cause then grows in proportion.
    """
    rows = Rows.of(columns)
    if columns.shared is None or model.shared_prefix is None:
        time, host, seen = step_times(model, columns, rows)
        return summed_up(model, columns, rows, time, host, seen)
    batch, shared = columns.n_decode, columns.shared
    own = replace(
        columns,
        context_sum=columns.context_sum - batch * shared,
        longest=columns.longest - np.where(batch > 0, shared, 0),
    )
    time, host, (seen,) = step_times(model, own, rows)
    there = np.flatnonzero(shared)
    prefix = model.shared_prefix.time(batch[there].astype(np.float64), shared[there].astype(np.float64))
    time = time + prefix.map(lambda value: _spread(_placed(value, there, len(shared)), rows))
    read = seen + _spread(shared.astype(np.float64), rows)
    whole = seen + _spread((batch * shared).astype(np.float64), rows)
    return summed_up(model, columns, rows, time, host, [whole], [read])


def step_times(model: StepModel, columns: StepColumns, rows: Rows) -> tuple[KernelTime, Array, list[Array]]:
    """Return every step's kernels and host time [s], and the keys that each kind of attention sees [tokens]."""
    time = _row_time(model, columns, rows).map(lambda value: _spread(value, rows))
    if columns.selecting is not None and model.selection is not None:
        keys, kept = columns.selecting.T.astype(np.float64)
        time = time + model.selection.time(keys, kept).map(lambda value: _spread(value, rows))
    sequences = columns.n_decode + rows.chunks
    time = time + model.state_time(sequences).map(lambda value: _spread(value, rows))
    host = _spread(model.host_seconds(sequences), rows)
    seen: list[Array] = []
    for kind in model.kinds:
        decode, pairs = _decode_time(model, kind, columns, rows)
        time = time + decode
        seen.append(pairs)
    return time, host, seen


def summed_up(
    model: StepModel,
    columns: StepColumns,
    rows: Rows,
    time: KernelTime,
    host: Array,
    seen: Sequence[Array],
    read: Sequence[Array] | None = None,
) -> StepAccount:
    """Return the account of steps whose kernels' and host's times are known.

    ``read`` are the keys that are read, where that is less than what is seen [tokens].
    """
    causes = [np.asarray(getattr(time, cause)) for cause in CAUSES] + [host]
    causes_ns = _whole(causes, columns.duration_ns)
    stretch = columns.duration_ns / 1e9 / np.maximum(sum(causes), 1e-300)
    flop, executed = flop_of(model, columns, rows, seen)
    weights, kv = _bytes(model, columns, rows, seen if read is None else read)
    return StepAccount(
        causes_ns=causes_ns,
        flop=flop,
        useful_flop_seconds=over_peaks(model, flop),
        weight_bytes=weights,
        kv_bytes=kv,
        kernel_busy_s=(columns.duration_ns - causes_ns[:, -1]) / 1e9,
        sm_active_s=np.asarray(time.compute_demand) * stretch,
        tensor_active_s=over_peaks(model, executed),
        dram_active_s=np.asarray(time.hbm_demand),
    )


@dataclass(frozen=True, slots=True)
class Rows:
    """How rows unfold into steps.

    Attributes
    ----------
    of_step : row of every step; nth : position of the step in its row
    chunks, new_tokens : chunks of each row, and their new tokens
    with_chunks : rows that have chunks
    """

    of_step: Int64Array
    nth: Int64Array
    chunks: Int64Array
    new_tokens: Int64Array
    with_chunks: Int64Array

    @classmethod
    def of(cls, columns: StepColumns) -> Rows:
        """Unfold rows."""
        steps = columns.steps
        of_step = np.repeat(np.arange(len(steps)), steps)
        nth = np.arange(len(of_step)) - np.repeat(np.cumsum(steps) - steps, steps)
        chunks = np.diff(columns.prefill_starts)
        with_chunks = np.flatnonzero(chunks)
        new_tokens = np.zeros(len(steps), dtype=np.int64)
        if len(with_chunks):
            new_tokens[with_chunks] = np.add.reduceat(
                columns.prefill_new, columns.prefill_starts[with_chunks]
            )
        return cls(of_step, nth, chunks, new_tokens, with_chunks)


def _spread(value: Value | NDArray[np.floating[Any]] | NDArray[np.bool_], rows: Rows) -> Array:
    """Give every step the value of its row."""
    per_row = np.broadcast_to(np.asarray(value, dtype=np.float64), rows.chunks.shape)
    return per_row[rows.of_step]


def _row_time(model: StepModel, columns: StepColumns, rows: Rows) -> KernelTime:
    """Return what is the same in all steps of a row: token part, head, sampler, prefill attention [s]."""
    padded = model.padded(columns.n_decode * model.queries + rows.new_tokens)
    counts, where = np.unique(padded, return_inverse=True)
    total = KernelTime()
    for part in model.tokens.table(counts).values():
        total = total + part
    time = total.map(lambda value: np.broadcast_to(np.asarray(value), counts.shape)[where])
    sampled, where = np.unique(columns.sampled, return_inverse=True)
    time = time + model.rows_time(sampled).map(
        lambda value: np.broadcast_to(np.asarray(value), sampled.shape)[where]
    )
    if len(rows.with_chunks):
        for kind in model.kinds:
            prefill = kind.prefill.time_many(
                columns.prefill_new.astype(np.float64),
                columns.prefill_cached.astype(np.float64),
                columns.prefill_starts[rows.with_chunks],
            )
            time = time + prefill.map(lambda value: _scatter(value, rows)).times(kind.count)
    return time


def _scatter(value: Value, rows: Rows) -> Array:
    """Place values of rows that have chunks among zeros."""
    return _placed(value, rows.with_chunks, len(rows.chunks))


def _placed(value: Value, where: Int64Array, count: int) -> Array:
    """Place values of some rows among zeros."""
    out = np.zeros(count)
    out[where] = value
    return out


def _decode_time(
    model: StepModel, kind: AttentionKind, columns: StepColumns, rows: Rows
) -> tuple[KernelTime, Array]:
    """Return one kind of decode attention in every step [s], and the keys its queries see [tokens]."""
    sums, longest = _visible(kind, columns, rows)
    batch = columns.n_decode[rows.of_step]
    decoding = batch > 0
    if not decoding.any():
        return KernelTime(), sums
    spans = kind.spans(batch, sums.astype(np.int64), longest)
    keys, where = np.unique((batch * MOST_BLOCKS**2 + spans)[decoding], return_inverse=True)
    terms = _gather([kind.terms(*divmod(key, MOST_BLOCKS**2)) for key in keys.tolist()], where)
    longest_chunk = np.zeros(len(rows.chunks), dtype=np.int64)
    if len(rows.with_chunks):
        longest_chunk[rows.with_chunks] = np.maximum.reduceat(
            columns.prefill_new, columns.prefill_starts[rows.with_chunks]
        )
    mixed = _spread(model.mixed_factors(longest_chunk), rows)[decoding]
    # One fixed time a layer: where chunks have charged theirs, what the longer of the two adds.
    t0 = np.asarray(terms.t0)
    time = replace(terms, t0=0.0).time(sums[decoding]).times(mixed)
    beside = (rows.chunks > 0)[rows.of_step][decoding]
    fixed = np.where(beside, np.maximum(t0 - kind.prefill.params.t0, 0.0), t0)
    time = time + KernelTime(latency=fixed)
    together = _spread(longest_chunk > kind.one_call_above, rows)[decoding] > 0.0
    if together.any():
        added = _beside_chunks(kind, columns, rows, np.flatnonzero(decoding)[together], sums, longest)
        time = _replaced(time, together, added)

    def everywhere(value: Value) -> Array:
        out = np.zeros(len(batch))
        out[decoding] = value
        return out

    return time.times(float(kind.count)).map(everywhere), sums


def _beside_chunks(
    kind: AttentionKind, columns: StepColumns, rows: Rows, steps: Int64Array, sums: Array, longest: Int64Array
) -> KernelTime:
    """Return what decodes add to the chunks' call in some steps [s]."""
    chunks = Chunks.of(
        kind.prefill,
        columns.prefill_new.astype(np.float64),
        columns.prefill_cached.astype(np.float64),
        columns.prefill_starts[rows.with_chunks],
    )
    row = rows.of_step[steps]
    call = np.searchsorted(rows.with_chunks, row)
    mine = Chunks(
        *(np.asarray(value)[call] for value in (chunks.longest, chunks.tiles, chunks.keys, chunks.most))
    )
    decodes = columns.n_decode[row].astype(np.float64)
    return kind.beside_time(mine, decodes, sums[steps], longest[steps].astype(np.float64))


def _replaced(time: KernelTime, where: NDArray[np.bool_], by: KernelTime) -> KernelTime:
    """Return times of which some are replaced."""
    found: list[Array] = []
    for name in KERNEL_TIME_FIELDS:
        values = np.array(np.broadcast_to(np.asarray(getattr(time, name), dtype=np.float64), where.shape))
        values[where] = getattr(by, name)
        found.append(values)
    return KernelTime(*found)


def _visible(kind: AttentionKind, columns: StepColumns, rows: Rows) -> tuple[Array, Int64Array]:
    """Return summed and longest visible context of every step [tokens]."""
    if not kind.shape.window:
        sums = columns.context_sum[rows.of_step] + columns.n_decode[rows.of_step] * rows.nth
        longest = columns.longest[rows.of_step] + rows.nth * (columns.n_decode[rows.of_step] > 0)
        return kind.shape.keys_kept(sums).astype(np.float64), kind.shape.keys_kept(longest)
    sums, longest = np.zeros(len(rows.nth)), np.zeros(len(rows.nth), dtype=np.int64)
    start = 0
    for row, steps in enumerate(columns.steps.tolist()):
        if columns.n_decode[row]:
            contexts = columns.contexts[row] if columns.contexts is not None else None
            sums[start : start + steps], longest[start : start + steps] = kind.visible_run(
                int(columns.n_decode[row]),
                int(columns.context_sum[row]),
                int(columns.longest[row]),
                steps,
                contexts,
            )
        start += steps
    return sums, longest


def _gather(terms: Sequence[DecodeTerms], where: Int64Array) -> DecodeTerms:
    """Return decode terms whose fields, but for ``q``, are arrays over steps."""
    table = np.array(list(map(_FIELDS_OF, terms)), dtype=np.float64).T
    return DecodeTerms(terms[0].q, *(column[where] for column in table[1:]))


def _whole(causes: Sequence[Array], duration_ns: Int64Array) -> Int64Array:
    """Share out whole nanoseconds in proportion to ``causes``, each step's row summing to its duration.

    Cumulated shares are rounded, so every cause is within one nanosecond of its exact share.
    """
    total = np.zeros(len(duration_ns))
    for cause in causes:
        total = total + cause
    scale = duration_ns / np.maximum(total, 1e-300)
    out = np.empty((len(duration_ns), len(causes)), dtype=np.int64)
    reached = np.zeros(len(duration_ns))
    before = np.zeros(len(duration_ns), dtype=np.int64)
    for i, cause in enumerate(causes[:-1]):
        reached = reached + cause
        upto = np.minimum(np.rint(reached * scale).astype(np.int64), duration_ns)
        out[:, i] = upto - before
        before = upto
    out[:, -1] = duration_ns - before
    return out


def flop_of(
    model: StepModel, columns: StepColumns, rows: Rows, seen: Sequence[Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Return FLOP by dtype of every step: of the tokens asked for, and as executed (padded) [FLOP].

    Approximation: what an accepted token attends to is the mean of its batch; acceptance knows nothing of length.
    """
    computed = columns.n_decode * model.queries
    tokens = computed + rows.new_tokens
    wasted: Array | float = 0.0 if columns.rejected is None else columns.rejected
    decoded = np.maximum(_spread(computed * 1.0, rows), 1.0)
    useful: dict[str, Array] = {}
    executed: dict[str, Array] = {}

    def add(dtype: str, asked: Array, done: Array) -> None:
        useful[dtype] = useful.get(dtype, 0.0) + asked
        executed[dtype] = executed.get(dtype, 0.0) + done

    for dtype, per_token in model.plan.flop_per_token.items():
        asked = _spread(tokens * per_token, rows) - wasted * per_token
        add(dtype, asked, _spread(model.padded(tokens) * per_token, rows))
    head = model.plan.head
    add(
        head.precision.compute,
        _spread(columns.sampled * head.flop_per_token, rows) - wasted * head.flop_per_token,
        _spread(model.padded(columns.sampled) * head.flop_per_token, rows),
    )
    for kind, keys in zip(model.kinds, seen, strict=True):
        of_chunks = _spread(_prefill_pairs(kind, columns, rows), rows)
        work = kind.count * kind.shape.flop_per_pair
        pairs = keys * float(model.queries)
        add(
            kind.shape.dtype,
            work * (pairs * (1.0 - wasted / decoded) + of_chunks),
            work * (pairs + of_chunks),
        )
    return useful, executed


def _prefill_pairs(kind: AttentionKind, columns: StepColumns, rows: Rows) -> Array:
    """Return the (query, key) pairs that the chunks of each row need, causal and inside the window."""
    if not len(rows.with_chunks):
        return np.zeros(len(rows.chunks))
    new, cached = columns.prefill_new.astype(np.float64), columns.prefill_cached.astype(np.float64)
    window = float(kind.shape.window) if kind.shape.window else np.inf
    growing = np.clip(window - cached, 0.0, new)  # queries whose view still grows with their position
    pairs = growing * cached + growing * (growing + 1.0) / 2.0
    if kind.shape.window:
        pairs = pairs + (new - growing) * window
    return _scatter(np.add.reduceat(pairs, columns.prefill_starts[rows.with_chunks]), rows)


def _bytes(model: StepModel, columns: StepColumns, rows: Rows, seen: Sequence[Array]) -> tuple[Array, Array]:
    """Return necessary bytes of weights and of KV of every step [B].

    Approximation: of experts, those that rejected tokens alone touched are counted with the others.
    """
    tokens = columns.n_decode * model.queries + rows.new_tokens
    weights = _spread(model.weight_bytes(tokens), rows)
    states = 2.0 * model.plan.state_bytes * (columns.n_decode + rows.chunks)
    kv = _spread(tokens * model.plan.kv_bytes_per_token + states, rows)
    if columns.rejected is not None:
        kv = kv - columns.rejected * model.plan.kv_bytes_per_token
    for kind, keys in zip(model.kinds, seen, strict=True):
        read = keys
        if len(rows.with_chunks):
            reach = columns.prefill_new + columns.prefill_cached
            if kind.shape.window:
                reach = np.minimum(reach, kind.shape.window + columns.prefill_new - 1)
            per_row = np.add.reduceat(reach, columns.prefill_starts[rows.with_chunks])
            read = read + _spread(_scatter(per_row, rows), rows)
        kv = kv + kind.count * kind.shape.kv_bytes_read_per_key * read
    return weights, kv


def over_peaks(model: StepModel, flop: dict[str, Array]) -> Array:
    """Return work over the peak of its dtype [s]."""
    total: Array = np.zeros(())
    for dtype, work in flop.items():
        total = total + work / model.chip.peak(dtype)
    return total
