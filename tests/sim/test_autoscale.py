"""Replicas that come and go: when they start, what they cost, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from membound.hwmodels.errors import MemboundError
from membound.hwmodels.tier import host_link
from membound.sim.cluster.scaling import Scaler
from membound.sim.output.result import SimulationResult
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario, resolve
from membound.sim.scenario.cluster import Autoscale

BASE: dict[str, Any] = yaml.safe_load("""
device: h100_sxm
model: llama-3.1-8b
kv_cache: {max_model_len: 4096}
scheduler: {max_num_seqs: 32}
slo: {classes: {default: {ttft_s: 0.5}}}
cluster: {replicas: 1, autoscale: {max: 6, every: 2s, start_up: 3s, scale_down_after: 6s}}
workload:
  arrivals: {kind: poisson, rate_per_s: 40}
  input_tokens: {kind: lognormal, p50: 300, sigma: 0.8, max: 2k}
  output_tokens: {kind: lognormal, p50: 120, sigma: 0.6, max: 600}
  requests: 500
""")
NS = 1_000_000_000


def run(*sets: str) -> SimulationResult:
    return simulate(parse_scenario(BASE, sets))


def complaint(*sets: str) -> str:
    with pytest.raises(MemboundError) as caught:
        run(*sets)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_replica_takes_requests_after_its_start_up_and_its_weights() -> None:
    result = run()
    device = resolve(parse_scenario(BASE, ())).device
    cold = result.summary()["autoscale"]["cold_start_s"]
    assert cold - 3.0 == pytest.approx(16.06e9 / host_link(device), rel=0.02)
    first = {
        replica: min(
            result.record.requests["first_scheduled_ns"][result.record.requests["replica"] == replica]
        )
        for replica in set(result.record.requests["replica"].tolist()) - {0}
    }
    assert first
    assert min(first.values()) >= (2.0 + cold) * NS, "the first look, and a cold start"
    stored = run("cluster.autoscale.storage_bandwidth=1GB/s").summary()["autoscale"]["cold_start_s"]
    assert stored == pytest.approx(3.0 + 16.06, rel=0.02)


def test_time_cost_and_energy_are_those_of_the_replicas_lives() -> None:
    summary = run().summary()
    scaled, rates = summary["autoscale"], summary["throughput"]
    assert 1 < scaled["mean_replicas"] < scaled["peak_replicas"] <= 6
    assert sum(summary["time_share"].values()) == pytest.approx(1)
    hours = scaled["mean_replicas"] * rates["duration_s"] / 3600
    assert scaled["gpu_hours"] == pytest.approx(hours)
    assert summary["cost"]["usd_total"] == pytest.approx(hours * summary["cost"]["usd_per_gpu_hour"])
    assert rates["output_tokens_per_s_per_gpu"] == pytest.approx(
        rates["output_tokens_per_s"] / scaled["mean_replicas"]
    )
    assert len(summary["replicas"]) == scaled["peak_replicas"]
    assert all(0 <= each["busy_share"] <= 1 for each in summary["replicas"])
    watts = summary["energy"]["mean_watts"] / scaled["mean_replicas"]
    assert 100 < watts < 700, "of one GPU that is there"
    assert any("cluster.autoscale" in said for said in summary["confidence"]["warnings"])


def test_an_autoscaler_that_may_not_move_is_a_cluster() -> None:
    fixed = run("cluster={replicas: 3, autoscale: {min: 3, max: 3}}").summary()
    plain = run("cluster={replicas: 3}").summary()
    for key in ("latency", "throughput", "time_share", "kv", "cost", "energy", "replicas"):
        assert fixed[key] == plain[key], key


@pytest.mark.parametrize(
    "sets",
    [
        (),
        ("cluster.autoscale.metric=outstanding", "cluster.autoscale.target=16"),
        ("cluster.autoscale.metric=slo",),
        ("cluster.failures={mtbf: 10s, mttr: 500ms}",),
    ],
)
def test_jumps_change_nothing_and_everybody_is_served(sets: tuple[str, ...]) -> None:
    fast, slow = run(*sets), run(*sets, "simulation.fast_forward=false")
    for name in fast.record.requests:
        assert fast.record.requests[name].tolist() == slow.record.requests[name].tolist(), name
    assert fast.summary()["autoscale"] == slow.summary()["autoscale"]
    assert fast.summary()["requests"]["completed"] == 500


def test_more_replicas_are_wanted_at_once_and_fewer_only_after_a_while() -> None:
    asked = Autoscale(max=10, metric="outstanding", target=10, scale_down_after=30)
    scaler = Scaler(asked, 2, 8, [1] * 10)
    assert scaler.wanted(0, 2, 2, 10.5) == 2, "within a tenth of its target"
    assert scaler.wanted(1 * NS, 2, 2, 24.0) == 5
    assert scaler.wanted(10 * NS, 5, 5, 2.0) == 5, "five were wanted nine seconds ago"
    assert scaler.wanted(40 * NS, 5, 5, 2.0) == 1
    assert scaler.wanted(80 * NS, 5, 5, 500.0) == 10, "at most so many"


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("cluster.autoscale={max: 0}", ["cluster.autoscale.max"]),
        ("cluster.autoscale={min: 3, max: 2}", ["min 3", "max 2"]),
        ("cluster.autoscale={max: 4, maks: 2}", ["maks", "max"]),
        ("cluster={replicas: 5, autoscale: {max: 4}}", ["replicas 5", "1 to 4"]),
        ("cluster.autoscale={max: 4, metric: outstanding}", ["outstanding", "target"]),
        ("cluster.autoscale={max: 4, metric: slo, target: 0.9}", ["slo", "slo.attainment"]),
        ("cluster.autoscale={max: 4, metric: busy}", ["busy", "utilization"]),
        ("cluster.autoscale={max: 4, target: 70}", ["target 70", "to 1"]),
        ("cluster={replicas: [{count: 1}], autoscale: {max: 4}}", ["cluster.autoscale", "one kind"]),
        ("kv_cache.tiers=[{kind: dram}]", ["kv_cache.tiers", "cluster.autoscale"]),
    ],
)
def test_bad_input_is_one_line(assignment: str, says: list[str]) -> None:
    text = complaint(assignment)
    assert all(part in text for part in says), text
