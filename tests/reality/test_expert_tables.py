"""Expert lanes against the public tables that they are of: errors on all their models, and honest intervals.

A lane is fitted on every model of its table, so these are errors of models that it has seen; what to expect of
another model is in the lane's source line and in its residual.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from membound.calibrate.fit.base import errors
from membound.calibrate.fit.moe import moe_regimes
from membound.calibrate.predict import expert_family, expert_lanes, predict_us, software_of
from membound.calibrate.publiclanes import DEVICES, EXPERT_LANES, ONE_MODEL_LANES, PublicLane
from membound.hwmodels.device import load_device

TABLES = Path(__file__).parents[2] / ".." / "shared" / "measured" / "kernels"
pytestmark = pytest.mark.skipif(not TABLES.is_dir(), reason="the measured tables (../shared) are not here")

ROWS = 800
MAPE = {
    "h100_sxm/moe/vllm": 7.5,
    "h100_sxm/moe_fp8_block/vllm": 7.0,
    "h100_sxm/moe_fp8_block/vllm_ep": 7.5,
    "h100_sxm/moe_fp8_block/sglang": 7.5,
    "h100_sxm/moe_fp8_block/trtllm": 9.0,
    "h100_sxm/moe_fp8/vllm_untuned": 12.5,
    "h100_sxm/moe_w4a16/vllm": 12.5,
    "h100_sxm/moe/sglang_cutlass": 10.0,
    "h100_sxm/moe/trtllm_nongated": 7.5,
    "h100_sxm/moe_fp8/trtllm_nongated": 6.0,
    "b200_sxm/moe/vllm": 10.0,
    "b200_sxm/moe/sglang": 8.0,
    "b200_sxm/moe_fp8/vllm": 8.5,
    "b200_sxm/moe_fp8_block/vllm": 9.0,
    "b200_sxm/moe_fp8_block/sglang": 10.5,
    "b200_sxm/moe_nvfp4/vllm": 8.5,
    "b200_sxm/moe_nvfp4/sglang": 9.5,
    "b200_sxm/moe_w4a16/vllm": 9.0,
    "b200_sxm/moe_fp8_block/vllm_modular": 10.5,
    "b200_sxm/moe_fp8_block/sglang_triton": 9.0,
    "b200_sxm/moe/vllm_cutlass": 6.5,
    "b200_sxm/moe_fp8/vllm_cutlass": 8.0,
    "b200_sxm/moe_nvfp4/vllm_cutlass": 8.0,
    "b200_sxm/moe_nvfp4/vllm_modular": 8.0,
    "l40s/moe/vllm": 11.0,
    "l40s/moe_fp8_block/vllm": 11.5,
    "l40s/moe_fp8/vllm": 14.0,
    "l40s/moe_w4a16/vllm": 12.5,
    "a100_sxm/moe/trtllm": 8.5,
}
"""Promise of each lane: mean absolute error on a sample of its table [%]."""
MEDIAN = {
    "h100_sxm/moe/trtllm": 8.0,
    "h100_sxm/moe/sglang": 10.5,
    "h100_sxm/moe_fp8/trtllm": 8.0,
    "b200_sxm/moe/sglang_triton": 13.5,
}
"""The same of lanes whose table holds whole configurations of another, slower kernel: median [%]."""


@pytest.mark.parametrize("public", [*EXPERT_LANES, *ONE_MODEL_LANES], ids=lambda lane: lane.name)
def test_a_lane_is_as_near_its_table_as_it_says(public: PublicLane) -> None:
    table, _ = public.read(TABLES)
    device = load_device(DEVICES[public.gpu])
    rows = table.sample(ROWS, seed=3)
    assert set(expert_lanes(rows, software_of(rows)).tolist()) == {public.lane}
    assert set(expert_family(rows).tolist()) == {public.family}
    ratio = predict_us(device, rows) / rows.latency_us
    found = errors(ratio)
    if public.name in MAPE:
        assert 100.0 * found["mape"] < MAPE[public.name]
    else:
        assert 100.0 * found["median_ape"] < MEDIAN[public.name]
    spread = device.lane(public.family, public.lane).residual
    widths = np.array([spread.get(name, spread.get("all", 0.0)) for name in moe_regimes(rows)])
    inside = np.abs(np.log(ratio)) < 1.645 * widths
    assert float(np.mean(inside)) > 0.85
