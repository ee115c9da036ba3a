"""Clusters: replicas of one kind or several share a load, and one record tells of all of them."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from membound.hwmodels.errors import MemboundError
from membound.sim.cluster.admission import FULL, TOO_FAST
from membound.sim.draws import simulate_draws
from membound.sim.output.result import SimulationResult
from membound.sim.policies import policy_names
from membound.sim.run import simulate
from membound.sim.scenario import Scenario, parse_scenario, resolve

BASE: dict[str, Any] = yaml.safe_load("""
device: h100_sxm
model: llama-3.1-8b
engine: vllm-0.24
kv_cache: {max_model_len: 4096}
workload:
  arrivals: {kind: poisson, rate_per_s: 40}
  input_tokens: {kind: lognormal, p50: 300, sigma: 0.8, max: 2k}
  output_tokens: {kind: lognormal, p50: 30, sigma: 0.6, max: 300}
  requests: 120
""")
PREFIXES = "workload.sessions={groups: 13, system_prompt_tokens: 1024, prompts_per_group: 10}"
TURNS = "workload.sessions={groups: 12, system_prompt_tokens: 64, turns: 3, think_time_s: 0.2}"


def chat(*sets: str) -> Scenario:
    return parse_scenario(BASE, sets)


def run(*sets: str) -> SimulationResult:
    return simulate(chat(*sets))


def complaint(*sets: str) -> str:
    with pytest.raises(MemboundError) as caught:
        run(*sets)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("router", policy_names("router"))
@pytest.mark.parametrize(
    "load",
    [(), ("workload.arrivals={kind: closed_loop, concurrency: 9}",), (TURNS,), ("cluster.replicas=3",)],
)
def test_every_router_serves_every_load_and_jumps_change_nothing(router: str, load: tuple[str, ...]) -> None:
    sets = ("cluster.replicas=3", f"cluster.router={router}", "workload.requests=60", *load)
    fast, slow = run(*sets), run(*sets, "simulation.fast_forward=false")
    for name in fast.record.requests:
        assert fast.record.requests[name].tolist() == slow.record.requests[name].tolist(), name
    counts = fast.summary()["requests"]
    assert counts["completed"] == counts["submitted"] == 60
    assert len(set(fast.record.requests["replica"].tolist())) == 3


def test_one_replica_behind_a_list_is_the_scenario_itself() -> None:
    alone, listed = run().summary(), run("cluster.replicas=[{count: 1}]").summary()
    for key in ("requests", "latency", "throughput", "time_share", "kv", "cost", "verdict", "utilization"):
        assert alone[key] == listed[key], key


def test_in_turn_every_replica_serves_what_it_would_serve_alone() -> None:
    """Constant arrivals in turn on three replicas are, for each, constant arrivals at a third of the rate."""
    even = ("workload.arrivals.kind=constant", "workload.input_tokens=300", "workload.output_tokens=20")
    one = run(*even, "workload.arrivals.rate_per_s=10", "workload.requests=20").record.requests
    three = run(
        *even, "workload.arrivals.rate_per_s=30", "workload.requests=60", "cluster.replicas=3",
        "cluster.router=round_robin",
    ).record.requests  # fmt: skip
    assert three["replica"].tolist() == [0, 1, 2] * 20
    spans = (three["last_token_ns"] - three["arrival_ns"]).reshape(20, 3)
    alone = one["last_token_ns"] - one["arrival_ns"]
    assert abs(spans - alone[:, None]).max() <= 1, "up to the nanosecond to which arrivals are rounded"


def test_one_record_adds_up_what_the_replicas_did() -> None:
    summary = run("cluster.replicas=4").summary()
    replicas = summary["replicas"]
    assert [each["gpus"] for each in replicas] == [1] * 4
    assert sum(each["requests"]["completed"] for each in replicas) == summary["requests"]["completed"] == 120
    assert sum(summary["time_share"].values()) == pytest.approx(1)
    idle = 1 - sum(each["busy_share"] for each in replicas) / 4
    assert summary["time_share"]["idle"] == pytest.approx(idle)
    assert summary["kv"]["peak_usage"] == max(each["kv"]["peak_usage"] for each in replicas)
    mean = sum(each["kv"]["mean_usage"] for each in replicas) / 4
    assert summary["kv"]["mean_usage"] == pytest.approx(mean)
    rates = summary["throughput"]
    assert rates["output_tokens_per_s_per_gpu"] == pytest.approx(rates["output_tokens_per_s"] / 4)
    assert any("unvalidated" in said and "cluster" in said for said in summary["confidence"]["warnings"])


def test_groups_differ_in_what_they_set_and_in_nothing_else() -> None:
    groups = (
        "cluster.replicas=[{count: 2}, {count: 1, device: l40s, name: small, scheduler: {max_num_seqs: 7},"
        " price: {usd_per_gpu_hour: 1}}]"
    )
    scenario = chat(groups, "price.usd_per_gpu_hour=4", "scheduler.max_num_batched_tokens=4096")
    first, second = resolve(scenario).kinds
    assert (first.count, second.count) == (2, 1)
    assert (first.name, second.name) == ("h100_sxm", "small")
    assert second.resolved.scheduler.max_num_seqs == 7 != first.resolved.scheduler.max_num_seqs
    assert second.resolved.scheduler.max_num_batched_tokens == 4096
    summary = simulate(scenario).summary()
    assert summary["cost"]["usd_per_gpu_hour"] == pytest.approx(3)
    assert [each["kind"] for each in summary["replicas"]] == ["h100_sxm", "h100_sxm", "small"]
    assert summary["provenance"]["device"] == "h100_sxm + l40s"
    assert summary["memory"]["num_gpu_blocks"] is None
    assert "replica" in " ".join(summary["confidence"]["warnings"])


def test_a_scenario_with_groups_reads_back_as_it_was_written() -> None:
    scenario = chat("cluster.replicas=[{count: 2}, {device: l40s, kv_cache: {gpu_memory_utilization: 80%}}]")
    assert parse_scenario(yaml.safe_load(scenario.to_yaml())) == scenario
    again = scenario.replace(simulation__seed=3)
    assert again.cluster == scenario.cluster
    first, second = resolve(again).kinds
    assert first.resolved.kv_cache.max_model_len == second.resolved.kv_cache.max_model_len == 4096
    assert second.resolved.kv_cache.gpu_memory_utilization == 0.8


def test_faster_replicas_serve_more_behind_the_shortest_line() -> None:
    replicas = run(
        "cluster.replicas=[{count: 1}, {count: 1, device: l40s}]", "workload.arrivals.rate_per_s=20"
    ).summary()["replicas"]
    assert replicas[0]["requests"]["completed"] > 1.2 * replicas[1]["requests"]["completed"]


def test_affinity_finds_more_of_its_prefixes() -> None:
    shared = ("cluster.replicas=6", PREFIXES, "workload.arrivals.rate_per_s=30")
    hits = {
        router: run(*shared, f"cluster.router={router}").summary()["kv"]["prefix_hit_rate"]
        for router in ("random", "round_robin", "prefix_affinity")
    }
    assert hits["prefix_affinity"] > 1.3 * max(hits["round_robin"], hits["random"])


def test_options_of_a_router_count() -> None:
    options = ("cluster.replicas=3", "cluster.router=prefix_affinity", PREFIXES)
    never = run(*options, "cluster.router_options={cache_threshold: 1.01}").record.requests["replica"]
    always = run(*options).record.requests["replica"]
    assert never.tolist() != always.tolist()
    assert "router_options" in complaint(*options, "cluster.router_options={cash_threshold: 1}")


def test_tiers_stand_behind_each_replica() -> None:
    summary = run("cluster.replicas=2", PREFIXES, "kv_cache.tiers=[{kind: dram, capacity: 4GiB}]").summary()
    assert all(each["kv"]["tiers"]["dram"]["capacity_bytes"] > 0 for each in summary["replicas"])


def test_draws_vary_every_kind_of_replica() -> None:
    scenario = chat("cluster.replicas=[{count: 1}, {count: 1, device: l40s}]", "workload.requests=30")
    low, high = simulate_draws(scenario, 20, jobs=1).summary()["confidence"]["interval"]["latency.e2e_s.mean"]
    assert low < high


def test_a_result_says_which_replica_ran_a_step(tmp_path) -> None:
    import pyarrow.parquet as pq

    simulate(chat("cluster.replicas=2", "workload.requests=20"), keep_steps=True).write(tmp_path / "run")
    for name in ("requests", "steps", "kv"):
        assert set(pq.read_table(tmp_path / "run" / f"{name}.parquet")["replica"].to_pylist()) == {0, 1}
    causes = pq.read_table(tmp_path / "run" / "requests.parquet")
    assert min(causes["decode_hbm_weights_ns"].to_pylist()) > 0


@pytest.mark.parametrize(
    ("assignment", "says"),
    [
        ("cluster.replicas=0", ["cluster.replicas", "1 to"]),
        ("cluster.replicas=[]", ["cluster.replicas"]),
        ("cluster.replicas=[{cont: 2}]", ["cluster.replicas", "cont", "count"]),
        ("cluster.replicas=[{device: h100_sxn}]", ["h100_sxn", "h100_sxm"]),
        ("cluster.replicas=[{scheduler: {max_num_seqs: -1}}]", ["max_num_seqs"]),
        ("cluster.router=leest_kv", ["cluster.router", "least_kv"]),
        ("cluster.router=nowhere:Nobody", ["cluster.router", "nowhere"]),
    ],
)
def test_bad_input_is_one_line(assignment: str, says: list[str]) -> None:
    text = complaint("cluster.replicas=2", assignment)
    assert all(part in text for part in says), text


def test_prefixes_in_blocks_of_two_sizes_are_refused() -> None:
    groups = "cluster.replicas=[{count: 1}, {count: 1, kv_cache: {block_size: 32}}]"
    assert "block_size" in complaint(groups, PREFIXES)
    run(groups, "workload.requests=5")


def test_no_more_are_outstanding_than_are_let_in_and_the_rest_is_counted() -> None:
    result = run("cluster.replicas=2", "cluster.admission={max_outstanding: 6}")
    counts, table = result.summary()["requests"], result.record.requests
    assert counts["completed"] + counts["rejected"] == counts["submitted"] == 120
    assert counts["rejected_by_reason"] == {FULL: counts["rejected"]}
    assert counts["rejected"] > 0
    served = table["last_token_ns"] >= 0
    begun, ended = table["arrival_ns"][served], table["last_token_ns"][served]
    assert max(int(((begun <= at) & (ended > at)).sum()) for at in begun.tolist()) == 6


def test_a_token_bucket_lets_in_its_burst_and_then_its_rate() -> None:
    """Forty a second at a bucket of ten a second: the burst, and then every fourth."""
    even = ("workload.arrivals={kind: constant, rate_per_s: 40}", "workload.requests=100")
    bucket = "cluster.admission={token_bucket: {rate_per_s: 10, burst: 5}}"
    counts = run(*even, bucket).summary()["requests"]
    assert counts["completed"] in range(5 + 23, 5 + 26)
    assert counts["rejected_by_reason"] == {TOO_FAST: 100 - counts["completed"]}


def test_admission_without_a_rule_changes_nothing() -> None:
    assert run("cluster.admission={}").summary()["latency"] == run().summary()["latency"]


def test_what_a_replica_that_fails_was_at_is_routed_again_and_counted() -> None:
    given = "cluster.failures={at: [{replica: 1, after: 1s, lasts: 1500ms}]}"
    whole = run("cluster.replicas=3")
    failed, slow = (
        run("cluster.replicas=3", given, *more) for more in ((), ("simulation.fast_forward=false",))
    )
    summary = failed.summary()
    counts = summary["requests"]
    assert counts["completed"] == counts["submitted"] == 120
    assert counts["requeued"] == sum(each["requeued"] for each in summary["replicas"]) > 0
    span = failed.record.end_ns - failed.record.start_ns
    down = [each["down_s"] for each in summary["replicas"]]
    assert down[0] == down[2] == 0.0
    assert 1.4 < down[1] <= min(1.5, span / 1e9)
    assert [each["failures"] for each in summary["replicas"]] == [0, 1, 0]
    assert any("cluster.failures" in said for said in summary["confidence"]["warnings"])
    for name in failed.record.requests:
        assert failed.record.requests[name].tolist() == slow.record.requests[name].tolist(), name
    assert "requeued" not in whole.summary()["requests"]
    assert failed.record.requests["last_token_ns"].sum() > whole.record.requests["last_token_ns"].sum()


def test_with_no_replica_up_requests_wait_in_line() -> None:
    given = "cluster.failures={at: [{replica: 0, after: 500ms, lasts: 2s}]}"
    result = run(given)
    counts = result.summary()["requests"]
    assert counts["completed"] == 120
    late = result.record.requests["arrival_ns"] - result.record.start_ns
    waited = (result.record.requests["first_scheduled_ns"] - result.record.requests["arrival_ns"]) / 1e9
    assert waited[(late > 1.0e9) & (late < 1.5e9)].min() > 0.9


def test_drawn_failures_take_the_repair_and_the_loading_of_the_weights() -> None:
    failures = ("cluster.failures={mtbf: 1s, mttr: 200ms}", "simulation.seed=1")
    summary = run("cluster.replicas=4", *failures, "workload.requests=200").summary()
    assert summary["requests"]["completed"] == 200
    downs = [(each["failures"], each["down_s"]) for each in summary["replicas"]]
    assert sum(times for times, _ in downs) > 1
    # 16 GB of weights take more than 0.2 s over PCIe 5; the last failure may outlast the run.
    assert all(down > (times - 1) * 0.4 for times, down in downs if times)
    again = run("cluster.replicas=4", *failures, "workload.requests=200").summary()
    assert again["replicas"] == summary["replicas"]


@pytest.mark.parametrize(
    ("failures", "parts"),
    [
        ("{}", ["cluster.failures", "mtbf", "at"]),
        ("{mtbf: 1h, at: [{replica: 0, after: 1s, lasts: 1s}]}", ["cluster.failures", "either"]),
        ("{at: [{replica: 2, after: 1s, lasts: 1s}]}", ["cluster.failures.at.0.replica", "0 to 1"]),
        ("{at: [{replica: 0, after: 1s, last: 1s}]}", ["last", "lasts"]),
        ("{at: [{replica: 0, after: 1s, lasts: 9s}, {replica: 0, after: 2s, lasts: 1s}]}", ["before it is up"]),
    ],
)  # fmt: skip
def test_failures_that_cannot_be_are_refused_in_a_line(failures: str, parts: list[str]) -> None:
    text = complaint("cluster.replicas=2", f"cluster.failures={failures}")
    assert all(part in text for part in parts), text


def test_failures_with_tiers_are_refused() -> None:
    tiers = "kv_cache.tiers=[{kind: dram, capacity: 4GiB}]"
    text = complaint("cluster.replicas=2", "cluster.failures={mtbf: 1h}", tiers)
    assert text.startswith("kv_cache.tiers")
    assert "cluster.failures" in text
