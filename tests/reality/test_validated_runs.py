"""Tables of served runs and points that others published: each row answered or skipped, fit rows within bounds.

Only rows that calibration may look at are judged here.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from membound.benchmarks.serving_accuracy import FOLDER, TABLES, checks, datasheet, figure
from membound.calibrate.serving.compare import RunErrors, compare
from membound.calibrate.serving.load import Choice, load_runs
from membound.calibrate.serving.play import Played, play, play_all
from membound.calibrate.serving.run import ServedRun
from membound.calibrate.serving.table import read_served

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the measured runs (../shared) are not here")


@cache
def fit_runs(table: str, model: str) -> tuple[ServedRun, ...]:
    return tuple(load_runs(FOLDER / table, Choice(parts=["fit"], models=[model]))[0])


def errors(runs: tuple[ServedRun, ...]) -> list[RunErrors]:
    found: list[RunErrors] = []
    for run, outcome in play_all(runs):
        assert isinstance(outcome, Played), outcome
        found.append(compare(run, outcome))
    return found


@cache
def stages() -> list[RunErrors]:
    return errors(fit_runs(TABLES[0], "Llama-2-7b"))


@pytest.mark.parametrize("table", TABLES)
def test_every_row_of_both_tables_is_a_run_or_has_its_reason(table: str) -> None:
    runs, skipped = load_runs(FOLDER / table)
    assert len(runs) + len(skipped) == len(read_served(FOLDER / table).rows)
    assert all(each.reason and "\n" not in each.reason for each in skipped)
    assert len(runs) > len(skipped)


def test_caveats_of_the_published_runs_are_applied() -> None:
    reasons = {each.reason for each in load_runs(FOLDER / TABLES[0])[1]}
    assert any("offloaded KV to CPU" in each for each in reasons)
    assert any("sum of stages" in each for each in reasons)
    assert any("of its requests failed" in each for each in reasons)


@pytest.mark.parametrize(("metric", "bar"), [("e2e_mean", 0.08), ("tpot_mean", 0.08), ("ttft_mean", 0.06)])
def test_stages_whose_prompts_repeat(metric: str, bar: float) -> None:
    # Llama-2-7b on one H100, 5 to 10 requests/s of 44 or 50 prompts: whole prompts are found in the cache.
    assert len(stages()) == 3
    assert max(abs(each.error[metric]) for each in stages()) < bar


def test_prompts_taken_for_new_ones_would_start_far_too_late() -> None:
    run = next(each for each in fit_runs(TABLES[0], "Llama-2-7b") if each.label.run_id.endswith("s0"))
    fresh = run.scenario.replace(kv_cache__enable_prefix_caching=False)
    ours = float(play(ServedRun(run.label, fresh, run.measured)).simulated["ttft"].mean())
    assert ours > 1.25 * run.measured["ttft_mean"]


def test_points_of_a_synchronous_engine() -> None:
    # Qwen3-32B on four H100 under vLLM 0.12, 8 to 128 users; its host time comes from these rows.
    runs = tuple(each for each in fit_runs(TABLES[1], "Qwen3-32B") if each.label.engine == "vllm 0.12.0")[::4]
    found = errors(runs)
    assert len(found) >= 7
    for metric, bar in (("tpot_mean", 0.05), ("throughput", 0.05)):
        assert np.median([abs(each.error[metric]) for each in found]) < bar


def test_a_datasheet_roofline_is_far_too_fast() -> None:
    run = fit_runs(TABLES[0], "Llama-2-7b")[0]
    assert compare(run, play(run, server=datasheet)).error["e2e_mean"] < -0.25


def test_the_bars_name_figures_that_are_compared() -> None:
    known = {"ttft_mape", "e2e_mape"} | {
        name for each in stages() for name in (*each.error, *each.run.measured)
    }
    for check in checks():
        assert check.row in (1, 2, 3, 4)
        names = {name.removesuffix("_p90") if name.endswith("_mean_p90") else name for name in check.bars}
        assert names <= known | {"kv_peak"}
    dense = next(each for each in checks() if each.what.startswith("dense models on H100"))
    assert all(dense.holds(each) for each in stages())
    assert figure(stages(), "e2e_mean") == np.median([abs(each.error["e2e_mean"]) for each in stages()])
