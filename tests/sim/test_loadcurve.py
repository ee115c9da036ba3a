"""Latency against load, and plans made of a scenario at hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from membound.sim.scenario import Scenario, parse_scenario
from membound.sim.scenario.resolve import resolve
from membound.sim.studies.capacity_plan import plan_of
from membound.sim.studies.loadcurve import RATE, load_curve
from membound.sim.studies.plan import plan
from membound.sim.studies.planned import repriced
from membound.sim.studies.point import digest
from membound.sim.studies.search import highest_rate
from membound.sim.studies.study import StudyError

LOAD = {
    "arrivals": {"kind": "poisson", "rate_per_s": 8},
    "input_tokens": 256,
    "output_tokens": 32,
    "requests": 60,
}


def scenario(**changes: object) -> Scenario:
    data = {"device": "h100_sxm", "model": "llama-3.1-8b", "workload": LOAD,
            "slo": {"classes": {"default": {"ttft_s": 0.2, "tpot_s": 0.05}}}}  # fmt: skip
    return parse_scenario(data | changes)


def test_latency_grows_with_the_rate_and_the_knee_is_one_of_the_rates(tmp_path: Path):
    seen: list[tuple[int, int]] = []
    found = load_curve(scenario(), tmp_path, requests=60, repeat=2, shares=(0.1, 0.5, 1.2), jobs=1,
                       progress=lambda done, total: seen.append((done, total)))  # fmt: skip
    rates = [each.settings[RATE] for each in found.points]
    assert rates == pytest.approx([share * found.ceiling_per_s for share in (0.1, 0.5, 1.2)], rel=0.01)
    ttft = [each.metrics["latency.ttft_s.p50"] for each in found.points]
    assert ttft == sorted(ttft)
    assert found.knee_per_s is None or found.knee_per_s in rates
    assert seen[-1] == (7, 7)
    assert all("latency.ttft_s.p99" in each.interval for each in found.points)


def test_a_curve_takes_over_the_runs_that_a_sweep_has_done(tmp_path: Path):
    load_curve(scenario(), tmp_path, requests=40, repeat=1, shares=(0.5,), jobs=1)
    kept = {path.stem: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.parquet")}
    again = load_curve(scenario(), tmp_path, requests=40, repeat=1, shares=(0.5,), jobs=1)
    assert {path.stem: path.stat().st_mtime_ns for path in (tmp_path / "runs").glob("*.parquet")} == kept
    rate = again.points[0].settings[RATE]
    same = scenario().replace(workload__arrivals__rate_per_s=rate, workload__requests=40)
    assert digest(resolve(same, "size")) in kept


def test_a_closed_loop_has_no_load_curve(tmp_path: Path):
    closed = scenario(workload=LOAD | {"arrivals": {"kind": "closed_loop", "concurrency": 4}})
    with pytest.raises(StudyError, match="needs arrivals with a rate_per_s"):
        load_curve(closed, tmp_path, requests=20)


def test_the_search_tells_every_run_that_it_makes():
    rates: list[float] = []
    found = highest_rate(scenario(), 40, told=lambda probe: rates.append(probe.rate_per_s))
    assert len(rates) == found.runs - 1  # all but the run with all requests at once


def test_a_plan_at_other_prices_is_ranked_by_them_and_nothing_else_changes():
    asked = plan_of(scenario(), 60.0, {"device": ["h100_sxm", "h200_sxm"]}, requests=40)
    found = plan(asked, exhaustive=True, draws=0, jobs=1)
    first, second = (str(option.settings["device"]) for option in found.options)
    dear = repriced(found, {first: 1000.0, second: 1.0})
    assert [str(option.settings["device"]) for option in dear.options] == [second, first]
    best = dear.options[0]
    assert best.gpus is not None
    assert best.usd_per_hour == best.gpus
    assert [option.rate_per_s for option in dear.options] == [
        option.rate_per_s for option in reversed(found.options)
    ]
    assert repriced(found, {}) == found


def test_a_plan_without_an_slo_is_refused():
    with pytest.raises(StudyError, match="slo: missing"):
        plan_of(scenario(slo=None), 1.0, {"device": ["h100_sxm"]})
