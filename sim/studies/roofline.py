"""Where the steps of a run lie under the roofline, and what a larger batch of decodes would bring.

Everything is counted by the step model and the account that a run is charged by: a kind's figures are sums over the
steps that ran, and the kinds together are the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from ...hwmodels.account import Rows, account
from ...hwmodels.precision import Quantization
from ...hwmodels.stepmodel import StepModel
from ...hwmodels.training import PASSES, TrainingStep, training_step
from ..books.accounting import StepAccountant, columns_of
from ..cluster.replica import Replica, ReplicaKind
from ..scenario.resolve import ResolvedScenario, resolve
from ..scenario.schema import leaf
from ..serving import serve
from ..setup import level_of
from .batchcurve import BatchCurve, batch_curve
from .fewer import with_requests
from .study import StudyError

if TYPE_CHECKING:
    from ...hwmodels.device import DeviceProfile
    from ..books.steprow import StepRow
    from ..scenario.schema import Scenario

Kind = Literal["prefill", "decode", "mixed", "all", "training"]
KINDS: tuple[Kind, ...] = ("prefill", "decode", "mixed")
Int64Array = npt.NDArray[np.int64]
REQUESTS = 300
ONE_MODEL: Mapping[str, object] = {
    "speculative": None,
    "parallelism.pipeline_parallel_size": 1,
    "parallelism.data_parallel_size": 1,
    "cluster.replicas": 1,
    "cluster.pools": None,
    "cluster.autoscale": None,
    "colocated": None,
    "compute_split": None,
}
"""Leaves that would put other steps beside those of the model, and the value that does not."""
TRAINING_TOKENS = 8192
"""Batch of the training step on each rank, cut into sequences of up to ``TRAINING_LENGTH`` [tokens]."""
TRAINING_LENGTH = 4096


@dataclass(frozen=True, slots=True)
class RidgePoint:
    """Where a dtype's rate and a tier's bandwidth are used up together.

    Attributes
    ----------
    dtype : of the matrix units
    tier : ``hbm``, ``link`` (to the other devices of the node) or ``host``
    flops_per_s : dense peak [FLOP/s]
    bytes_per_s : bandwidth of the tier, one direction [B/s]
    intensity : their ratio [FLOP/B]
    """

    dtype: str
    tier: str
    flops_per_s: float
    bytes_per_s: float
    intensity: float


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The mean step of one kind, on one GPU.

    Attributes
    ----------
    kind : ``prefill`` and ``decode`` alone, ``mixed`` steps of both, ``all`` of the run, or ``training``
    steps : how many ran; 0: none of the run's
    busy_share : their share of busy time [-]
    tokens, sequences : computed in a step [tokens], [sequences]
    seconds : of a step [s]
    flop, hbm_bytes, link_bytes : of a step: work asked for, necessary bytes, bytes sent to other ranks [FLOP], [B]
    dtype : in which most of the work is done
    intensity : FLOP over HBM bytes [FLOP/B]
    mfu, mbu : work over peak, and bytes over bandwidth, as shares of the time [-]
    attainable_mfu, attainable_mbu : both if the step took no longer than the roofline says [-]
    of_roofline : time the roofline says over the time it takes [-]
    bound : ``memory`` or ``compute``, by the roofline
    level : how well the least known kernel is known; ``unvalidated``: never measured
    """

    kind: Kind
    steps: int
    busy_share: float
    tokens: float
    sequences: float
    seconds: float
    flop: float
    hbm_bytes: float
    link_bytes: float
    dtype: str
    intensity: float
    mfu: float
    mbu: float
    attainable_mfu: float
    attainable_mbu: float
    of_roofline: float
    bound: Literal["memory", "compute"]
    level: str


@dataclass(frozen=True, slots=True)
class Roofline:
    """The roofline of a scenario.

    Attributes
    ----------
    device, model : ids
    requests : served for the operating points
    seed : of the run
    level : how well the least known kernel is known
    whatif : datasheet values that were overridden, as given
    ridges : of every dtype and tier
    points : of the run and of a training step
    training_bytes, usable_bytes : what training keeps on a rank, and what the device has [B]
    curve : batch-amortisation curve of decode
    """

    device: str
    model: str
    requests: int
    seed: int
    level: str
    whatif: Mapping[str, Any]
    ridges: tuple[RidgePoint, ...]
    points: tuple[OperatingPoint, ...]
    training_bytes: float
    usable_bytes: int
    curve: BatchCurve

    def to_dict(self) -> dict[str, Any]:
        """Return the roofline as plain data (``explain --roofline --format json``)."""
        return asdict(self)


def roofline(scenario: Scenario, *, requests: int = REQUESTS) -> Roofline:
    """Run a scenario and say where its steps lie under the roofline.

    Parameters
    ----------
    scenario : the question, with a load
    requests : at most so many of its requests are served

    Raises
    ------
    StudyError : no load, speculation, whose steps are of two models, or several pipeline stages
    MemboundError : as ``simulate``
    """
    _refuse_others(scenario)
    resolved = resolve(with_requests(scenario, requests))
    workload, kind = resolved.workload, ReplicaKind(resolved)
    model = kind.model
    assert workload is not None
    assert isinstance(model, StepModel)
    level = level_of(resolved.device, resolved.engine.lane, kind.lanes.families)
    counter = _Counter(model)
    replica = Replica(kind, accountant=counter)
    serve(workload, [replica])
    trainer = _trainer(resolved)
    trained = training_step(trainer, *_training_batch(resolved.model.max_position))
    asked = scenario.device
    return Roofline(
        device=resolved.device.id,
        model=resolved.model.id,
        requests=len(workload),
        seed=resolved.scenario.simulation.seed,
        level=level,
        whatif={k: v for k, v in asked.items() if k != "base"} if isinstance(asked, dict) else {},
        ridges=ridge_points(resolved.device),
        points=(*_points_of_run(model, counter, level), _training_point(trainer, trained)),
        training_bytes=trained.state_bytes,
        usable_bytes=resolved.device.usable_bytes,
        curve=batch_curve(resolved, model, replica.allocator),
    )


def _refuse_others(scenario: Scenario) -> None:
    """Refuse what has steps of more than one model, group of GPUs or replica."""
    data = scenario.to_dict()
    for name, allowed in ONE_MODEL.items():
        if leaf(data, name) not in (allowed, None):
            said = "null" if allowed is None else allowed
            raise StudyError(
                f"{name}: a roofline is of the steps of one model on one group of GPUs; allowed: {said} "
                f"(--set {name}={said})"
            )


def ridge_points(device: DeviceProfile) -> tuple[RidgePoint, ...]:
    """Return the ridge points of a device: every dtype against HBM, the link between devices, and the host.

    >>> from ...hwmodels.device import load_device                               # doctest: +SKIP
    >>> round(ridge_points(load_device("h100_sxm"))[0].intensity)                # doctest: +SKIP
    295
    """
    tiers = {"hbm": device.hbm_bandwidth, "link": device.link_bandwidth, "host": device.pcie_bandwidth or 0.0}
    return tuple(
        RidgePoint(dtype, tier, peak, bandwidth, peak / bandwidth)
        for tier, bandwidth in tiers.items()
        if bandwidth > 0.0
        for dtype, peak in device.peak_flops.items()
    )


@dataclass(slots=True)
class _Sums:
    """What the steps of one kind did together."""

    steps: int = 0
    seconds: float = 0.0
    tokens: float = 0.0
    sequences: float = 0.0
    flop_seconds: float = 0.0
    hbm_bytes: float = 0.0
    flop: dict[str, float] = field(default_factory=dict[str, float])

    def __add__(self, other: _Sums) -> _Sums:
        names = {**self.flop, **other.flop}
        return _Sums(
            self.steps + other.steps,
            self.seconds + other.seconds,
            self.tokens + other.tokens,
            self.sequences + other.sequences,
            self.flop_seconds + other.flop_seconds,
            self.hbm_bytes + other.hbm_bytes,
            {name: self.flop.get(name, 0.0) + other.flop.get(name, 0.0) for name in names},
        )


class _Counter(StepAccountant):
    """Attributes steps as a run does, and adds them up by kind."""

    def __init__(self, model: StepModel) -> None:
        super().__init__(model)
        self.kinds: dict[Kind, _Sums] = {kind: _Sums() for kind in KINDS}

    def _account(self, rows: Sequence[StepRow], steps: Int64Array, durations_ns: Int64Array) -> Int64Array:
        columns = columns_of(rows, steps, durations_ns, self.model.needs_contexts)
        found = account(self.model, columns)
        unfolded = Rows.of(columns)
        decoding, chunked = columns.n_decode > 0, unfolded.chunks > 0
        kind_of_row = np.where(chunked, np.where(decoding, 2, 0), 1)
        computed = columns.n_decode * self.model.queries + unfolded.new_tokens
        for at, kind in enumerate(KINDS):
            which = (kind_of_row == at)[unfolded.of_step]
            if which.any():
                of_rows = unfolded.of_step[which]
                self.kinds[kind] += _Sums(
                    steps=int(which.sum()),
                    seconds=int(durations_ns[which].sum()) / 1e9,
                    tokens=float(computed[of_rows].sum()),
                    sequences=float((columns.n_decode + unfolded.chunks)[of_rows].sum()),
                    flop_seconds=float(found.useful_flop_seconds[which].sum()),
                    hbm_bytes=float(found.useful_bytes[which].sum()),
                    flop={dtype: float(work[which].sum()) for dtype, work in found.flop.items()},
                )
        return self._add_up(found)


def _points_of_run(model: StepModel, counter: _Counter, level: str) -> Iterator[OperatingPoint]:
    whole = sum(counter.kinds.values(), _Sums())
    kinds: dict[Kind, _Sums] = {**counter.kinds, "all": whole}
    for kind, sums in kinds.items():
        if sums.steps:
            share = sums.seconds / whole.seconds
            yield _point(kind, sums, model.chip.bandwidth, model.plan.link_bytes_per_token, share, level)


def _point(
    kind: Kind, sums: _Sums, bandwidth: float, link_bytes_per_token: float, share: float, level: str
) -> OperatingPoint:
    read_seconds, roof = sums.hbm_bytes / bandwidth, max(sums.flop_seconds, sums.hbm_bytes / bandwidth)
    flop, steps = sum(sums.flop.values()), sums.steps
    return OperatingPoint(
        kind=kind,
        steps=steps,
        busy_share=share,
        tokens=sums.tokens / steps,
        sequences=sums.sequences / steps,
        seconds=sums.seconds / steps,
        flop=flop / steps,
        hbm_bytes=sums.hbm_bytes / steps,
        link_bytes=sums.tokens / steps * link_bytes_per_token,
        dtype=max(sums.flop, key=lambda name: sums.flop[name]),
        intensity=flop / sums.hbm_bytes,
        mfu=sums.flop_seconds / sums.seconds,
        mbu=read_seconds / sums.seconds,
        attainable_mfu=sums.flop_seconds / roof,
        attainable_mbu=read_seconds / roof,
        of_roofline=roof / sums.seconds,
        bound="memory" if read_seconds > sums.flop_seconds else "compute",
        level=level,
    )


def _trainer(resolved: ResolvedScenario) -> StepModel:
    """Return the step model whose forward pass is trained: the scenario's with 16-bit weights."""
    return StepModel(
        resolved.device,
        resolved.engine,
        resolved.model,
        resolved.scenario.parallelism,
        Quantization("bf16", "bf16", "bf16"),
    )


def _training_batch(longest: int) -> tuple[int, int]:
    """Return sequences and their length [tokens]."""
    length = min(longest or TRAINING_LENGTH, TRAINING_LENGTH)
    return max(TRAINING_TOKENS // length, 1), length


def _training_point(model: StepModel, step: TrainingStep) -> OperatingPoint:
    sums = _Sums(
        steps=1,
        seconds=step.seconds,
        tokens=float(step.tokens),
        sequences=float(step.sequences),
        flop_seconds=step.flop_seconds,
        hbm_bytes=step.hbm_bytes,
        flop=dict(step.flop),
    )
    link = PASSES * model.plan.link_bytes_per_token
    return replace(_point("training", sums, model.chip.bandwidth, link, 0.0, "unvalidated"), steps=0)
