"""What the verbs print and write: the same bytes every time, results on stdout and chatter on stderr."""

from __future__ import annotations

import csv
import io
import json
import os
import subprocess
import sys

import pytest
import yaml
from membound.app import cli
from membound.app.console import emit

HEAVY = ("torch", "scipy", "pyarrow", "streamlit", "altair", "simpy", "pandas", "numpy")


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
    )


# -- start-up --


@pytest.mark.parametrize("words", [["--help"], ["simulate", "--help"], ["--version"], ["scenario", "init"]])
def test_starting_up_loads_nothing_heavy(words):
    heavy = HEAVY[:-1] if words == ["scenario", "init"] else HEAVY
    ran = python(
        "import sys; from membound.app.cli import main; "
        f"code = main({words}); "
        f"print('loaded', [name for name in {heavy} if name in sys.modules], code)"
    )
    assert ran.stdout.splitlines()[-1] == "loaded [] 0", ran


def test_importing_the_package_loads_nothing():
    ran = python("import sys, membound; print([m for m in sys.modules if m.startswith('membound.')])")
    assert ran.stdout == "[]\n"


# -- simulate --


def test_the_same_scenario_and_seed_print_the_same_bytes_in_any_process(small):
    code = f"from membound.app.cli import main; raise SystemExit(main(['simulate', {str(small)!r}]))"
    runs = [python(code, PYTHONHASHSEED=seed, NO_COLOR=color) for seed, color in (("1", ""), ("2", "1"))]
    assert runs[0].stdout
    assert [run.stdout for run in runs] == [runs[0].stdout] * 2
    assert [(run.returncode, run.stderr) for run in runs] == [(0, "")] * 2


def test_the_three_forms_say_the_same(membound, small):
    summary = json.loads(membound("simulate", small, "--format", "json").out)
    row = next(csv.DictReader(io.StringIO(membound("simulate", small, "--format", "csv").out)))
    assert row["latency.ttft_s.p99"] == str(summary["latency"]["ttft_s"]["p99"])
    assert sum(summary["time_share"].values()) == pytest.approx(1, abs=1e-12)
    table = " ".join(membound("simulate", small).out.split())
    assert summary["verdict"]["sentence"].split(";")[0] in table
    assert "40 of 40 completed" in table


def test_without_a_file_device_and_model_are_enough(membound):
    ran = membound("simulate", "--device", "H100", "--model", "meta-llama/Llama-3.1-8B", "--num-prompts", 30)
    assert ran.code == 0
    assert ran.out.startswith(
        "h100_sxm · llama-3.1-8b · bf16 weights, bf16 KV · vllm-0.24 · vllm_v1 · 30 requests"
    )


def test_options_set_the_leaves_they_name(membound, small):
    words = [
        "--max-num-seqs", 7, "--max-num-batched-tokens", "4k", "--gpu-memory-utilization", "85%", "-tp", 2,
        "--max-model-len", "8K", "--block-size", 32, "--kv-cache-dtype", "fp8", "--quantization", "fp8",
        "--request-rate", 3, "--isl", 100, "--osl", 9, "--num-prompts", 5, "--seed", 3, "--no-async-scheduling",
        "--no-enable-prefix-caching", "--scheduling-policy", "priority", "--engine", "vllm-0.19",
    ]  # fmt: skip
    found = yaml.safe_load(membound("scenario", "show", small, *words).out)
    assert found["scheduler"]["max_num_seqs"] == 7
    assert found["scheduler"]["max_num_batched_tokens"] == 4000
    assert found["scheduler"]["async_scheduling"] is False
    assert found["scheduler"]["scheduling_policy"] == "priority"
    assert found["kv_cache"]["gpu_memory_utilization"] == 0.85
    assert found["kv_cache"]["max_model_len"] == 8192
    assert found["kv_cache"]["block_size"] == 32
    assert found["kv_cache"]["enable_prefix_caching"] is False
    assert found["parallelism"]["tensor_parallel_size"] == 2
    assert found["quantization"] == {"weights": "fp8", "activations": "auto", "kv_cache": "fp8"}
    assert found["workload"]["arrivals"] == {"kind": "poisson", "rate_per_s": 3.0}
    assert (found["workload"]["input_tokens"]["value"], found["workload"]["output_tokens"]["value"]) == (
        100,
        9,
    )
    assert (found["workload"]["requests"], found["simulation"]["seed"]) == (5, 3)
    assert found["engine"] == "vllm-0.19"


def test_set_wins_over_an_option(membound, small):
    words = ["--max-num-seqs", 7, "--set", "scheduler.max_num_seqs=9"]
    assert yaml.safe_load(membound("scenario", "show", small, *words).out)["scheduler"]["max_num_seqs"] == 9


def test_a_rate_keeps_the_arrival_process_of_the_scenario(membound, small):
    small.write_text(small.read_text().replace("kind: poisson,", "kind: gamma, cv: 2,"))
    found = yaml.safe_load(membound("scenario", "show", small, "--request-rate", 9).out)
    assert found["workload"]["arrivals"] == {"kind": "gamma", "rate_per_s": 9.0, "cv": 2.0}


def test_an_infinite_rate_sends_everything_at_once(membound, small):
    found = json.loads(
        membound("simulate", small, "--request-rate", "inf", "--format", "json", "--quiet").out
    )
    assert found["verdict"]["stability"] == "batch"
    assert found["requests"]["completed"] == 40


def test_a_concurrency_is_a_closed_loop(membound, small):
    found = yaml.safe_load(membound("scenario", "show", small, "--max-concurrency", 4).out)
    assert found["workload"]["arrivals"]["kind"] == "closed_loop"
    assert found["workload"]["arrivals"]["concurrency"] == 4


def test_a_rate_with_a_concurrency_is_a_cap_on_requests_in_flight(membound, small):
    words = ["--request-rate", 50, "--max-concurrency", 2]
    found = yaml.safe_load(membound("scenario", "show", small, *words).out)["workload"]
    assert (found["max_concurrency"], found["arrivals"]["rate_per_s"]) == (2, 50.0)
    served = json.loads(membound("simulate", small, *words, "--format", "json", "--quiet").out)
    assert served["latency"]["queue_s"]["max"] < 0.05  # the client holds them back, not the engine


def test_prompts_of_a_trace_are_its_first(membound, small, trace):
    path = trace(*(f"{second},10,5" for second in range(6)))
    words = ["simulate", small, "--trace", path, "--num-prompts", 4, "--format", "json"]
    assert json.loads(membound(*words).out)["requests"]["submitted"] == 4


def test_a_what_if_device_is_named_as_one(membound, small):
    ran = membound("simulate", small, "--device", "{base: h100_sxm, hbm_bandwidth: x2}")
    assert ran.out.startswith("h100_sxm with hbm_bandwidth x2 · ")


def test_a_run_on_an_engine_of_which_only_the_pool_is_known_says_so(membound, small):
    ran = membound("simulate", small, "--engine", "sglang-0.5.6", "--format", "json")
    assert "the other step times are borrowed from vllm-0.24" in ran.err
    assert "borrowed" not in membound("size", small, "--engine", "sglang-0.5.6", "--format", "json").err


# -- exit codes and streams --


@pytest.mark.parametrize(("limit", "code"), [("0.001ms", 3), ("100s", 0)])
def test_a_missed_slo_is_exit_code_3_and_prints_the_result(membound, small, limit, code):
    slo = f"slo.classes.default.ttft_s={limit}"
    ran = membound("simulate", small, "--fail-on-slo", "--set", slo)
    assert (ran.code, ran.err) == (code, "")
    assert ("MISSED: " in ran.out) == (code == 3)


def test_a_failure_inside_is_one_line_and_exit_code_1(membound, small, monkeypatch):
    def broken(*_, **__):
        raise RuntimeError("two\nlines")

    monkeypatch.setattr("membound.sim.run.simulate", broken)
    ran = membound("simulate", small)
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("\n") == 1
    assert ran.err.startswith("error: internal: RuntimeError: two lines")
    assert "Traceback" in membound("simulate", small, "--debug").err


def test_debug_shows_the_traceback_of_bad_input_too(membound):
    ran = membound("devices", "h10", "--debug")
    assert ran.code == 2
    assert "Traceback" in ran.err
    assert ran.err.splitlines()[-1].startswith("error: unknown device 'h10'")


def test_an_interrupt_is_one_line(membound, small, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("membound.sim.run.simulate", interrupted)
    ran = membound("simulate", small)
    assert (ran.code, ran.out, ran.err) == (130, "", "error: interrupted\n")


def test_a_reader_that_goes_away_is_no_error():
    code = "from membound.app.cli import main; raise SystemExit(main(['models', '--format', 'json']))"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 141


def test_a_terminal_gets_a_bar_and_colour_unless_it_declines(membound, small, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    assert "\x1b[1m" in membound("simulate", small).out
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in membound("simulate", small).out


def test_the_result_directory_runs_again_to_the_same_result(membound, small, tmp_path, trace):
    path = trace(*(f"{second},{100 + second},5" for second in range(6)))
    ran = membound("simulate", small, "--trace", path.name, "--out", "deep/run")
    assert (ran.code, ran.err) == (0, "wrote 10 files to deep/run\n")
    again = membound("simulate", "deep/run/scenario.yaml")
    assert again.out == ran.out
    assert again.err == ""
    names = {file.name for file in (tmp_path / "deep/run").iterdir()}
    assert {
        "scenario.yaml",
        "provenance.json",
        "summary.json",
        "requests.parquet",
        "vllm_bench.json",
    } <= names
    assert not any(name.startswith(".") for name in names)


def test_quiet_leaves_stderr_to_errors(membound, small):
    assert membound("simulate", small, "--out", "run", "--quiet", "--no-steps").err == ""


# -- size --


def test_size_prints_the_keys_other_programs_rely_on(membound, small):
    found = json.loads(membound("size", small, "--format", "json").out)
    assert set(found) >= {"memory", "per_request_kv", "shards", "largest_max_model_len"}
    assert set(found["memory"]) >= {
        "weights_bytes", "activation_bytes", "reserve_bytes", "kv_pool_bytes", "kv_bytes_per_token",
        "num_gpu_blocks", "kv_capacity_tokens", "max_concurrency_at_max_model_len", "fits",
    }  # fmt: skip
    assert set(found["per_request_kv"]) == {"fixed_bytes", "bytes_per_token"}


def test_size_and_simulate_agree(membound, small):
    sized = json.loads(membound("size", small, "--format", "json").out)["memory"]
    ran = json.loads(membound("simulate", small, "--format", "json").out)["memory"]
    assert {key: sized[key] for key in ran} == ran


def test_the_terms_of_a_size_add_up_to_the_budget(membound, small):
    memory = json.loads(membound("size", small, "--format", "json").out)["memory"]
    assert sum(term["bytes"] for term in memory["terms"]) + memory["kv_pool_bytes"] == memory["budget_bytes"]


def test_a_log_replaces_estimates_by_what_was_printed(membound, small, tmp_path):
    (tmp_path / "log").write_text(
        "INFO Model loading took 14.99 GiB\nINFO GPU KV cache size: 400,000 tokens\n"
    )
    ran = membound("size", small, "--log", "log", "--format", "json", "--quiet")
    memory = json.loads(ran.out)["memory"]
    assert memory["num_gpu_blocks"] == 25000
    assert memory["blocks_source"] == "printed"
    assert memory["terms"][0]["source"] == "printed"


def test_a_log_says_how_far_off_the_formula_was_and_what_the_host_keeps(membound, small, tmp_path):
    (tmp_path / "log").write_text(
        "INFO Available KV cache memory: 53.05 GiB\nINFO Maximum concurrency for 8,192 tokens per request: 53.05x\n"
    )
    log = json.loads(membound("size", small, "--log", "log", "--format", "json", "--quiet").out)["log"]
    figure = next(f for f in log["figures"] if f["name"] == "KV memory")
    assert figure["error"] == figure["formula"] / figure["printed"] - 1
    shown = membound("size", small, "--log", "log").out
    assert "the log" in shown
    assert f"{100 * figure['error']:+.1f} %" in shown
    # the length of the log is the one sized for, and what the host keeps gives the printed pool again
    assert "max_model_len 8,192" in shown
    kept = f"kv_cache.reserve_bytes={log['rest_bytes']}"
    again = json.loads(membound("size", small, "--set", kept, "--format", "json").out)["memory"]
    assert again["kv_pool_bytes"] == round(53.05 * 2**30)
    ran = json.loads(membound("simulate", small, "--set", kept, "--format", "json").out)["memory"]
    assert ran["num_gpu_blocks"] == again["num_gpu_blocks"]


def test_a_block_count_that_is_given_wins_over_a_log(membound, small, tmp_path):
    (tmp_path / "log").write_text("INFO # GPU blocks: 25000, # CPU blocks: 512\n")
    ran = membound(
        "size", small, "--log", "log", "--num-gpu-blocks-override", 900, "--format", "json", "--quiet"
    )
    memory = json.loads(ran.out)["memory"]
    assert (memory["num_gpu_blocks"], memory["blocks_source"]) == (900, "setting")


def test_what_a_monitor_shows_stands_beside_the_simulated_counters(membound, small, tmp_path):
    (tmp_path / "smi.csv").write_text("index, utilization.gpu [%]\n0, 98 %\n1, 96 %\n")
    shown = membound("validate", "--monitoring", "smi.csv", small)
    assert shown.code == 0
    assert "GPU 1" in shown.out
    assert "your GPU shows 97 % utilised and waits for memory" in " ".join(shown.out.split())
    found = json.loads(membound("validate", "--monitoring", "smi.csv", small, "--format", "json").out)
    ran = json.loads(membound("simulate", small, "--format", "json").out)
    assert found["counters"]["gpu_util"]["simulated"] == ran["utilization"]["gpu_util"]
    assert found["counters"]["dram_active"]["measured"] is None
    missing = membound("validate", "--monitoring", "smi.csv")
    assert missing.code == 2
    assert "needs the scenario" in missing.err


def test_an_engine_without_a_profile_can_be_sized(membound, small):
    ran = membound("size", small, "--engine", "vllm-0.8.5", "--format", "json")
    assert json.loads(ran.out)["settings"]["engine"] == "vllm-0.8.5"
    assert ran.err == "warning: no profile of vllm-0.8.5: only the memory rules of that version are known\n"


def test_a_pipeline_is_sized_stage_by_stage(membound, small):
    found = json.loads(membound("size", small, "-pp", 2, "-tp", 2, "--format", "json").out)
    assert [shard["layers"] for shard in found["shards"]] == [16, 16]
    assert "stage" in membound("size", small, "-pp", 2).out


# -- catalogues --


@pytest.mark.parametrize("verb", ["devices", "models", "engines"])
def test_a_list_has_a_line_an_entry_in_every_form(membound, verb):
    rows = json.loads(membound(verb, "--format", "json").out)
    assert len(rows) == len(list(csv.DictReader(io.StringIO(membound(verb, "--format", "csv").out))))
    lines = membound(verb).out.splitlines()
    assert [line.split()[0] for line in lines[2 : 2 + len(rows)]] == [row["id"] for row in rows]


@pytest.mark.parametrize("verb", ["devices", "models", "engines"])
def test_every_entry_of_a_catalogue_can_be_shown(membound, verb):
    for row in json.loads(membound(verb, "--format", "json").out):
        ran = membound(verb, row["id"])
        assert (ran.code, ran.err) == (0, ""), row["id"]
        assert ran.out.strip()
        assert "None" not in ran.out


@pytest.mark.parametrize(
    ("verb", "name"),
    [("devices", "b200_sxm"), ("models", "deepseek-v4-flash"), ("engines", "sglang-0.5.6")],
)
def test_one_entry_has_every_form(membound, verb, name):
    assert json.loads(membound(verb, name, "--format", "json").out)["id"] == name
    assert list(csv.DictReader(io.StringIO(membound(verb, name, "--format", "csv").out)))


def test_a_device_shows_every_value_with_its_source(membound):
    found = json.loads(membound("devices", "h100", "--format", "json").out)
    assert all(value["source"] for value in found["datasheet"])
    assert all(lane["source"] and lane["level"] for lane in found["lanes"])
    table = membound("devices", "h100_sxm").out
    assert "hbm_bandwidth    3.35 TB/s" in table
    assert "ridge point    295 FLOP/B" in table


def test_a_borrowed_lane_says_from_whom(membound):
    found = json.loads(membound("devices", "h200_sxm", "--format", "json").out)
    assert {lane["device"] for lane in found["lanes"]} == {"h100_sxm"}
    assert all(lane["level"] == "transferred_same_arch" for lane in found["lanes"])


def test_parameters_of_kernels_are_shown_on_demand(membound):
    assert "t0_us" in membound("devices", "h100_sxm", "--parameters").out
    assert "t0_us" not in membound("devices", "h100_sxm").out


# -- trace and scenario --


def test_trace_inspect_counts_what_is_there(membound, trace):
    found = json.loads(membound("trace", "inspect", trace("0,10,5", "2,30,7"), "--format", "json").out)
    assert (found["rows"], found["span_s"], found["rate_per_s"]) == (2, 2.0, 1.0)
    assert found["input_tokens"]["sum"] == 40
    assert "2 requests" in membound("trace", "inspect", "trace.csv").out


def test_trace_inspect_shows_the_lengths_of_a_file_without_arrivals(membound, trace):
    ran = membound("trace", "inspect", trace("10,5", "30,7", header="input_tokens,output_tokens"))
    assert ran.code == 0
    assert "none in the file" in ran.out
    assert "input     20   10" in ran.out


def test_the_template_runs(membound, tmp_path):
    ran = membound("scenario", "init", "chat.yaml")
    assert (ran.code, ran.out) == (0, "")
    assert "membound simulate chat.yaml" in ran.err
    assert membound("simulate", "chat.yaml", "--num-prompts", 20).code == 0
    (tmp_path / "chat.yaml").write_text("")
    membound("scenario", "init", "chat.yaml", "--force")
    assert membound("scenario", "init").out == (tmp_path / "chat.yaml").read_text()


def test_a_shown_scenario_is_a_scenario_and_resolved_has_no_auto_left(membound, small, tmp_path):
    shown = membound("scenario", "show", small).out
    (tmp_path / "shown.yaml").write_text(shown)
    assert membound("scenario", "show", "shown.yaml").out == shown
    resolved = yaml.safe_load(membound("scenario", "show", small, "--resolved").out)
    assert resolved["scheduler"]["max_num_batched_tokens"] == 8192
    assert "auto" not in [*resolved["scheduler"].values(), *resolved["kv_cache"].values()]
    assert json.loads(membound("scenario", "show", small, "--resolved", "--format", "json").out) == resolved


def test_the_schema_is_a_json_schema(membound):
    found = json.loads(membound("scenario", "schema").out)
    assert found["$schema"].startswith("https://json-schema.org/")
    assert "scheduler" in found["properties"]


# -- help --


@pytest.mark.parametrize("words", [[], ["trace"], ["scenario"]])
def test_no_verb_shows_the_verbs(membound, words):
    ran = membound(*words)
    assert (ran.code, ran.err) == (2, "")
    assert "Commands:" in ran.out


def test_help_groups_options_and_cuts_no_name(membound):
    text = membound("simulate", "--help").out
    for heading in ("What serves:", "Scheduler:", "Memory:", "Load:", "Options:"):
        assert f"\n{heading}\n" in text
    for flag in ("--max-num-batched-tokens", "--enable-chunked-prefill", "--long-prefill-token-threshold"):
        assert flag in text


def test_the_shell_completes_devices():
    environment = {
        "_MEMBOUND_COMPLETE": "complete_bash",
        "COMP_WORDS": "membound devices h10",
        "COMP_CWORD": "2",
    }
    ran = python("from membound.app.cli import main; main()", **environment)
    assert ran.stdout.split() == ["h100_nvl", "h100_pcie", "h100_sxm"]


def test_emit_writes_as_it_is(capsys):
    emit("a\nb")
    assert capsys.readouterr().out == "a\nb"
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("membound ")


def test_a_device_file_to_start_from_borrows_kernels_and_says_so(membound, small, tmp_path):
    assert membound("devices", "h100", "--to", "mine.yaml").code == 0
    mine, card = (json.loads(membound("size", "--device", name, "--model", "llama-3.1-8b", "--format", "json").out)
                  for name in ("mine.yaml", "h100_sxm"))  # fmt: skip
    assert mine["memory"] == card["memory"]
    summary = json.loads(membound("simulate", small, "--device", "mine.yaml", "--format", "json").out)
    assert summary["confidence"]["level"].startswith("transferred")
    again = membound("devices", "h100", "--to", "mine.yaml")
    assert (again.code, again.err) == (2, "error: 'mine.yaml' is there already; name another file\n")
    assert membound("devices", "l4", "--to", "l4mine.yaml").code == 0
    assert "transfer_from: l40s" in (tmp_path / "l4mine.yaml").read_text()
    assert membound("devices", "--to", "x.yaml").code == 2


def test_a_misspelled_key_of_a_device_is_named_and_not_the_one_it_leaves_missing(membound, tmp_path):
    membound("devices", "h100", "--to", "mine.yaml")
    text = (tmp_path / "mine.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text.replace("vendor:", "vender:"))
    ran = membound("devices", "mine.yaml")
    assert ran.code == 2
    assert "vender: unknown key; nearest: 'vendor'" in ran.err


def test_timings_that_are_not_there_are_told_before_their_device_is_asked_for(membound):
    ran = membound("calibrate", "fit", "nothing")
    assert ran.code == 2
    assert "'nothing' is not there" in ran.err


def test_a_trace_in_a_scenarios_place_is_told_where_it_belongs(membound, trace):
    ran = membound("simulate", trace("0,10,10"))
    assert ran.code == 2
    assert ran.err.endswith(f"--trace {trace('0,10,10')}\n")
