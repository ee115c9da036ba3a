"""Time a design on a device: resumable, within a budget, appended as it goes."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast

from ..hwmodels.errors import MemboundError
from ..hwmodels.units import format_seconds
from ..kernels.cost import cost_of, moved_bytes
from ..kernels.errors import require_torch
from ..kernels.results import DeviceFacts, Measured, Overlap
from ..kernels.shape import KernelShape
from .design import REPEATS_S, Plan, Point, design, lane_of
from .errors import CalibrationError
from .machine import Lane, Machine
from .runfolder import (
    ENVIRONMENT,
    PLAN,
    TABLE,
    Record,
    append,
    done,
    mend,
    read_plan,
    read_records,
    write_json,
    write_run_table,
)
from .runfolder import MeasuredRun as MeasuredRun
from .runfolder import read_run as read_run
from .stopping import checks_due, held_out_errors, settled_lanes

_SAY_EVERY_S = 5.0
_STATE_EVERY_S = 10.0
_STREAMING = ("rmsnorm", "rotary", "swiglu", "embedding", "sample_greedy", "sample_topp")


class Backend(Protocol):
    """A device that can be timed; ``membound.kernels.backend.TorchBackend`` is the one there is."""

    def facts(self) -> DeviceFacts:
        """Return what the device says of itself."""
        ...

    def lanes(self) -> tuple[list[Lane], dict[str, str]]:
        """Return what it can run, and why it cannot run the rest."""
        ...

    def environment(self) -> dict[str, object]:
        """Return the record of device, versions and clocks."""
        ...

    def state(self) -> dict[str, float]:
        """Return clocks, temperature and power now."""
        ...

    def measure(self, shape: KernelShape, budget_s: float) -> Measured:
        """Check and time one shape."""
        ...

    def measure_together(self, shapes: Sequence[KernelShape], budget_s: float) -> list[Measured]:
        """Time all-reduces of one group size."""
        ...

    def overlap(self) -> Overlap:
        """Time a copy beside a kernel that reads memory."""
        ...

    def close(self) -> None:
        """Undo what the constructor set."""
        ...


@dataclass(frozen=True, slots=True)
class MeasureSummary:
    """What a call of ``measure`` did and what its folder holds now.

    Attributes
    ----------
    folder : of the run
    planned, timed, new : timings planned, made in all, made by this call
    refused, wrong : timings that the device refused, and kernels whose output was wrong, each with its reason
    skipped : lanes that the device cannot run, with the reason
    seconds : spent in all calls together [s]
    drift : median change between the two timings of a repeated point, either way [-]; nan without repeats
    stopped : lanes that were done before their last point: error on held-out points [-]
    """

    folder: Path
    planned: int
    timed: int
    new: int
    refused: dict[str, str]
    wrong: dict[str, str]
    skipped: dict[str, str]
    seconds: float
    drift: float
    stopped: dict[str, float]

    def describe(self) -> str:
        """Return the summary as a few lines."""
        lines = [
            f"{self.timed} of {self.planned} timings in {self.folder / TABLE} ({self.new} new), "
            f"{format_seconds(self.seconds)} in all"
        ]
        if not math.isnan(self.drift):
            lines.append(f"repeated points moved by {100.0 * self.drift:.1f} % (median)")
        for what, found in (("refused", self.refused), ("wrong output, not timed", self.wrong)):
            for reason, count in Counter(found.values()).most_common(5):
                lines.append(f"{what}: {count} x {reason}")
        lines += [
            f"stopped {lane}: {100.0 * error:.1f} % off on held-out points, and no longer falling"
            for lane, error in self.stopped.items()
        ]
        lines += [f"skipped {lane}: {reason}" for lane, reason in self.skipped.items()]
        return "\n".join(lines)


def measure(
    device: str,
    budget_s: float,
    out: str | os.PathLike[str],
    *,
    seed: int = 0,
    full: bool = False,
    say: Callable[[str], None] | None = None,
    backend: Backend | None = None,
) -> MeasureSummary:
    """Time kernels on a device for a calibration; go on with a run that was interrupted.

    Parameters
    ----------
    device : ``cpu`` (one thread), ``cuda`` or ``cuda:1``
    budget_s : time for the timings, over all calls on the same folder; making a plan takes seconds more [s]
    out : folder of the run; made if it is not there, gone on with if it holds one
    seed : of the shapes that are chosen
    full : time every point, also of lanes whose error on held-out points no longer falls (``stopping``)
    say : takes a line of progress now and then; default: standard error
    backend : device to time instead of torch's

    Returns
    -------
    MeasureSummary; the timings are in ``out/table.parquet`` and ``read_run(out)``

    Raises
    ------
    KernelError : torch is not installed, or there is no such device
    CalibrationError : a budget that is not positive, or a folder with another device's run
    """
    if not budget_s > 0.0:
        raise CalibrationError(f"budget is {budget_s!r} s; it must be more than 0")
    folder = Path(out)
    with contextlib.ExitStack() as closing:
        if backend is None:
            backend = _torch_backend(device)
            closing.callback(backend.close)
        folder.mkdir(parents=True, exist_ok=True)
        mend(folder)
        plan = _plan(backend, budget_s, folder, seed)
        run = _Run(backend, plan, budget_s, folder, say or _to_stderr, full)
        return run.go()


def _torch_backend(device: str) -> Backend:
    require_torch()
    from ..kernels.backend import TorchBackend

    return TorchBackend(device)


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _plan(backend: Backend, budget_s: float, folder: Path, seed: int) -> Plan:
    """Return the folder's plan, or make one and write it."""
    found, here = read_plan(folder), backend.facts()
    if found is not None:
        if found.machine.id != here.id:
            raise CalibrationError(
                f"{str(folder)!r} holds a run on {found.machine.id}, not on {here.id}; give another folder with --out"
            )
        return found
    able, skipped = backend.lanes()
    plan = design(_machine(backend, here, able), budget_s, seed, skipped)
    write_json(folder / ENVIRONMENT, {**backend.environment(), "machine": plan.machine.as_dict()})
    write_json(folder / PLAN, plan.as_dict())
    return plan


def _machine(backend: Backend, facts: DeviceFacts, lanes: list[Lane]) -> Machine:
    """Return the device as a design sees it, its rates from a few quick timings."""
    rough = Machine(
        id=facts.id,
        kind=cast("Literal['cpu', 'cuda']", facts.kind),
        units=facts.units,
        cache_bytes=facts.cache_bytes,
        memory_bytes=facts.memory_bytes,
        flop_rate={"": 1e9},
        bandwidth=1e9,
        overhead_s=1e-6,
        lanes=tuple(lanes),
        devices=facts.devices,
    )
    able = set(lanes)
    seen: dict[str, tuple[float, float]] = {}
    for name, shape in _probes(facts.kind).items():
        if (shape.op, shape.kernel, shape.dtype) in able:
            timing = backend.measure(shape, 0.02).timing
            if timing is not None:
                cost = cost_of(shape)
                seen[name] = (cost.flop / timing.seconds, cost.hbm_bytes / timing.seconds)
    rates = {name: flop for name, (flop, _) in seen.items() if flop > 0.0}
    rates[""] = min(rates.values(), default=1e9)
    bandwidth = seen["copy"][1] if "copy" in seen else rough.bandwidth
    return replace(rough, flop_rate=rates, bandwidth=bandwidth, overhead_s=20e-6)


def _probes(kind: str) -> dict[str, KernelShape]:
    size, tokens, copied = (4096, 2048, 1 << 28) if kind == "cuda" else (256, 128, 1 << 24)
    heads: dict[str, Any] = {"n_heads": 8, "n_kv_heads": 2, "head_dim": 64}
    bf16 = "bfloat16"
    decode = "triton_paged" if kind == "cuda" else "torch_paged"
    return {
        "gemm": KernelShape("gemm", "torch_mm", bf16, m=size, n=size, k=size),
        "gemm/float32": KernelShape("gemm", "torch_mm", "float32", m=size, n=size, k=size),
        "gemm/int8": KernelShape("gemm", "torch_int_mm", "int8", m=size // 4, n=size, k=size),
        "attn_prefill": KernelShape(
            "attn_prefill", "torch_sdpa", bf16, bf16, batch=1, q_len=tokens, kv_len=tokens, **heads
        ),
        "attn_decode": KernelShape(
            "attn_decode", decode, bf16, bf16, batch=4, q_len=1, kv_len=4 * tokens, **heads
        ),
        "copy": KernelShape("copy_d2d", "torch_copy", "uint8", bytes=copied),
    }


class _Run:
    """One pass over what a plan still wants."""

    def __init__(
        self,
        backend: Backend,
        plan: Plan,
        budget_s: float,
        folder: Path,
        say: Callable[[str], None],
        full: bool = False,
    ) -> None:
        self.full = full
        self.backend, self.plan, self.budget_s, self.folder, self.say = backend, plan, budget_s, folder, say
        self.facts = backend.facts()
        packages = cast("dict[str, str]", backend.environment().get("packages", {}))
        self.version = packages.get("torch", "")
        self.records = list(read_records(folder))
        self.done = done(self.records)
        self.settled = {} if full else settled_lanes(self.records)
        self.before = sum(record.get("wall_s", 0.0) for record in self.records)
        self.started = time.perf_counter()
        self.last_said = self.last_state = -math.inf
        self.power_w: float | None = None
        self.made = 0

    @property
    def spent_s(self) -> float:
        """Time of all calls on this folder, this one included [s]."""
        return self.before + time.perf_counter() - self.started

    def go(self) -> MeasureSummary:
        """Time what is left, until it is done or the budget is spent; write the table."""
        left = [point for point in self.plan.points if point.id not in self.done]
        if self.records:
            self.say(
                f"going on in {self.folder}: {len(self.done)} of {len(self.plan.points)} timings are there"
            )
        for index, point in enumerate(left):
            if self.spent_s + point.seconds > self.budget_s and self.made + len(self.done):
                continue  # a shorter one may still fit
            self._look()
            if point.id in self.done or lane_of(point.shape) in self.settled:
                continue
            self._note_state()
            if point.shape.op == "allreduce":
                same = point.shape.world_size
                self._together(
                    [p for p in left[index:] if p.shape.op == "allreduce" and p.shape.world_size == same]
                )
            else:
                self._one(point)
            self._progress(left[index + 1 :], point)
        if not any("overlap" in record for record in self.records):
            self._overlap()
        write_run_table(self.folder)
        return self._summary()

    def _look(self) -> None:
        """Now and then see which lanes need no more points."""
        if self.full or not checks_due(self.records, self.spent_s, self.budget_s):
            return
        started = time.perf_counter()
        lanes = dict.fromkeys(lane_of(point.shape) for point in self.plan.points)
        found = held_out_errors(self.folder, (lane for lane in lanes if lane not in self.settled))
        record = {"check": found, "wall_s": round(time.perf_counter() - started, 6)}
        append(self.folder, record)
        self.records.append(record)
        self.settled = settled_lanes(self.records)

    def _overlap(self) -> None:
        """Time a copy beside a kernel once a run; it checks how the simulator shares bandwidth."""
        try:
            record: dict[str, Any] = {"overlap": asdict(self.backend.overlap())}
        except RuntimeError as error:
            record = {"overlap": None, "refused": _first_line(error)}
        append(self.folder, record)
        self.records.append(record)

    def _one(self, point: Point) -> None:
        started = time.perf_counter()
        found: Measured | str
        try:
            found = self.backend.measure(point.shape, REPEATS_S[self.plan.machine.kind])
        except (RuntimeError, NotImplementedError, MemboundError) as error:
            found = _first_line(error)
        self._append(point, found, time.perf_counter() - started)

    def _together(self, points: list[Point]) -> None:
        started = time.perf_counter()
        found: Sequence[Measured | str]
        try:
            found = self.backend.measure_together(
                [point.shape for point in points], REPEATS_S[self.plan.machine.kind]
            )
        except Exception as error:  # spawned processes fail in ways of their own
            found = [_first_line(error)] * len(points)
        each_s = (time.perf_counter() - started) / len(points)
        for point, one in zip(points, found, strict=True):
            self._append(point, one, each_s)

    def _append(self, point: Point, found: Measured | str, wall_s: float) -> None:
        record: dict[str, Any] = {
            "id": point.id,
            "role": point.role,
            "shape": point.shape.as_dict(),
            "wall_s": round(wall_s, 6),
            "at_s": round(time.time(), 3),
        }
        if isinstance(found, str):
            record["refused"] = found
        else:
            record |= {"error": found.error, "flop": found.flop, "moved_bytes": found.moved_bytes}
            if found.timing is None:
                record["wrong"] = f"{lane_of(point.shape)} is off by more than {found.allowed:g}"
            else:
                record |= self._columns(point.shape, found)
        append(self.folder, record)
        self.records.append(record)
        self.done.add(point.id)
        self.made += 1

    def _columns(self, shape: KernelShape, found: Measured) -> dict[str, Any]:
        """Return the columns of the long schema beyond the shape's own."""
        assert found.timing is not None
        columns: dict[str, Any] = {
            "gpu": self.facts.id,
            "framework": "torch",
            "framework_version": self.version,
            "latency_us": found.timing.seconds * 1e6,
            "n_samples": found.timing.repeats,
            "spread": found.timing.spread,
            "clock": found.timing.clock,
            "source": "membound calibrate measure",
        }
        if shape.op in _STREAMING:
            columns["bytes"] = round(moved_bytes(shape))
        if shape.op == "moe":
            columns |= {"tp": 1, "ep": 1}
        if self.power_w is not None:
            columns["power_w"] = self.power_w
        return columns

    def _note_state(self) -> None:
        """Record clocks, temperature and power every few seconds; reading them takes a moment itself."""
        now = time.perf_counter()
        if now - self.last_state < _STATE_EVERY_S:
            return
        self.last_state = now
        state = self.backend.state()
        self.power_w = state.get("power_w")
        append(self.folder, {"state": state, "at_s": round(time.time(), 3)})

    def _progress(self, left: Sequence[Point], point: Point) -> None:
        now = time.perf_counter()
        if now - self.last_said < _SAY_EVERY_S:
            return
        self.last_said = now
        planned = sum(each.seconds for each in left)
        eta = min(planned, max(self.budget_s - self.spent_s, 0.0))
        whole = len(self.plan.points)
        self.say(
            f"{len(self.done)} of {whole} timings, {format_seconds(self.spent_s)} spent, "
            f"about {format_seconds(eta)} left; {lane_of(point.shape)}"
        )

    def _summary(self) -> MeasureSummary:
        return MeasureSummary(
            folder=self.folder,
            planned=len(self.plan.points),
            timed=sum("latency_us" in record for record in self.records),
            new=self.made,
            refused={r["id"]: r["refused"] for r in self.records if "refused" in r and "id" in r},
            wrong={r["id"]: r["wrong"] for r in self.records if "wrong" in r},
            skipped=dict(self.plan.skipped),
            seconds=self.spent_s,
            drift=drift(self.records),
            stopped=self._stopped(),
        )

    def _stopped(self) -> dict[str, float]:
        """Return the lanes that were done before their last point, with their error."""
        left = {lane_of(point.shape) for point in self.plan.points if point.id not in self.done}
        return {lane: error for lane, error in self.settled.items() if lane in left}


def drift(records: Sequence[Record]) -> float:
    """Return the median change, either way, between the two timings of repeated points [-].

    >>> first = {"id": "a", "role": "fit", "latency_us": 10.0}
    >>> round(drift([first, {"id": "a#2", "role": "repeat", "latency_us": 11.0}]), 3)
    0.1
    """
    timed = {record["id"]: record["latency_us"] for record in records if "latency_us" in record}
    ratios = [
        abs(math.log(time_us / timed[point.partition("#")[0]]))
        for point, time_us in timed.items()
        if "#" in point and point.partition("#")[0] in timed
    ]
    return math.expm1(statistics.median(ratios)) if ratios else math.nan


def _first_line(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__
