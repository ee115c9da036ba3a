"""A record says what made it, as the resolved scenario has it."""

from __future__ import annotations

import pytest
from membound.hwmodels.device import load_device
from membound.sim.scenario import parse_scenario, resolve
from membound.sim.setup import LEVELS, level_of, provenance_of, setup_of


@pytest.fixture(scope="module")
def resolved():
    return resolve(
        parse_scenario(
            {
                "device": "h100_sxm",
                "model": "llama-3.1-8b",
                "engine": "vllm-0.24",
                "parallelism": {"tensor_parallel_size": 2},
                "slo": {"attainment": 0.9, "classes": {"default": {"ttft_s": 0.5}}},
                "price": {"usd_per_gpu_hour": 2.5},
                "simulation": {"seed": 7},
                "workload": {
                    "arrivals": {"kind": "gamma", "rate_per_s": 4, "cv": 2},
                    "input_tokens": 100,
                    "output_tokens": 10,
                    "requests": 5,
                },
            }
        )
    )


def test_the_setup_is_what_the_scenario_resolved_to(resolved):
    found = setup_of(resolved)
    assert (found.gpus_per_replica, found.replicas, found.gpus) == (2, 1, 2)
    assert found.hbm_bandwidth == resolved.device.hbm_bandwidth
    assert found.usd_per_gpu_hour == 2.5
    assert found.client_overhead_s == resolved.engine.client_overhead_s
    assert found.max_num_seqs == resolved.scheduler.max_num_seqs
    assert (found.slo_classes, found.slo_attainment) == ({"default": {"ttft_s": 0.5}}, 0.9)


def test_provenance_names_versions_seed_level_and_load(resolved):
    found = provenance_of(resolved)
    assert (found["device"], found["model"], found["engine"]) == ("h100_sxm", "llama-3.1-8b", "vllm-0.24")
    assert (found["seed"], found["device_hash"]) == (7, resolved.device.digest)
    assert (found["request_rate_per_s"], found["burstiness"]) == (4.0, 0.25)
    assert found["level"] in LEVELS


def test_the_level_of_a_run_is_that_of_the_least_known_family():
    device = load_device("h200_sxm")
    known = {family: device.lane(family).level for family in ("gemm", "decode_attention")}
    assert level_of(device, "vllm", known) == max(known.values(), key=LEVELS.index)
    assert level_of(device, "vllm", ["gemm"]) == "transferred_same_arch"
