"""Low-precision linears: round trips for both ways of choosing a tile, and lanes timed with their host."""

from __future__ import annotations

import numpy as np
import pytest
from membound.calibrate.eager import eager_floors, without_eager
from membound.calibrate.errors import CalibrationError
from membound.calibrate.facts import kernel_facts
from membound.calibrate.fit.gemm import gemm_regimes
from membound.calibrate.fit.linear import (
    fit_linear_least_squares,
    linear_regimes,
    linear_table_precision,
    predict_linear_us,
)
from membound.calibrate.fitting import fit_table
from membound.calibrate.predict import matrix_regimes, predict_us
from membound.calibrate.table import KernelTable
from membound.hwmodels.device import load_device
from membound.hwmodels.steptypes import chip_of

DEVICE = load_device("h100_sxm")
H100 = chip_of(DEVICE)
BEST = {
    "t0_us": 4.0, "ec": 0.8, "eb": 0.86, "q": 2.6, "k0": 260.0, "ct": 8.0, "sat": 1.5, "oe": 0.08, "wq": 0.2,
    "l2f": 0.3, "l2b": 1.8, "ts_us": 5.0, "cs": 0.5, "tqz_us": 2.2, "eqz": 0.4,
}  # fmt: skip
BY_ROWS = {**{name: value for name, value in BEST.items() if name not in ("ts_us", "cs")}, "by_m": 1.0}


def shapes(rows: int = 500, dtype: str = "fp8") -> KernelTable:
    rng = np.random.default_rng(5)
    sizes = [512, 1024, 2048, 4096, 6144, 8192, 16384]
    columns = {
        "m": 2 ** rng.integers(0, 12, rows),
        "n": rng.choice(sizes, rows),
        "k": rng.choice(sizes, rows),
    }
    return KernelTable.of(
        {"op": ["gemm"] * rows, "dtype": [dtype] * rows, **columns, "latency_us": np.ones(rows)}
    )


@pytest.mark.parametrize(("truth", "by_m"), [(BEST, 0), (BY_ROWS, 1)])
def test_a_lane_is_recovered(truth: dict[str, float], by_m: int) -> None:
    table = shapes()
    us = predict_linear_us(H100, truth, table)
    noisy = us * np.exp(np.random.default_rng(6).normal(0.0, 0.03, len(us)))
    data = KernelTable.of({**table.columns, "latency_us": noisy})
    fit = fit_linear_least_squares(data, H100, family="linear_fp8", lane="vllm", by_m=by_m, evaluations=12)
    assert float(np.mean(np.abs(predict_linear_us(H100, fit.params, table) / us - 1.0))) < 0.02
    for name in ("ec", "eb"):
        assert abs(fit.params[name] - truth[name]) < max(3.0 * fit.stderr[name], 0.05)
    assert fit.params["t0_us"] + fit.params["tqz_us"] == pytest.approx(
        6.2, rel=0.08
    )  # only their sum is known
    assert ("ts_us" in fit.params) is (by_m == 0)


def test_a_library_that_cannot_choose_is_never_faster() -> None:
    table = shapes(300)
    free, bound = ({**BEST, "by_m": by_m} for by_m in (0.0, 1.0))
    assert (predict_linear_us(H100, bound, table) >= predict_linear_us(H100, free, table) - 1e-9).all()


def test_weight_only_gains_at_few_rows_and_not_at_many() -> None:
    few, many = (
        KernelTable.of(
            {"op": ["gemm"], "dtype": ["int4_wo"], "m": [m], "n": [8192], "k": [8192], "latency_us": [1.0]}
        )
        for m in (1, 4096)
    )
    plain = {name: value for name, value in BEST.items() if name not in ("tqz_us", "eqz")}
    wide = DEVICE.lane("gemm").params
    sixteen = [KernelTable.of({**each.columns, "dtype": ["bfloat16"]}) for each in (few, many)]
    gain = [predict_us(DEVICE, b)[0] / predict_linear_us(H100, plain, a)[0]
            for a, b in zip((few, many), sixteen, strict=True)]  # fmt: skip
    assert wide["eb"] > 0.5
    assert gain[0] > 2.0
    assert gain[1] < 1.1


def test_low_precision_rows_take_their_own_lane() -> None:
    table = KernelTable.of(
        {"op": ["gemm"], "framework": ["trtllm"], "dtype": ["fp8"], "m": [64], "n": [8192], "k": [8192],
         "latency_us": [40.0]}
    )  # fmt: skip
    lane = DEVICE.lane("linear_fp8", "trtllm")
    assert predict_us(DEVICE, table)[0] == pytest.approx(predict_linear_us(H100, lane.params, table)[0])


def test_a_dtype_without_a_format_is_refused() -> None:
    with pytest.raises(CalibrationError, match="unknown dtype of a linear 'fp3'; allowed: fp8"):
        linear_table_precision("fp3")


def test_lanes_timed_with_their_host_are_left_out_and_named() -> None:
    table = KernelTable.of(
        {
            "op": ["gemm", "gemm", "gemm", "moe"],
            "framework": ["sglang", "vllm", "vllm", "vllm"],
            "dtype": ["fp8_block", "fp8_block", "fp8_block", "bfloat16"],
            "latency_us": [3.4, 77.0, 150.0, 200.0],
        }
    )
    assert eager_floors(table.only(op="gemm")) == {"vllm//fp8_block/": 77.0}
    kept, lines = without_eager(table)
    assert kept["op"].tolist() == ["gemm", "moe"]  # experts differ in size, not in launch
    assert len(lines) == 1
    assert "excluded 2 rows" in lines[0]


def test_our_own_slow_lanes_are_not_host_time() -> None:
    """A CPU that dequantises its weights before each product takes long for every call: that is its kernel."""
    rows, slow = shapes(30), shapes(30, "int4_wo")
    us = {"bfloat16": 20.0 + predict_linear_us(H100, BEST, rows), "int4_wo": 900.0 + np.arange(30)}
    columns = {name: [*rows[name], *slow[name]] for name in ("op", "m", "n", "k")}
    table = KernelTable.of(
        {**columns, "dtype": ["bfloat16"] * 30 + ["int4_wo"] * 30, "framework": ["torch"] * 60,
         "latency_us": np.concatenate(list(us.values()))}
    )  # fmt: skip
    assert eager_floors(table)
    assert without_eager(table)[1] == []
    public = KernelTable.of({**table.columns, "framework": ["vllm"] * 60})
    for timed, families in ((table, {"gemm", "linear_w4a16"}), (public, {"gemm"})):
        run = fit_table(timed, DEVICE, run_id="r", source="test", frozen=False)
        assert {fit.family for fit in run.fits} == families
        assert any("host time" in line for line in run.screened) is (timed is public)


def test_what_is_known_of_a_kernel_follows_from_its_name_and_device() -> None:
    assert kernel_facts("linear_fp8", "vllm", "CutlassFP8ScaledMMLinearKernel", "Hopper") == {
        "quantise": True, "by_m": 1,
    }  # fmt: skip
    assert kernel_facts("linear_fp8", "vllm", "CutlassFP8ScaledMMLinearKernel", "Ada")["by_m"] == 2
    assert kernel_facts("linear_fp8", "vllm", "CutlassFP8ScaledMMLinearKernel", "Blackwell")["by_m"] == 0
    assert kernel_facts("linear_w4a16", "trtllm", "weight_only", "Ampere") == {
        "quantise": False,
        "by_m": 0,
    }
    assert kernel_facts("mla_decode", "trtllm", "default", "Ampere") == {
        "tile_heads": 64, "split": False, "sharp_cache": False, "few_heads": 0,
    }  # fmt: skip
    assert kernel_facts("mla_prefill", "sglang", "flash_attention", "Hopper") == {"absorbed": True}
    assert kernel_facts("gemm", "vllm", "", "Hopper") == {}


def test_regimes_of_low_precision_are_those_of_gemm_with_the_middle_cut_in_two() -> None:
    sizes = [64, 65, 256, 257, 1024, 1025]
    low = KernelTable.of({"op": ["gemm"] * 6, "dtype": ["fp8"] * 6, "m": sizes, "n": [8192] * 6, "k": [8192] * 6,
                          "latency_us": [1.0] * 6})  # fmt: skip
    middle = ["64<m<=256 large"] * 2 + ["256<m<=1024 large"] * 2
    assert linear_regimes(low).tolist() == ["m<=64 large", *middle, "m>1024 large"]
    assert matrix_regimes(low).tolist() == linear_regimes(low).tolist()
    wide = KernelTable.of({**low.columns, "dtype": ["bfloat16"] * 6})
    assert matrix_regimes(wide).tolist() == gemm_regimes(wide).tolist()
