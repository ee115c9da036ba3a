"""Served runs of others against the simulator and a datasheet roofline: medians and 90th percentiles of errors.

    python benchmarks/serving_accuracy.py [--folder ../shared/measured/e2e] [--part judge] [--jobs 1] [--draws 0]

Nothing is fitted here. Rows of the ``fit`` part are those that calibration may look at, ``judge`` those it may
not; ``serving_bars.yaml`` says what the judge rows are held to.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from membound.calibrate.serving.compare import RunErrors, compare
from membound.calibrate.serving.load import Choice, load_runs
from membound.calibrate.serving.play import Server, play_all
from membound.calibrate.serving.run import ServedRun, Skipped
from membound.calibrate.serving.summary import GROUPS, grouped, median, p90, totals
from membound.hwmodels.device import DeviceProfile
from membound.hwmodels.engine import EngineProfile
from membound.hwmodels.lanes import FittedLane, FittedParameter
from membound.sim.scenario.resolve import ResolvedScenario

FOLDER = Path(__file__).parents[2] / "shared" / "measured" / "e2e"
TABLES = ("e2e_runs.csv", "inferencex_points.csv.gz")
BARS = Path(__file__).parent / "serving_bars.yaml"
COLUMNS = ("ttft_mean", "ttft_p99", "tpot_mean", "e2e_mean", "e2e_p99", "throughput")
IDEAL = {"ec": 1.0, "eb": 1.0, "q": 16.0, "occ": 1.0, "gp": 1.0, "bl": 1.0, "bb": 1.0}
"""Parameters of a kernel that reaches the datasheet; all others are 0."""
ZERO = (
    "t0_us", "wq", "oe", "tb_us", "ts_us", "tcta_us", "cr", "a0_us", "a1_us", "c0_us", "c1_us",
)  # fmt: skip
HOST = ("host_exposed_s", "host_per_seq_s", "elementwise_t0_s")
FACTORS = ("engine_gemm_efficiency", "mixed_decode_factor", "elementwise_eb")


@dataclass(frozen=True, slots=True)
class Check:
    """One line of ``serving_bars.yaml``: which runs, and the bar of each error [%]."""

    row: int
    what: str
    bars: Mapping[str, float]
    rows: str = ""
    kind: str = "runs"
    gpus: str = ""
    models: str = ""
    weights: str = ""
    users: tuple[int, int] | None = None
    saturated: bool | None = None

    def holds(self, each: RunErrors) -> bool:
        """Return whether a run is one of those that the bar is for."""
        run, label = each.run, each.run.label
        texts = ((self.rows, label.run_id), (self.gpus, label.gpu), (self.models, label.model))
        within = self.users is None or self.users[0] <= (run.concurrency or 0) <= self.users[1]
        return (
            label.kind == self.kind
            and within
            and self.saturated in (None, bool(run.saturated))
            and all(re.search(pattern, text) for pattern, text in texts)
            and re.fullmatch(self.weights or ".*", run.scenario.quantization.weights) is not None
        )


def checks() -> list[Check]:
    """Read the bars."""
    return [Check(**entry) for entry in yaml.safe_load(BARS.read_text(encoding="utf-8"))]


def figure(runs: Sequence[RunErrors], name: str) -> float | None:
    """Return the median (``…_p90``: the 90th percentile) of an absolute error of runs, saturated or not [-]."""
    statistic = p90 if name.endswith("_mean_p90") else median
    key = name.removesuffix("_p90") if name.endswith("_mean_p90") else name
    values = [each.per_request if key.endswith("_mape") else each.error for each in runs]
    return statistic([abs(found[key]) for found in values if key in found])


def datasheet(resolved: ResolvedScenario) -> ResolvedScenario:
    """Return the same question of a device whose kernels reach the datasheet, behind an engine without a host.

    Every kernel takes the larger of FLOP over peak and bytes over bandwidth. Mixtures and latent attention have
    no such form, so runs of those are skipped.
    """
    parameters = {
        name: FittedParameter(value=value, stderr=0.0)
        for name, value in {**dict.fromkeys(ZERO, 0.0), **IDEAL}.items()
    }
    lane = FittedLane(level="prior", source="the datasheet", parameters=parameters)
    return replace(resolved, device=_ideal(resolved.device, lane), engine=_hostless(resolved.engine))


def _ideal(device: DeviceProfile, lane: FittedLane) -> DeviceProfile:
    names = ("vllm", "sglang", "trtllm", "torch_mm", "torch")
    families = {*device.fitted, "gemm", "decode_attention", "prefill_attention", "allreduce"}
    fitted = {family: dict.fromkeys((*names, *device.fitted.get(family, ())), lane) for family in families}
    return device.model_copy(update={"form": "roofline3", "fitted": fitted})


def _hostless(engine: EngineProfile) -> EngineProfile:
    step = engine.step
    ideal = dict.fromkeys(HOST, 0.0) | dict.fromkeys(FACTORS, 1.0)
    changed = {name: getattr(step, name).model_copy(update={"value": value}) for name, value in ideal.items()}
    return engine.model_copy(update={"step": step.model_copy(update=changed)})


def judged(
    runs: Sequence[ServedRun], jobs: int, draws: int = 0, server: Server | None = None
) -> tuple[list[RunErrors], list[Skipped]]:
    """Play runs and compare them."""
    found: list[RunErrors] = []
    failed: list[Skipped] = []
    for run, outcome in play_all(runs, jobs=jobs, draws=draws, server=server):
        if isinstance(outcome, Skipped):
            failed.append(outcome)
        else:
            found.append(compare(run, outcome))
    return found, failed


def one_of_each(runs: Sequence[ServedRun]) -> list[ServedRun]:
    """Return the middle one, by users, of the points of each GPU, model, precision and engine."""
    groups: dict[tuple[str, ...], list[ServedRun]] = {}
    for run in runs:
        label = run.label
        key = (label.gpu, label.model, run.scenario.quantization.weights, label.engine)
        groups.setdefault(key, []).append(run)
    return [
        sorted(group, key=lambda run: (run.concurrency or 0, run.label.run_id))[len(group) // 2]
        for group in groups.values()
    ]


def lines(runs: Sequence[RunErrors], title: str) -> Iterator[str]:
    """Yield the table of one part: everything, then by GPU, model and engine."""
    yield f"{title:52} {'runs':>5} " + " ".join(f"{name:>13}" for name in COLUMNS)
    groups: list[tuple[str, Any]] = [("all", totals(runs))]
    for by in ("gpu", "model", "engine"):
        assert by in GROUPS
        groups += [(f"  {by} {name}", found) for name, found in grouped(runs, by).items()]
    for name, found in groups:
        cells = [_pair(found["median_abs_error"][each], found["p90_abs_error"][each]) for each in COLUMNS]
        yield f"{name[:52]:52} {found['n']:5} " + " ".join(f"{cell:>13}" for cell in cells)


def _pair(middle: float | None, high: float | None) -> str:
    return "-" if middle is None or high is None else f"{100 * middle:.1f} / {100 * high:.1f}"


def bar_lines(runs: Sequence[RunErrors], roofline: Sequence[RunErrors]) -> Iterator[str]:
    """Yield a line for each bar: how many runs, the error, the bar, and the roofline's error."""
    yield f"{'row':3} {'check':62} {'figure':14} {'runs':>5} {'error':>7} {'bar':>6}        {'roofline':>8}"
    for check in checks():
        mine = [each for each in runs if check.holds(each)]
        ideal = [each for each in roofline if check.holds(each)]
        for name, bar in check.bars.items():
            found, other = figure(mine, name), figure(ideal, name)
            verdict = "" if found is None else "met" if 100 * found <= bar else "MISSED"
            yield (
                f"{check.row:3} {check.what:62} {name:14} {len(mine):5} {_percent(found):>7} {bar:6.1f} "
                f"{verdict:6} {_percent(other):>8}"
            )


def interval_lines(runs: Sequence[RunErrors]) -> Iterator[str]:
    """Yield coverage and median half-width of each interval: latencies below saturation, throughput above."""
    parts = (
        ("runs", [each for each in runs if each.run.label.kind == "runs"]),
        ("points", [each for each in runs if each.run.label.kind == "points"]),
        ("all", runs),
    )
    for what, mine in parts:
        found = totals(mine)
        for name, share in found["coverage_90"].items():
            count = sum(name in each.covered for each in mine)
            yield (
                f"interval of {name}, {what}: {count}, holds {100 * share:.0f} % (nominal 90), half-width "
                f"{_percent(found['median_half_width'][name])} %"
            )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f}"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, default=FOLDER, help="folder of the tables and splits.csv")
    parser.add_argument("--part", action="append", help="fit, judge, …; default: fit and judge")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument(
        "--draws",
        type=int,
        default=0,
        help="draws for intervals of the runs and of one point of each GPU, model, precision and engine, of their "
        "first requests (20: some twenty minutes)",
    )
    asked = parser.parse_args()
    skipped: list[Skipped] = []
    for part in asked.part or ["fit", "judge"]:
        runs: list[RunErrors] = []
        roofline: list[RunErrors] = []
        for table in TABLES:
            found, unread = load_runs(asked.folder / table, Choice(parts=[part]))
            drawn = found if table == TABLES[0] else one_of_each(found)
            mine, failed = judged(drawn, asked.jobs, asked.draws)
            if len(drawn) < len(found):
                known = {run.label.run_id for run in drawn}
                rest, others = judged([run for run in found if run.label.run_id not in known], asked.jobs)
                mine, failed = [*mine, *rest], [*failed, *others]
            answered = {each.run.label.run_id for each in mine}
            ideal, _ = judged(
                [run for run in found if run.label.run_id in answered], asked.jobs, server=datasheet
            )
            runs += mine
            roofline += ideal
            skipped += [*unread, *failed]
            print("\n".join(lines(mine, f"{part} rows of {table}")))
            print("\n".join(lines(ideal, f"{part} rows of {table}, roofline")), end="\n\n")
        print("\n".join([*bar_lines(runs, roofline), *interval_lines(runs)]), end="\n\n")
    print("absolute errors, median / 90th percentile [%]; latencies of unsaturated runs")
    for reason, count in Counter(each.reason for each in skipped).most_common():
        print(f"skipped {count}: {reason}")


if __name__ == "__main__":
    main()
