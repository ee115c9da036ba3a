"""summary.json has every promised key, null has its reason, and a result directory is whole or absent."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow.parquet as pq
import pytest
from membound.sim.books.record import CAUSES
from membound.sim.engine.request import Status
from membound.sim.metrics.histogram import LogHistogram
from membound.sim.output.output import OutputError, summary, to_json, write_result
from membound.sim.output.result import SimulationResult
from membound.sim.output.vllm_bench import vllm_bench

STATISTICS = ["mean", "p50", "p90", "p95", "p99", "max"]
PROMISED = {
    "schema_version": None,
    "scenario": None,
    "provenance": ["version", "device", "device_hash", "engine", "seed"],
    "requests": ["submitted", "completed", "rejected", "aborted", "preemptions", "rejected_by_reason"],
    "latency": ["queue_s", "ttft_s", "client_ttft_s", "tpot_s", "itl_s", "e2e_s"],
    "throughput": [
        "requests_per_s",
        "input_tokens_per_s",
        "output_tokens_per_s",
        "output_tokens_per_s_per_gpu",
        "duration_s",
    ],
    "slo": ["met", "goodput_per_s", "attainment"],
    "time_share": list(CAUSES),
    "limiter": ["kv_blocks", "max_num_seqs", "token_budget", "arrivals"],
    "utilization": [
        *("mfu", "mbu", "mfu_wall", "mbu_wall"),
        *("gpu_util", "sm_active", "tensor_active", "dram_active"),
    ],
    "memory": [
        *("weights_bytes", "activation_bytes", "reserve_bytes", "kv_pool_bytes", "kv_bytes_per_token"),
        *("num_gpu_blocks", "kv_capacity_tokens", "max_concurrency_at_max_model_len", "fits"),
    ],
    "kv": [
        *("peak_usage", "mean_usage", "internal_fragmentation", "external_fragmentation"),
        *("waste", "waste_reserved", "waste_internal", "waste_external", "prefix_hit_rate", "preemptions"),
    ],
    "cost": ["usd_per_million_output_tokens", "usd_per_million_tokens", "usd_per_gpu_hour"],
    "energy": ["joule_per_output_token", "mean_watts"],
    "verdict": ["bound", "sentence", "next_lever"],
    "confidence": ["level", "interval", "warnings"],
    "simulation": ["steps", "jumps", "events"],
}

STEP_COLUMNS = (
    "start_ns", "duration_ns", "n_decode", "n_prefill", "prefill_tokens", "context_tokens", "running", "used_blocks",
    "held_blocks", "limiter", "preempted",
)  # fmt: skip


@pytest.fixture
def full(make_record, row):
    """Return a record in which everything is known that can be."""
    itl = LogHistogram()
    itl.add(10_000_000, 300)
    rows = [
        row(arrival=100 * i, scheduled=100 * i, first=100 * i + 20, last=100 * i + 120) for i in range(30)
    ]
    rows.append(row(scheduled=None, first=None, last=None, status=Status.REJECTED, reject_reason=0))
    scenario = SimpleNamespace(
        model_dump=lambda mode: {"name": "by hand", "device": "h100_sxm"},
        to_yaml=lambda _folder: "name: by hand\n",
    )
    names = [*PROMISED["memory"][:-1]]
    return make_record(
        rows,
        itl=itl,
        itl_by_position=(np.array([0, 300_000_000]), np.array([0, 30])),
        reject_reasons=["prompt_too_long"],
        kv={
            "peak_usage": 0.5,
            "mean_usage": 0.25,
            "internal_fragmentation": 0.01,
            "external_fragmentation": 0.0,
            "waste": 0.01,
            "waste_reserved": 0.0,
            "waste_internal": 0.01,
            "waste_external": 0.0,
            "prefix_queried_tokens": 3000,
            "prefix_hit_tokens": 0,
            "preemptions": 0,
        },
        work={
            "useful_flop_seconds": 0.1,
            "useful_hbm_bytes": 1e12,
            "kernel_busy_s": 1.0,
            "sm_active_s": 0.9,
            "tensor_active_s": 0.2,
            "dram_active_s": 0.8,
            "elasticity": {"hbm_bandwidth": 0.6},
        },
        counts={"steps": 300, "jumps": 60, "events": 90},
        memory=dict.fromkeys(names, 7) | {"fits": True},
        provenance=dict.fromkeys(PROMISED["provenance"], "x")
        | {"level": "measured", "seed": 0, "model": "m"},
        steps={name: np.arange(3) for name in STEP_COLUMNS},
        kv_timeline={"time_ns": np.arange(2), "used_blocks": np.array([0, 9])},
        per_request_causes={"ttft": np.ones((31, len(CAUSES)), np.int64)},
        scenario=scenario,
        setup={
            "hbm_bandwidth": 3.35e12,
            "usd_per_gpu_hour": 2.5,
            "client_overhead_s": 0.0025,
            "slo_classes": {"default": {"ttft_s": 0.5}},
            "slo_attainment": 0.99,
        },
    )


def keys(tree, prefix=""):
    for key, value in tree.items():
        yield prefix + key
        if isinstance(value, dict):
            yield from keys(value, f"{prefix}{key}.")


def check_promised(found):
    for section, names in PROMISED.items():
        assert section in found
        for name in names or ():
            assert name in found[section], f"{section}.{name}"
    for metric in PROMISED["latency"]:
        assert list(found["latency"][metric]) == STATISTICS


def nulls(tree, prefix=""):
    for key, value in tree.items():
        if value is None:
            yield prefix + key
        elif isinstance(value, dict):
            yield from nulls(value, f"{prefix}{key}.")


def test_every_promised_key_is_there_and_what_is_known_is_a_number(full):
    found = summary(full)
    check_promised(found)
    unknown = {
        path for path in nulls(found) if not path.startswith("steady_state.")
    }  # of a handful of requests
    assert all(path.startswith(("energy.", "confidence.interval")) for path in unknown), unknown
    assert found["kv"]["prefix_hit_rate"] == 0.0
    assert sum(found["time_share"].values()) == pytest.approx(1, abs=1e-12)


def test_of_an_empty_run_every_promised_key_is_there_and_every_null_has_its_reason(make_record, row):
    lost = make_record([row(scheduled=None, first=None, last=None, status=Status.ABORTED)])
    for record in (make_record([]), lost):
        found = summary(record)
        check_promised(found)
        named = [
            path
            for warning in found["confidence"]["warnings"]
            if " is null: " in warning
            for path in warning.split(" is null: ")[0].split(", ")
        ]
        assert len(named) == len(set(named))
        for path in nulls(found):
            assert any(path == name or path.startswith(f"{name}.") for name in named), path
        for name in named:
            assert any(path == name or path.startswith(f"{name}.") for path in nulls(found)), name


def test_warnings_come_first_of_the_run_then_of_the_steady_state_then_of_unknown_figures(make_record, row):
    record = make_record([row(), row(status=Status.RUNNING)], warnings=["3 arrivals were not sorted"])
    found = summary(record)["confidence"]["warnings"]
    assert found[0] == "3 arrivals were not sorted"
    assert found[1].startswith("latency is of this run, not of a steady state (batch): all 2 requests")
    assert found[2] == "1 of 2 requests were unfinished when the run ended"
    assert all(" is null: " in warning for warning in found[3:])


def test_json_is_the_same_bytes_for_the_same_run_and_refuses_what_is_not_a_number(full):
    assert to_json(summary(full)) == to_json(summary(full))
    assert json.loads(to_json(summary(full))) == summary(full)
    with pytest.raises(ValueError, match="not JSON compliant"):
        to_json({"mean": float("nan")})


def test_a_result_directory_has_every_file_and_nothing_temporary_is_left(full, tmp_path):
    files = write_result(full, tmp_path / "out" / "run")
    assert sorted(path.name for path in files) == sorted(
        path.name for path in (tmp_path / "out/run").iterdir()
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["run"]
    assert {path.name for path in files} == {
        *("scenario.yaml", "provenance.json", "summary.json", "vllm_bench.json"),
        *("requests.parquet", "steps.parquet", "kv.parquet", "itl_by_position.parquet"),
        *("trace.json.gz", "metrics.prom"),
    }
    assert json.loads((tmp_path / "out/run/summary.json").read_text()) == summary(full)
    assert (tmp_path / "out/run/scenario.yaml").read_text() == "name: by hand\n"


def test_writing_twice_gives_the_same_bytes_and_removes_what_the_second_run_lacks(
    full, make_record, row, tmp_path
):
    first = {path.name: path.read_bytes() for path in write_result(full, tmp_path / "run")}
    assert {path.name: path.read_bytes() for path in write_result(full, tmp_path / "run")} == first
    (tmp_path / "run" / "notes.txt").write_text("mine")
    write_result(make_record([row()]), tmp_path / "run")
    left = {path.name for path in (tmp_path / "run").iterdir()}
    assert left == {
        "provenance.json",
        "summary.json",
        "vllm_bench.json",
        "metrics.prom",
        "requests.parquet",
        "notes.txt",
    }


def test_a_write_that_fails_leaves_the_earlier_result_and_no_temporary_files(
    full, make_record, row, tmp_path
):
    write_result(full, tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    broken = make_record([row()], scenario=SimpleNamespace(to_yaml=lambda _folder: 1 / 0))
    with pytest.raises(ZeroDivisionError):
        write_result(broken, tmp_path / "run")
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_file_in_the_way_is_a_one_line_error(full, tmp_path):
    (tmp_path / "run").write_text("")
    with pytest.raises(OutputError, match="is a file; allowed: a new or an existing folder"):
        write_result(full, tmp_path / "run")
    with pytest.raises(OutputError, match="cannot be made"):
        write_result(full, tmp_path / "run" / "below")


def test_the_requests_table_says_units_and_leaves_undefined_times_null(full, tmp_path):
    write_result(full, tmp_path / "run")
    table = pq.read_table(tmp_path / "run" / "requests.parquet")
    units = {field.name: (field.metadata or {}).get(b"unit") for field in table.schema}
    assert (units["arrival_ns"], units["ttft_s"], units["input_tokens"]) == (b"ns", b"s", b"tokens")
    assert units["status"] is None
    rows = table.to_pylist()
    assert rows[1]["arrival_s"] == 0.1
    assert rows[1]["ttft_s"] == 0.02
    assert rows[1]["tpot_s"] == 0.01
    assert rows[1]["ttft_compute_ns"] == 1
    assert rows[1]["status"] == "completed"
    assert rows[1]["session"] is None
    rejected = rows[-1]
    assert (rejected["status"], rejected["reject_reason"]) == ("rejected", "prompt_too_long")
    assert all(rejected[name] is None for name in ("queue_s", "ttft_s", "tpot_s", "e2e_s", "last_token_ns"))


def test_the_position_table_has_one_row_for_each_position_reached(full, tmp_path):
    write_result(full, tmp_path / "run")
    rows = pq.read_table(tmp_path / "run" / "itl_by_position.parquet").to_pylist()
    assert rows == [{"position": 1, "itl_s": 0.01, "emissions": 30}]


def test_the_vllm_file_has_the_keys_that_vllm_saves_and_times_as_a_client_sees_them(full):
    found = vllm_bench(full)
    expected = {
        *("date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts"),
        *("request_rate", "burstiness", "max_concurrency", "duration", "completed", "failed"),
        *("total_input_tokens", "total_output_tokens", "request_throughput", "request_goodput"),
        *(
            "output_throughput",
            "total_token_throughput",
            "max_output_tokens_per_s",
            "max_concurrent_requests",
        ),
        "rtfx",
        *("input_lens", "output_lens", "ttfts", "latencies", "start_times", "errors"),
    }
    expected |= {
        f"{s}_{m}_ms" for s in ("mean", "median", "std", "p99") for m in ("ttft", "tpot", "itl", "e2el")
    }
    assert set(found) == expected
    assert found["mean_ttft_ms"] == pytest.approx(22.5)
    assert found["mean_e2el_ms"] == pytest.approx(122.5)
    assert found["mean_tpot_ms"] == pytest.approx(10)
    assert found["std_ttft_ms"] == pytest.approx(0)
    assert (found["completed"], found["failed"]) == (30, 1)
    assert found["duration"] == pytest.approx(3.02)


def test_the_vllm_file_lists_every_request_and_a_failed_one_has_its_error(full):
    found = vllm_bench(full)
    assert found["start_times"][:3] == pytest.approx([0, 0.1, 0.2])
    assert found["input_lens"] == [100] * 31
    assert found["output_lens"] == [11] * 30 + [0]
    assert found["ttfts"] == pytest.approx([0.0225] * 30 + [0])
    assert found["latencies"] == pytest.approx([0.1225] * 30 + [0])
    assert found["errors"] == [""] * 30 + ["rejected"]


def test_concurrency_is_counted_in_seconds_of_the_run_as_vllm_does(make_record, row):
    rows = [row(arrival=500, last=600), row(arrival=900, last=1600), row(arrival=1700, last=1800)]
    assert vllm_bench(make_record(rows))["max_concurrent_requests"] == 2
    rows.append(row(arrival=1550, last=9000))
    assert vllm_bench(make_record(rows))["max_concurrent_requests"] == 3


def test_the_result_object_answers_from_its_record(full):
    result = SimulationResult(full)
    assert result.bottleneck() == result.summary()["verdict"]["sentence"]
    assert result.requests().num_rows == 31
    assert result.stability().steady


def test_nothing_of_this_loads_pyarrow_or_simpy_before_a_table_is_written():
    code = "import sys, membound.sim.output.result; print(*sorted({'pyarrow', 'simpy', 'scipy'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_memory_object_is_the_one_that_the_sizing_command_prints(make_record, row):
    from membound.hwmodels.capacity import kv_pool
    from membound.hwmodels.device import load_device
    from membound.hwmodels.engine import load_engine
    from membound.hwmodels.model import load_model
    from membound.hwmodels.sizing import SizeReport

    pool = kv_pool(load_device("h100_sxm"), load_engine("vllm-0.15"), load_model("llama-3.1-8b"))
    found = summary(make_record([row()], memory=pool))["memory"]
    assert found == SizeReport(pool).memory
    assert set(PROMISED["memory"]) <= set(found)
