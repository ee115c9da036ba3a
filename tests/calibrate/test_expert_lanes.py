"""Expert lanes: one kernel each, found by every row of that kernel, with the spread of models left out."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from membound.calibrate.fit.base import FitResult
from membound.calibrate.fit.moe import expert_rows, models_of, moe_regimes
from membound.calibrate.localspread import spread_90, spread_by_regime
from membound.calibrate.predict import expert_family, expert_lanes, software_of
from membound.calibrate.publicexperts import models_left_out, standing_in
from membound.calibrate.publiclanes import (
    DEVICES,
    EXPERT_LANES,
    ONE_MODEL_LANES,
    PublicLane,
    expert_lane,
)
from membound.calibrate.table import KernelTable
from membound.hwmodels.device import load_device
from membound.hwmodels.lanevariants import nearest_lane
from membound.hwmodels.spreads import residual_spread

from .test_fit_moe import H100, TRUTH, table, timed

FIT = FitResult("moe", "trtllm", {}, (), {"all": 0.1}, {}, 20, {})
LANES = (*EXPERT_LANES, *ONE_MODEL_LANES)
KERNELS = (
    ("h100_sxm", "vllm", "bfloat16", "vllm_unquantizedfusedmoe_triton_tritonexperts", "moe", "vllm"),
    ("h100_sxm", "trtllm", "bfloat16", "moe_torch_flow_cutlass", "moe", "trtllm"),
    ("h100_sxm", "trtllm", "bfloat16", "moe_torch_flow_nongated", "moe", "trtllm_nongated"),
    ("h100_sxm", "sglang", "bfloat16", "sglang_fused_moe_triton", "moe", "sglang"),
    ("h100_sxm", "sglang", "bfloat16", "sglang_flashinfer_cutlass_moe", "moe", "sglang_cutlass"),
    ("h100_sxm", "vllm", "fp8_block", "vllm_fp8moe_triton_tritonexperts", "moe_fp8_block", "vllm"),
    ("h100_sxm", "vllm", "fp8_block", "vllm_fp8moe_flashinfer_cutlass_flashinferexperts", "moe_fp8_block", "vllm_ep"),
    ("h100_sxm", "sglang", "fp8_block", "sglang_fused_moe_triton", "moe_fp8_block", "sglang"),
    ("h100_sxm", "trtllm", "fp8_block", "moe_torch_flow_cutlass", "moe_fp8_block", "trtllm"),
    ("h100_sxm", "vllm", "fp8", "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts", "moe_fp8", "vllm_untuned"),
    ("h100_sxm", "trtllm", "fp8", "moe_torch_flow_cutlass", "moe_fp8", "trtllm"),
    ("h100_sxm", "trtllm", "fp8", "moe_torch_flow_nongated", "moe_fp8", "trtllm_nongated"),
    ("h100_sxm", "vllm", "w4a16_mxfp4", "vllm_gptossmxfp4moe_triton_oaitritonmxfp4expertsmonolithic", "moe_w4a16",
     "vllm"),
    ("b200_sxm", "vllm", "bfloat16", "vllm_unquantizedfusedmoe_flashinfer_trtllm_trtllmbf16experts", "moe", "vllm"),
    ("b200_sxm", "vllm", "bfloat16", "vllm_unquantizedfusedmoe_flashinfer_cutlass_flashinferexperts", "moe",
     "vllm_cutlass"),
    ("b200_sxm", "sglang", "bfloat16", "sglang_flashinfer_trtllm_moe", "moe", "sglang"),
    ("b200_sxm", "sglang", "bfloat16", "sglang_fused_moe_triton", "moe", "sglang_triton"),
    ("b200_sxm", "vllm", "fp8", "vllm_modeloptfp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic", "moe_fp8", "vllm"),
    ("b200_sxm", "vllm", "fp8_block", "vllm_fp8moe_flashinfer_trtllm_trtllmfp8expertsmonolithic", "moe_fp8_block",
     "vllm"),
    ("b200_sxm", "vllm", "fp8_block", "vllm_fp8moe_flashinfer_trtllm_trtllmfp8expertsmodular", "moe_fp8_block",
     "vllm_modular"),
    ("b200_sxm", "sglang", "fp8_block", "sglang_flashinfer_trtllm_moe", "moe_fp8_block", "sglang"),
    ("b200_sxm", "vllm", "nvfp4",
     "vllm_compressedtensorsw4a4nvfp4moe_flashinfer_trtllm_trtllmnvfp4expertsmonolithic", "moe_nvfp4", "vllm"),
    ("b200_sxm", "sglang", "nvfp4", "sglang_flashinfer_trtllm_moe", "moe_nvfp4", "sglang"),
    ("b200_sxm", "vllm", "w4a16_mxfp4",
     "vllm_gptossmxfp4moe_flashinfer_trtllm_mxfp4_bf16_trtllmmxfp4expertsmonolithic", "moe_w4a16", "vllm"),
    ("b200_sxm", "sglang", "fp8_block", "sglang_fused_moe_triton", "moe_fp8_block", "sglang_triton"),
    ("b200_sxm", "vllm", "fp8", "vllm_modeloptfp8moe_flashinfer_cutlass_flashinferexperts", "moe_fp8", "vllm_cutlass"),
    ("b200_sxm", "vllm", "nvfp4",
     "vllm_compressedtensorsw4a4nvfp4moe_flashinfer_cutlass_flashinferexperts", "moe_nvfp4", "vllm_cutlass"),
    ("b200_sxm", "vllm", "nvfp4",
     "vllm_compressedtensorsw4a4nvfp4moe_flashinfer_trtllm_trtllmnvfp4expertsmodular", "moe_nvfp4", "vllm_modular"),
    ("l40s", "vllm", "bfloat16", "vllm_unquantizedfusedmoe_triton_tritonexperts", "moe", "vllm"),
    ("l40s", "vllm", "fp8_block", "vllm_fp8moe_triton_tritonexperts", "moe_fp8_block", "vllm"),
    ("l40s", "vllm", "fp8", "vllm_modeloptfp8moe_triton_tritonexperts", "moe_fp8", "vllm"),
    ("l40s", "vllm", "w4a16_mxfp4", "vllm_gptossmxfp4moe_marlin_marlinexperts", "moe_w4a16", "vllm"),
    ("a100_sxm", "trtllm", "bfloat16", "moe_torch_flow", "moe", "trtllm"),
)  # fmt: skip
"""GPU, framework, dtype and kernel as the public tables name them; family and lane that the kernel is."""


def row(gpu: str, framework: str, dtype: str, kernel: str, ep: int) -> KernelTable:
    return KernelTable.of(
        {
            "op": ["moe"],
            "gpu": [gpu],
            "framework": [framework],
            "dtype": [dtype],
            "kernel_source": [kernel],
            "ep": [ep],
            "latency_us": [1.0],
        }
    )


@pytest.mark.parametrize(("gpu", "framework", "dtype", "kernel", "family", "lane"), KERNELS)
@pytest.mark.parametrize("ep", [1, 8])
def test_every_timed_kernel_finds_its_own_lane(
    gpu: str, framework: str, dtype: str, kernel: str, family: str, lane: str, ep: int
) -> None:
    timed_row = row(gpu, framework, dtype, kernel, ep)
    assert expert_family(timed_row).tolist() == [family]
    assert expert_lanes(timed_row, software_of(timed_row)).tolist() == [lane]


def test_a_lane_is_one_kernel() -> None:
    lanes = Counter(lane.name for lane in LANES)
    assert max(lanes.values()) == 1
    kernels = Counter((gpu, family, lane) for gpu, _, _, _, family, lane in KERNELS)
    assert max(kernels.values()) == 1
    assert set(kernels) == {(lane.gpu, lane.family, lane.lane) for lane in LANES}


@pytest.mark.parametrize("public", LANES, ids=lambda lane: lane.name)
def test_every_lane_is_published_with_where_it_comes_from_and_how_far_it_holds(public: PublicLane) -> None:
    lane = nearest_lane(load_device(DEVICES[public.gpu]), public.family, public.lane)
    assert (lane.lane, lane.level) == (public.lane, "measured")
    assert "ai-dynamo/aiconfigurator@095f58a5" in lane.source
    assert public.kernel in lane.source
    if public in ONE_MODEL_LANES:
        assert "rows of 1 model" in lane.source
        assert lane.residual == {"all": residual_spread("moe", "prior").memory}
    else:
        assert "left-out model MAPE" in lane.source
        assert set(lane.residual) == {"tokens<=16", "16<tokens<=512", "tokens>512"}
    assert set(lane.hull) == {"tokens", "hidden", "experts", "top_k", "tp", "ep"}
    assert lane.params["allrows"] == float(public.facts["all_rows"])


def test_another_board_of_the_architecture_has_the_same_kernels() -> None:
    assert (
        expert_lane("h200_sxm", "vllm", "fp8_block", "vllm_fp8moe_flashinfer_cutlass_flashinferexperts")
        == "vllm_ep"
    )
    assert expert_lane("gb200", "sglang", "bfloat16", "sglang_fused_moe_triton") == "sglang_triton"


def test_kernels_that_no_lane_is_of_are_named_after_their_software() -> None:
    assert expert_lane("h100_sxm", "torch", "bfloat16", "torch_grouped_mm") == "torch"
    assert expert_lane("", "vllm", "fp8_block", "new", dealt=True) == "vllm_ep"
    assert expert_lane("no such board", "vllm", "bfloat16", "new") == "vllm"


SYNTHETIC = PublicLane(
    "h100_sxm", "vllm", "moe", "bfloat16", "moe", "vllm", facts={"all_rows": True, "rounds": 1}
)


def test_the_stated_spread_holds_nine_tenths_of_what_a_model_left_out_strays() -> None:
    data = timed(table(320), 0.05)
    slower = np.where(data["hidden"] == 6144, 1.4, 1.0)  # one model no other says anything about
    data = KernelTable.of({**data.columns, "latency_us": data.latency_us * slower})
    held, found = models_left_out(SYNTHETIC, data, rows=150, scored=60)
    assert set(models_of(held)) == set(models_of(data))
    spread = spread_by_regime(np.log(found.time / held.latency_us), moe_regimes(held))
    seen = data.where(data["hidden"] != 6144)
    noise = spread_90(np.log(expert_rows(seen).predict_us(H100, TRUTH) / seen.latency_us))
    assert set(spread) == {"tokens<=16", "16<tokens<=512", "tokens>512"}
    assert all(sd > 2.0 * noise for sd in spread.values())
    off = np.abs(np.log(found.time / held.latency_us))
    inside = off <= 1.645 * np.array([spread[name] for name in moe_regimes(held)])
    assert float(np.mean(inside)) == pytest.approx(0.9, abs=0.02)


def test_a_kernel_that_was_timed_untuned_is_not_what_a_simulation_takes() -> None:
    h100, h200 = load_device("h100_sxm"), load_device("h200_sxm")
    untuned, tuned = h100.lane("moe_fp8", "vllm_untuned"), h100.lane("moe_fp8", "trtllm")
    assert untuned.params["eb"] < 0.3 < 0.7 < tuned.params["eb"]
    served = nearest_lane(h100, "moe_fp8", "vllm_ep")
    assert (served.lane, served.level, served.params) == ("vllm", "bridged", tuned.params)
    assert "trtllm's lane" in served.source
    assert nearest_lane(h200, "moe_fp8", "vllm").params == tuned.params


def test_a_run_of_lanes_holds_those_that_stand_in() -> None:
    fit = replace(FIT, family="moe_fp8", lane="trtllm")
    (made,) = standing_in("h100_sxm", [FIT, fit])
    assert (made.family, made.lane, made.level, made.values) == ("moe_fp8", "vllm", "bridged", fit.values)
    assert FitResult.from_dict(made.to_dict()).level == "bridged"
    assert standing_in("b200_sxm", [fit]) == []
