"""Every wrong input gets one line on stderr that says how to mend it, exit code 2, and nothing else."""

from __future__ import annotations

import json
import os

import pytest


def refused(ran, *words: str) -> None:
    """Check that a command was refused in one line that contains ``words``."""
    assert ran.code == 2, ran
    assert ran.out == ""
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert ran.err.endswith("\n")
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err, ran.err


# -- the command line itself --


def test_an_unknown_command_names_the_nearest(membound):
    refused(
        membound("simulte"), "unknown command 'simulte'", "nearest: 'simulate'", "allowed: simulate, size"
    )


def test_an_unknown_sub_command_names_the_nearest(membound):
    refused(membound("trace", "inspct"), "'inspct'", "nearest: 'inspect'", "membound trace --help")


def test_an_unknown_option_names_the_nearest(membound, small):
    refused(membound("simulate", small, "--max-num-seq", 3), "'--max-num-seq'", "nearest: '--max-num-seqs'")


def test_a_format_that_is_none_names_those_there_are(membound, small):
    refused(membound("simulate", small, "--format", "xml"), "'xml'", "'table', 'json', 'csv'")


def test_an_option_without_its_value_is_refused(membound, small):
    refused(membound("simulate", small, "--max-num-seqs"), "--max-num-seqs")


@pytest.mark.parametrize("verb", [["simulate"], ["size"], ["scenario", "show"]])
def test_neither_file_nor_device_and_model_names_what_is_missing(membound, verb):
    refused(membound(*verb), "missing: --device and --model", f"such as membound {' '.join(verb)} --device")


def test_a_missing_model_is_named(membound):
    refused(membound("simulate", "--device", "h100_sxm"), "missing: --model;")


@pytest.mark.parametrize("rate", ["0", "-1", "nan", "fast"])
def test_a_rate_that_is_none_is_refused(membound, small, rate):
    refused(membound("simulate", small, "--request-rate", rate), f"--request-rate {rate}", "allowed:")


def test_an_slo_that_is_not_there_cannot_be_missed(membound, small):
    refused(membound("simulate", small, "--fail-on-slo"), "slo.classes.default.ttft_s")


# -- the scenario --


def test_a_scenario_that_is_not_there_names_the_nearest_file(membound, small):
    refused(membound("simulate", "smal.yaml"), "'smal.yaml' not found", "nearest: 'small.yaml'")
    refused(
        membound("simulate", "examples/demo.yaml"), "not found; membound scenario init > mine.yaml writes one"
    )


def test_an_unknown_key_names_file_line_and_nearest(membound, small):
    small.write_text(small.read_text() + "scheduler: {max_num_seq: 3}\n")
    refused(
        membound("simulate", small),
        "line 9",
        "unknown key 'max_num_seq'",
        "nearest: 'max_num_seqs'",
        "allowed:",
    )


def test_an_unknown_key_in_an_assignment_names_the_nearest(membound, small):
    ran = membound("simulate", small, "--set", "scheduler.max_batched_tokens=3")
    refused(ran, "--set scheduler.max_batched_tokens=3", "nearest: 'max_num_batched_tokens'")


def test_an_assignment_without_a_value_is_refused(membound, small):
    refused(membound("simulate", small, "--set", "scheduler"), "KEY=VALUE")


@pytest.mark.parametrize("value", ["-5", "0", "nan", ".nan", "2.5", "ten"])
@pytest.mark.parametrize("option", ["--isl", "--osl", "--max-num-seqs", "--num-prompts", "--max-concurrency"])
def test_a_count_that_is_none_is_refused_and_names_the_option(membound, small, option, value):
    refused(membound("simulate", small, option, value), f"{option} {value}")


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--gpu-memory-utilization", "1.5", "0 to 1"),
        ("--kv-cache-dtype", "fp7", "nearest: 'fp8'"),
        ("--quantization", "fp88", "nearest: 'fp8"),
        ("--scheduling-policy", "fsfs", "nearest: 'fcfs'"),
        ("--scheduler", "vllm_v2", "nearest: 'vllm_v1'"),
        ("--block-size", "0", "above 0"),
        ("--seed", "-1", "at least 0"),
        ("--isl", "99999999999999999999", "at most 2147483647"),
        ("--num-prompts", "99999999999", "at most 100000000"),
    ],
)
def test_a_setting_out_of_range_says_what_is_allowed(membound, small, option, value, words):
    refused(membound("simulate", small, option, value), value, words)


def test_an_unknown_gpu_names_the_nearest(membound, small):
    refused(membound("simulate", small, "--device", "h10_sxm"), "'h10_sxm'", "nearest: 'h100_sxm'")


def test_an_unknown_model_names_the_nearest(membound, small):
    refused(membound("simulate", small, "--model", "lama-3.1-8b"), "nearest: 'llama-3.1-8b'")


def test_an_unknown_engine_names_the_nearest(membound, small):
    refused(membound("simulate", small, "--engine", "vlm-0.24"), "nearest: 'vllm-0.24'")


@pytest.mark.parametrize("verb", ["devices", "models", "engines"])
def test_an_unknown_entry_of_a_catalogue_is_refused(membound, verb):
    refused(membound(verb, "nothing like it"), f"unknown {verb[:-1]} 'nothing like it'", "allowed:")


def test_what_is_not_built_yet_says_so(membound, small):
    ran = membound("simulate", small, "--set", "cluster={autoscale: {max: 3}, pools: {}}")
    refused(ran, "cluster.autoscale", "not built yet", "allowed: replicas of one kind")


def test_a_what_if_of_an_unknown_value_names_the_nearest(membound, small):
    ran = membound("simulate", small, "--set", "device.hbm_bandwith=x2")
    refused(ran, "'hbm_bandwith'", "nearest: 'hbm_bandwidth'")


def test_a_model_that_does_not_fit_gets_the_sum_and_what_would_fit(membound, small):
    for verb in ("simulate", "size"):
        ran = membound(verb, small, "--model", "llama-3.1-70b")
        refused(ran, "does not fit h100_sxm", "weights 131.45 +", "GiB", "fits with tensor_parallel_size 2")


def test_a_tensor_parallelism_that_does_not_divide_the_heads_names_one_that_does(membound, small):
    refused(membound("simulate", small, "-tp", 3), "32 query heads", "nearest that does: 2")


# -- the trace --


def test_a_trace_that_is_not_there_names_the_nearest(membound, small, trace):
    trace("0,1,1")
    refused(membound("simulate", small, "--trace", "trce.csv"), "'trce.csv' not found", "trace.csv")


@pytest.mark.parametrize("length", ["-3", "0"])
@pytest.mark.parametrize("verb", [["trace", "inspect"], ["simulate", "small.yaml", "--trace"]])
def test_a_length_below_one_names_line_and_column(membound, small, trace, verb, length):
    path = trace("0,10,5", f"1,{length},5")
    refused(
        membound(*verb, path.name), "trace.csv", "line 3", "input_tokens", f"{length} tokens", "allowed: 1"
    )


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "soon"])
def test_an_arrival_that_is_no_time_names_line_and_column(membound, trace, value):
    path = trace("0,10,5", f"{value},10,5")
    refused(membound("trace", "inspect", path), "line 3", "arrival_s")


def test_a_length_that_is_no_number_names_line_and_column(membound, trace):
    refused(membound("trace", "inspect", trace("0,10,5", "1,NaN,5")), "line 3", "input_tokens")


def test_a_missing_column_is_named(membound, trace):
    path = trace("0,10", header="arrival_s,input_tokens")
    refused(membound("trace", "inspect", path), "output_tokens")


@pytest.mark.parametrize("text", ["", "arrival_s,input_tokens,output_tokens\n"])
def test_an_empty_trace_is_refused(membound, tmp_path, text):
    (tmp_path / "empty.csv").write_text(text)
    refused(membound("trace", "inspect", "empty.csv"), "empty.csv", "no requests")


def test_duplicate_ids_name_both_lines(membound, trace):
    path = trace("a,0,10,5", "b,1,10,5", "a,2,10,5", header="request_id,arrival_s,input_tokens,output_tokens")
    refused(membound("trace", "inspect", path), "line 4", "'a' again", "line 2")


def test_a_trace_format_that_is_none_is_refused(membound, trace):
    ran = membound("trace", "inspect", trace("0,10,5"), "--trace-format", "azur")
    refused(ran, "--trace-format azur", "nearest: 'azure'")


@pytest.mark.parametrize(("option", "value"), [("--limit", "0"), ("--time-scale", "-1"), ("--part", "x")])
def test_an_option_of_trace_inspect_out_of_range_is_refused(membound, trace, option, value):
    refused(membound("trace", "inspect", trace("0,10,5"), option, value), f"{option} {value}")


# -- output --


def test_an_output_folder_that_is_a_file_is_refused_before_the_run(membound, small):
    refused(membound("simulate", small, "--out", small.name), "'small.yaml' is a file")


def test_an_output_folder_below_a_file_is_refused_before_the_run(membound, small):
    refused(membound("simulate", small, "--out", "small.yaml/run"), "cannot be made", "is a file")


def test_a_protected_output_folder_is_refused_before_the_run(membound, small, tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)  # root may write anywhere
    refused(membound("simulate", small, "--out", "run"), "cannot be written", "protected")
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]


def test_a_template_does_not_replace_a_file(membound, small):
    before = small.read_text()
    refused(membound("scenario", "init", small.name), "exists", "--force")
    assert small.read_text() == before


def test_a_log_that_is_not_there_or_says_nothing_is_refused(membound, small, tmp_path):
    refused(membound("size", small, "--log", "engine.log"), "'engine.log' cannot be read")
    (tmp_path / "engine.log").write_text("INFO hello\n")
    refused(membound("size", small, "--log", "engine.log"), "no line about memory")


# -- what is counted instead of refused --


def test_unsorted_arrivals_are_sorted_and_counted(membound, small, trace):
    path = trace("5,10,5", "1,10,5", "9,10,5", "2,10,5")
    ran = membound("simulate", small, "--trace", path, "--format", "json")
    assert ran.code == 0
    assert json.loads(ran.out)["requests"]["completed"] == 4
    assert ran.err.count("\n") == 1
    assert "warning: " in ran.err
    assert "2 of 4 arrivals out of order" in ran.err
    assert "2 of 4 arrivals out of order" in " ".join(membound("trace", "inspect", path).out.split())


def test_prompts_beyond_max_model_len_are_rejected_and_counted(membound, small, trace):
    path = trace("0,10,5", "1,900,5", "2,10,5")
    found = json.loads(
        membound("simulate", small, "--trace", path, "--max-model-len", 512, "--format", "json").out
    )
    counts = found["requests"]
    assert (counts["submitted"], counts["completed"], counts["rejected"]) == (3, 2, 1)
    assert counts["rejected_by_reason"] == {"prompt exceeds max_model_len": 1}
    assert found["throughput"]["input_tokens_per_s"] * found["throughput"]["duration_s"] == pytest.approx(20)


def test_a_request_larger_than_the_pool_is_rejected_and_the_run_ends(membound, small, trace):
    path = trace("0,10,5", "1,900,5", "2,10,5")
    ran = membound(
        "simulate", small, "--trace", path, "--num-gpu-blocks-override", 11, "--format", "json", "--quiet"
    )
    counts = json.loads(ran.out)["requests"]
    assert (counts["completed"], counts["rejected"]) == (2, 1)
    assert list(counts["rejected_by_reason"].values()) == [1]
    assert "pool" in next(iter(counts["rejected_by_reason"]))


def test_a_rate_beyond_saturation_ends_unstable_and_quotes_no_means(membound, small):
    words = ["simulate", small, "--request-rate", 300, "--num-prompts", 600, "--isl", "2k", "--osl", 200]
    found = json.loads(membound(*words, "--format", "json").out)
    assert found["requests"]["completed"] == 600
    assert found["verdict"]["stability"] == "unstable"
    assert found["verdict"]["sentence"].startswith("unstable: ")
    assert any("not of a steady state" in note for note in found["confidence"]["warnings"])
    table = membound(*words).out
    assert next(line for line in table.splitlines() if line.startswith("TTFT ")).split()[1] == "-"


@pytest.mark.parametrize(
    ("command", "name", "text", "said"),
    [
        ("plan", "mine.yaml", "device: h100_sxm\nmodel: llama-3.1-8b\n",
         "this is a scenario, for membound simulate; a plan names it, such as {base: mine.yaml, load: {rate_per_s: "
         "40}, candidates: {device: [h100_sxm, l40s]}}"),
        ("sweep", "mine.yaml", "device: h100_sxm\nmodel: llama-3.1-8b\n",
         "this is a scenario, for membound simulate; a study names it, such as {base: mine.yaml, over: {device: "
         "[h100_sxm, l40s]}}"),
        ("simulate", "plan.yaml", "base: mine.yaml\nload: {rate_per_s: 4}\n",
         "this is a plan, for membound plan; its base, 'mine.yaml', is a scenario"),
        ("sweep", "plan.yaml", "base: mine.yaml\ncandidates: {}\n", "this is a plan, for membound plan; a study names"),
        ("plan", "study.yaml", "base: mine.yaml\nover: {}\n", "this is a study, for membound sweep; a plan names it"),
    ],
)  # fmt: skip
def test_a_file_of_another_kind_is_told_what_it_is_and_what_was_meant(
    membound, tmp_path, command: str, name: str, text: str, said: str
):
    (tmp_path / name).write_text(text)
    refused(membound(command, tmp_path / name), said)
