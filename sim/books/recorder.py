"""Writes a run down: appended while it runs, worked out in bulk, so that the cost of a token is next to nothing.

Steps are kept as rows, one for a run of equal steps, until some ten thousand steps have come together; then their
attribution, gaps and KV usage are computed with array operations. What is kept for good is small: sums, a histogram,
and one row a request.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from operator import attrgetter, sub
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from ..metrics.histogram import LogHistogram, exact_dot
from .attribution import CHARGED, RequestAttribution
from .record import LIMITERS, REQUEST_COLUMNS
from .steprow import NOWHERE, StepRow, context_tokens, row_of, unfolded

if TYPE_CHECKING:
    from ..engine.engine import Engine, Flight
    from ..engine.request import Request
    from ..engine.stepload import StepLoad
    from ..scheduler.base import ScheduledBatch

Int64Array = npt.NDArray[np.int64]

FLUSH_STEPS = 16384
LIMITER_CODES = {name: code for code, name in enumerate(LIMITERS)}


def kv_state(engine: Engine) -> tuple[int, int, int, int]:
    """Return blocks in use, blocks held, live tokens and running requests of an engine."""
    pool = engine.allocator
    return pool.num_blocks - pool.free_blocks, pool.held_blocks, engine.live_tokens, len(engine.running)


class Accountant(Protocol):
    """Says in bulk what steps were spent on; see ``sim.accounting``."""

    def add(
        self, rows: Sequence[StepRow], steps: Int64Array, durations_ns: Int64Array
    ) -> dict[str, Int64Array] | None:
        """Take in rows, the steps of each, and every step's duration; return per-step columns, or None to keep none."""
        ...


class Recorder:
    """What happened on one replica.

    Parameters
    ----------
    accountant : attributes the time of steps; None leaves it out (oracle runs)
    keep_steps : keep per-step columns, and every request's time by cause, for the result directory

    Attributes
    ----------
    applied_steps : steps whose outputs have all been handed out; the engine keeps it
    """

    def __init__(self, accountant: Accountant | None = None, *, keep_steps: bool = False) -> None:
        self.accountant = accountant
        self.keep_steps = keep_steps
        self.attribution = RequestAttribution() if keep_steps and accountant is not None else None
        self.steps = self.jumps = self.skipped_steps = self.empty_batches = self.wasted_tokens = (
            self.late_tokens
        ) = 0
        self.preemptions = self.cascade_steps = 0
        self.busy_ns = 0
        self.limiter_ns = dict.fromkeys(LIMITERS, 0)
        self.peak_blocks = 0
        self.used_block_ns = self.held_block_ns = self.live_token_ns = self.short_used_block_ns = 0
        self.itl = LogHistogram()
        self.slo_classes: dict[str, int] = {}
        self.reject_reasons: dict[str, int] = {}
        self.step_tables: list[dict[str, Int64Array]] = []
        self._requests = array("q")
        self._rows: list[StepRow] = []
        self._row_steps: list[int] = []
        self._blocks: list[int] = []
        self._released: list[tuple[int, ...]] = []
        self._worked_out = 0
        self.applied_steps = 0

        # Durations and ends of the steps from ``_base`` on: as far back as an open stretch of emissions reaches.
        self._base = 0
        self._durations = np.zeros(4 * FLUSH_STEPS, dtype=np.int64)
        self._ends = np.zeros(4 * FLUSH_STEPS, dtype=np.int64)
        # Emissions that come a step after the one before: how many at each step, as differences.
        self._stretches: dict[Request, None] = {}
        self._changes: list[tuple[int, int]] = []
        self._emitting = 0
        self._counted = 0
        self._gaps: list[int] = []
        self._gap_positions: list[int] = []
        self._position_ns = np.zeros(1024, dtype=np.int64)
        self._position_changes = np.zeros(1024, dtype=np.int64)
        self._begun = array("q")  # output tokens with which stretches begin, and those behind them
        self._over = array("q")

    # -- steps ------------------------------------------------------------------------------------------------

    def begin(
        self, engine: Engine, flight: Flight, batch: ScheduledBatch, load: StepLoad, steps: int
    ) -> None:
        """Note a step as composed; it may become a run of up to ``steps`` steps."""
        allocator, cohort = engine.allocator, engine.decoding
        growth = cohort.growth(steps) if steps > 1 else None
        # In the order of the fields: by name it takes twice as long.
        self._rows.append(
            row_of(
                (
                    load.n_decode,
                    load.context_sum,
                    load.longest,
                    cohort.count if batch.decoding and growth is None else 0,
                    load.sampled,
                    load.prefill,
                    load.contexts,
                    allocator.num_blocks - allocator.free_blocks,
                    allocator.held_blocks,
                    engine.live_tokens,
                    LIMITER_CODES[batch.limiter],
                    len(engine.running),
                    cohort.queries,
                    load.rejected,
                    growth,
                    flight.moved,
                    len(batch.preempted),
                    NOWHERE,
                    load.selected if load.selecting else None,
                    load.shared,
                )
            )
        )
        if self.attribution is not None:
            for request in batch.admitted:
                self.attribution.scheduled(request, flight.step)

    def released(self, before: tuple[int, int, int, int], after: tuple[int, int, int, int]) -> None:
        """Note what requests that ended gave back while the run begun last goes on."""
        if before != after:
            self._released.append((len(self._rows) - 1, *map(sub, before, after)))

    def end_one(self, flight: Flight) -> None:
        """Note how long the step begun last took, and what it waited for on a device that others use too."""
        if flight.work is not None and flight.work.waited_ns:
            ended = len(self._row_steps)
            self._rows[ended] = self._rows[ended]._replace(waited=flight.work.waited_ns)
        size = self.steps - self._base
        if size >= len(self._durations):
            self._make_room(1)
            size = self.steps - self._base
        self._durations[size] = flight.end_ns - flight.start_ns
        self._ends[size] = flight.end_ns
        self._blocks.append(0)
        self._ended(1)

    def end_run(self, durations_ns: list[int], ends_ns: list[int], blocks: list[int]) -> None:
        """Note the steps of the run that the step begun last became.

        Parameters
        ----------
        durations_ns, ends_ns : how long each took, and when it ended [ns]
        blocks : KV blocks that each after the first added, where members grow evenly [blocks]
        """
        steps = len(durations_ns)
        size = self.steps - self._base
        if size + steps > len(self._durations):
            self._make_room(steps)
            size = self.steps - self._base
        self._durations[size : size + steps] = durations_ns
        self._ends[size : size + steps] = ends_ns
        self._blocks.append(0)
        self._blocks += blocks
        self.jumps += 1
        self.skipped_steps += steps - 1
        self._ended(steps)

    def _ended(self, steps: int) -> None:
        self._row_steps.append(steps)
        self.steps += steps
        if self.steps - self._worked_out >= FLUSH_STEPS:
            self._work_out_steps()

    def _make_room(self, steps: int) -> None:
        """Drop steps that no open stretch needs any more, and grow if that is not enough."""
        self._count_gaps()
        keep = min(
            (request.stretch_step for request in self._stretches if request.stretch_step >= 0),
            default=self._counted,
        )
        keep = min(keep, self._counted, self._worked_out) - self._base
        size = self.steps - self._base
        kept = size - keep
        capacity = len(self._durations)
        while kept + steps > capacity // 2:
            capacity *= 2
        for name in ("_durations", "_ends"):
            old: Int64Array = getattr(self, name)
            new = np.zeros(capacity, dtype=np.int64)
            new[:kept] = old[keep:size]
            setattr(self, name, new)
        self._base += keep

    # -- emissions --------------------------------------------------------------------------------------------

    def emit(self, request: Request, step: int, end_ns: int) -> int:
        """Note one emission of a request that is tracked by itself; return its tokens [tokens]."""
        if request.first_token_ns < 0:
            request.first_token_ns = end_ns
            request.first_token_step = step
        else:
            self._gaps.append(end_ns - request.last_token_ns)
            self._gap_positions.append(request.num_output_tokens)
            if len(self._gaps) >= FLUSH_STEPS:
                self._count_single_gaps()
        request.last_token_ns = end_ns
        return 1 if request.draft is None else request.draft.deliver()

    def open(self, request: Request, step: int) -> None:
        """Learn that from ``step``, whose token is noted already, the request gets a token in every step."""
        request.stretch_step = step
        request.stretch_position = request.num_output_tokens
        self._stretches[request] = None
        self._changes.append((step + 1, 1))

    def close(self, request: Request, step: int) -> None:
        """Learn that ``step`` was the last of these steps; nothing happens if none was opened."""
        first = request.stretch_step
        if first < 0:
            return
        del self._stretches[request]
        request.stretch_step = -1
        self._changes.append((step + 1, -1))
        count = step - first
        if count:
            base = first + 1 - self._base
            if request.draft is not None:
                self._place(request.draft.positions(count), self._durations[base : base + count])
                request.last_token_ns = self._ends.item(step - self._base)
                return
            position = request.stretch_position + 1
            if position + count >= len(self._position_ns):
                self._grow_positions(position + count)
            gaps = self._position_ns[position : position + count]
            gaps += self._durations[base : base + count]
            self._begun.append(position)
            self._over.append(position + count)
        request.last_token_ns = self._ends.item(step - self._base)

    def _place(self, positions: Int64Array, gaps: Int64Array) -> None:
        """Count one gap before each of these output tokens of one request."""
        if (size := int(positions[-1]) + 2) >= len(self._position_ns):
            self._grow_positions(size)
        self._position_ns[positions] += gaps
        self._position_changes[positions] += 1
        self._position_changes[positions + 1] -= 1

    def _grow_positions(self, size: int) -> None:
        room = max(size + 2, 2 * len(self._position_ns)) - len(self._position_ns)
        self._position_ns = np.concatenate((self._position_ns, np.zeros(room, dtype=np.int64)))
        self._position_changes = np.concatenate((self._position_changes, np.zeros(room, dtype=np.int64)))

    def _count_single_gaps(self) -> None:
        if not self._gaps:
            return
        gaps = np.array(self._gaps, dtype=np.int64)
        positions = np.array(self._gap_positions, dtype=np.int64)
        self.itl.add(gaps)
        if (size := int(positions.max()) + 1) >= len(self._position_ns):
            self._grow_positions(size)
        np.add.at(self._position_ns, positions, gaps)
        np.add.at(self._position_changes, positions, 1)
        np.add.at(self._position_changes, positions + 1, -1)
        self._gaps.clear()
        self._gap_positions.clear()

    def _count_gaps(self) -> None:
        """Count the gaps of stretches over the steps whose outputs are all handed out."""
        first, last = self._counted, self.applied_steps
        if last <= first:
            return
        changes = np.zeros(last - first, dtype=np.int64)
        later: list[tuple[int, int]] = []
        for step, change in self._changes:
            if step < last:
                changes[step - first] += change
            else:
                later.append((step, change))
        emitting = self._emitting + np.cumsum(changes)
        self._emitting = int(emitting[-1])
        self.itl.add(self._durations[first - self._base : last - self._base], emitting)
        self._changes = later
        self._counted = last

    # -- requests ---------------------------------------------------------------------------------------------

    def finish(self, request: Request, step: int = -1) -> None:
        """Keep the row of a request that has ended, however it ended; ``step`` gave its last token."""
        if self.attribution is not None and step >= 0:
            self.attribution.ended(request, step)
        reasons, reason = self.reject_reasons, request.reject_reason
        reason_code = -1 if reason is None else reasons.setdefault(reason, len(reasons))
        self._requests.extend(
            (
                request.index,
                request.arrival_ns,
                request.first_scheduled_ns,
                request.first_token_ns,
                request.last_token_ns,
                request.input_tokens,
                request.output_tokens,
                request.num_cached_tokens,
                request.num_preemptions,
                request.priority,
                request.status,
                self.slo_classes.setdefault(request.slo_class, len(self.slo_classes)),
                -1 if request.session is None else request.session,
                -1 if request.tenant is None else request.tenant,
                reason_code,
            )
        )

    def requests(self) -> dict[str, Int64Array]:
        """Return the rows of all ended requests as columns, in order of submission."""
        table = np.array(self._requests, dtype=np.int64).reshape(-1, len(REQUEST_COLUMNS))
        table = table[np.argsort(table[:, 0], kind="stable")]
        return {name: np.ascontiguousarray(table[:, column]) for column, name in enumerate(REQUEST_COLUMNS)}

    # -- working out ------------------------------------------------------------------------------------------

    def close_books(self) -> None:
        """Work out whatever is still pending; call once, at the end of the run."""
        self._work_out_steps()
        self._count_gaps()
        self._count_single_gaps()

    def step_columns(self) -> dict[str, Int64Array] | None:
        """Return the per-step columns that were kept."""
        if not self.step_tables:
            return None
        return {
            name: np.concatenate([table[name] for table in self.step_tables]) for name in self.step_tables[0]
        }

    def itl_by_position(self) -> tuple[Int64Array, Int64Array]:
        """Return the sum of the gaps before output token p [ns] and their count, index p."""
        changes, size = self._position_changes, len(self._position_changes)
        changes = changes + np.bincount(self._begun, minlength=size) - np.bincount(self._over, minlength=size)
        counts = np.cumsum(changes)
        used = int(np.flatnonzero(counts)[-1]) + 1 if counts.any() else 0
        return self._position_ns[:used], counts[:used]

    def _work_out_steps(self) -> None:
        """Work out the rows whose steps are all known."""
        rows, steps = self._rows[: len(self._row_steps)], np.array(self._row_steps, dtype=np.int64)
        if not len(rows):
            return
        count = int(steps.sum())
        begun = self.steps - count - self._base
        durations = self._durations[begun : begun + count]
        first = np.cumsum(steps) - steps
        self.busy_ns += int(durations.sum())
        self._work_out_memory(rows, steps, first, durations)
        if any(map(attrgetter("shared"), rows)):
            self.cascade_steps += sum(
                count for row, count in zip(rows, self._row_steps, strict=True) if row.shared
            )
        limiters = np.repeat(np.fromiter(map(attrgetter("limiter"), rows), np.int64, len(rows)), steps)
        for code, name in enumerate(LIMITERS):
            self.limiter_ns[name] += int(durations[limiters == code].sum())
        columns: dict[str, Int64Array] | None = None
        if self.accountant is not None:
            columns = self.accountant.add(rows, steps, durations)
            if columns is not None and self.attribution is not None:
                self.attribution.add(np.stack([columns[f"{cause}_ns"] for cause in CHARGED], axis=1))
        if self.keep_steps:
            self._keep(rows, steps, self._ends[begun : begun + count], durations, columns or {})
        del self._rows[: len(rows)]
        # A run may be under way that has given something back.
        self._released = [(at - len(rows), *gone) for at, *gone in self._released if at >= len(rows)]
        self._row_steps.clear()
        self._blocks.clear()
        self._worked_out = self.steps

    def _work_out_memory(
        self, rows: Sequence[StepRow], steps: Int64Array, first: Int64Array, durations: Int64Array
    ) -> None:
        """Add up the KV blocks used and held, and the tokens in them, over time."""
        added = np.array(self._blocks, dtype=np.int64)
        added += unfolded(rows, steps, "blocks")
        grown = np.cumsum(added)
        within = np.arange(len(durations)) - np.repeat(first, steps)
        grown -= np.repeat(grown[first], steps)

        released = np.zeros((len(rows), 4), dtype=np.int64)
        for at, *gone in self._released:
            if at < len(rows):
                released[at] += gone
        released = released.repeat(steps, axis=0)
        released[first] = 0

        def column(name: str) -> Int64Array:
            return np.repeat(np.fromiter(map(attrgetter(name), rows), np.int64, len(rows)), steps)

        used = column("used_blocks") + grown - released[:, 0]
        self.peak_blocks = max(self.peak_blocks, int(used.max()))
        held = column("held_blocks") + grown - released[:, 1]
        kept = np.cumsum(unfolded(rows, steps, "tokens"))
        kept -= np.repeat(kept[first], steps)
        live = column("live_tokens") + within * column("growing") + kept - released[:, 2]
        total_ns = int(durations.sum())
        self.used_block_ns += exact_dot(used, durations, int(used.max()) * total_ns)
        self.held_block_ns += exact_dot(held, durations, int(held.max()) * total_ns)
        self.live_token_ns += exact_dot(live, durations, int(live.max()) * total_ns)
        short = column("limiter") == LIMITER_CODES["kv_blocks"]
        if short.any():
            self.short_used_block_ns += exact_dot(used[short], durations[short], int(used.max()) * total_ns)
        if self.keep_steps:
            self._memory = {"used_blocks": used, "held_blocks": held, "live_tokens": live}
            self._running = column("running") - released[:, 3]

    def _keep(
        self, rows: Sequence[StepRow], steps: Int64Array, ends: Int64Array, durations: Int64Array,
        columns: dict[str, Int64Array],
    ) -> None:  # fmt: skip
        def column(values: Any) -> Int64Array:
            return np.repeat(np.fromiter(values, np.int64, len(rows)), steps)

        n_decode = column(row.n_decode for row in rows)
        preempted = np.zeros(len(durations), dtype=np.int64)
        preempted[np.cumsum(steps) - steps] = [row.preempted for row in rows]
        self.step_tables.append(
            {
                "start_ns": ends - durations,
                "duration_ns": durations.copy(),
                "n_decode": n_decode,
                "n_prefill": column(len(row.prefill) for row in rows),
                "prefill_tokens": column(sum(new for new, _ in row.prefill) for row in rows),
                "context_tokens": context_tokens(rows, steps),
                "running": self._running,
                **self._memory,
                "limiter": column(row.limiter for row in rows),
                "preempted": preempted,
                "kv_in_bytes": column(row.moved.in_bytes for row in rows),
                "kv_out_bytes": column(row.moved.out_bytes for row in rows),
                **columns,
            }
        )
