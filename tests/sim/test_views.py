"""A run as pictures need it: buckets sum to the run, levels keep their extremes, a folder shows what the run showed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import membound as mb
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from membound.sim.output import view as view_tables
from membound.sim.output import views
from membound.sim.output.buckets import levels, spread

CROWDED = {
    "device": "h100_sxm",
    "model": "llama-3.1-8b",
    "kv_cache": {"num_gpu_blocks_override": 700},
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 30},
        "input_tokens": 600,
        "output_tokens": 300,
        "requests": 150,
    },
}
DRAFTED = {
    **CROWDED,
    "speculative": {"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.7},
    "kv_cache": {},
}


@pytest.fixture(scope="module", params=[CROWDED, DRAFTED], ids=["preempted", "speculative"])
def result(request: pytest.FixtureRequest) -> mb.SimulationResult:
    return mb.simulate(mb.Scenario.model_validate(request.param), keep_steps=True)


@pytest.fixture(scope="module")
def view(result: mb.SimulationResult) -> view_tables.View:
    return view_tables.view_of(result)


def test_shares_over_time_sum_to_one_in_every_bucket_and_to_the_summary_over_all(view: view_tables.View):
    rows = views.share_rows(view, buckets=50)
    for start in {row["t_s"] for row in rows}:
        assert sum(row["share"] for row in rows if row["t_s"] == start) == pytest.approx(1.0, abs=1e-9)
    for cause, share in view.summary["time_share"].items():
        mean = sum(row["share"] for row in rows if row["cause"] == cause) / 50
        assert mean == pytest.approx(share, abs=1e-6)


def test_monitors_over_time_average_to_the_summary(view: view_tables.View):
    rows = views.monitor_rows(view, buckets=50)
    for name in views.MONITORS:
        mean = sum(row["share"] for row in rows if row["monitor"] == name) / 50
        assert mean == pytest.approx(view.summary["utilization"][name], abs=1e-6)


def test_limiter_over_time_sums_to_the_summary(view: view_tables.View):
    rows = views.limiter_time_rows(view, buckets=40)
    busy = 1.0 - view.summary["time_share"]["idle"]
    for name, share in view.summary["limiter"].items():
        mean = sum(row["share"] for row in rows if row["limiter"] == name) / 40
        assert mean == pytest.approx(share * busy, abs=1e-6)


def test_steps_keep_every_preemption(result: mb.SimulationResult):
    steps = result.record.steps
    assert steps is not None
    assert int(steps["preempted"].sum()) == result.summary()["kv"]["preemptions"]
    if result.record.scenario.speculative is None:
        assert result.summary()["kv"]["preemptions"] > 0


def test_the_timeline_shows_queue_and_pool_at_their_highest(view: view_tables.View):
    panels = views.timeline_rows(view, buckets=30)
    assert view.steps is not None
    used = max(row["high"] for row in panels["kv"] if row["series"] == "used")
    assert used == pytest.approx(view.summary["kv"]["peak_usage"], rel=1e-9)
    running = max(row["high"] for row in panels["requests"] if row["series"] == "running")
    assert running == view.steps["running"].max()
    seconds = (view.end_ns - view.start_ns) / 1e9
    tokens = sum(row["mean"] for row in panels["tokens"] if row["series"] == "prefill") * seconds / 30
    assert tokens == pytest.approx(float(view.steps["prefill_tokens"].sum()), rel=1e-9)


def test_requests_live_through_their_phases_without_a_gap(view: view_tables.View):
    rows = views.waterfall_rows(view, requests=20)
    assert len({row["request"] for row in rows}) == 20
    for number in {row["request"] for row in rows}:
        whole = [row for row in rows if row["request"] == number and row["phase"] != "stalled by prefill"]
        assert all(a["end_s"] == b["start_s"] for a, b in pairwise(whole))
        decode = whole[-1]
        for row in rows:
            if row["request"] == number and row["phase"] == "stalled by prefill":
                assert decode["start_s"] <= row["start_s"] < row["end_s"] <= decode["end_s"]


def test_gaps_by_position_average_to_the_mean(view: view_tables.View):
    rows = views.position_rows(view)
    count = sum(row["emissions"] for row in rows)
    mean = sum(row["itl_ms"] * row["emissions"] for row in rows) / count
    if view.summary.get("speculative") is None:
        assert mean == pytest.approx(view.summary["latency"]["itl_s"]["mean"] * 1e3, rel=1e-9)


def test_a_folder_shows_what_the_run_showed(
    tmp_path: Path, result: mb.SimulationResult, view: view_tables.View
):
    result.write(tmp_path / "out")
    again = view_tables.read_view(tmp_path / "out")
    for rows in (
        views.share_rows,
        views.monitor_rows,
        views.position_rows,
        views.waterfall_rows,
        views.latency_rows,
    ):
        assert rows(again) == rows(view), rows.__name__
    assert views.timeline_rows(again) == views.timeline_rows(view)


def test_a_run_without_steps_shows_what_it_can(result: mb.SimulationResult, view: view_tables.View):
    bare = view_tables.View(view.summary, view.requests)
    assert views.share_rows(bare) == views.monitor_rows(bare) == views.position_rows(bare) == []
    assert list(views.timeline_rows(bare)) == ["requests"]
    assert {row["phase"] for row in views.waterfall_rows(bare)} >= {"prefill", "decode"}


@pytest.mark.parametrize(("make", "said"), [(False, "is not there"), (True, "lacks summary.json")])
def test_a_folder_without_a_result_is_named(tmp_path: Path, make: bool, said: str):
    folder = tmp_path / "nothing"
    if make:
        folder.mkdir()
    with pytest.raises(view_tables.ResultError, match=said):
        view_tables.read_view(folder)


@given(
    gaps=st.lists(st.integers(0, 30), min_size=1, max_size=20),
    values=st.lists(st.integers(-9, 9), min_size=20, max_size=20),
    buckets=st.integers(1, 9),
    length=st.integers(1, 200),
)
def test_levels_by_bucket_are_those_of_every_moment(
    gaps: list[int], values: list[int], buckets: int, length: int
):
    times = np.cumsum([0, *gaps[1:]])
    level = np.array(values[: len(times)])
    edges = np.linspace(0, length * buckets, buckets + 1)
    low, mean, high = levels(times, level, edges)
    moments: Any = np.arange(length * buckets)
    stands = level[np.searchsorted(times, moments, side="right") - 1].reshape(buckets, length)
    assert mean == pytest.approx(stands.mean(axis=1))
    assert np.all(low <= stands.min(axis=1))
    assert np.all(high >= stands.max(axis=1))
    assert low.min() >= level.min()
    assert high.max() <= level.max()


@given(
    lasts=st.lists(st.integers(1, 50), min_size=1, max_size=30),
    idle=st.lists(st.integers(0, 20), min_size=30),
)
def test_what_steps_moved_is_kept_however_it_is_cut(lasts: list[int], idle: list[int]):
    durations = np.array(lasts)
    start = np.cumsum([0, *(np.array(lasts[:-1]) + idle[: len(lasts) - 1])])
    two = {
        "start_ns": np.tile(start, 2),
        "duration_ns": np.tile(durations, 2),
        "moved": np.arange(2 * len(start)),
    }
    two["replica"] = np.repeat([0, 1], len(start))
    edges = np.linspace(0, start[-1] + durations[-1], 8)
    assert spread(two, "moved", edges).sum() == pytest.approx(two["moved"].sum())
    assert spread(two, "duration_ns", edges) == pytest.approx(
        2 * spread({name: values[: len(start)] for name, values in two.items()}, "duration_ns", edges)
    )


def test_shares_of_a_split_device_sum_to_one():
    split = {**DRAFTED, "speculative": None, "compute_split": {"prefill": 0.6, "decode": 0.4}}
    split["workload"] = {**CROWDED["workload"], "requests": 40}
    rows = views.share_rows(
        view_tables.view_of(mb.simulate(mb.Scenario.model_validate(split), keep_steps=True)), 7
    )
    for start in {row["t_s"] for row in rows}:
        assert sum(row["share"] for row in rows if row["t_s"] == start) == pytest.approx(1.0, abs=1e-9)
