"""How accurately kernel times are predicted on rows that no fit has seen, beside what a simpler model would reach.

Every lane is fitted on the training part of the frozen splits and judged on the rest: GEMM on weight shapes that
the fit did not hold and on more rows than it held, attention on other head counts and longer contexts, all-reduce
with one size left out at a time, experts with one model left out. Dense vLLM lanes stand beside four baselines that
see the same training rows: the datasheet roofline, three fitted parameters, a random forest, and interpolation on
the grid of the rows (outside it with the slope of the last factor of two). Then GEMM is fitted on one GPU and only
the datasheet swapped: the error is that of the predicted speed-up.

Minutes of one core: dense 4, linear 3, latent 2; asked for by name: moe 30, --all-lanes 20. With --jobs N, GPUs and
lanes are shared out to N processes. Errors in %, of predicted/measured - 1. Exits with 1 if a bar is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import numpy as np
from membound.benchmarks.baselines import BASELINES
from membound.benchmarks.kernel_lanes import (
    DENSE,
    NO_BAR,
    Dense,
    Line,
    dense_table,
    public_lines,
    speed_up_line,
)
from membound.calibrate.eager import SCREENED, without_eager
from membound.calibrate.publiclanes import DEVICES, EXPERT_LANES, LATENT_LANES, LINEAR_LANES, PublicLane
from membound.calibrate.table import read_table
from membound.hwmodels.errors import MemboundError

Result = TypeVar("Result")
TABLES: Final = Path(__file__).parents[2] / "shared" / "measured" / "kernels"
PUBLIC: Final = {"linear": LINEAR_LANES, "latent": LATENT_LANES, "moe": EXPERT_LANES}
FAMILIES: Final = ("dense", "linear", "latent")
TRANSFERS: Final = (("a100_sxm", "h100_sxm"), ("h100_sxm", "a100_sxm"), ("h100_sxm", "b200_sxm"))
HEAD: Final = (
    f"{'gpu':<8} {'lane':<26} {'part':<15} {'rows':>6} {'MAPE':>6} {'median':>6} {'p90':>6} {'bias':>6}"
    f" {'in 90':>6} {'outs.':>6} {'width':>6} {'roofl.':>6} {'3 par.':>6} {'forest':>6} {'grid':>6} {'same':>6}"
    "  bar: MAPE/median/p90"
)
FOOT: Final = (
    "in 90, outs.: rows inside their 90 % interval, in the fitted range and outside; width: median half of it\n"
    "roofl. to grid: MAPE of the baselines; same: of a speed-up of 1\n"
    "held against the bars too, where there is one: 85-95 % in range, at least 80 % outside, width at most 2.1 x MAPE"
)


def text(line: Line) -> str:
    """Return one line of the table."""
    found, covered = line.judged.errors, line.judged.covered
    cells = [f"{line.gpu:<8} {line.lane:<26} {line.judged.part:<15} {line.judged.n:>6}"]
    cells += [_percent(found[name]) for name in ("mape", "median_ape", "p90_ape", "bias")]
    cells += [
        _percent(covered.get(name)) for name in ("coverage_90", "coverage_90_outside", "median_half_width")
    ]
    cells += [_percent(line.baselines.get(name)) for name in (*BASELINES, "no change")]
    return " ".join(cells) + "  " + _verdict(line)


def _verdict(line: Line) -> str:
    if line.bar == NO_BAR:
        return ""
    limits = "/".join("-" if limit is None else f"{limit:g}" for limit in line.bar)
    return f"{limits} " + (f"MISSED: {', '.join(line.missed)}" if line.missed else "met")


def _errs(line: Line) -> bool:
    return any(name in line.judged.errors for name in line.missed)


def _percent(share: float | None) -> str:
    return f"{'-' if share is None or np.isnan(share) else format(100.0 * share, '.1f'):>6}"


def dense_lines(chosen: argparse.Namespace) -> Iterator[Line]:
    """Yield the lines of dense lanes of each GPU, then the speed-ups between GPUs."""
    software = chosen.software or ["vllm"]
    found: dict[str, Dense] = {}
    for dense, lines in _each(_dense, [(chosen, gpu, software) for gpu in chosen.gpu], chosen.jobs):
        found[dense.gpu] = dense
        sys.stderr.writelines(f"{dense.gpu}: {note}\n" for note in dense.notes)
        yield from lines
    for source, target in TRANSFERS:
        if source in found and target in found:
            yield from (speed_up_line(found[source], found[target], name) for name in software)


def _dense(chosen: argparse.Namespace, gpu: str, software: list[str]) -> tuple[Dense, list[Line]]:
    plain = [f"{family}/{name}" for family in DENSE.values() for name in software]
    dense = Dense.of(gpu, dense_table(chosen.folder, gpu, software), None if chosen.all_lanes else plain)
    return dense, list(dense.lines(chosen.baselines))


def _public(lane: PublicLane, folder: Path) -> list[Line]:
    return list(public_lines(lane, lane.read(folder)[0]))


def _each(function: Callable[..., Result], tasks: Sequence[tuple[Any, ...]], jobs: int) -> Iterator[Result]:
    """Yield what a function returns of each task, in their order."""
    if jobs == 1:
        yield from (function(*task) for task in tasks)
        return
    import joblib  # pyright: ignore[reportMissingTypeStubs]

    library = cast("Any", joblib)
    work = (library.delayed(function)(*task) for task in tasks)
    yield from library.Parallel(n_jobs=jobs, return_as="generator", batch_size=1)(work)


def all_lines(chosen: argparse.Namespace) -> Iterator[Line]:
    """Yield the lines of everything that was chosen, as they are found."""
    if "dense" in chosen.family:
        yield from dense_lines(chosen)
    asked = [lane for family, lanes in PUBLIC.items() if family in chosen.family for lane in lanes]
    asked = [lane for lane in asked if lane.gpu in chosen.gpu]
    asked = [lane for lane in asked if lane.framework in (chosen.software or [lane.framework])]
    for lines in _each(_public, [(lane, chosen.folder) for lane in asked], chosen.jobs):
        yield from lines


def eager_lines(chosen: argparse.Namespace) -> Iterator[str]:
    """Yield the lanes of each GPU whose floor is host time; none of them is fitted."""
    for gpu in chosen.gpu if {"linear", "latent"} & set(chosen.family) else ():
        table = read_table(chosen.folder / f"kernels_aic_{gpu}.parquet", op=SCREENED)
        yield from (f"{gpu}: {line}" for line in without_eager(table)[1])


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the errors of every lane, and fail if one misses its bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("folder", nargs="?", type=Path, default=TABLES, help="folder of kernels_aic_*.parquet")
    add("--gpu", nargs="+", choices=list(DEVICES), default=tuple(DEVICES), help="default: all")
    add("--family", nargs="+", choices=("dense", *PUBLIC), default=FAMILIES, help="default: all but moe")
    add("--software", nargs="+", help="default: vllm for dense, all for the others")
    add("--all-lanes", action="store_true", help="dense: every head layout, head size, window and KV width")
    add("--baselines", action=argparse.BooleanOptionalAction, default=True)
    add("--jobs", type=int, default=1, help="processes; -1 for as many as there are cores (default: 1)")
    add("--check", action=argparse.BooleanOptionalAction, default=True, help="exit with 1 if a bar is missed")
    add("--format", choices=("table", "json"), default="table")
    chosen = parser.parse_args(arguments)
    lines: list[Line] = []
    for line in all_lines(chosen):
        if chosen.format == "table":
            print(text(line) if lines else f"{HEAD}\n{text(line)}", flush=True)
        lines.append(line)
    missed = [line for line in lines if line.missed]
    if chosen.format == "json":
        print(json.dumps([line.to_dict() for line in lines], indent=1))
    else:
        held, by_error = sum(line.bar != NO_BAR for line in lines), sum(map(_errs, missed))
        told = (
            f"{len(missed)} of {held} bars missed, {by_error} of them by errors, the others by intervals only"
        )
        print(FOOT, *eager_lines(chosen), told, sep="\n")
    if missed and chosen.check:
        sys.exit(1)


if __name__ == "__main__":
    try:
        main()
    except MemboundError as error:
        raise SystemExit(f"error: {error}") from None
