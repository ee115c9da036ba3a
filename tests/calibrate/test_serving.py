"""Tables of served runs: which rows are played and how, which are skipped and why, and what errors mean."""

from __future__ import annotations

import csv
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from membound.app.cli import main
from membound.calibrate.errors import CalibrationError
from membound.calibrate.serving.compare import ks_distance
from membound.calibrate.serving.exports import served_export
from membound.calibrate.serving.load import Choice, load_runs
from membound.calibrate.serving.play import play, play_all, widened
from membound.calibrate.serving.points import served_point
from membound.calibrate.serving.run import ServedRun, Skipped, weights_of
from membound.calibrate.serving.runs import served_run
from membound.calibrate.serving.sources import engine_of
from membound.calibrate.serving.table import Row, RowError, read_served
from membound.sim.scenario import Scenario

RUN = {
    "run_id": "mine-1", "dataset": "mine", "gpu": "H100-SXM-80GB", "n_gpus": "1", "tp": "1", "pp": "", "dp": "",
    "ep": "", "model": "meta-llama/Llama-3.1-8B-Instruct", "weight_dtype": "bf16", "kv_dtype": "", "engine": "vllm",
    "engine_version": "0.15.1", "workload": "", "isl_mean": "200", "osl_mean": "20", "arrival": "poisson",
    "request_rate_rps": "5", "concurrency": "", "n_requests": "50", "n_failed": "", "max_num_seqs": "128",
    "max_num_batched_tokens": "2048.0", "kv_blocks": "", "gpu_mem_util": "0.9", "prefix_caching": "on",
    "ttft_mean_ms": "20", "e2e_mean_ms": "160", "tpot_derived_mean_ms": "7.4", "req_per_s": "4.95",
    "requests_file": "", "notes": "",
}  # fmt: skip
POINT = {
    "run_id": "point-1", "gpu": "H100-SXM-80GB", "n_gpus": "1", "mode": "agg", "model": "llama-3.1-8b",
    "precision": "", "gemm_quant_mode": "", "engine": "vllm", "engine_version": "0.19.0", "isl": "200", "osl": "20",
    "concurrency": "4", "tp_size": "1", "pp_size": "1", "attention_dp_size": "1", "moe_ep_size": "1",
    "ttft_ms": "20", "tpot_ms": "7", "measured_date": "", "origin_kind": "public_benchmark_dump",
}  # fmt: skip
HERE = Path("runs.csv")


def run(**changes: str) -> ServedRun:
    return served_run(Row(RUN | changes, 2), HERE)


def point(**changes: str) -> ServedRun:
    return served_point(Row(POINT | changes, 2))


def write(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def test_a_row_becomes_the_scenario_it_describes() -> None:
    scenario = run(kv_blocks="1000", tp="2").scenario
    assert scenario.parallelism.tensor_parallel_size == 2
    assert scenario.kv_cache.num_gpu_blocks_override == 1000
    assert scenario.kv_cache.gpu_memory_utilization == 0.9
    assert scenario.scheduler.max_num_batched_tokens == 2048
    assert scenario.engine == "vllm-0.15"
    assert scenario.workload is not None
    assert scenario.workload.requests == 50


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"gpu": "H1000"}, "unknown GPU 'H1000'; nearest: 'h100_sxm'"),
        ({"model": "nobody/knows"}, "unknown model 'nobody/knows'"),
        ({"model": ""}, "no model stated"),
        ({"model": "x" * 300}, f"unknown model '{'x' * 80}…'"),
        ({"engine": "llama.cpp"}, "engine 'llama.cpp' has no profile"),
        ({"weight_dtype": "fp6"}, "weights in 'fp6'"),
        ({"isl_mean": ""}, "isl_mean is empty; needs a number above 0"),
        ({"osl_mean": "many"}, "osl_mean is 'many', not a number"),
        ({"tp": "-1"}, "tp is -1, not a count"),
        ({"tp": "1.5"}, "tp is 1.5, not a count"),
        ({"notes": "KV offload to CPU on"}, "does not say to how much memory"),
        ({"notes": "stage -1 = whole run"}, "a sum of stages"),
        ({"n_failed": "40"}, "80% of its requests failed"),
        ({"requests_file": "gone.csv"}, "its file of requests gone.csv is not there"),
        ({"ttft_mean_ms": "", "e2e_mean_ms": "", "tpot_derived_mean_ms": "", "req_per_s": ""}, "nothing was measured"),
        ({"gpu_mem_util": "7"}, "kv_cache.gpu_memory_utilization"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_played_says_why(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(RowError) as caught:
        run(**changes)
    assert reason in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mode": "disagg"}, "prefill and decode on different GPUs"),
        ({"concurrency": ""}, "no concurrency stated"),
        ({"osl": "1"}, "osl of 2 or more"),
        ({"ttft_ms": "0"}, "ttft_ms is 0; needs a number above 0"),
    ],
)
def test_a_point_that_cannot_be_played_says_why(changes: dict[str, str], reason: str) -> None:
    with pytest.raises(RowError, match=reason):
        point(**changes)


def test_what_the_simulator_refuses_is_skipped_with_its_words() -> None:
    ((_, outcome),) = play_all([run(dp="", ep="4")])  # of a dense model
    assert isinstance(outcome, Skipped)
    assert "expert_parallel" in outcome.reason


@pytest.mark.parametrize(
    ("version", "profile"),
    [("0.15.1", "vllm-0.15"), ("0.10.0 (ROCm)", "vllm-0.12"), ("0.17.0", "vllm-0.15"), ("v0.23.0+patch", "vllm-0.23")],
)  # fmt: skip
def test_the_nearest_profile_is_taken_and_said(version: str, profile: str) -> None:
    chosen, said = engine_of(Row(RUN | {"engine_version": version}, 2))
    assert chosen == profile
    assert bool(said) == (profile[5:] not in version)


def test_without_a_version_the_source_decides_else_the_newest_profile_is_taken() -> None:
    assert point(engine_version="").scenario.engine == "vllm-0.15"
    chosen, said = engine_of(Row(RUN | {"engine_version": ""}, 2))
    assert chosen == "vllm-0.32"
    assert "not stated" in said


def test_weights_are_the_checkpoint_s_own_where_the_row_says_the_same() -> None:
    assert weights_of("fp16", "llama-3.1-8b") == weights_of("fp8", "deepseek-r1") == "auto"
    assert weights_of("fp8", "llama-3.1-8b") == "fp8"
    assert weights_of("fp4", "deepseek-r1") == "nvfp4"
    assert weights_of("int4_wo", "kimi-k2.5") == "auto"


def test_a_shared_prefix_load_repeats_whole_prompts_after_its_system_prompts() -> None:
    words = (
        "general: shared-prefix, 9 sys prompts x 5 users, sys 100 + question 447 tok, stages 600s@8,600s@20"
    )
    found = run(workload=words, isl_mean="547", request_rate_rps="20", n_requests="", run_id="blis-gt-1-s1")
    load = found.scenario.workload
    assert load is not None
    assert load.sessions is not None
    assert (load.sessions.groups, load.sessions.prompts_per_group) == (9, 5)
    assert load.requests == 12000
    assert load.input_tokens is not None
    assert load.input_tokens.draw(0, "input_tokens", range(1))[0] == round(547 * 1.045) - 100
    assert load.arrivals is not None
    assert found.skip_first == 45  # the stage before has warmed the cache


def test_caveats_of_a_source_are_applied_and_said() -> None:
    train = run(run_id="blis-train-1-s0", arrival="constant", tpot_mean_ms="3.6", itl_mean_ms="3.6")
    assert train.tpot_derived
    assert train.measured["tpot_mean"] == 0.0074
    assert train.client_overhead_s == 0.0065
    assert train.scenario.workload is not None
    assert train.scenario.workload.arrivals is not None
    assert train.scenario.workload.arrivals.name == "poisson"
    assert any("two chunks a token" in note for note in train.notes)
    assert run(notes="engine-side timestamps, from queued").client_overhead_s == 0
    assert not run(notes="engine-side timestamps, from queued").taken_up  # without a file of requests
    assert run(arrival="constant").scenario.workload.arrivals.name == "constant"  # type: ignore[union-attr]
    public, internal = point(), point(origin_kind="nvidia_internal")
    lengths = [each.scenario.workload.input_tokens.model_dump() for each in (public, internal)]  # type: ignore[union-attr]
    assert (lengths[0]["low"], lengths[0]["high"], lengths[1]["value"]) == (160, 200, 200)


@pytest.mark.parametrize(
    ("changes", "saturated"),
    [
        ({}, False),
        ({"req_per_s": "3"}, True),
        ({"arrival": "poisson; client seems capped at 256 in flight"}, True),
        ({"arrival": "burst", "ttft_mean_ms": "", "e2e_mean_ms": ""}, True),
        ({"arrival": "burst"}, False),
    ],
)
def test_a_run_is_saturated_where_more_came_than_was_served(changes: dict[str, str], saturated: bool) -> None:
    assert bool(run(**changes).saturated) == saturated


def test_a_client_with_a_cap_sends_at_its_own_times_or_when_a_place_is_free(tmp_path: Path) -> None:
    requests = [
        {"request_id": str(at), "intended_arrival_s": f"{at / 1e3}", "arrival_s": f"{at * 9}", "input_tokens": "200",
         "output_tokens": "16", "ttft_ms": "20", "e2e_ms": "130"}
        for at in range(8)
    ]  # fmt: skip
    write(tmp_path / "requests.csv", *requests)
    words = "poisson (replay arrival_s); client seems capped at 2 in flight"
    found = served_run(
        Row(RUN | {"requests_file": "requests.csv", "arrival": words}, 2), tmp_path / "runs.csv"
    )
    played = play(found)
    # Two at a time through 8 requests of about 0.13 s each, not one every nine seconds.
    assert 8 < played.figures["requests_per_s"] < 25
    assert len(played.measured["ttft"]) == 8


def test_equal_runs_are_played_once_and_the_order_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    import membound.calibrate.serving.play as module

    asked: list[str] = []

    def attempt(each: ServedRun, *_: object) -> str:
        asked.append(each.label.run_id)
        return "no"

    monkeypatch.setattr(module, "_attempt", attempt)
    runs = [run(), run(run_id="mine-2"), run(run_id="mine-3", request_rate_rps="6")]
    assert [each.label.run_id for each, _ in play_all(runs)] == ["mine-1", "mine-2", "mine-3"]
    assert asked == ["mine-1", "mine-3"]


def test_parts_gpus_models_and_a_limit_choose_rows(tmp_path: Path) -> None:
    table = write(tmp_path / "runs.csv", RUN, RUN | {"run_id": "b", "gpu": "L40S"}, RUN | {"run_id": "c"})
    parts = {"b": "fit", "c": "judge"}
    splits = [{"table": "runs", "run_id": name, "part": part, "note": ""} for name, part in parts.items()]
    write(tmp_path / "splits.csv", *splits)

    def ids(choice: Choice) -> list[str]:
        return [each.label.run_id for each in load_runs(table, choice)[0]]

    assert ids(Choice(parts=["judge"])) == ["c"]
    assert ids(Choice(gpus=["l40s"])) == ["b"]
    assert ids(Choice(models=["Llama-3.1"], limit=2)) == ["mine-1", "b"]
    with pytest.raises(CalibrationError, match="allowed: fit, judge, replicate, exclude"):
        load_runs(table, Choice(parts=["test"]))
    with pytest.raises(CalibrationError, match="none of its 3 rows"):
        load_runs(table, Choice(gpus=["MI300X"]))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no rows"),
        ("a,b\n1,2\n", "no table of served runs; missing:"),
        ("run_id,gpu,model,engine,isl,osl\nx,x,x,x,1,1\n", "missing: concurrency"),
    ],
)
def test_a_file_that_is_no_such_table_says_what_is_missing(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(CalibrationError, match=says):
        read_served(path)


def test_the_distance_of_two_samples_is_that_of_their_distributions() -> None:
    assert ks_distance(np.arange(10.0), np.arange(10.0)) == 0
    assert ks_distance(np.arange(10.0), np.arange(10.0) + 100) == 1


def bench(path: Path, **extra: Any) -> Path:
    report = {
        "total_input_tokens": 800, "request_throughput": 1.0, "input_lens": [200] * 4, "output_lens": [16] * 4,
        "ttfts": [0.02] * 4, "itls": [[0.007] * 15] * 4,
    }  # fmt: skip
    path.write_text(json.dumps(report | extra))
    return path


SERVER = Scenario.model_validate({"device": "h100_sxm", "model": "llama-3.1-8b"})


def test_a_load_generator_s_result_is_replayed_on_the_server_of_a_scenario(tmp_path: Path) -> None:
    sent = served_export(bench(tmp_path / "bench.json", start_times=[0.0, 1.0, 2.0, 3.0]), SERVER)
    played = play(sent)
    assert played.measured["e2e"] == pytest.approx(0.125)
    assert not sent.saturated
    looped = served_export(bench(tmp_path / "loop.json", max_concurrency=2), SERVER)
    assert looped.scenario.workload is not None
    assert looped.scenario.workload.arrivals is not None
    assert looped.scenario.workload.arrivals.name == "closed_loop"
    with pytest.raises(CalibrationError, match="states no max_concurrency"):
        served_export(bench(tmp_path / "none.json"), SERVER)


def test_a_simulated_run_is_validated_against_its_own_scenario_without_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load = {
        "arrivals": {"kind": "poisson", "rate_per_s": 30},
        "input_tokens": {"kind": "uniform", "low": 100, "high": 900},
        "output_tokens": {"kind": "uniform", "low": 1, "high": 60},
        "requests": 60,
    }
    (tmp_path / "scenario.yaml").write_text(json.dumps(SERVER.to_dict() | {"workload": load}))
    scenario, out = str(tmp_path / "scenario.yaml"), tmp_path / "out"
    assert main(["simulate", scenario, "--out", str(out), "--quiet"]) == 0
    capsys.readouterr()
    command = ["validate", str(out / "vllm_bench.json"), "--scenario", scenario, "--format", "json"]
    assert main(command) == 0
    (found,) = json.loads(capsys.readouterr().out)["runs"]
    known = {name: error for name, error in found["error"].items() if error is not None}
    assert {"ttft_mean", "ttft_p99", "tpot_mean", "e2e_p99", "throughput"} <= set(known)
    assert known == pytest.approx(dict.fromkeys(known, 0), abs=1e-6)
    assert found["per_request"]["e2e_mape"] == pytest.approx(0, abs=1e-6)


def test_the_command_answers_or_skips_every_row_and_exits_by_the_bound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [RUN, RUN | {"run_id": "b", "gpu": "H1000"}, RUN | {"run_id": "c", "ep": "2"}]
    table = str(write(tmp_path / "runs.csv", *rows))
    assert main(["validate", table, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["run_id"] for each in found["runs"]] == ["mine-1"]
    assert {each["run_id"] for each in found["skipped"]} == {"b", "c"}
    assert set(found) >= {"median_abs_error", "p90_abs_error", "coverage_90", "median_half_width"}
    assert found["runs"][0]["error"]["ttft_p99"] is None
    assert main(["validate", table, "--max-error", "0", "--quiet"]) == 4
    assert main(["validate", table, "--max-error", "10"]) == 0
    assert "skipped" in capsys.readouterr().out
    assert main(["validate", table, "--format", "csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "needs a table"),
        (["nowhere.csv"], "nowhere.csv: not found"),
        (["nowhere.csv", "--set", "device=l40s"], "add --scenario"),
    ],
)
def test_wrong_use_of_the_command_is_one_line(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["validate", *words]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_what_rows_do_not_state_widens_the_intervals_of_their_points() -> None:
    dense, experts = point(), point(model="Qwen/Qwen3-30B-A3B")
    assert 0.0 < dense.unstated_spread["tpot"] < experts.unstated_spread["tpot"]
    assert not run().unstated_spread
    low, high = widened(0.96, 1.05, 0.1)
    assert low < math.exp(-0.1645) < math.exp(0.1645) < high
    assert high < 1.05 * math.exp(0.1645)
    assert widened(0.96, 1.05, 0.0) == (0.96, 1.05)
