"""Comparisons: the same random numbers on both sides, changes of pairs, and points that say what they are."""

from __future__ import annotations

import math

import membound as mb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from membound.sim.scenario import Scenario, resolve
from membound.sim.studies.compare import compare
from membound.sim.studies.paired import changes, samples, spans
from membound.sim.studies.point import digest, is_share, metrics_of, settings_between
from membound.sim.studies.study import StudyError

SMALL = {
    "device": "h100_sxm",
    "model": "llama-3.1-8b",
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 4},
        "input_tokens": {"kind": "lognormal", "p50": 300, "sigma": 0.5},
        "output_tokens": {"kind": "lognormal", "p50": 40, "sigma": 0.7},
        "requests": 60,
    },
}


@pytest.fixture(scope="module")
def scenario():
    return Scenario.model_validate(SMALL)


def test_a_scenario_against_itself_has_not_changed(scenario):
    first, second = compare({"a": scenario, "b": scenario}, repeat=2, jobs=1).points
    assert first.metrics == second.metrics
    assert first.hash == second.hash
    assert not second.settings
    assert set(second.change.values()) == {0.0}
    assert all(span == (0.0, 0.0) for span in second.change_interval.values())


def test_a_point_is_the_run_of_its_scenario(scenario):
    (point, _) = compare([scenario, scenario], jobs=1).points
    assert point.metrics == metrics_of(mb.simulate(scenario).summary())
    assert point.level == mb.simulate(scenario).summary()["confidence"]["level"]


def test_the_processes_do_not_change_a_figure(scenario):
    other = scenario.replace(scheduler__max_num_seqs=4)
    one, two = (compare([scenario, other], repeat=2, jobs=jobs).to_dict() for jobs in (1, 2))
    assert one == two


def test_repeats_have_seeds_of_their_own_and_the_figures_are_their_means(scenario):
    seeds = [scenario.replace(simulation__seed=seed) for seed in (0, 1, 2)]
    found = compare([scenario, scenario], repeat=3, jobs=1).points[0]
    each = [mb.simulate(one).summary()["latency"]["e2e_s"]["mean"] for one in seeds]
    assert found.metrics["latency.e2e_s.mean"] == pytest.approx(sum(each) / 3, rel=1e-12)
    low, high = found.interval["latency.e2e_s.mean"]
    assert low < found.metrics["latency.e2e_s.mean"] < high


def test_a_change_of_pairs_is_surer_than_the_figures_it_is_made_of(scenario):
    """Common random numbers: the loads of two seeds differ by more than two devices under one load."""
    faster = scenario.replace(device={"base": "h100_sxm", "hbm_bandwidth": "x1.2"})
    base, other = compare([scenario, faster], repeat=4, jobs=1).points
    metric = "latency.e2e_s.mean"
    low, high = base.interval[metric]
    alone = (high - low) / base.metrics[metric]
    low, high = other.change_interval[metric]
    assert high - low < alone / 3
    assert high < 0


def test_draws_are_common_to_both_sides(scenario):
    base, other = compare([scenario, scenario], draws=3, jobs=1).points
    low, high = base.interval["latency.tpot_s.mean"]
    assert low < high
    assert other.change_interval["latency.tpot_s.mean"] == (0.0, 0.0)


def test_a_model_that_does_not_fit_is_a_point_with_a_reason(scenario):
    large = scenario.replace(model="llama-2-70b", device="a30")
    base, other = compare([scenario, large], jobs=1).points
    assert base.metrics["requests.completed"] == 60
    assert other.metrics == {}
    assert "llama-2-70b does not fit a30" in other.error


def test_the_hash_knows_what_figures_depend_on_and_nothing_else(scenario):
    same = digest(resolve(scenario))
    assert digest(resolve(scenario.replace(name="another name"))) == same
    for change in ({"simulation__seed": 1}, {"scheduler__max_num_seqs": 7}, {"device": "h200_sxm"}):
        assert digest(resolve(scenario.replace(**change))) != same


def test_the_hash_follows_a_trace_by_its_content(scenario, tmp_path):
    text = "arrival_s,input_tokens,output_tokens\n0,10,10\n"
    paths = [tmp_path / name for name in ("a.csv", "b.csv", "c.csv")]
    for path, rows in zip(paths, (text, text, text + "1,10,10\n"), strict=True):
        path.write_text(rows)
    hashes = [
        digest(resolve(Scenario.model_validate(SMALL | {"workload": {"trace": {"path": str(path)}}})))
        for path in paths
    ]
    assert hashes[0] == hashes[1] != hashes[2]


def test_settings_are_the_leaves_that_differ(scenario):
    other = scenario.replace(scheduler__name="static", device={"base": "h100_sxm", "hbm_bandwidth": "x2"})
    assert settings_between(scenario, other) == {
        "scheduler.name": "static",
        "device.base": "h100_sxm",
        "device.hbm_bandwidth": "x2",
    }


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=2, max_size=9))
def test_changes_are_ratios_and_of_shares_differences(pairs):
    before = samples([{"latency.x": a, "time_share.x": a} for a, _ in pairs])
    after = samples([{"latency.x": b, "time_share.x": b} for _, b in pairs])
    found = changes(before, after)
    assert is_share("time_share.x")
    assert found["latency.x"] == [b / a - 1 for a, b in pairs]
    assert found["time_share.x"] == [b - a for a, b in pairs]
    for low, high in spans(found, "mean").values():
        assert low <= high


def test_a_metric_that_some_run_does_not_know_has_no_interval():
    assert samples([{"a": 1.0, "b": None}, {"a": 2.0, "b": 1.0}]) == {"a": [1.0, 2.0]}


def test_the_interval_of_a_mean_is_students():
    low, high = spans({"x": [1.0, 2.0, 3.0]}, "mean")["x"]
    half = 2.919986 / math.sqrt(3)  # t of 2 degrees of freedom at 95 %, standard deviation 1
    assert (low, high) == pytest.approx((2 - half, 2 + half), rel=1e-6)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"repeat": 0}, "repeat 0; allowed: 1 to 10,000"),
        ({"repeat": 2, "draws": 4}, "give one of them"),
        ({"draws": 1}, "draws 1; allowed: 2 to 10000"),
        ({"jobs": 0}, "jobs 0; allowed: 1 to 1,024"),
    ],
)
def test_numbers_of_runs_that_cannot_be_are_refused(scenario, asked, message):
    with pytest.raises(mb.MemboundError, match=message):
        compare([scenario], **asked)
    with pytest.raises(StudyError, match="no scenario"):
        compare([])
