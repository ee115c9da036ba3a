"""``membound calibrate fit-engine``: an engine's step parameters from runs that it served."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..console import emit
from ..flags import UsageError
from ..options import Debug, Form, Format, Quiet, Sets

if TYPE_CHECKING:
    from ...calibrate.enginefit import EngineFit
    from ...calibrate.serving.run import ServedRun
    from ...hwmodels.engine import EngineProfile
    from ...sim.scenario.schema import Scenario


def fit_engine(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUNS...",
            help="Tables of served runs; or, with --scenario, load generators' results or logs of steps (JSON lines).",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Engine YAML to write; 'engine: FILE' takes it."),
    ] = None,
    scenario: Annotated[
        Path | None, typer.Option("--scenario", metavar="FILE", help="What served results and logs of steps.")
    ] = None,
    sets: Sets = None,
    engine: Annotated[
        str | None,
        typer.Option("--engine", metavar="NAME", help="Profile to start from; default: the runs' own."),
    ] = None,
    parameter: Annotated[
        list[str] | None,
        typer.Option(
            "--parameter",
            metavar="NAME[=START]",
            help="What to fit; default: host_exposed, engine_gemm_efficiency, client_overhead. Repeatable.",
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(
            "--select", metavar="TEXT", help="Only rows whose run id, GPU or model has it. Repeatable."
        ),
    ] = None,
    leave_out: Annotated[
        list[str] | None,
        typer.Option("--leave-out", metavar="RUN_ID", help="A run that is judged, not fitted. Repeatable."),
    ] = None,
    jobs: Annotated[int, typer.Option("--jobs", metavar="N", min=1, help="Processes.")] = 1,
    form: Format = Form.table,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit an engine's few step parameters to runs that it served, and judge every run by a fit to the others.

    From a table of runs (rows that its splits keep for judging are left alone), or from results and step logs of one
    server:

    membound calibrate fit-engine e2e_runs.csv --select Qwen3-14B --out engine.yaml

    membound calibrate fit-engine steps-*.jsonl --scenario server.yaml --out engine.yaml
    """
    from ...calibrate.engineprofile import write_engine
    from ...calibrate.steplog import is_step_log
    from ...hwmodels.engine import load_engine
    from ..render_fit_engine import render_fit

    profile = load_engine(engine) if engine else None
    names, start = _parameters(parameter or [])
    logs = [path for path in runs if is_step_log(path)]
    if logs and len(logs) < len(runs):
        raise UsageError(f"{len(logs)} of {len(runs)} files are logs of steps; allowed: all or none")
    if logs:
        if names or select:
            raise UsageError(
                "logs of steps fit host_exposed, host_per_seq and engine_gemm_efficiency of all of them"
            )
        found = _from_logs(logs, _server(scenario, sets or [], "a log of steps"), profile, leave_out or [])
    else:
        from ...calibrate.serving.fitengine import fit_engine as fit

        served = _runs(runs, scenario, sets or [], select or [], leave_out or [])
        found = fit(served, names, engine=profile, start=start, held_out=leave_out or [], jobs=jobs)
    if out is not None:
        write_engine(found.profile(_id(out)), out)
    emit(render_fit(found, form.value, out))


def _id(out: Path) -> str:
    return out.name.removesuffix(".yaml").removesuffix(".yml") or "fitted"


def _parameters(words: list[str]) -> tuple[list[str], dict[str, float]]:
    """Return names and the values to start from, out of ``name`` and ``name=0.7``."""
    from ...calibrate.serving.fitengine import checked

    names: list[str] = []
    start: dict[str, float] = {}
    for word in words:
        name, equals, value = word.partition("=")
        names.append(checked(name.strip()))
        if equals:
            try:
                start[names[-1]] = float(value)
            except ValueError:
                raise UsageError(f"--parameter {word!r}: {value!r} is not a number") from None
    return names, start


def _server(scenario: Path | None, sets: list[str], what: str) -> Scenario:
    from ...sim.scenario.load import load_scenario

    if scenario is None:
        raise UsageError(f"{what} needs --scenario: what served it")
    return load_scenario(scenario, sets)


def _from_logs(
    paths: list[Path], server: Scenario, profile: EngineProfile | None, held_out: list[str]
) -> EngineFit:
    from dataclasses import replace

    from ...calibrate.steplog import fit_step_logs, read_steps
    from ...hwmodels.stepmodel import StepModel
    from ...sim.run import step_model
    from ...sim.scenario.resolve import resolve

    resolved = resolve(server, "size")
    logs = [read_steps(path) for path in paths]

    def timer(engine: EngineProfile) -> StepModel:
        found = step_model(replace(resolved, engine=engine))
        if not isinstance(found, StepModel):
            raise UsageError(
                "a log does not tell drafts from tokens; allowed: servers without speculative decoding"
            )
        return found

    return fit_step_logs(logs, profile or resolved.engine, timer, held_out)


def _runs(
    paths: list[Path], scenario: Path | None, sets: list[str], select: list[str], held_out: list[str]
) -> list[ServedRun]:
    """Return the runs of all files: rows of tables that may be fitted or are judged by name, or results."""
    if scenario is not None:
        from ...calibrate.serving.exports import served_export

        server = _server(scenario, sets, "a result")
        return [served_export(path, server) for path in paths]
    if sets:
        raise UsageError("--set changes the scenario of results and logs; add --scenario")
    from ...calibrate.serving.load import load_runs

    found: list[ServedRun] = []
    for path in paths:
        for run in load_runs(path)[0]:
            label = run.label
            texts = (label.run_id, label.gpu, label.model, label.engine)
            wanted = all(any(word.lower() in text.lower() for text in texts) for word in select)
            if label.run_id in held_out or (wanted and label.part in ("", "fit")):
                found.append(run)
    if not found:
        raise UsageError(
            f"no run of {', '.join(map(str, paths))} may be fitted and has {' and '.join(select) or 'any id'}"
        )
    return found
