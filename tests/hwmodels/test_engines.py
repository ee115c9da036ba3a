"""Engine profiles: each version's own defaults, and step parameters that say how sure they are."""

from __future__ import annotations

import pytest
from membound.hwmodels.device import load_device
from membound.hwmodels.engine import ENGINES, list_engines, load_engine
from membound.hwmodels.errors import CatalogError
from membound.hwmodels.memoryrules import memory_rules

VLLM = [engine for engine in list_engines() if engine.startswith("vllm")]


def test_the_promised_versions_are_bundled():
    assert set(list_engines()) == {
        "vllm-0.12", "vllm-0.15", "vllm-0.19", "vllm-0.23", "vllm-0.24", "vllm-0.32", "sglang-0.5.6",
        "tensorrt-llm-1.0", "tensorrt-llm-1.2",
    }  # fmt: skip


@pytest.mark.parametrize("engine", list_engines())
def test_every_engine_is_found_by_id_and_alias(engine):
    profile = load_engine(engine)
    for name in (engine, *profile.aliases, engine.upper()):
        assert load_engine(name).id == engine


@pytest.mark.parametrize(("name", "engine"), [("vLLM 0.15.1", "vllm-0.15"), ("vllm-0.24.0", "vllm-0.24")])
def test_patch_versions_are_aliases(name, engine):
    assert load_engine(name).id == engine


@pytest.mark.parametrize(
    ("version", "asynchronous", "utilization", "full_isl"),
    [("0.12", False, 0.90, False), ("0.15", True, 0.90, False), ("0.19", True, 0.90, True)]
    + [(version, True, 0.92, True) for version in ("0.23", "0.24", "0.32")],
)
def test_flag_defaults_are_those_of_the_version(version, asynchronous, utilization, full_isl):
    defaults = load_engine(f"vllm-{version}").resolve_defaults(load_device("h100_sxm"))
    assert defaults.async_scheduling is asynchronous
    assert defaults.gpu_memory_utilization == utilization
    assert defaults.scheduler_reserve_full_isl is full_isl
    assert (defaults.watermark, defaults.long_prefill_token_threshold, defaults.block_size) == (0.0, 0, 16)
    assert defaults.enable_prefix_caching
    assert defaults.enable_chunked_prefill
    assert defaults.scheduling_policy == "fcfs"


@pytest.mark.parametrize(
    ("engine", "device", "usage", "seqs", "tokens"),
    [
        ("vllm-0.24", "h100_sxm", "server", 1024, 8192),
        ("vllm-0.24", "h100_sxm", "offline", 1024, 16384),
        ("vllm-0.24", "a100_sxm_80gb", "server", 256, 2048),
        ("vllm-0.24", "a100_sxm_80gb", "offline", 256, 8192),
        ("vllm-0.24", "l40s", "server", 256, 2048),
        ("vllm-0.24", "b200_sxm", "server", 1024, 8192),
        ("vllm-0.32", "b200_sxm", "server", 1024, 16384),
        ("vllm-0.32", "h200_sxm", "server", 1024, 8192),
        ("vllm-0.24", "mi300x", "server", 1024, 8192),
        ("vllm-0.24", "tpu_v6e", "server", 256, 1024),
    ],
)
def test_batch_limits_follow_the_card_and_the_usage(engine, device, usage, seqs, tokens):
    defaults = load_engine(engine).resolve_defaults(load_device(device), usage=usage)
    assert (defaults.max_num_seqs, defaults.max_num_batched_tokens) == (seqs, tokens)


def test_pipelines_switch_asynchronous_scheduling_off():
    engine, device = load_engine("vllm-0.24"), load_device("h100_sxm")
    assert engine.resolve_defaults(device, tensor_parallel_size=8).async_scheduling
    assert not engine.resolve_defaults(device, pipeline_parallel_size=2).async_scheduling


def test_a_short_model_or_unchunked_prefill_bounds_the_token_budget():
    engine, device = load_engine("vllm-0.24"), load_device("l40s")
    assert engine.resolve_defaults(device, max_model_len=4).max_num_batched_tokens == 1024
    unchunked = engine.resolve_defaults(
        device, max_model_len=32768, overrides={"enable_chunked_prefill": False}
    )
    assert unchunked.max_num_batched_tokens == 32768
    given = engine.resolve_defaults(device, overrides={"max_num_batched_tokens": "64", "max_num_seqs": 512})
    assert (given.max_num_batched_tokens, given.max_num_seqs) == (64, 512)
    assert engine.resolve_defaults(device, overrides={"max_num_batched_tokens": 128}).max_num_seqs == 128


def test_capture_sizes_are_1_2_4_then_by_8_then_by_16():
    sizes = load_engine("vllm-0.24").capture_sizes
    assert sizes == (1, 2, 4, *range(8, 256, 8), *range(256, 513, 16))
    assert load_engine("vllm-0.24").max_capture == 512


@pytest.mark.parametrize(
    ("engine", "device", "seqs", "largest"),
    [
        ("vllm-0.24", "h100_sxm", 1024, 512),
        ("vllm-0.24", "h100_sxm", 100, 200),
        ("vllm-0.32", "b200_sxm", 1024, 1024),
        ("vllm-0.32", "rtx_5090", 1024, 512),
    ],
)
def test_the_largest_capture_is_twice_the_sequences_up_to_a_cap(engine, device, seqs, largest):
    defaults = load_engine(engine).resolve_defaults(load_device(device), overrides={"max_num_seqs": seqs})
    assert defaults.max_capture == largest
    assert max(defaults.capture_sizes) == largest


def test_newer_versions_capture_the_sequence_limit_itself():
    overrides = {"max_num_seqs": 100}
    device = load_device("h100_sxm")
    assert 100 in load_engine("vllm-0.32").resolve_defaults(device, overrides=overrides).capture_sizes
    assert 100 not in load_engine("vllm-0.24").resolve_defaults(device, overrides=overrides).capture_sizes


@pytest.mark.parametrize("engine", list_engines())
def test_every_step_parameter_has_a_source_a_unit_and_an_error(engine):
    step = load_engine(engine).step
    for name in type(step).model_fields:
        parameter = getattr(step, name)
        assert parameter.source, name
        assert parameter.unit, name
        sorts = name == "sampler_topk_serial_s_per_entry" and parameter.value == 0
        assert parameter.stderr > 0 or name == "mixed_decode_threshold_tokens" or sorts, name
    assert (
        "not measured" in step.sampler_topk_bytes_per_entry.source
    ) != step.sampler_topk_bytes_per_entry.measured


def test_step_parameters_start_at_the_design_values():
    engine = load_engine("vllm-0.24")
    assert engine.host_exposed_s + engine.sampler_greedy_t0_s == pytest.approx(1e-4 + engine.elementwise_t0_s)
    assert engine.host_per_seq_s == 0
    assert engine.engine_gemm_efficiency == 0.85
    assert (engine.mixed_decode_factor, engine.mixed_decode_threshold_tokens) == (1.5, 128)
    assert (engine.elementwise_t0_s, engine.elementwise_eb) == (2e-6, 0.75)
    assert engine.sampler_greedy_bytes_per_entry == 8
    assert (engine.client_overhead_s, engine.client_turnaround_s) == (2.5e-3, 1e-3)
    assert engine.lane == "vllm"


@pytest.mark.parametrize("engine", VLLM)
def test_memory_switches_agree_with_the_rules_that_size_the_pool(engine):
    profile = load_engine(engine)
    rules, capacity = memory_rules(profile.version), profile.capacity
    assert capacity.accounting == "vllm"
    assert rules.gpu_memory_utilization == profile.defaults.gpu_memory_utilization
    assert rules.sampler_bytes_per_entry(1024) == capacity.sampler_bytes_per_entry
    assert rules.null_blocks == int(capacity.null_block)


@pytest.mark.parametrize("engine", ["sglang-0.5.6", "tensorrt-llm-1.0"])
def test_other_engines_are_labelled_capacity_only_and_say_what_is_borrowed(engine):
    profile = load_engine(engine)
    assert profile.scope == "capacity"
    assert "borrowed" in profile.notes
    assert "borrowed" in profile.step.mixed_decode_factor.source


def test_an_unknown_engine_gets_the_nearest_version():
    with pytest.raises(CatalogError, match=r"nearest: 'vllm-0\.\d+'"):
        load_engine("vllm-0.25")


def test_a_malformed_engine_file_is_named_with_its_key(tmp_path):
    text = (ENGINES / "vllm-0.24.yaml").read_text().replace("host_exposed_s", "host_exposed_ms")
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(
        CatalogError, match=r"mine\.yaml.*step\.host_exposed_ms: unknown key; nearest: 'host_exposed_s'"
    ):
        load_engine(tmp_path / "mine.yaml")
