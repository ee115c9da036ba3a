"""Studies: what a file asks for, and that no run is lost, done twice, or taken for another."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import membound as mb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from membound.sim.studies.store import Store
from membound.sim.studies.study import Range, load_study
from membound.sim.studies.sweep import look_ahead, one_run, sweep

BASE = """\
device: h100_sxm
model: llama-3.1-8b
workload:
  arrivals: {kind: poisson, rate_per_s: 4}
  input_tokens: 64
  output_tokens: 8
  requests: 5
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)

    def study(text: str) -> Path:
        path = tmp_path / "study.yaml"
        path.write_text(f"base: base.yaml\n{text}")
        return path

    return study


def test_a_grid_has_every_combination(write):
    plan = load_study(write("over: {simulation.seed: [1, 2], scheduler.max_num_seqs: [3, 4, 5]}"))
    assert [tuple(each.values()) for each in plan.settings] == list(itertools.product((1, 2), (3, 4, 5)))
    assert [s.scheduler.max_num_seqs for s in plan.scenarios] == [3, 4, 5, 3, 4, 5]


def test_zipped_leaves_change_together(write):
    plan = load_study(
        write(
            "over: {simulation.seed: [1, 2], zip: {scheduler.max_num_seqs: [3, 4], kv_cache.block_size: [16, 32]}}"
        )
    )
    assert len(plan.settings) == 4
    assert plan.settings[1] == {"simulation.seed": 1, "scheduler.max_num_seqs": 4, "kv_cache.block_size": 32}


def test_listed_points_stand_beside_the_grid(write):
    plan = load_study(write("over: {simulation.seed: [1]}\npoints: [{scheduler.max_num_seqs: 9}, {}]"))
    assert plan.settings == ({"simulation.seed": 1}, {"scheduler.max_num_seqs": 9}, {})


def test_a_draw_covers_every_axis_evenly(write):
    text = "over: {workload.arrivals.rate_per_s: {from: 1, to: 3}, simulation.seed: [1, 2]}\nrandom: 10"
    plan = load_study(write(text))
    rates = sorted(each["workload.arrivals.rate_per_s"] for each in plan.settings)
    assert [math.floor((rate - 1) * 5) for rate in rates] == list(range(10))
    assert sorted(each["simulation.seed"] for each in plan.settings) == [1] * 5 + [2] * 5
    assert load_study(write(text)).settings == plan.settings


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6), st.integers(2, 30), st.sampled_from(["linear", "log"]))
def test_a_range_begins_and_ends_where_it_says_and_goes_one_way(start, end, steps, scale):
    values = Range.model_validate({"from": start, "to": end, "steps": steps, "scale": scale}).values()
    assert (values[0], values[-1], len(values)) == (start, end, steps)
    upwards = [b - a if end > start else a - b for a, b in itertools.pairwise(values)]
    assert min(upwards) >= -1e-12 * max(start, end)


def test_repeats_are_runs_with_seeds_of_their_own(write):
    plan = load_study(write("over: {simulation.seed: [7]}\nrepeat: 3"))
    assert [scenario.simulation.seed for _, scenario in plan.runs()] == [7, 8, 9]


def test_a_point_is_the_run_of_its_scenario(write, tmp_path):
    plan = load_study(write("over: {scheduler.max_num_seqs: [1, 8]}"))
    found = sweep(plan, tmp_path / "out", jobs=1)
    for point, scenario in zip(found.points, plan.scenarios, strict=True):
        expected = mb.simulate(scenario).summary()
        assert point.metrics["latency.e2e_s.mean"] == expected["latency"]["e2e_s"]["mean"]
        assert point.summary["verdict"]["sentence"] == expected["verdict"]["sentence"]


def test_what_is_kept_is_not_run_again(write, tmp_path):
    first = sweep(load_study(write("over: {scheduler.max_num_seqs: [1, 8]}")), tmp_path / "out", jobs=1)
    assert (first.ran, first.found) == (2, 0)
    more = sweep(load_study(write("over: {scheduler.max_num_seqs: [1, 4, 8]}")), tmp_path / "out", jobs=1)
    assert (more.ran, more.found) == (1, 2)
    assert [more.points[0], more.points[2]] == list(first.points)
    again = load_study(write("over: {scheduler.max_num_seqs: [1, 4, 8]}\nrepeat: 2"))
    assert sweep(again, tmp_path / "out", jobs=1).ran == 3


def test_a_run_that_stops_half_way_goes_on_where_it_was(write, tmp_path, monkeypatch):
    plan = load_study(write("over: {scheduler.max_num_seqs: [1, 2, 3, 4]}"))
    done = []

    def until_two(task):
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(task)
        return one_run(task)

    monkeypatch.setattr("membound.sim.studies.sweep.one_run", until_two)
    with pytest.raises(KeyboardInterrupt):
        sweep(plan, tmp_path / "out", jobs=1)
    assert look_ahead(plan, Store(tmp_path / "out")).found == 2
    monkeypatch.undo()
    rest = sweep(plan, tmp_path / "out", jobs=1)
    assert (rest.ran, rest.found) == (2, 2)
    assert rest.points == sweep(plan, tmp_path / "other", jobs=1).points


def test_a_half_written_file_is_not_a_run(write, tmp_path):
    plan = load_study(write("over: {scheduler.max_num_seqs: [1]}"))
    runs = tmp_path / "out" / "runs"
    runs.mkdir(parents=True)
    (name,) = (task.hash for task in look_ahead(plan, Store(tmp_path / "out")).tasks)
    (runs / f".{name}.parquet.123.tmp").write_bytes(b"PAR1")
    assert sweep(plan, tmp_path / "out", jobs=1).ran == 1


def test_slices_share_out_the_points(write, tmp_path):
    plan = load_study(write("over: {scheduler.max_num_seqs: [1, 2, 3, 4, 5]}"))
    parts = [look_ahead(plan, Store(tmp_path), (k, 3)).tasks for k in (1, 2, 3)]
    assert [len(part) for part in parts] == [2, 2, 1]
    every = [task.hash for task in look_ahead(plan, Store(tmp_path)).tasks]
    assert sorted(task.hash for part in parts for task in part) == sorted(every)


def test_a_model_that_does_not_fit_is_kept_as_an_answer(write, tmp_path):
    plan = load_study(write("over: {model: [llama-3.1-8b, llama-2-70b]}"))
    found = sweep(plan, tmp_path / "out", jobs=1)
    assert "does not fit" in found.points[1].error
    assert sweep(plan, tmp_path / "out", jobs=1).ran == 0


def test_another_fault_is_tried_again(write, tmp_path):
    plan = load_study(write("over: {scheduler.name: [vllm_v1, my_own:Scheduler]}"))
    found = sweep(plan, tmp_path / "out", jobs=1)
    assert "cannot be loaded" in found.points[1].error
    assert not found.points[1].summary["verdict"]["sentence"]
    assert sweep(plan, tmp_path / "out", jobs=1).ran == 1


def test_the_points_are_one_table(write, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    plan = load_study(write("over: {scheduler.max_num_seqs: [1, 8], quantization.kv_cache: [auto, fp8]}"))
    sweep(plan, tmp_path / "out", jobs=1)
    rows = parquet.read_table(tmp_path / "out" / "points.parquet").to_pylist()
    assert [(row["scheduler.max_num_seqs"], row["quantization.kv_cache"]) for row in rows] == [
        (1, "auto"), (1, "fp8"), (8, "auto"), (8, "fp8"),
    ]  # fmt: skip
    runs = parquet.read_table(tmp_path / "out" / "runs").to_pylist()
    assert {row["hash"] for row in runs} == {row["hash"] for row in rows}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "nothing is varied"),
        ("over: {scheduler.max_num_seqs: 4}", "over.scheduler.max_num_seqs: 4; allowed: a list"),
        ("over: {scheduler.max_num_sqs: [4]}", "nearest: 'max_num_seqs'"),
        ("over: {scheduler.max_num_seqs: [4, -1]}", "scheduler.max_num_seqs: -1"),
        ("over: {zip: {simulation.seed: [1, 2], scheduler.max_num_seqs: [3]}}", "different lengths"),
        ("over: {simulation.seed: {from: 0, to: 4, scale: log, steps: 3}}", "no logarithms"),
        ("over: {simulation.seed: {from: 0, to: 4, stepz: 3}}", "unknown key 'stepz'; nearest: 'steps'"),
        ("overs: {}", "unknown key 'overs'; nearest: 'over'"),
        ("over: {simulation.seed: [1]}\nrepeat: 0", "repeat: 0 is out of range; allowed: at least 1"),
        ("random: 5", "random 5 needs over"),
        ("over: {a: {from: 1, to: 2, steps: 2000}, b: {from: 1, to: 2, steps: 2000}}", "4,000,000 points"),
    ],
)
def test_a_wrong_study_is_one_line(write, text, message):
    with pytest.raises(mb.MemboundError) as caught:
        load_study(write(text))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_study_that_is_not_there_names_the_nearest(tmp_path):
    (tmp_path / "study.yaml").write_text("")
    with pytest.raises(mb.MemboundError, match=r"study '.*studi.yaml' not found; nearest"):
        load_study(tmp_path / "studi.yaml")


def test_the_backend_must_be_known(write, tmp_path):
    plan = load_study(write("over: {simulation.seed: [1]}"))
    with pytest.raises(mb.MemboundError, match="unknown backend 'dusk'; nearest: 'dask'"):
        sweep(plan, tmp_path, backend="dusk")
    with pytest.raises(mb.MemboundError, match="add --backend dask or --backend ray"):
        sweep(plan, tmp_path, address="tcp://x:1")
