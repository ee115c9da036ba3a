"""From a table to a calibration run: screen, split, one fit a family and lane.

``FITTERS`` says how the rows of an operation are fitted; whoever adds a family adds an entry.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from ..hwmodels.device import DeviceProfile
from ..hwmodels.steptypes import chip_of
from ..hwmodels.timing.form import Chip
from .eager import without_eager
from .errors import CalibrationError
from .facts import kernel_facts
from .fit.allreduce import fit_allreduce_least_squares
from .fit.base import FitResult
from .fit.decode_attention import decode_parameters, fit_decode_attention_least_squares
from .fit.elementwise import fit_elementwise_least_squares
from .fit.gemm import fit_gemm_least_squares
from .fit.linear import fit_linear_least_squares
from .fit.mla import fit_mla_decode_least_squares, fit_mla_prefill_least_squares, without_spikes
from .fit.moe import fit_moe_least_squares
from .fit.prefill_attention import fit_prefill_attention_least_squares, prefill_parameters
from .fit.roofline3 import fit_roofline3_least_squares
from .fit.starts import DECODE, PREFILL, start
from .predict import OPERATIONS, software_of
from .run import CalibrationRun
from .screen import screen
from .splits import train
from .standins import FEWEST_VARIANT_ROWS, needless, stand_in
from .streams import moved_bytes_of
from .table import KernelTable, software_line

FEWEST_ROWS: Final = 12
"""A lane with fewer rows is not fitted."""


@dataclass(frozen=True, slots=True)
class Job:
    """One lane to fit.

    Attributes
    ----------
    device, chip : whose datasheet
    family, lane : what is fitted
    rows : rows that the fit may see, screened
    done : fits made before, by family and lane
    """

    device: DeviceProfile
    chip: Chip
    family: str
    lane: str
    rows: KernelTable
    done: Mapping[tuple[str, str], FitResult]

    @property
    def software(self) -> str:
        """Software of the lane, without its suffixes."""
        return self.lane.partition("_")[0]

    @property
    def warm(self) -> bool:
        """Whether the rows were timed back to back: all but our own, which rotates its buffers."""
        return self.software != "torch"


Fitter = Callable[[Job], FitResult]
SCANNED: Final = (0.6, 0.75, 0.9, 1.1, 1.3, 1.6)
"""Blocks per unit that fits of our own timings also start from, over the usual value."""


def _gemm(job: Job) -> FitResult:
    if job.chip.roofline3:
        return fit_roofline3_least_squares("gemm", job.rows, job.chip, lane=job.lane)
    return fit_gemm_least_squares(job.rows, job.chip, job.device.arch, lane=job.lane, warm=job.warm)


def _decode(job: Job) -> FitResult:
    rows, notes = _one_kernel(job.rows)
    if job.chip.roofline3:
        return fit_roofline3_least_squares("decode_attention", rows, job.chip, lane=job.lane, notes=notes)
    facts = kernel_facts(job.family, job.lane, str(rows["kernel_source"][0]), job.device.arch)
    return fit_decode_attention_least_squares(
        rows,
        job.chip,
        job.device.arch,
        lane=job.lane,
        warm=job.warm,
        notes=notes,
        params=None
        if job.warm
        else decode_parameters(job.device.arch),  # few rows do not pin blocks per unit
        **facts,
        **_scanned(job, DECODE),
    )


def _prefill(job: Job) -> FitResult:
    rows, notes = _one_kernel(job.rows)
    if job.chip.roofline3:
        return fit_roofline3_least_squares("prefill_attention", rows, job.chip, lane=job.lane, notes=notes)
    gemm = job.done.get(("gemm", job.software))
    eb = gemm.params["eb"] if gemm else job.device.lane("gemm", job.software).params["eb"]
    facts = kernel_facts(job.family, job.lane, str(rows["kernel_source"][0]), job.device.arch)
    large = job.warm and job.chip.l2_bytes >= LARGE_CACHE
    params = prefill_parameters(job.device.arch, eb, cached=large, **facts)
    return fit_prefill_attention_least_squares(
        rows,
        job.chip,
        job.device.arch,
        eb,
        lane=job.lane,
        params=params,
        notes=notes,
        **_scanned(job, PREFILL),
    )


def _scanned(job: Job, starts: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the blocks per unit from which fits of our own timings also start.

    Splits and waves jump with them, so that the few points of a run have many minima: of fifty devices drawn from
    the priors, a descent from the prior alone found them within two standard errors in a quarter of the cases.
    """
    if job.warm:
        return {}
    occupancy = start(starts, job.device.arch)["occ"]
    return {"scan": {"occ": [factor * occupancy for factor in SCANNED]}}


def _linear(job: Job) -> FitResult:
    rows, notes, facts = _known(job)
    return fit_linear_least_squares(rows, job.chip, family=job.family, lane=job.lane, notes=notes, **facts)


def _experts(job: Job) -> FitResult:
    rows, notes, facts = _known(job)
    return fit_moe_least_squares(rows, job.chip, family=job.family, lane=job.lane, notes=notes, **facts)


def _latent_decode(job: Job) -> FitResult:
    rows, notes, facts = _known(job)
    return fit_mla_decode_least_squares(without_spikes(rows), job.chip, lane=job.lane, notes=notes, **facts)


def _latent_prefill(job: Job) -> FitResult:
    rows, notes, facts = _known(job)
    gemm = job.done.get(("gemm", job.software))
    eb = gemm.params["eb"] if gemm else job.device.lane("gemm", job.software).params["eb"]
    return fit_mla_prefill_least_squares(
        without_spikes(rows), job.chip, eb, lane=job.lane, notes=notes, **facts
    )


def _known(job: Job) -> tuple[KernelTable, tuple[str, ...], dict[str, Any]]:
    """Return the rows of a lane's commonest kernel and dtype, notes on the others, and what is known of it."""
    rows, notes = _one_kernel(job.rows)
    (dtype, _), *others = Counter(rows["dtype"].tolist()).most_common()
    if others:
        notes = (*notes, "not fitted: " + ", ".join(f"{n} rows of {name}" for name, n in others))
        rows = rows.only(dtype=dtype)
    return rows, notes, kernel_facts(job.family, job.lane, str(rows["kernel_source"][0]), job.device.arch)


def _allreduce(job: Job) -> FitResult:
    return fit_allreduce_least_squares(job.rows, job.chip, lane=job.lane)


def _streams(job: Job) -> FitResult:
    moved = moved_bytes_of(job.rows)
    return fit_elementwise_least_squares(moved, job.rows.latency_us, job.chip, lane=job.lane, cached=job.warm)


LARGE_CACHE: Final = 90e6
FITTERS: Final[dict[str, Fitter]] = {
    "gemm": _gemm,
    "decode_attention": _decode,
    "prefill_attention": _prefill,
    "allreduce": _allreduce,
    "elementwise": _streams,
    "linear": _linear,
    "moe": _experts,
    "mla_decode": _latent_decode,
    "mla_prefill": _latent_prefill,
}
"""Family -> its fit. A family that is not listed is looked up by the part before its first underscore."""


def fit_table(
    table: KernelTable,
    device: DeviceProfile,
    *,
    run_id: str,
    source: str,
    frozen: bool = True,
    families: Sequence[str] | None = None,
    software: Sequence[str] | None = None,
    say: Callable[[str], None] | None = None,
    environment: Mapping[str, Any] | None = None,
) -> CalibrationRun:
    """Fit every lane of a table.

    Parameters
    ----------
    table : rows in the long schema, of one device
    device : its profile: datasheet, architecture, form
    run_id : name of the run
    source : where the timings come from
    frozen : leave out the rows of the public tables that a fit is judged on
    families, software : fit only these
    say : takes one line a lane
    environment : versions and clocks, where we timed ourselves; kept in the run

    Raises
    ------
    CalibrationError : nothing in the table can be fitted
    """
    screened = screen(table, device)
    rows, eager = without_eager(train(screened.table) if frozen else screened.table)
    done: dict[tuple[str, str], FitResult] = {}
    skipped: list[str] = []
    for family, lane, part in sorted(lanes_in(rows, software), key=_gemm_first):
        fitter = FITTERS.get(family) or FITTERS.get(family.partition("_")[0])
        if families is not None and family not in families:
            continue
        if fitter is None:
            skipped.append(f"{family}/{lane}: no fit for that family")
            continue
        needed = FEWEST_VARIANT_ROWS if frozen and stand_in(family, lane, done) else FEWEST_ROWS
        if len(part) < needed:
            skipped.append(f"{family}/{lane}: {len(part)} rows, needed {needed}")
            continue
        try:
            found = fitter(Job(device, chip_of(device), family, lane, part, done))
        except CalibrationError as error:
            skipped.append(f"{family}/{lane}: {error}")
            continue
        part, _ = _one_kernel(part)
        found = replace(found, notes=(software_line(part), *found.notes))
        why = needless(device, found, part, done) if frozen else ""
        if why:
            skipped.append(why)
            continue
        done[family, lane] = found
        if say is not None:
            say(f"{family}/{lane}: {len(part)} rows, MAPE of the fitted {100 * found.train['mape']:.1f} %")
    if not done:
        reasons = "; ".join(skipped[:3]) or "it has no rows of an operation that is known"
        raise CalibrationError(f"nothing to fit in {table.origin or 'the table'}: {reasons}")
    return CalibrationRun(
        run_id,
        device.id,
        source,
        tuple(done.values()),
        (*screened.lines(), *eager),
        tuple(skipped),
        environment or {},
    )


def lanes_in(
    table: KernelTable, software: Sequence[str] | None = None
) -> Iterator[tuple[str, str, KernelTable]]:
    """Yield family, lane and rows of everything that a table holds, or of some software alone."""
    names = software_of(table)
    rows_of: dict[tuple[str, str], list[np.ndarray[Any, Any]]] = {}
    for op in OPERATIONS:
        rows = np.flatnonzero(table["op"] == op)
        if not len(rows):
            continue
        part = table.take(rows)
        families, lanes = OPERATIONS[op].family(part), OPERATIONS[op].lane(part, names[rows])
        pairs = np.array([f"{family} {lane}" for family, lane in zip(families, lanes, strict=True)])
        for pair in dict.fromkeys(pairs.tolist()):
            family, lane = pair.split(" ")
            if software is None or lane.partition("_")[0] in software:
                rows_of.setdefault((family, lane), []).append(rows[pairs == pair])
    for (family, lane), found in rows_of.items():
        yield family, lane, table.take(np.sort(np.concatenate(found)))


def _gemm_first(lane: tuple[str, str, KernelTable]) -> tuple[bool, str, int, str]:
    """Order lanes so that what pins others to itself, and what could stand in for others, is fitted before them."""
    return lane[0] != "gemm", lane[0], lane[1].count("_"), lane[1]


def _one_kernel(rows: KernelTable) -> tuple[KernelTable, tuple[str, ...]]:
    """Keep the kernel that most rows of a lane took; others are named."""
    (most, _), *others = Counter(rows["kernel_source"].tolist()).most_common()
    if not others:
        return rows, ()
    left = ", ".join(f"{n} rows of {name}" for name, n in others)
    return rows.where(rows["kernel_source"] == most), (f"not fitted: {left}",)


def with_fits(device: DeviceProfile, run: CalibrationRun) -> DeviceProfile:
    """Return a device whose lanes are those of a run, the others as they were."""
    from .publish import fitted_lane

    fitted = {family: dict(lanes) for family, lanes in device.fitted.items()}
    for fit in run.fits:
        fitted.setdefault(fit.family, {})[fit.lane] = fitted_lane(fit, run)
    return device.model_copy(update={"fitted": fitted})
