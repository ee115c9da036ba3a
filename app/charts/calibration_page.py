"""The page of a calibration: what was timed and where, how near the fits come, and what each of them found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from .calibration import predicted_against_measured, residuals, residuals_by_regime
from .page import Section, Table, page

if TYPE_CHECKING:
    from ...calibrate.fit.base import FitResult, FittedValue
    from ...calibrate.residuals import LaneResiduals, RoleErrors
    from ...calibrate.run import CalibrationRun

_READING: Final = (
    "Blue circles: timings that the fit saw. Orange diamonds: held out, no fit saw them. Errors are "
    "predicted / measured − 1; in 90 %: share of the timings inside their 90 % interval."
)


def calibration_page(run: CalibrationRun, name: str, lanes: Sequence[LaneResiduals], note: str = "") -> str:
    """Return a calibration run as one HTML file.

    Parameters
    ----------
    run : the fits
    name : of the device
    lanes : every fit with its timings, where those are at hand
    note : said below the table of lanes, where something is missing
    """
    sections = [
        Section("Lanes", (_READING, *((note,) if note else ())), (_lanes(lanes),)),
        *_environment(run.environment),
        *(_lane(each) for each in lanes),
        *_left_out(run),
    ]
    return page(f"Calibration of {name}", f"run {run.id} · device {run.device} · {run.source}", sections)


def _lanes(lanes: Sequence[LaneResiduals]) -> Table:
    header = (
        "lane", "timings", "role", "MAPE %", "median %", "p90 %", "bias %", "in 90 %", "known from data",
    )  # fmt: skip
    rows = [cells for each in lanes for cells in _lane_rows(each)]
    return Table(header, rows, right=frozenset({1, 3, 4, 5, 6, 7}))


def _lane_rows(lane: LaneResiduals) -> Iterator[tuple[str, ...]]:
    varied = [value for value in lane.fit.values.values() if value.stderr > 0.0]
    known = f"{sum(value.identified for value in varied)} of {len(varied)} parameters"
    if not lane.errors:
        train = (_percent(lane.fit.train.get(name)) for name in ("mape", "median_ape", "p90_ape"))
        yield (
            lane.name,
            f"{lane.fit.n:,}",
            "fitted",
            *train,
            _signed(lane.fit.train.get("bias")),
            "–",
            known,
        )
    for i, (role, found) in enumerate(lane.errors.items()):
        yield ("" if i else lane.name, f"{found.n:,}", role, *_figures(found), "" if i else known)


def _figures(found: RoleErrors) -> tuple[str, ...]:
    sizes = (_percent(value) for value in (found.mape, found.median_ape, found.p90_ape))
    return (*sizes, _signed(found.bias), f"{100 * found.coverage_90:.0f}")


def _lane(lane: LaneResiduals) -> Section:
    points = lane.points
    charts = (
        (predicted_against_measured(points), residuals(points), residuals_by_regime(points)) if points else ()
    )
    shown = len(points)
    rows = sum(found.n for found in lane.errors.values())
    sample = (f"The charts show {shown:,} of {rows:,} timings, drawn at random.",) if shown < rows else ()
    hull = ", ".join(f"{axis} {_plain(low)} to {_plain(high)}" for axis, (low, high) in lane.fit.hull.items())
    text = (*((f"Calibrated range: {hull}.",) if hull else ()), *lane.fit.notes, *sample)
    return Section(lane.name, text, (_parameters(lane.fit),), charts)


def _parameters(fit: FitResult) -> Table:
    header = ("parameter", "estimate", "± stderr", "± %", "start", "known")
    rows = [
        (
            name,
            f"{value.estimate:.4g}",
            f"{value.stderr:.2g}" if value.stderr else "",
            f"{100 * value.stderr / value.estimate:.2g}" if value.stderr and value.estimate else "",
            f"{value.start:.4g}",
            _known(value),
        )
        for name, value in fit.values.items()
    ]
    return Table(header, rows, right=frozenset({1, 2, 3, 4}))


def _known(value: FittedValue) -> str:
    if value.stderr == 0.0:
        return "pinned"
    return "from the timings" if value.identified else "from the prior"


def _left_out(run: CalibrationRun) -> Iterator[Section]:
    lines = (*run.screened, *(f"not fitted: {line}" for line in run.skipped))
    if lines:
        yield Section("Left out", lines)


def _environment(environment: Mapping[str, Any]) -> Iterator[Section]:
    """Yield what the timings were made with; nothing for fits of a public table."""
    facts = _facts({name: each for name, each in environment.items() if name != "machine"})
    text = " · ".join(f"{name} {value}" for name, value in facts)
    if text:
        yield Section("Environment", (text,))


def _facts(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _facts(value, f"{before}{name} ")
        elif isinstance(value, list | tuple):
            yield f"{before}{name}", ", ".join(map(str, value))
        elif value is not None:
            number = isinstance(value, int | float) and not isinstance(value, bool)
            yield f"{before}{name}", f"{value:,.12g}" if number else str(value)


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f}"


def _signed(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:+.1f}"


def _plain(value: float) -> str:
    return f"{value:,.0f}" if value >= 10.0 else f"{value:.3g}"
