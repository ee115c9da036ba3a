"""The scenario file: what it accepts, what it says to a wrong one, and what it becomes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.errors import MemboundError
from membound.sim.scenario import (
    TEMPLATE,
    Scenario,
    ScenarioError,
    json_schema,
    load_scenario,
    parse_scenario,
    resolve,
    scenario_from,
)  # fmt: skip
from membound.sim.studies.capacity_plan import load_plan
from membound.sim.workload.arrivals.base import find_processes

EVERY = sorted((Path(__file__).resolve().parents[2] / "examples").glob("*.yaml"))
PLANS = [path for path in EVERY if path.stem.startswith("plan-")]
EXAMPLES = [path for path in EVERY if path not in PLANS]

DESIGN = """
name: chat on one H100
device: h100_sxm
model: llama-3.1-8b
engine: vllm-0.24
parallelism: {tensor_parallel_size: 1, pipeline_parallel_size: 1, data_parallel_size: 1, expert_parallel: false}
node: {gpus: 8, link: nvlink}
quantization: {weights: bf16, activations: bf16, kv_cache: auto}
kernels: {attention: flash}
scheduler: {name: vllm_v1, scheduling_policy: fcfs, max_num_seqs: 256, max_num_batched_tokens: 8192, enable_chunked_prefill: true,
            long_prefill_token_threshold: 0, scheduler_reserve_full_isl: true, watermark: 0.0, async_scheduling: auto}
kv_cache: {allocator: paged, block_size: 16, gpu_memory_utilization: 0.9, enable_prefix_caching: true, max_model_len: 32k,
           num_gpu_blocks_override: null, eviction: null, tiers: []}
speculative: null
workload:
  trace: {path: azure_conv.csv.gz, format: auto, time_scale: 1.0, limit: 5000}
  sampling: greedy
  expert_routing: {kind: zipf, s: 0.8}
slo: {attainment: 0.99, classes: {default: {ttft_s: 0.5, tpot_s: 0.05}}}
cluster: {replicas: 1, router: least_outstanding}
price: {usd_per_gpu_hour: null}
simulation: {seed: 0, fidelity: step, fast_forward: true, warmup: auto}
"""  # noqa: E501

DRAWN = """
device: h100_sxm
model: llama-3.1-8b
workload:
  arrivals: {kind: poisson, rate_per_s: 8}
  input_tokens: {kind: lognormal, p50: 900, p99: 5000, max: 8k}
  output_tokens: 150
  requests: 500
"""

LATER = """
speculative: {method: draft, draft_model: llama-3.2-1b, num_speculative_tokens: 4, acceptance: 0.8}
kv_cache:
  eviction: {kind: h2o, budget: 25%}
  tiers: [{kind: dram, capacity: 200GiB}, {kind: nvme, capacity: 2TB}]
cluster:
  pools: {prefill: {replicas: 2}, decode: {device: h200_sxm}, link: ethernet}
  autoscale: {max: 8}
  failures: {mtbf: 1e6, mttr: 5min}
colocated: {model: llama-3.2-1b}
compute_split: {prefill: 0.6, decode: 0.4}
parallelism: {pipeline_parallel_size: 2, data_parallel_size: 2, expert_parallel: true}
"""


def drawn(*sets: str) -> Scenario:
    return parse_scenario(yaml.safe_load(DRAWN), sets)


def complaint(*sets: str) -> str:
    with pytest.raises(ScenarioError) as caught:
        drawn(*sets)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)
    return str(caught.value)


def test_the_scenario_of_the_design_is_accepted_as_it_stands() -> None:
    scenario = parse_scenario(yaml.safe_load(DESIGN))
    assert scenario.kv_cache.max_model_len == 32_000
    assert scenario.scheduler.max_num_batched_tokens == 8192
    assert scenario.scheduler.async_scheduling == "auto"
    assert scenario.slo is not None
    assert scenario.slo.classes["default"].thresholds() == {"ttft_s": 0.5, "tpot_s": 0.05}


def test_sections_that_are_built_later_are_in_the_schema() -> None:
    scenario = parse_scenario(yaml.safe_load(DRAWN) | yaml.safe_load(LATER))
    assert scenario.kv_cache.tiers[0].capacity == 200 * 2**30
    assert scenario.speculative is not None
    assert scenario.speculative.acceptance == 0.8


def test_the_template_is_a_scenario_that_runs() -> None:
    scenario = parse_scenario(yaml.safe_load(TEMPLATE))
    assert len(resolve(scenario).workload or ()) == 1000


@pytest.mark.parametrize("text", [DESIGN, DRAWN, TEMPLATE])
def test_yaml_and_object_are_the_same_question(text: str) -> None:
    scenario = parse_scenario(yaml.safe_load(text))
    assert parse_scenario(yaml.safe_load(scenario.to_yaml())) == scenario
    assert parse_scenario(json.loads(scenario.model_dump_json())) == scenario


@given(
    seqs=st.integers(1, 4096), rate=st.floats(0.01, 1e4), p50=st.integers(1, 10**5), sigma=st.floats(0, 3),
    kind=st.sampled_from(["poisson", "constant", "gamma"]), seed=st.integers(0, 2**63),
)  # fmt: skip
@settings(deadline=None, max_examples=40)
def test_any_scenario_survives_the_way_through_yaml(**leaf: Any) -> None:
    scenario = drawn(
        f"scheduler.max_num_seqs={leaf['seqs']}",
        f"workload.arrivals={{kind: {leaf['kind']}, rate_per_s: {leaf['rate']}}}",
        f"workload.input_tokens={{kind: lognormal, p50: {leaf['p50']}, sigma: {leaf['sigma']}}}",
        f"simulation.seed={leaf['seed']}",
    )
    assert parse_scenario(yaml.safe_load(scenario.to_yaml())) == scenario


def test_a_scenario_cannot_be_changed_only_replaced() -> None:
    scenario = drawn()
    with pytest.raises(ValueError, match="frozen"):
        scenario.name = "other"  # type: ignore[misc]
    other = scenario.replace(scheduler__max_num_seqs="1k", device__hbm_bandwidth="x1.5")
    assert other.scheduler.max_num_seqs == 1000
    assert other.device == {"base": "h100_sxm", "hbm_bandwidth": "x1.5"}
    assert scenario.scheduler.max_num_seqs == "auto"
    with pytest.raises(ScenarioError, match=r"replace: scheduler.max_seqs: unknown key 'max_seqs'"):
        scenario.replace(scheduler__max_seqs=3)


@pytest.mark.parametrize(
    ("assignment", "parts"),
    [
        ("cluster.router=least_outstandin", ["nearest: 'least_outstanding'", "prefix_affinity"]),
        ("scheduler.max_batched_tokens=64", ["nearest: 'max_num_batched_tokens'"]),
        ("max_num_seqs=3", ["unknown key 'max_num_seqs'; it belongs in scheduler"]),
        ("sceduler.name=x", ["sceduler: unknown key", "nearest: 'scheduler'"]),
        ("scheduler.max_num_seqs=lots", ["scheduler.max_num_seqs: 'lots' is not a count", "8K (8,192)"]),
        ("scheduler.max_num_seqs=0", ["0 is not above 0"]),
        ("scheduler.max_num_seqs=-4", ["-4 is not a count"]),
        ("scheduler.max_num_seqs=.nan", ["nan is not a count"]),
        ("scheduler=3", ["scheduler: 3 is not a section of keys"]),
        ("scheduler.enable_chunked_prefill=1", ["1 is not true or false"]),
        ("scheduler.scheduling_policy=fifo", ["'fifo' is not known", "allowed: auto, fcfs, priority"]),
        ("scheduler.watermark=2", ["2 is not a share", "0 to 1"]),
        ("scheduler.name.x=3", ["scheduler.name is 'vllm_v1', it has no keys"]),
        ("kv_cache.gpu_memory_utilization=150%", ["'150%' is not a share"]),
        ("kv_cache.tiers=[{kind: drams, capacity: 3GiB}]", ["tiers.0.kind: ", "'drams'", "nearest: 'dram'"]),
        ("kv_cache.tiers=[{kind: dram, capacity: 3G}]", ["a bare 'G' is ambiguous"]),
        ("quantization.weights=fp7", ["unknown weight format 'fp7'", "nearest: 'fp8'"]),
        ("quantization.kv_cache=fp7", ["unknown KV cache dtype 'fp7'"]),
        ("workload.arrivals.kind=poison", ["unknown arrival process 'poison'", "nearest: 'poisson'"]),
        ("workload.arrivals.rate=3", ["workload.arrivals.rate: unknown key", "nearest: 'rate_per_s'"]),
        ("workload.arrivals.rate_per_s=-3", ["-3 is out of range; allowed: above 0"]),
        ("workload.arrivals.rate_per_s=.inf", ["inf is not a finite number"]),
        ("workload.arrivals={}", ["workload.arrivals: needs a kind; allowed: closed_loop, constant"]),
        ("workload.arrivals.kind=nowhere:Process", ["arrival process 'nowhere:Process' cannot be loaded"]),
        ("workload.input_tokens.kind=lognorm", ["kind 'lognorm' is not known", "nearest: 'lognormal'"]),
        ("workload.input_tokens.p95=3", ["workload.input_tokens.p95: unknown key 'p95'", "nearest: 'p99'"]),
        ("workload.input_tokens=null", ["workload: needs input_tokens, or a trace"]),
        ("workload.output_tokens=-4", ["workload.output_tokens: -4 is not a count"]),
        ("workload.requests=null", ["needs requests or duration_s"]),
        ("workload.requests=0", ["workload.requests: 0 is out of range; allowed: above 0"]),
        ("workload.trace={path: a.csv, formt: x}", ["trace.formt: unknown key", "nearest: 'format'"]),
        ("workload.trace={path: a.csv, format: azur}", ["unknown trace format 'azur'", "nearest: 'azure'"]),
        ("workload.trace={path: a.csv, time_scale: 0}", ["0 is out of range; allowed: above 0"]),
        ("workload.expert_routing={kind: uniform, s: 1}", ["s belongs to kind zipf, not to uniform"]),
        ("slo.classes.default.ttfts_s=3", ["slo.classes.default.ttfts_s: unknown key", "nearest: 'ttft_s'"]),
        ("slo.classes.default={}", ["slo.classes.default: needs a threshold"]),
        ("compute_split={prefill: 0.7, decode: 0.4}", ["above 1"]),
        ("simulation.seed=-1", ["-1 is out of range; allowed: at least 0"]),
        ("simulation.fidelity=fast", ["'fast' is not known", "allowed: step, kernel"]),
        ("engine=3", ["engine: 3 is not text"]),
        ("device={hbm_bandwidth: x2}", ["device: a what-if device needs base"]),
        ("model=null", ["model: None is not text"]),
        ("foo", ["'foo' is not KEY=VALUE"]),
        ("=3", ["is not KEY=VALUE"]),
        ("a..b=3", ["'a..b' has an empty part"]),
        ("name=[1", ["'[1' is not a YAML value"]),
        ("workload.input_tokens.p50.x=3", ["workload.input_tokens.p50 is 900, it has no keys"]),
    ],
)  # fmt: skip
def test_a_wrong_leaf_gets_one_line_with_value_allowed_and_nearest(assignment: str, parts: list[str]) -> None:
    text = complaint("scheduler.name=vllm_v1", assignment)
    for part in parts:
        assert part in text
    assert text.startswith("--set ")


def leaves(data: Any, path: tuple[str, ...] = ()) -> list[str]:
    inner = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    below = [leaf for key, value in inner for leaf in leaves(value, (*path, str(key)))]
    return ([".".join(path)] if path else []) + below


LEAVES = leaves(parse_scenario(yaml.safe_load(DRAWN) | yaml.safe_load(LATER)).to_dict())
WORDS = st.text(max_size=5) | st.sampled_from(["auto", "8k", "x2"])
KEYS = st.sampled_from(["kind", "base", "a"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | WORDS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=2),
    max_leaves=4,
)


@given(changes=st.lists(st.tuples(st.sampled_from(LEAVES), VALUES), min_size=1, max_size=3))
@settings(deadline=None, max_examples=300)
def test_whatever_a_leaf_is_set_to_it_is_taken_or_refused_in_one_line(changes: list[tuple[str, Any]]) -> None:
    refusal = ""
    try:
        scenario = drawn(*(f"{leaf}={json.dumps(value)}" for leaf, value in changes))
        assert parse_scenario(yaml.safe_load(scenario.to_yaml())) == scenario
    except ScenarioError as error:
        refusal = str(error)
    assert "\n" not in refusal
    assert "pydantic" not in refusal


def test_a_missing_leaf_is_named() -> None:
    with pytest.raises(ScenarioError, match=r"^model: missing$"):
        parse_scenario({"device": "h100_sxm"})
    with pytest.raises(ScenarioError, match=r"^device: missing \(and 1 more\)$"):
        scenario_from([])


def test_a_fault_in_a_file_names_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text(DRAWN + "scheduler:\n  max_num_seqs: 4\n  max_batched_tokens: 64\n")
    with pytest.raises(ScenarioError, match=r"chat.yaml: line 11: scheduler.max_batched_tokens: unknown key"):
        load_scenario(path)
    path.write_text(DRAWN.replace("150", "none"))
    with pytest.raises(ScenarioError, match=r"line 7: workload.output_tokens: 'none' is not a count"):
        load_scenario(path)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty scenario"),
        ("- a\n- b\n", "not list"),
        ("device: [h100\nmodel: x\n", "line 2"),
        ("device: a\ndevice: b\n", "line 2, column 1: not YAML: key 'device' appears twice"),
        (
            "device: a\nscheduler: {name: x, name: y}\n",
            "line 2, column 22: not YAML: key 'name' appears twice",
        ),
        ("device: !!python/object:os.system a\n", "not YAML"),
    ],
)
def test_a_file_that_is_no_scenario_is_refused_in_one_line(text: str, part: str, tmp_path: Path) -> None:
    path = tmp_path / "chat.yaml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=part) as caught:
        load_scenario(path)
    assert "\n" not in str(caught.value)
    assert "chat.yaml" in str(caught.value)


def test_a_scenario_that_is_not_there_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "chat.yaml").write_text(DRAWN)
    with pytest.raises(ScenarioError, match=r"not found; nearest: '.*chat.yaml'"):
        load_scenario(tmp_path / "caht.yaml")


def test_paths_start_from_the_file_but_those_of_set_from_the_working_folder(
    tmp_path: Path, monkeypatch
) -> None:
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "my_gpu.yaml").write_text("")
    path = tmp_path / "study" / "chat.yaml"
    path.write_text(
        "device: ./my_gpu.yaml\nmodel: meta-llama/Llama-3.1-8B\nworkload: {trace: {path: t.csv}}\n"
    )
    monkeypatch.chdir(tmp_path)
    scenario = load_scenario("study/chat.yaml")
    assert scenario.device == "study/my_gpu.yaml"
    assert scenario.model == "meta-llama/Llama-3.1-8B"
    assert scenario.workload is not None
    assert scenario.workload.trace is not None
    assert scenario.workload.trace.path == "study/t.csv"
    other = load_scenario("study/chat.yaml", ["workload.trace.path=t.csv"])
    assert other.workload is not None
    assert other.workload.trace is not None
    assert other.workload.trace.path == "t.csv"
    moved = yaml.safe_load(scenario.to_yaml(folder=tmp_path / "out"))
    assert moved["workload"]["trace"]["path"] == "../study/t.csv"
    assert moved["device"] == "../study/my_gpu.yaml"
    assert moved["model"] == "meta-llama/Llama-3.1-8B"


def test_setting_a_trace_replaces_the_drawn_load() -> None:
    workload = drawn("workload.trace.path=t.csv", "workload.trace.limit=1k").workload
    assert workload is not None
    assert workload.trace is not None
    assert workload.trace.limit == 1000
    assert workload.arrivals is workload.input_tokens is workload.requests is None
    kept = drawn("workload.trace.path=t.csv", "workload.arrivals={kind: constant, rate_per_s: 2}").workload
    assert kept is not None
    assert kept.arrivals is not None


def test_sets_make_sections_reach_into_lists_and_take_hyphens() -> None:
    scenario = drawn(
        "slo.classes.batch.e2e_s=30s",
        "kv_cache.tiers=[{kind: dram, capacity: 1GiB}]",
        "kv_cache.tiers.0.capacity=2GiB",
        "scheduler.max-num-seqs=8K",
        "device.peak_flops.bf16=x1.2",
    )
    assert scenario.slo is not None
    assert scenario.slo.classes["batch"].thresholds() == {"e2e_s": 30.0}
    assert scenario.kv_cache.tiers[0].capacity == 2 * 2**30
    assert scenario.scheduler.max_num_seqs == 8192
    assert scenario.device == {"base": "h100_sxm", "peak_flops.bf16": "x1.2"}
    with pytest.raises(ScenarioError, match="'3' is no index into a list of 1"):
        drawn("kv_cache.tiers=[{kind: dram, capacity: 1GiB}]", "kv_cache.tiers.3.capacity=2GiB")


def test_the_json_schema_describes_every_key_and_accepts_human_numbers() -> None:
    schema = json_schema()
    assert schema["properties"]["device"]["description"].startswith("id or path of a device")
    sections = [schema, *schema["$defs"].values()]
    for section in sections:
        for name, known in section.get("properties", {}).items():
            assert known.get("description"), f"{section.get('title')}.{name} has no description"
            assert "----" not in known["description"]
    scheduler = schema["$defs"]["SchedulerSection"]["properties"]["max_num_seqs"]
    assert {"integer", "string"} == {option["type"] for option in scheduler["anyOf"]}
    assert scheduler["description"].startswith("most requests in a batch")
    *processes, own, null = schema["$defs"]["WorkloadSpec"]["properties"]["arrivals"]["anyOf"]
    assert [process["properties"]["kind"]["const"] for process in processes] == sorted(find_processes())
    assert own["properties"]["kind"]["pattern"] == ":"
    assert null == {"type": "null"}
    assert processes[0]["properties"]["concurrency"]["description"].startswith("users")
    assert schema["additionalProperties"] is False


def test_resolving_fills_every_auto_and_echoes_it() -> None:
    resolved = resolve(drawn())
    left = {
        f"{section}.{key}"
        for section in ("scheduler", "kv_cache")
        for key, value in getattr(resolved.scenario, section).model_dump().items()
        if value == "auto"
    }
    assert not left
    assert resolved.scheduler.max_num_seqs == resolved.scenario.scheduler.max_num_seqs == 1024
    assert resolved.scheduler.max_num_batched_tokens == 8192
    assert resolved.kv_cache.max_model_len == 131_072
    assert resolved.kv_cache.gpu_memory_utilization == 0.92
    assert resolved.scheduler.async_scheduling is True
    assert resolved.workload is not None
    assert len(resolved.workload) == 500
    assert resolve(resolved.scenario).scenario == resolved.scenario


def test_resolving_keeps_what_was_given() -> None:
    resolved = resolve(
        drawn("scheduler.max_num_seqs=7", "kv_cache.max_model_len=4k", "price.usd_per_gpu_hour=1.5")
    )
    assert resolved.scheduler.max_num_seqs == 7
    assert resolved.kv_cache.max_model_len == 4000
    assert resolved.usd_per_gpu_hour == 1.5
    assert resolved.price_note == "set in the scenario"


def test_a_length_beyond_the_models_positions_is_warned_about() -> None:
    resolved = resolve(drawn("kv_cache.max_model_len=1M"))
    assert "beyond the 131072 positions of llama-3.1-8b" in resolved.warnings[0]


def test_the_same_seed_draws_the_same_load_and_another_seed_another() -> None:
    one, same, other = resolve(drawn()), resolve(drawn()), resolve(drawn("simulation.seed=1"))
    assert one.workload is not None
    assert same.workload is not None
    assert other.workload is not None
    assert one.workload.arrival_ns.tolist() == same.workload.arrival_ns.tolist()
    assert one.workload.arrival_ns.tolist() != other.workload.arrival_ns.tolist()


def test_a_closed_loop_waits_for_client_and_network_too() -> None:
    resolved = resolve(drawn("workload.arrivals={kind: closed_loop, concurrency: 4, think_time_s: 1}"))
    assert resolved.workload is not None
    loop = resolved.workload.closed_loop
    assert loop is not None
    overhead = resolved.engine.client_overhead_s + resolved.engine.client_turnaround_s
    assert overhead > 0
    assert loop.next_arrival_ns(9, 0) == 1_000_000_000 + round(overhead * 1e9)


def test_sizing_takes_any_parallelism_and_needs_no_workload() -> None:
    scenario = scenario_from(
        ["device=h100_sxm", "model=llama-3.1-8b", "parallelism.pipeline_parallel_size=2"]
    )
    resolved = resolve(scenario, purpose="size")
    assert resolved.workload is None
    assert resolved.scheduler.async_scheduling is False
    with pytest.raises(ScenarioError, match=r"^workload: missing"):
        resolve(scenario.replace(parallelism__pipeline_parallel_size=1))


@pytest.mark.parametrize(
    ("assignment", "part"),
    [("device=h10_sxm", "h100_sxm"), ("model=lama-3.1-8b", "llama-3.1-8b"), ("engine=vlm-0.24", "vllm-0.24")],
)
def test_an_unknown_device_model_or_engine_gets_the_nearest_one(assignment: str, part: str) -> None:
    with pytest.raises(MemboundError, match=f"nearest: '{part}'") as caught:
        resolve(drawn(assignment))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_example_is_a_scenario(path: Path) -> None:
    scenario = load_scenario(path)
    assert scenario.workload is not None
    if scenario.workload.trace is None:
        resolved = resolve(scenario)
        assert resolved.workload is not None
        assert resolved.workload.input_tokens.max() < resolved.kv_cache.max_model_len
    else:
        with pytest.raises(ScenarioError, match="not found"):
            resolve(scenario)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_example_of_a_plan_is_one(path: Path) -> None:
    plan = load_plan(path)
    assert len(plan.scenarios) == len(plan.settings) > 1


def test_reading_a_scenario_imports_nothing_heavy() -> None:
    code = (
        "import sys; from membound.sim.scenario import scenario_from; "
        "scenario_from(['device=h100_sxm', 'model=llama-3.1-8b']); "
        "print([name for name in ('scipy', 'pyarrow', 'simpy', 'torch', 'pandas') if name in sys.modules])"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
