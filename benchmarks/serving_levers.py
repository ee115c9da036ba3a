"""What levers do to served points: TPOT of mixtures, and its ratio where only the group or only the device changes.

    python benchmarks/serving_levers.py [--folder ../shared/measured/e2e] [--part judge] [--jobs 1] [--draws 20]

Mixtures are held against their bars twice: with nothing fitted to their points, and with one step parameter, host time
of a step, fitted on ``fit`` rows of the same GPU, engine version and family of models (least mean error of TPOT, not
below what the profile states less all of it). Ratios are of pairs of points that differ in nothing else: in the
tensor-parallel group, of the same engine version; in the GPU, H100 to B200, of the same group, where versions may
differ, as no model was served by one version on both. A pair counts as judged if one of its points is. Points that
were served with speculative decoding are left out (see ``plain``). Errors in %, absolute, mean and 90th percentile,
of predicted over measured - 1.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np
from membound.benchmarks.serving_accuracy import FOLDER, TABLES
from membound.calibrate.serving.load import Choice, load_runs
from membound.calibrate.serving.play import Played, play_all
from membound.calibrate.serving.run import ServedRun
from membound.hwmodels.engine import load_engine
from membound.hwmodels.model import load_model
from membound.hwmodels.spec import MoEFFN
from membound.sim.draws import run_draws
from membound.sim.scenario.resolve import resolve

MOE_BARS: Final = {"nothing fitted": (10.0, 20.0), "host time fitted": (5.0, 10.0)}
TP_BAR: Final = 6.0
DEVICE_BARS: Final = (15.0, 80.0, 25.0)
"""Error of the ratio, share of the pairs that their interval holds at least, its half-width at most [%]."""
PRESENT: Final = ("measured", "bridged")
"""Levels of a kernel that was timed on the GPU, there or by another engine's table."""
STEP: Final = "latency.tpot_s.mean"
DRAFTED: Final = 0.92
"""Where one setting was measured more than once, TPOT below so much of its longest was drafted (see ``plain``) [-]."""
PAIR: Final = ("H100", "B200")


@dataclass(frozen=True, slots=True)
class Point:
    """A point, predicted and measured.

    Attributes
    ----------
    run : the run
    predicted, measured : mean TPOT [s]
    mixture : whether its model has experts
    present : whether all its kernels but elementwise ones, which no table has, were timed on its GPU
    """

    run: ServedRun
    predicted: float
    measured: float
    mixture: bool
    present: bool

    @classmethod
    def of(cls, run: ServedRun, played: Played) -> Point:
        """Return the point of a run that was played."""
        mixture = any(isinstance(group.ffn, MoEFFN) for group in load_model(run.scenario.model).layers)
        known = {level for family, level in played.lanes.items() if family != "elementwise"}
        predicted = float(np.nanmean(played.simulated["tpot"]))
        return cls(run, predicted, run.measured["tpot_mean"], mixture, known <= set(PRESENT))

    @property
    def part(self) -> str:
        """Its part of the split."""
        return self.run.label.part

    @property
    def gpu(self) -> str:
        """GPU, as the table says it."""
        return self.run.label.gpu

    @property
    def served_by(self) -> tuple[str, str, str]:
        """GPU, engine with its version, and family of models: what has one set of step parameters."""
        label = self.run.label
        return label.gpu, label.engine, label.model.partition("/")[0]

    def setting(self, *left_out: str) -> tuple[Any, ...]:
        """Return everything that tells this point from others but the named: ``group``, ``gpu``, ``version``."""
        scenario, label = self.run.scenario, self.run.label
        parallel, experts = scenario.parallelism, scenario.parallelism.expert_parallel
        facts = {
            "gpu": label.gpu,
            "version": label.engine,
            "group": (parallel.tensor_parallel_size, parallel.data_parallel_size),
            "engine": str(scenario.engine).partition("-")[0],
            "model": label.model,
            "weights": scenario.quantization.weights,
            "experts": experts,
            "load": str(scenario.workload),
        }
        return tuple(value for name, value in facts.items() if name not in left_out)


def points(folder: Path, parts: Sequence[str], jobs: int) -> list[Point]:
    """Play the points of some parts."""
    runs, _ = load_runs(folder / TABLES[1], Choice(parts=parts))
    outcomes = play_all(runs, jobs=jobs)
    return list(plain(Point.of(run, each) for run, each in outcomes if isinstance(each, Played)))


def plain(found: Iterable[Point]) -> Iterator[Point]:
    """Yield the points that were served without speculative decoding, as far as the measurements tell.

    The tables do not say which points were drafted. Of one setting in all that they do say some were measured 8 to 38 %
    faster than others, with longer TTFT (DeepSeek-R1 behind SGLang, fit rows), where repeats differ by 6 % at most:
    those are left out. A setting that was only ever measured with drafts is not found out.
    """
    settings: dict[tuple[Any, ...], list[Point]] = {}
    for each in found:
        settings.setdefault((*each.setting(), each.gpu, each.run.label.engine), []).append(each)
    for mine in settings.values():
        longest = max(each.measured for each in mine)
        yield from (each for each in mine if each.measured >= DRAFTED * longest)


def off(predicted: Iterable[float], measured: Iterable[float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return signed errors [%]."""
    return 100.0 * (np.array(list(predicted)) / np.array(list(measured)) - 1.0)


def host_s(fitted: Sequence[Point]) -> float:
    """Return the host time of a step that points want beyond the profile's [s]: least mean error of TPOT.

    Approximation: it is added to every step, so to TPOT as it is.
    """
    wants = np.array([each.measured - each.predicted for each in fitted])
    order = np.argsort(wants)
    weights = np.cumsum((1.0 / np.array([each.measured for each in fitted]))[order])
    best = float(wants[order][np.searchsorted(weights, 0.5 * weights[-1])])
    engine = load_engine(str(fitted[0].run.scenario.engine))
    return max(best, -engine.step.host_exposed_s.value)


def mixture_lines(found: Sequence[Point], part: str) -> Iterator[str]:
    """Yield mixtures with a lane of their own by what served them, and all of them against the bars."""
    known = [each for each in found if each.mixture and each.present]
    hosts = {
        name: host_s(mine)
        for name in {each.served_by for each in known}
        if (mine := [each for each in known if each.served_by == name and each.part == "fit"])
    }
    chosen = [each for each in known if each.part == part]
    with_host = [each for each in chosen if each.served_by in hosts]
    yield f"{'TPOT of mixtures, ' + part + ' rows':64} {'n':>4} {'mean':>6} {'p90':>6} {'bias':>6} {'host':>8}"
    for name in sorted({(*each.served_by, each.run.label.model) for each in chosen}):
        mine = [each for each in chosen if (*each.served_by, each.run.label.model) == name]
        title = f"  {name[0]} {name[3]} {name[1]}"
        yield _line(title, off((e.predicted for e in mine), (e.measured for e in mine)))
        if (added := hosts.get(name[:3])) is not None:
            errors = off((e.predicted + added for e in mine), (e.measured for e in mine))
            yield f"{_line('    host time fitted', errors)} {1e3 * added:5.2f} ms"
    nothing = off((e.predicted for e in chosen), (e.measured for e in chosen))
    fitted = off((e.predicted + hosts[e.served_by] for e in with_host), (e.measured for e in with_host))
    for (what, bars), errors in zip(MOE_BARS.items(), (nothing, fitted), strict=True):
        yield f"{_line(what, errors)}  bar {bars[0]:g} / {bars[1]:g}: {_verdict(errors, bars)}"


def _line(title: str, errors: np.ndarray[Any, np.dtype[np.float64]]) -> str:
    if not len(errors):
        return f"{title[:64]:64} {0:4} {'-':>6} {'-':>6} {'-':>6}"
    p90 = np.percentile(np.abs(errors), 90)
    return f"{title[:64]:64} {len(errors):4} {np.abs(errors).mean():6.1f} {p90:6.1f} {errors.mean():+6.1f}"


def _verdict(errors: np.ndarray[Any, np.dtype[np.float64]], bars: Sequence[float]) -> str:
    if not len(errors):
        return "no points"
    within = np.abs(errors).mean() <= bars[0] and (
        len(bars) < 2 or np.percentile(np.abs(errors), 90) <= bars[1]
    )
    return "met" if within else "MISSED"


def pairs(
    found: Sequence[Point], part: str, key: Callable[[Point], tuple[Any, ...]], order: Callable[[Point], Any]
) -> Iterator[tuple[Point, Point]]:
    """Yield pairs of one key and different order, the smaller first; one of the two in the part asked for."""
    by_key: dict[tuple[Any, ...], list[Point]] = {}
    for each in found:
        by_key.setdefault(key(each), []).append(each)
    for mine in by_key.values():
        for one, other in combinations(sorted(mine, key=order), 2):
            if order(one) != order(other) and part in (one.part, other.part):
                yield one, other


def ratio_errors(chosen: Sequence[tuple[Point, Point]]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the error of each pair's ratio of TPOT [%]."""
    return off(
        (other.predicted / one.predicted for one, other in chosen),
        (other.measured / one.measured for one, other in chosen),
    )


def group_lines(found: Sequence[Point], part: str) -> Iterator[str]:
    """Yield ratios of TPOT between groups of different sizes."""
    chosen = list(
        pairs(
            found,
            part,
            lambda each: each.setting("group"),
            lambda each: each.run.scenario.parallelism.tensor_parallel_size,
        )
    )
    yield f"{'ratio of TPOT where the group changes, ' + part + ' rows':64} {'n':>4} {'mean':>6} {'p90':>6} {'bias':>6}"
    for name in sorted({_served(one) for one, _ in chosen}):
        yield _line(f"  {name}", ratio_errors([pair for pair in chosen if _served(pair[0]) == name]))
    errors = ratio_errors(chosen)
    yield f"{_line('all', errors)}  bar {TP_BAR:g}: {_verdict(errors, [TP_BAR])}"


def _served(each: Point) -> str:
    label = each.run.label
    return f"{label.gpu} {label.model} {label.engine} {each.run.scenario.quantization.weights}"


def device_lines(found: Sequence[Point], part: str, draws: int) -> Iterator[str]:
    """Yield ratios of TPOT between devices, and with draws whether their intervals hold the measured one."""
    mine = [each for each in found if each.gpu.startswith(PAIR)]
    chosen = list(
        pairs(
            mine,
            part,
            lambda each: each.setting("gpu", "version"),
            lambda each: PAIR.index(each.gpu[: len(PAIR[0])]),
        )
    )
    yield f"{'ratio of TPOT, H100 to B200, ' + part + ' rows':64} {'n':>4} {'mean':>6} {'p90':>6} {'bias':>6}"
    errors = ratio_errors(chosen)
    error, holds, width = DEVICE_BARS
    yield f"{_line('all', errors)}  bar {error:g}: {_verdict(errors, [error])}"
    if not draws or not chosen:
        return
    covered, widths = zip(*(_held(one, other, draws) for one, other in chosen), strict=True)
    share, half = 100.0 * float(np.mean(covered)), 100.0 * float(np.median(widths))
    yield f"  intervals hold {share:.0f} % (bar {holds:g}): {'met' if share >= holds else 'MISSED'}"
    yield f"  median half-width {half:.1f} % (bar {width:g}): {'met' if half <= width else 'MISSED'}"


def _held(one: Point, other: Point, draws: int) -> tuple[bool, float]:
    """Return whether the interval of a ratio holds the measured one, and its half-width over the ratio [-].

    Both sides share their draws, so that what they have in common cancels.
    """
    drawn = [run_draws(resolve(each.run.scenario), draws, jobs=1) for each in (one, other)]
    low, high = drawn[1].ratio(drawn[0]).interval()[STEP]
    return low <= other.measured / one.measured <= high, (high - low) / (high + low)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the tables and splits.csv")
    parser.add_argument("--part", default="judge", help="fit or judge (then fit rows are played too)")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--draws", type=int, default=0, help="draws for the intervals of ratios between devices"
    )
    asked = parser.parse_args()
    found = points(asked.folder, list(dict.fromkeys(("fit", asked.part))), asked.jobs)
    for lines in (
        mixture_lines(found, asked.part),
        group_lines(found, asked.part),
        device_lines(found, asked.part, asked.draws),
    ):
        print("\n".join(lines), end="\n\n")


if __name__ == "__main__":
    main()
