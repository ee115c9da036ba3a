"""What in a step depends only on its number of tokens: matrices, streaming kernels, experts, all-reduces.

Tables are filled as token counts come up.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from .collectives import ALONE, Collectives
from .errors import CatalogError
from .lanevariants import inside_engine, lane_or_none, nearest_lane
from .lowering import NORM_SUM_BYTES, LinearShape, ModelPlan, MoEShape, RecurrentShape
from .overlap import dual_batch
from .precision import Precision
from .routing import Routing, RoutingStats
from .steptypes import StepDevice, StepEngine
from .timing.allreduce import AllReduceParams, allreduce_time
from .timing.elementwise import ElementwiseParams, elementwise_time, streams_time
from .timing.form import KERNEL_TIME_FIELDS, Array, Chip, KernelTime, Value, either
from .timing.gemm import GemmWidths
from .timing.hop import Network, hop_time
from .timing.linear import LinearParams, linear_time
from .timing.moe import MoEParams, MoEWork, moe_time

CELL = 64
"""Above the capture sizes, times are linear inside cells of so many tokens, the smallest tile."""
_CELLS_AT_ONCE = 8
_SCAN_EFFICIENCY = 0.25


@dataclass(frozen=True, slots=True)
class MatrixGroup:
    """Matrices of one precision that a step multiplies by the same number of rows.

    Attributes
    ----------
    params : their lane
    n, k, count : widths on the rank, and how often each occurs in a step (arrays of one length)
    rate : compute rate inside the engine over the lane's [-]
    """

    params: LinearParams
    n: Array
    k: Array
    count: Array
    rate: float = 1.0

    def time(self, chip: Chip, m: Array) -> KernelTime:
        """Return the summed time at each row count in ``m`` (1-d) [s]."""
        return _weighted(self._each(chip, m), self.count)

    def by_shape(self, chip: Chip, m: Array) -> list[KernelTime]:
        """Return the time of all matrices of one shape at each row count in ``m`` (1-d), shape by shape [s]."""
        each = self._each(chip, m)
        full = np.shape(each.seconds)
        return [
            KernelTime(
                *(
                    np.broadcast_to(getattr(each, field), full)[:, shape] * times
                    for field in KERNEL_TIME_FIELDS
                )
            )
            for shape, times in enumerate(self.count.tolist())
        ]

    def _each(self, chip: Chip, m: Array) -> KernelTime:
        return linear_time(
            chip, self.params, m[:, None], self.n[None, :], self.k[None, :], compute_factor=self.rate
        )


@dataclass(frozen=True, slots=True)
class ExpertGroup:
    """``count`` identical mixture-of-experts layers.

    Attributes
    ----------
    params, work : lane, and the layer as one rank sees it
    ranks : ranks the experts are dealt out over
    routing : how tokens choose experts
    expert_bytes : weights of one expert on a rank that holds it [B]
    copies : data-parallel groups whose tokens meet here, each with as many as this one
    """

    count: int
    params: MoEParams
    work: MoEWork
    ranks: int
    routing: Routing
    expert_bytes: float
    copies: int = 1

    def statistics(self, m: Array) -> list[RoutingStats]:
        """Return the busiest rank's routing for each token count in ``m``."""
        work = self.work
        return [self.routing.statistics(int(t), int(work.n_experts), int(work.top_k), self.ranks) for t in m]

    def time(self, chip: Chip, m: Array) -> KernelTime:
        """Return the time of all these layers where each copy has ``m`` tokens (1-d) [s]."""
        met = m * self.copies
        return moe_time(chip, self.params, self.work, met, self.statistics(met)).times(float(self.count))

    def touched_bytes(self, m: Array) -> Array:
        """Return the weights of the experts that ``m`` tokens of each copy touch on the busiest rank [B]."""
        return np.array([stats.active for stats in self.statistics(m * self.copies)]) * (
            self.expert_bytes * self.count
        )


@dataclass(slots=True)
class TokenTimes:
    """Times of one model on one device by token count.

    Attributes
    ----------
    chip, plan : datasheet symbols and the lowered model
    matrices : the layers' matrices (and those outside), by precision
    streaming : params of streaming kernels
    experts : mixture-of-experts layers
    allreduce : params of the all-reduce, None where nothing is sent
    network : what the next stage of a pipeline is behind; None: the link inside the machine
    collectives : how the group sums
    exact_up_to : largest capture size; above it the table has cells [tokens]
    """

    chip: Chip
    plan: ModelPlan
    matrices: tuple[MatrixGroup, ...]
    streaming: ElementwiseParams
    experts: tuple[ExpertGroup, ...]
    allreduce: AllReduceParams | None
    exact_up_to: int
    network: Network | None = None
    collectives: Collectives = ALONE
    _exact: dict[int, float] = field(default_factory=dict[int, float])
    _cells: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    _ends: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _parts_at_ends: dict[str, KernelTime] = field(default_factory=dict[str, KernelTime])

    def seconds(self, m: int) -> float:
        """Return the time of a step's token part at ``m`` (padded) tokens [s].

        Approximation: above ``exact_up_to`` tokens the time is linear inside cells of 64, whose ends are
        exact: the number of tiles is constant there and only bytes grow (within 0.02 % of the form on H100
        and A100 at 512..8192 tokens; see the tests).
        """
        if m <= self.exact_up_to:
            known = self._exact.get(m)
            if known is None:
                self._fill_exact(m)
                known = self._exact[m]
            return known
        cell = (m - 1) // CELL
        line = self._cells.get(cell)
        if line is None:
            self._fill(cell)
            line = self._cells[cell]
        return line[0] + line[1] * m

    @property
    def overlaps(self) -> bool:
        """Whether communication may run beside compute."""
        return self.collectives.halved and self.allreduce is not None

    def parts(self, m: Array) -> dict[str, KernelTime]:
        """Return the time of each part at each token count in ``m`` (1-d, padded), split by cause [s]."""
        whole = self._in_turn(m)
        if not self.overlaps:
            return whole
        halves = (self._in_turn(np.ceil(m / 2.0)), self._in_turn(np.maximum(np.floor(m / 2.0), 1.0)))
        sums = sum(layer.count * (layer.allreduces + layer.exchanges) for layer in self.plan.layers)
        return dual_batch(whole, halves, m, max(sums, 1))

    def _in_turn(self, m: Array) -> dict[str, KernelTime]:
        """Return ``parts`` with communication behind what computes [s]."""
        gemm = KernelTime()
        for group in self.matrices:
            gemm = gemm + group.time(self.chip, m)
        streams, kernels = self._streams()
        found = {
            "gemm": gemm,
            "elementwise": self._streamed(streams, m, kernels),
        }
        if self.experts:
            found["moe"] = KernelTime()
            for group in self.experts:
                found["moe"] = found["moe"] + group.time(self.chip, m)
        return found | self._others(m)

    def kernels(self, m: Array) -> dict[str, KernelTime]:
        """Return ``parts`` kernel by kernel, those of identical layers together.

        Streaming kernels without a size of their own (cache writes) are one entry. Half batches beside each other stay
        ``parts``.
        """
        if self.overlaps:
            return self.parts(m)
        found: dict[str, KernelTime] = {}
        for number, group in enumerate(self.matrices):
            for shape, time in enumerate(group.by_shape(self.chip, m)):
                found[f"gemm {number}.{shape}"] = time
        streams, left = self._streams()
        for number, stream in enumerate(streams):
            found[f"elementwise {number}"] = self._streamed([stream], m, stream[0])
            left -= stream[0]
        if left:
            found["elementwise, no size"] = streams_time(self.chip, self.streaming, [], m, left)
        for number, group in enumerate(self.experts):
            found[f"moe {number}"] = group.time(self.chip, m)
        return found | self._others(m)

    def _streamed(self, streams: list[tuple[float, float, float]], m: Array, kernels: float) -> KernelTime:
        """Return the time of streaming kernels; of scattered tokens, norms do their share alone [s]."""
        whole = streams_time(
            self.chip, self.streaming, [(often, moved) for often, moved, _ in streams], m, kernels
        )
        since = self.collectives.scattered_from
        if not since:
            return whole
        cut = [(often, moved * share) for often, moved, share in streams]
        return either(m >= since, streams_time(self.chip, self.streaming, cut, m, kernels), whole)

    def _streams(self) -> tuple[list[tuple[float, float, float]], float]:
        """Return how often each streaming kernel runs and what it moves per token [B], and how many run in all.

        The third figure of each is the share of its bytes that is left where tokens are scattered.
        """
        layers, share = self.plan.layers, 1.0 / self.plan.group
        streams = [
            (float(layer.count), moved, share if at < layer.streaming.norms else 1.0)
            for layer in layers
            for at, moved in enumerate(layer.streaming.moves)
        ]
        embedded = bool(self.plan.embedding_bytes_per_token)
        ends = [
            (1.0, moved, 1.0 if embedded and not at else share) for at, moved in enumerate(self.plan.ends)
        ]
        kernels = sum(layer.count * layer.streaming.kernels for layer in layers) + len(ends)
        return [*streams, *ends], float(kernels)

    def _others(self, m: Array) -> dict[str, KernelTime]:
        """Return recurrent scans and communication, where there are any [s]."""
        found: dict[str, KernelTime] = {}
        recurrent = [
            (layer.count, layer.recurrent) for layer in self.plan.layers if layer.recurrent is not None
        ]
        if recurrent:
            found["recurrent"] = self._recurrent(recurrent, m)
        if self.allreduce is not None:
            found["communication"] = self._communication(self.allreduce, m)
        return found

    def _communication(self, params: AllReduceParams, m: Array) -> KernelTime:
        """Return the time of all-reduces, and of the way to the next stage [s]."""
        plan, total = self.plan, KernelTime()
        if plan.group > 1:
            sums = sum(layer.count * layer.allreduces for layer in plan.layers)
            message = plan.message_bytes_per_token * m
            total = self.collectives.time(self.chip, params, message, plan.group, m).times(sums)
        norms = sum(layer.count * layer.norm_sums for layer in plan.layers)
        if norms:
            squares = self.collectives.whole(self.chip, params, NORM_SUM_BYTES * m, plan.group)
            total = total + squares.times(norms)
        exchanges = sum(layer.count * layer.exchanges for layer in plan.layers)
        if exchanges:
            # Approximation: gathering every copy's tokens and dealing their sums back take half an all-reduce each.
            gathered = plan.copies * plan.message_bytes_per_token * m
            everyone = allreduce_time(self.chip, params, gathered, plan.copies * plan.group)
            total = total + everyone.times(exchanges)
        if plan.sent_bytes_per_token:
            message = plan.sent_bytes_per_token * m
            total = total + hop_time(self.chip, params, message, plan.group, self.network)
        return total

    def _recurrent(self, layers: list[tuple[int, RecurrentShape]], m: Array) -> KernelTime:
        """Return the time of recurrent scans over ``m`` tokens; states are charged by sequence [s].

        Approximation: inputs and outputs at the streaming kernels' share of HBM, then the scan at a quarter
        of the bf16 peak; no table of such kernels bounds it.
        """
        moved = sum(count * shape.io_bytes_per_token for count, shape in layers) * m
        flop = sum(count * shape.flop_per_token for count, shape in layers) * m
        work = flop / (_SCAN_EFFICIENCY * self.chip.peak("bf16"))
        kernels = float(sum(count for count, _ in layers))
        return elementwise_time(self.chip, self.streaming, moved, kernels) + KernelTime(
            compute=work, compute_demand=work
        )

    def table(self, m: NDArray[np.int64]) -> dict[str, KernelTime]:
        """Return ``parts`` at each padded token count in ``m``, on the same lines as ``seconds`` [s].

        Parameters
        ----------
        m : distinct token counts, shape (n,) [tokens]
        """
        cell = (m - 1) // CELL
        beyond = m > self.exact_up_to
        low = np.where(beyond, cell * CELL + 1, m)
        high = np.where(beyond, (cell + 1) * CELL, m)
        ends, where = np.unique(np.concatenate([low, high]), return_inverse=True)
        exact = self._at(ends)
        weight = (m - low) / (CELL - 1.0)
        at_low, at_high = where[: len(m)], where[len(m) :]

        def between(value: Value) -> Array:
            values = np.broadcast_to(np.asarray(value, dtype=np.float64), ends.shape)
            return values[at_low] + (values[at_high] - values[at_low]) * weight

        return {name: time.map(between) for name, time in exact.items()}

    def _at(self, m: NDArray[np.int64]) -> dict[str, KernelTime]:
        """Return ``parts`` at distinct ends of cells, in ascending order: soon all of them are known [s]."""
        known = self._ends
        place = np.searchsorted(known, m)
        if len(known) <= place.max(initial=-1) or not np.array_equal(known[place], m):
            known = self._ends = np.unique(np.concatenate((known, m)))
            self._parts_at_ends = self.parts(known.astype(np.float64))
            place = np.searchsorted(known, m)
        return {
            name: time.map(lambda value: np.broadcast_to(np.asarray(value), known.shape)[place])
            for name, time in self._parts_at_ends.items()
        }

    def _total(self, m: Array) -> Array:
        total = np.zeros_like(m)
        for time in self.parts(m).values():
            total = total + time.seconds
        return total

    def _fill_exact(self, m: int) -> None:
        """Compute the block of counts that ``m`` lies in; with experts, whose routing is drawn, only ``m``."""
        first = (m - 1) // CELL * CELL + 1
        counts = np.array([m]) if self.experts else np.arange(first, first + CELL)
        self._exact.update(zip(counts.tolist(), self._total(counts.astype(np.float64)).tolist(), strict=True))

    def _fill(self, cell: int) -> None:
        """Compute the lines of a few cells from ``cell`` on, both ends of each."""
        cells = np.arange(cell, cell + _CELLS_AT_ONCE, dtype=np.float64)
        low, high = cells * CELL + 1.0, (cells + 1.0) * CELL
        at = self._total(np.concatenate([low, high]))
        slope = (at[len(cells) :] - at[: len(cells)]) / (CELL - 1.0)
        start = at[: len(cells)] - slope * low
        for i in range(len(cells)):
            self._cells.setdefault(cell + i, (float(start[i]), float(slope[i])))


def token_times(
    device: StepDevice,
    engine: StepEngine,
    chip: Chip,
    plan: ModelPlan,
    routing: Routing,
    network: Network | None = None,
    *,
    collectives: Collectives = ALONE,
) -> TokenTimes:
    """Bind a lowered model to a device's lanes and an engine's step parameters."""
    occurrences: Counter[LinearShape] = Counter()
    for layer in plan.layers:
        for matrix in layer.linears:
            occurrences[matrix] += layer.count
    occurrences.update(plan.outside)
    return TokenTimes(
        chip=chip,
        plan=plan,
        matrices=matrix_groups(device, engine, occurrences),
        streaming=_streaming(device, engine),
        experts=expert_groups(device, engine.lane, plan, routing),
        allreduce=AllReduceParams.from_lane(device.lane("allreduce", engine.lane))
        if plan.group > 1 or plan.copies > 1 or plan.sent_bytes_per_token
        else None,
        exact_up_to=max(engine.capture_sizes, default=0),
        network=network,
        collectives=collectives,
    )


def _streaming(device: StepDevice, engine: StepEngine) -> ElementwiseParams:
    """Return what streaming kernels reach: as timed inside the engine on this device, or as its steps have shown."""
    own = lane_or_none(device, "elementwise", engine.lane)
    lane = ElementwiseParams(0.0, 1.0) if own is None else ElementwiseParams.from_lane(own)
    if own is not None and inside_engine(own):
        return lane
    return replace(lane, t0=engine.elementwise_t0_s, eb=engine.elementwise_eb)


def expert_groups(
    device: StepDevice, lane: str, plan: ModelPlan, routing: Routing
) -> tuple[ExpertGroup, ...]:
    """Bind a model's mixture-of-experts layers to the device's lanes."""
    return tuple(
        ExpertGroup(
            count=layer.count,
            params=moe_params(device, lane, layer.moe),
            work=MoEWork(
                hidden=layer.moe.hidden,
                intermediate=layer.moe.intermediate / layer.moe.tensor_parallel,
                n_experts=layer.moe.n_experts,
                top_k=layer.moe.top_k,
                gated=layer.moe.gated,
                weight_bytes=layer.moe.precision.weight_bytes,
                input_bytes=layer.moe.precision.input_bytes,
                dtype=layer.moe.precision.compute,
            ),
            ranks=layer.moe.expert_parallel,
            routing=routing,
            expert_bytes=layer.moe.expert_bytes,
            copies=plan.copies,
        )
        for layer in plan.layers
        if layer.moe is not None
    )


def moe_params(device: StepDevice, lane: str, moe: MoEShape) -> MoEParams:
    """Return the device's expert lane for a precision and a way of spreading the experts.

    Approximation: where the device has no expert lane of that precision, its bf16 lane at that precision's
    peak and widths; a lane of experts is known to differ by kernel more than by precision.
    """
    wanted = f"{lane}_ep" if moe.expert_parallel > 1 else lane
    if moe.precision.name:
        try:
            return MoEParams.from_lane(nearest_lane(device, f"moe_{moe.precision.name}", wanted))
        except CatalogError:
            pass
    return MoEParams.from_lane(nearest_lane(device, "moe", wanted))


def matrix_groups(
    device: StepDevice, engine: StepEngine, occurrences: Counter[LinearShape]
) -> tuple[MatrixGroup, ...]:
    """Group matrices by precision and shape, with the lane that times each precision."""
    found: list[MatrixGroup] = []
    for precision in dict.fromkeys(matrix.precision for matrix in occurrences):
        shapes: Counter[tuple[int, int]] = Counter()
        for matrix, count in occurrences.items():
            if matrix.precision == precision:
                shapes[matrix.n, matrix.k] += count
        n, k = np.array(list(shapes), dtype=np.float64).T
        count = np.array(list(shapes.values()), dtype=np.float64)
        rate = _engine_rate(device, engine, precision)
        found.append(MatrixGroup(linear_params(device, engine, precision), n, k, count, rate))
    return tuple(found)


def _engine_rate(device: StepDevice, engine: StepEngine, precision: Precision) -> float:
    """Return the compute rate inside the engine over its lane's [-]: 1 where the lane was timed in there."""
    own = lane_or_none(device, f"linear_{precision.name}", engine.lane) if precision.name else None
    if inside_engine(own or device.lane("gemm", engine.lane)):
        return 1.0
    low = bool(precision.name) and precision.quantises_inputs
    return engine.engine_gemm_efficiency_low if low else engine.engine_gemm_efficiency


def linear_params(device: StepDevice, engine: StepEngine, precision: Precision) -> LinearParams:
    """Return the device's lane for a precision, as far as the engine leaves its quantise pass a kernel of its own.

    Approximation: where the device has no lane of its own for it, the bf16 GEMM lane at that precision's peak
    and widths, with the quantise pass of H100's fp8 CUTLASS lane (2.2 us and 0.38 of HBM); a weight-only
    format keeps 0.9 of the compute rate. Measured low-precision lanes differ from such a guess by 10-20 %.
    """
    widths = GemmWidths(precision.weight_bytes, precision.input_bytes, precision.output_bytes)
    plain = LinearParams.from_lane(device.lane("gemm", engine.lane), precision.compute, widths)
    if not precision.name:
        return plain
    own = lane_or_none(device, f"linear_{precision.name}", engine.lane)
    params = (
        _derived(plain, precision) if own is None else LinearParams.from_lane(own, precision.compute, widths)
    )
    share = engine.quantise_fused if precision.input_bytes >= 1.0 else engine.quantise_fused_4bit
    return params.fused(share, plain.gemm.t0)


def padded(sizes: tuple[int, ...], m: int) -> int:
    """Return the capture size that ``m`` tokens are padded to; ``m`` itself above the largest.

    >>> padded((1, 2, 4, 8, 16), 5)
    8
    """
    return sizes[bisect_left(sizes, m)] if sizes and m <= sizes[-1] else m


def _weighted(each: KernelTime, count: Array) -> KernelTime:
    """Sum times of shape (rows, shapes) over the shapes, ``count`` of each, one by one in a fixed order."""
    shape = np.shape(each.seconds)
    summed: list[Array] = []
    for name in KERNEL_TIME_FIELDS:
        values = np.broadcast_to(np.asarray(getattr(each, name), dtype=np.float64), shape)
        total = np.zeros(shape[0])
        for i, times in enumerate(count):
            total = total + values[:, i] * times
        summed.append(total)
    return KernelTime(*summed)


def _derived(base: LinearParams, precision: Precision) -> LinearParams:
    if precision.quantises_inputs:
        return replace(base, tqz=2.2e-6, eqz=0.38)
    return replace(base, gemm=replace(base.gemm, ec=0.9 * base.gemm.ec))
