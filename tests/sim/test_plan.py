"""Capacity plans: the cheapest that serves comes first, nothing cheaper is left out, and the search is a search."""

from __future__ import annotations

import math
from pathlib import Path

import membound as mb
import pytest
from membound.sim.scenario import Scenario
from membound.sim.studies.capacity_plan import load_plan
from membound.sim.studies.plan import plan
from membound.sim.studies.planned import Option, with_front
from membound.sim.studies.search import Probe, at_rate, highest_rate, probe
from membound.sim.studies.study import StudyError

BASE = """\
device: h100_sxm
model: llama-3.1-8b
workload:
  arrivals: {kind: poisson, rate_per_s: 4}
  input_tokens: {kind: lognormal, p50: 400, sigma: 0.6, max: 4000}
  output_tokens: {kind: lognormal, p50: 60, sigma: 0.5, max: 400}
  requests: 100
"""
PLAN = """\
base: base.yaml
load: {rate_per_s: 60}
slo: {attainment: 0.9, classes: {default: {ttft_s: 1s, tpot_s: 60ms}}}
candidates: {device: [h100_sxm, l40s, rtx_4090], quantization: [bf16, fp8]}
requests: 150
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "base.yaml").write_text(BASE)

    def file(text: str = PLAN) -> Path:
        path = tmp_path / "plan.yaml"
        path.write_text(text)
        return path

    return file


@pytest.fixture(scope="module")
def replica():
    import yaml

    slo = {"attainment": 0.9, "classes": {"default": {"ttft_s": 1.0, "tpot_s": 0.06}}}
    return Scenario.model_validate(yaml.safe_load(BASE) | {"slo": slo})


def test_the_highest_rate_meets_the_slo_and_a_little_more_does_not(replica):
    found = highest_rate(replica, 150)
    assert found.best is not None
    assert found.best.attainment >= 0.9
    low, high = found.span
    assert low < high <= 1.09 * low
    assert found.above is not None
    assert not (found.above.state == "steady" and found.above.attainment >= 0.9)
    assert low < 2 * found.ceiling_per_s


def test_another_rate_is_the_same_load_closer_together(replica):
    slow, fast = (at_rate(replica, rate, 50).workload for rate in (2.0, 8.0))
    assert slow.input_tokens.tolist() == fast.input_tokens.tolist()
    assert slow.arrival_ns[1:] / fast.arrival_ns[1:] == pytest.approx(4.0, rel=1e-6)


def test_a_trace_is_scaled_to_a_rate(replica, tmp_path):
    trace = tmp_path / "trace.csv"
    rows = [f"{at},{100 + at},5" for at in range(41)]
    trace.write_text("arrival_s,input_tokens,output_tokens\n" + "\n".join(rows))
    scenario = replica.replace(workload={"trace": {"path": str(trace)}})
    load = at_rate(scenario, 10.0, 41).workload
    assert load.arrival_ns[-1] == pytest.approx(4e9, rel=1e-6)
    assert len(at_rate(scenario, 10.0, 20).workload) == 20


def test_a_slo_that_nothing_meets_has_no_rate(replica):
    found = highest_rate(replica.replace(slo__classes={"default": {"e2e_s": 0.001}}), 60)
    assert found.best is None
    assert found.rate_per_s == 0.0


def test_the_best_of_a_plan_is_that_of_an_exhaustive_search(write):
    quick = plan(load_plan(write()), draws=0, jobs=1)
    whole = plan(load_plan(write()), draws=0, jobs=1, exhaustive=True)
    best, other = quick.options[0], whole.options[0]
    assert (best.settings, best.usd_per_hour) == (other.settings, other.usd_per_hour)
    assert quick.runs <= whole.runs
    costs = [option.usd_per_hour for option in whole.options if option.serves]
    priced = [cost for cost in costs if cost is not None]
    assert costs == sorted(priced) + [None] * (len(costs) - len(priced)), "what has no price comes last"


def test_the_replicas_carry_the_load_at_a_rate_that_meets_the_slo(write):
    asked = load_plan(write())
    for option in plan(asked, draws=0, jobs=1).options:
        if not option.serves:
            continue
        assert option.replicas == math.ceil(60 / option.rate_per_s)
        (scenario,) = (
            s
            for s, settings in zip(asked.scenarios, asked.settings, strict=True)
            if settings == option.settings
        )
        assert probe(scenario, option.rate_per_s, 600).attainment >= 0.9
        if option.usd_per_hour is not None:
            assert option.usd_per_hour == pytest.approx(option.gpus * option.usd_per_gpu_hour)


def test_chances_are_drawn_for_the_best(write):
    found = plan(load_plan(write()), draws=4, jobs=1)
    chances = [option.meets_slo_probability for option in found.options if option.serves]
    assert all(0 <= chance <= 1 for chance in chances[:3])
    assert chances[3:] == [None] * len(chances[3:])


def test_what_does_not_fit_or_cannot_be_fast_enough_is_never_simulated(write):
    text = PLAN.replace("device: [h100_sxm, l40s, rtx_4090]", "model: [llama-2-70b, llama-3.1-8b]")
    text = text.replace("tpot_s: 60ms", "tpot_s: 1ms")
    found = plan(load_plan(write(text)), draws=0, jobs=1)
    assert found.runs == 0
    reasons = [option.reason for option in found.options]
    assert any("does not fit" in reason for reason in reasons)
    assert any("a decode step alone takes" in reason for reason in reasons)


def test_prices_of_the_plan_win(write):
    text = PLAN.replace("candidates:", "prices: {l40s: 0.01}\ncandidates:")
    found = plan(load_plan(write(text)), draws=0, jobs=1)
    assert found.options[0].settings["device"] == "l40s"


def test_what_keeps_every_configuration_from_running_is_told_once(write):
    asked = load_plan(write(PLAN.replace("{default:", "{gold:")))
    with pytest.raises(StudyError, match=r"no configuration can be run: slo\.classes\.gold: no request"):
        plan(asked, draws=0, jobs=1)


def test_files_are_named_from_the_plans_folder(write, tmp_path, monkeypatch):
    (tmp_path / "mine.json").write_text("{}")
    monkeypatch.chdir("/")
    asked = load_plan(write(PLAN.replace("quantization: [bf16, fp8]", "model: [mine.json, llama-3.1-8b]")))
    assert {scenario.model for scenario in asked.scenarios} == {str(tmp_path / "mine.json"), "llama-3.1-8b"}


def test_the_front_is_what_nobody_beats_in_both():
    def option(user: float, gpu: float) -> Option:
        return Option({}, replicas=1, tokens_per_s_per_user=user, tokens_per_s_per_gpu=gpu)

    marked = with_front([option(1, 9), option(5, 5), option(4, 4), option(9, 1)])
    assert [each.pareto for each in marked] == [True, True, False, True]


def test_the_interval_of_a_share_is_wilsons():
    low, high = Probe(1.0, 0.9, 100, "steady", {}).interval()
    assert (low, high) == pytest.approx((0.8396, 0.9393), abs=2e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("candidates: {device: [h100_sxm, l40s, rtx_4090], quantization: [bf16, fp8]}", ""),
            "candidates: missing",
        ),
        (
            ("device: [h100_sxm, l40s, rtx_4090]", "device: []"),
            "candidates.device: []; allowed: one value or more",
        ),
        (("quantization: [bf16, fp8]", "quantization: [fp9]"), "fp9"),
        (("slo: {attainment: 0.9, classes: {default: {ttft_s: 1s, tpot_s: 60ms}}}", ""), "slo: missing"),
        (("load: {rate_per_s: 60}", "load: {rate_per_s: 0}"), "load.rate_per_s: 0"),
        (
            ("requests: 150", "prices: {h100: 1.0}"),
            "'h100' is no candidate; allowed: h100_sxm, l40s, rtx_4090",
        ),
        (("base: base.yaml", "base: bas.yaml"), "nearest"),
        (("requests: 150", "request: 150"), "unknown key 'request'; nearest: 'requests'"),
    ],
)
def test_a_wrong_plan_is_one_line(write, change, message):
    with pytest.raises(mb.MemboundError) as caught:
        load_plan(write(PLAN.replace(*change)))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_base_of_several_replicas_is_refused_for_it_would_count_twice(write):
    with pytest.raises(mb.MemboundError, match=r"cluster\.replicas: 3; allowed: 1, as a plan counts"):
        load_plan(write(), ["cluster.replicas=3"])
    with pytest.raises(mb.MemboundError, match=r"cluster\.autoscale: allowed: null, as a plan counts"):
        load_plan(write(), ["cluster.autoscale={max: 3}"])
