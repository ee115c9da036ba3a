"""Levers move one thing at a time on the same requests, and a waterfall ends where the candidate is."""

from __future__ import annotations

import json
import math

import membound as mb
import pytest
from membound.app.cli import main
from membound.sim.run import simulate
from membound.sim.scenario import resolve
from membound.sim.studies.effects import Effect
from membound.sim.studies.explain import explain, explained, varied_by
from membound.sim.studies.levers import Lever, levers_of
from membound.sim.studies.study import StudyError
from membound.sim.studies.waterfall import waterfall

E2E = "latency.e2e_s.mean"


def scenario(**changes):
    load = {
        "arrivals": {"kind": "poisson", "rate_per_s": 6},
        "input_tokens": 400,
        "output_tokens": 60,
        "requests": 30,
    }
    asked = {
        "device": "h100_sxm",
        "model": "llama-3.1-8b",
        "workload": load,
        "kv_cache": {"max_model_len": 4096},
    }
    return mb.Scenario.model_validate(asked | changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def found(folder):
    return explain(scenario(), folder=folder, jobs=1)


def lever(found, leaf):
    return next(each for each in found.levers if each.leaf == leaf)


def test_every_number_of_the_datasheet_is_a_lever(found):
    h100 = mb.load_device("h100_sxm").datasheet
    there = {each.leaf for each in found.levers}
    assert {"device.hbm_bandwidth", "device.hbm_capacity", "device.n_sm", "device.link.bandwidth"} <= there
    assert {f"device.peak_flops.{dtype}" for dtype in h100.peak_flops} <= there
    assert {"scheduler.max_num_seqs", "quantization.weights", "quantization.kv_cache"} <= there
    assert len(there) == len(found.levers)


def test_an_effect_is_what_simulate_says_of_the_changed_scenario(found):
    asked = scenario().replace(device={"base": "h100_sxm", "hbm_bandwidth": 3.35e12 * 1.1})
    before, after = (simulate(each).summary()["latency"]["e2e_s"]["mean"] for each in (scenario(), asked))
    more = lever(found, "device.hbm_bandwidth").effects[1]
    assert (found.metric, found.base) == (E2E, before)
    assert more.value == after
    assert more.change == after / before - 1


def test_settings_left_open_are_held_at_what_they_come_to():
    """A card of less than 70 GiB has other defaults in vLLM: a lever on its memory does not bring them along."""
    pinned = resolve(scenario(), "size")
    capacity = next(each for each in levers_of(pinned, 0.2) if each.leaf == "device.hbm_capacity")
    smaller = varied_by(pinned, capacity.tries[0].settings)
    assert smaller.device.usable_bytes < 70 * 2**30
    assert smaller.scheduler == pinned.scheduler
    left_open = scenario(device=capacity.tries[0].settings["device"])
    assert resolve(left_open, "size").scheduler != pinned.scheduler


def test_elasticities_are_slopes_between_the_ends(found):
    bandwidth = lever(found, "device.hbm_bandwidth")
    less, more = bandwidth.effects
    slope = math.log((1 + more.change) / (1 + less.change)) / math.log(more.ratio / less.ratio)
    assert bandwidth.elasticity == pytest.approx(slope)
    assert (less.ratio, more.ratio) == pytest.approx((0.9, 1.1))
    assert -1 < bandwidth.elasticity < -0.5
    assert lever(found, "quantization.weights").elasticity is None
    # What nothing reads moves nothing, to the last digit.
    assert lever(found, "device.peak_flops.int8").swing == 0
    assert lever(found, "device.link.bandwidth").elasticity == 0


def test_a_light_load_gains_from_bandwidth_what_its_time_for_weights_promises(folder):
    """Re-running adds what queueing and batching make of shorter steps; a light load has little of either."""
    light = scenario().replace(workload__arrivals={"kind": "poisson", "rate_per_s": 0.2})
    summary = simulate(light).summary()
    exact = explain(light, metric="tpot", percent=1, jobs=1, folder=folder)
    weights = summary["time_share"]["hbm_weights"] / (1 - summary["time_share"]["idle"])
    assert -lever(exact, "device.hbm_bandwidth").elasticity == pytest.approx(weights, abs=0.1)


def test_levers_are_ordered_by_swing_and_the_advice_names_the_first_of_each_kind(found):
    swings = [each.swing for each in found.levers]
    assert swings == sorted(swings, reverse=True)
    free = [each for each in found.levers if each.group in ("setting", "precision") and each.gain]
    best = max(free, key=lambda each: each.gain)
    assert f"change {best.leaf} to {best.best} first" in found.advice
    assert "hbm_bandwidth +10 % brings most" in found.advice


def test_repeats_find_every_run_and_say_the_same(found, folder):
    again = explain(scenario(), folder=folder, jobs=1)
    assert again.ran == 0
    assert again.found == found.ran
    assert again.to_dict() == found.to_dict()


def test_repeats_pair_every_lever_with_the_base_of_its_seed(folder):
    asked = scenario().replace(workload__requests=12)
    seeds = [explain(asked.replace(simulation__seed=seed), folder=folder, jobs=1) for seed in (0, 1, 2)]
    both = explain(asked, repeat=3, folder=folder, jobs=1)
    assert both.ran == 0, "the same runs"
    assert both.base == pytest.approx(sum(each.base for each in seeds) / 3)
    for leaf in ("device.hbm_bandwidth", "quantization.weights"):
        effect, *singles = (lever(each, leaf).effects[0] for each in (both, *seeds))
        changes = [single.change for single in singles]
        assert effect.change == pytest.approx(sum(changes) / 3)
        assert effect.interval[0] <= effect.change <= effect.interval[1]
        assert all(single.interval is None for single in singles)
    same = lever(both, "device.link.bandwidth").effects[0]
    assert (same.change, same.interval) == (0, (0, 0))


def test_a_gain_that_its_interval_is_not_sure_of_is_none():
    unsure = Effect("x", None, change=-0.1, interval=(-0.3, 0.1))
    sure = Effect("x", None, change=-0.1, interval=(-0.15, -0.05))
    a_lever = Lever("kernels.attention", "setting", "flash", ())
    assert [explained(a_lever, [each], E2E).gain for each in (unsure, sure)] == [0, 0.1]
    assert explained(a_lever, [unsure], E2E).swing == 0.1


def test_what_cannot_be_is_an_error_of_that_lever_alone(folder):
    result = explain(scenario(device="l4"), folder=folder, jobs=1, requests=5, percent=40)
    less, more = lever(result, "kv_cache.gpu_memory_utilization").effects
    assert "llama-3.1-8b does not fit l4" in less.error
    assert less.change is None
    assert more.error == ""
    assert lever(result, "device.hbm_bandwidth").swing > 0


def test_groups_that_sum_and_prompts_that_share_have_levers_of_their_own():
    """Others do not: each is a run more."""
    own = ("parallelism.communication_overlap", "kernels.disable_cascade_attn")

    def found(**changes):
        resolved = resolve(scenario().replace(**changes))
        return {each.leaf: each for each in levers_of(resolved, 0.1) if each.leaf in own}

    assert not found()
    assert list(found(parallelism__tensor_parallel_size=2)) == [own[0]]
    shared = {"workload__sessions": {"system_prompt_tokens": 300}}
    assert list(found(**shared)) == [own[1]]
    assert not found(**shared, kv_cache__enable_prefix_caching=False)
    (taken,) = found(**shared, kernels__disable_cascade_attn=False).values()
    assert taken.tries[0].settings == {own[1]: True}


def test_levers_of_a_what_if_device_start_from_it():
    asked = scenario(device={"base": "h100_sxm", "hbm_bandwidth": "x1.5", "peak_flops.bf16": "x2"})
    levers = {each.leaf: each for each in levers_of(resolve(asked, "size"), 0.1)}
    bandwidth = levers["device.hbm_bandwidth"]
    assert bandwidth.value == pytest.approx(1.5 * 3.35e12)
    more = mb.load_device(bandwidth.tries[1].settings["device"])
    assert more.hbm_bandwidth == pytest.approx(1.65 * 3.35e12)
    assert more.peak_flops["bf16"] == pytest.approx(2 * 989.4e12)


def test_a_waterfall_ends_at_the_candidate_and_its_steps_multiply(folder):
    target = scenario(quantization={"weights": "fp8", "kv_cache": "fp8"}).replace(
        device={"base": "h100_sxm", "hbm_bandwidth": "x1.5"}, scheduler__max_num_seqs=8
    )
    way = waterfall(scenario(), target, folder=folder, jobs=1)
    assert [list(step.settings) for step in way.steps] == [
        ["device"], ["quantization.weights"], ["quantization.kv_cache"], ["scheduler.max_num_seqs"],
    ]  # fmt: skip
    assert way.base == simulate(scenario()).summary()["latency"]["e2e_s"]["mean"]
    assert way.candidate == simulate(target).summary()["latency"]["e2e_s"]["mean"]
    assert math.prod(1 + step.change for step in way.steps) == pytest.approx(way.candidate / way.base)
    assert way.steps[0].alone == way.steps[0].change
    for step in way.steps:
        assert sum(step.time_share.values()) == pytest.approx(0, abs=1e-12)


def test_what_cannot_be_alone_is_taken_with_what_makes_it_possible(folder):
    target = scenario(speculative={"method": "ngram", "num_speculative_tokens": 3, "acceptance": 0.6})
    way = waterfall(scenario(), target, folder=folder, jobs=1)
    assert [list(step.settings) for step in way.steps] == [["speculative"]]
    grown = scenario(model="llama-3.1-70b", quantization={"weights": "fp8"})
    way = waterfall(scenario(), grown, folder=folder, jobs=1)
    assert [list(step.settings) for step in way.steps] == [["model", "quantization.weights"]]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"percent": 0}, "percent 0; allowed: above 0"),
        ({"metric": "tpott"}, "nearest: 'tpot'"),
        ({"repeat": 0}, "repeat 0; allowed: 1 to"),
        ({"requests": 0}, "requests 0; allowed: 1 or more"),
    ],
)
def test_what_cannot_be_explained_is_said_in_a_line(asked, said, folder):
    with pytest.raises(StudyError, match=said.replace("(", r"\(")):
        explain(scenario(), folder=folder, jobs=1, **asked)


def test_the_same_scenario_twice_has_nothing_to_explain(folder):
    with pytest.raises(StudyError, match="same settings"):
        waterfall(scenario(), scenario(name="other"), folder=folder)


def test_the_command_writes_tornado_and_waterfall(tmp_path, capsys):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text(scenario().to_yaml())
    second.write_text(scenario(quantization={"weights": "fp8"}).to_yaml())
    kept = ["--out", str(tmp_path / "runs"), "--jobs", "1", "--quiet", "--requests", "10"]
    for words in ([str(first)], [str(first), str(second)]):
        said = {}
        for form in ("table", "json", "csv"):
            assert main(["explain", *words, *kept, "--format", form]) == 0
            said[form] = capsys.readouterr().out
        data = json.loads(said["json"])
        assert data["requests"] == 10
        assert " ".join(data["advice"].split()) in " ".join(said["table"].split())
        rows = data["steps"] if "steps" in data else [e for each in data["levers"] for e in each["effects"]]
        assert len(said["csv"].splitlines()) == 1 + len(rows)
    assert main(["explain", str(first), str(second), "--roofline"]) == 2
    assert "leave CANDIDATE out" in capsys.readouterr().err
