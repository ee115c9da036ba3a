"""``membound calibrate``: from timed kernels to a device's lanes, one verb a step."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..console import emit
from ..help import GroupedCommand
from ..options import Debug, Form, Format, Quiet
from .calibrate_engine import fit_engine
from .calibrate_page import write_page
from .calibrate_rows import held_out, measured, rows_to_fit, source_of

if TYPE_CHECKING:
    from ...calibrate.run import CalibrationRun
    from ...hwmodels.device import DeviceProfile

calibrate = typer.Typer(
    help="Time kernels, fit a device's lanes with error bars, and hold them against measurements.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
Device = Annotated[str, typer.Option("--device", metavar="NAME", help="Device id, alias or path; cpu.")]
MaybeDevice = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="Device id, alias or path.")
]
Budget = Annotated[str, typer.Option("--budget", metavar="TIME", help="Time for all of it: 60s, 5m.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Of the shapes that are drawn.")]
Lane = Annotated[
    str | None,
    typer.Option("--lane", metavar="NAME", help="Software lane for all rows; default: each row's framework."),
]


@calibrate.command(cls=GroupedCommand)
def design(
    device: Device = "cpu",
    budget: Budget = "60s",
    seed: Seed = 0,
    form: Format = Form.table,
    debug: Debug = False,
) -> None:
    """List the shapes that a measurement within a budget would time."""
    from ...calibrate.design import design as choose
    from ...calibrate.machine import machine_of
    from ..render_calibrate import render_plan

    emit(render_plan(choose(machine_of(device), seconds_of(budget), seed), form.value))


@calibrate.command(cls=GroupedCommand)
def measure(
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="Folder of the run; gone on with if there.")
    ],
    device: Device = "cpu",
    budget: Budget = "60s",
    seed: Seed = 0,
    full: Annotated[
        bool,
        typer.Option("--full", help="Time every point, also of lanes whose held-out error no longer falls."),
    ] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Time kernels on the device at hand. A run that was stopped goes on where it was."""
    from ...calibrate.measure import measure as go

    say = (lambda line: None) if quiet else _note
    summary = go(device, seconds_of(budget), out, seed=seed, full=full, say=say)
    emit(summary.describe() + "\n")


@calibrate.command(cls=GroupedCommand)
def fit(
    what: Annotated[
        str, typer.Argument(metavar="RUN|TABLE", help="Folder of a measuring run, or a kernel table.")
    ],
    device: MaybeDevice = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Where the fits go; default: fit.json in the run."),
    ] = None,
    software: Annotated[
        list[str] | None,
        typer.Option("--software", metavar="NAME", help="Fit only this framework. Repeatable."),
    ] = None,
    family: Annotated[
        list[str] | None, typer.Option("--family", metavar="NAME", help="Fit only this family. Repeatable.")
    ] = None,
    all_rows: Annotated[
        bool, typer.Option("--all-rows", help="Also fit rows that the frozen splits keep for judging.")
    ] = False,
    form: Format = Form.table,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit every lane of a run or table: estimates with errors, residuals, calibrated range."""
    from ...calibrate.fitting import fit_table
    from ...calibrate.run import FIT
    from ..render_calibrate import render_run

    table, profile, environment = rows_to_fit(what, device)
    is_run = Path(what).is_dir()
    run = fit_table(
        table,
        profile,
        run_id=_run_id(what),
        source=f"timings of run {_run_id(what)} on this machine" if is_run else source_of(table),
        frozen=not (is_run or all_rows),
        families=family,
        software=software,
        say=None if quiet else _note,
        environment=environment,
    )
    target = out or (Path(what) / FIT if is_run else None)
    if target is not None:
        run.save(target)
    emit(render_run(run, form.value))


calibrate.command("fit-engine", cls=GroupedCommand)(fit_engine)


@calibrate.command("import", cls=GroupedCommand)
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Timings of others: Parquet or CSV, gzipped or not.")
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Where the table goes (Parquet).")
    ] = None,
    device: MaybeDevice = None,
    debug: Debug = False,
) -> None:
    """Read timings of others into the long schema and leave out what cannot be, counted and named."""
    from ...calibrate.imports import import_table
    from ...calibrate.screen import screen
    from ...calibrate.table import write_table

    imported = import_table(file)
    screened = screen(imported.table, _device(device) if device else None)
    lines = [*imported.lines(), *screened.lines()]
    if out is not None:
        write_table(screened.table, out)
        lines.append(f"wrote {len(screened.table)} rows to {out}")
    emit("\n".join(lines) + "\n")


@calibrate.command(cls=GroupedCommand)
def evaluate(
    run: Annotated[
        str | None,
        typer.Argument(metavar="[RUN]", help="Folder of a measuring run: its own held-out points."),
    ] = None,
    device: MaybeDevice = None,
    table: Annotated[
        Path | None, typer.Option("--table", metavar="FILE", help="Measured kernels in the long schema.")
    ] = None,
    lane: Lane = None,
    form: Format = Form.table,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Hold a device profile against measured kernels: errors and coverage by operation, dtype and lane."""
    from ...calibrate.evaluate import evaluate as compare
    from ..render_calibrate import render_evaluation

    rows, profile = held_out(run, device) if run is not None else measured(device, table)
    found = compare(profile, rows, lane=lane)
    if form is not Form.table and not quiet:
        for line in found.screened:
            _note(line)
    emit(render_evaluation(found, form.value))


@calibrate.command(cls=GroupedCommand)
def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Saved fits, or the folder that holds them.")],
    html: Annotated[
        Path | None,
        typer.Option("--html", metavar="FILE", help="Write a page with charts of every lane instead."),
    ] = None,
    table: Annotated[
        Path | None,
        typer.Option(
            "--table", metavar="FILE", help="Timings for the charts, where the fits are of a table."
        ),
    ] = None,
    device: MaybeDevice = None,
    form: Format = Form.table,
    debug: Debug = False,
) -> None:
    """Show saved fits again, as text or as a page with charts."""
    from ...calibrate.run import CalibrationRun
    from ..render_calibrate import render_run

    found = CalibrationRun.load(run)
    if html is None:
        emit(render_run(found, form.value))
        return
    emit(write_page(found, html, run, table, device))


@calibrate.command(cls=GroupedCommand)
def publish(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Saved fits, or the folder that holds them.")],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Device YAML to write into; made if the device has none."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Also replace lanes that are known better.")] = False,
    debug: Debug = False,
) -> None:
    """Write fits into a device file. Lanes that are known better stay, unless forced."""
    from ...calibrate.publish import device_file
    from ...calibrate.publish import publish as write
    from ...calibrate.run import CalibrationRun

    found = CalibrationRun.load(run)
    target = to or device_file(found.device)
    _make(found, target)
    done = write(found, target, force=force)
    lines = [
        f"{each.family}/{each.lane}: {each.done}" + (f", {each.why}" if each.why else "") for each in done
    ]
    emit("\n".join([*lines, f"device file: {target}"]) + "\n")


@calibrate.command(cls=GroupedCommand)
def bridge(
    device: Annotated[
        str, typer.Option("--device", metavar="NAME", help="Device with torch lanes: id, alias or path.")
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="FILE", help="Device YAML to write, bridged lanes added.")
    ],
    reference: Annotated[
        str, typer.Option("--reference", metavar="NAME", help="Device with torch lanes and the engine's.")
    ] = "h100_sxm",
    lane: Annotated[str, typer.Option("--lane", metavar="NAME", help="Software lane to make.")] = "vllm",
    debug: Debug = False,
) -> None:
    """Carry an engine's lanes over to a device of which only torch was timed, by a reference's ratio."""
    from ...calibrate.bridge import bridge_device
    from ...calibrate.errors import CalibrationError
    from ...calibrate.publish import device_file, write_lanes

    profile, other = _device(device), _device(reference)
    _, found = bridge_device(profile, other, lane)
    made = [(each.family, each.lane, each.made) for each in found if each.made is not None]
    lines = [
        f"{each.family}/{each.lane}: {'bridged' if each.made else 'not bridged'}, {each.why}"
        for each in found
    ]
    if not made:
        raise CalibrationError(
            f"no {lane} lane of {profile.id} can be bridged by {other.id}: {'; '.join(lines[:3]) or 'no lanes'}"
        )
    source = Path(device) if Path(device).is_file() else device_file(profile.id)
    write_lanes(source, made, to)
    emit("\n".join([*lines, f"device file: {to}"]) + "\n")


def _make(run: CalibrationRun, target: Path) -> None:
    """Write the file of a device that has none yet, from what the run saw of it."""
    from ...calibrate.device import device_of
    from ...calibrate.errors import CalibrationError
    from ...calibrate.publish import device_text

    if target.exists():
        return
    if not run.environment:
        raise CalibrationError(f"no device file {str(target)!r}; name an existing one with --to")
    target.write_text(device_text(device_of(run.environment)), encoding="utf-8")


def _device(name: str) -> DeviceProfile:
    from ...hwmodels.device import load_device

    return load_device(name)


def seconds_of(text: str) -> float:
    """Return the seconds of a budget as people write it."""
    from ...hwmodels.units import parse_seconds

    minutes = re.fullmatch(r"\s*([\d.]+)\s*m\s*", text)  # a budget of 5m is minutes, never metres or millis
    return parse_seconds(f"{minutes[1]}min" if minutes else text)


def _run_id(what: str) -> str:
    name = Path(what).resolve().name
    return name.split(".", 1)[0] or "run"


def _note(line: str) -> None:
    sys.stderr.write(f"{line}\n")
