"""GEMM and linear layers: corners worked by hand, exact split by cause, laws of a multiplication."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.timing.form import CAUSES, Chip, pn, power_shares, soft_waves
from membound.hwmodels.timing.gemm import GemmParams, GemmWidths, gemm_time
from membound.hwmodels.timing.linear import LinearParams, linear_time
from membound.hwmodels.timing.tiles import RULES, comes_in_pairs, ruled_tiles

H100 = Chip({"bf16": 989e12, "fp8": 1979e12}, 3.35e12, 132, 50e6, 233472, 450e9)
LANE = GemmParams(2.5e-6, 0.86, 0.89, 3.0, 170.0, 2.5e-6, 3.0, 1.5, 0.08, 0.5)
IDEAL = GemmParams(t0=0.0, ec=1.0, eb=1.0, q=64.0, wq=0.0)
SIZES = st.integers(1, 16384)


def seconds(
    m: float, n: float, k: float, lane: GemmParams = LANE, chip: Chip = H100, **options: object
) -> float:
    return float(gemm_time(chip, lane, m, n, k, **options).seconds)  # type: ignore[arg-type]


def test_an_ideal_lane_is_the_roofline_at_both_ends() -> None:
    # 8192 cubed: 2 x 8192^3 = 1.0995e12 FLOP over 989e12 FLOP/s = 1.1117 ms; 15 waves of tiles.
    assert seconds(8192, 8192, 8192, IDEAL) == pytest.approx(1.1117e-3, rel=2e-3)
    # One row: 2 x (8192^2 + 2 x 8192) bytes = 134.25 MB over 3.35e12 B/s = 40.07 us.
    assert seconds(1, 8192, 8192, IDEAL) == pytest.approx(40.07e-6, rel=2e-3)


def test_one_tile_is_charged_whole() -> None:
    # One 64 x 64 tile on one of 132 units: 2 x 64 x 64 x 4096 FLOP at 989e12 / 132 FLOP/s = 4.48 us.
    one_split = replace(IDEAL, ts=1.0)
    slow = replace(H100, bandwidth=1e18)
    assert seconds(1, 64, 4096, one_split, slow) == pytest.approx(4.479e-6, rel=1e-3)
    assert seconds(64, 64, 4096, one_split, slow) == seconds(1, 64, 4096, one_split, slow)


def test_a_split_along_k_pays_off_where_few_tiles_meet_a_long_k() -> None:
    without = replace(LANE, ts=1.0)
    assert seconds(16, 512, 16384) < 0.7 * seconds(16, 512, 16384, without)
    assert seconds(4096, 4096, 4096) == seconds(4096, 4096, 4096, without)


def test_a_split_leaves_at_least_128_columns_to_each_part() -> None:
    free = replace(LANE, ts=0.0, cs=0.0)
    assert seconds(1, 64, 255, free) == seconds(1, 64, 255, replace(free, ts=1.0))


@settings(deadline=None)
@given(SIZES, SIZES, st.integers(64, 16384))
def test_causes_add_up_and_no_demand_exceeds_the_time(m: int, n: int, k: int) -> None:
    time = gemm_time(H100, LANE, m, n, k)
    total = float(time.seconds)
    assert sum(float(getattr(time, cause)) for cause in CAUSES) == pytest.approx(total, rel=1e-12)
    assert all(float(getattr(time, cause)) >= 0.0 for cause in CAUSES)
    assert 0.0 < float(time.hbm_demand) <= total
    assert 0.0 < float(time.compute_demand) <= total


@settings(deadline=None)
@given(SIZES, SIZES, st.integers(64, 16384))
def test_never_faster_than_the_datasheet_allows(m: int, n: int, k: int) -> None:
    floor = max(2.0 * m * n * k / 989e12, 2.0 * (m * k + n * k + m * n) / 3.35e12)
    assert seconds(m, n, k) > floor


@settings(deadline=None)
@given(SIZES, SIZES, st.integers(64, 16384), st.floats(1.01, 4.0))
def test_a_faster_chip_is_never_slower(m: int, n: int, k: int, factor: float) -> None:
    base = seconds(m, n, k)
    assert seconds(m, n, k, chip=replace(H100, bandwidth=factor * 3.35e12)) <= base
    assert seconds(m, n, k, chip=replace(H100, peak_flops={"bf16": factor * 989e12})) <= base
    assert seconds(m, n, k, compute_factor=1.0 / factor) >= base


def test_arrays_give_the_same_numbers_as_one_by_one() -> None:
    m, n, k = np.array([1.0, 100.0, 4096.0]), np.array([[512.0], [6144.0]]), np.array([[4096.0], [1024.0]])
    together = np.asarray(gemm_time(H100, LANE, m, n, k).seconds)
    alone = [[seconds(mi, float(ni[0]), float(ki[0])) for mi in m] for ni, ki in zip(n, k, strict=True)]
    assert together.tolist() == alone


def test_warm_operands_are_read_faster_only_if_they_fit_the_cache() -> None:
    lane = replace(LANE, l2f=0.5, l2b=3.0)
    assert seconds(1, 2048, 2048, lane, warm=True) < 0.9 * seconds(1, 2048, 2048, lane)
    assert seconds(1, 16384, 16384, lane, warm=True) == pytest.approx(
        seconds(1, 16384, 16384, lane), rel=1e-3
    )


def test_a_chip_without_tiles_takes_the_larger_of_compute_and_memory() -> None:
    tpu = Chip({"bf16": 197e12}, 819e9, 1, roofline3=True)
    lane = GemmParams(t0=1e-6, ec=0.5, eb=0.5, q=3.0)
    assert seconds(4096, 4096, 4096, lane, tpu) == pytest.approx(1e-6 + 2 * 4096**3 / (0.5 * 197e12))
    assert seconds(1, 4096, 4096, lane, tpu) == pytest.approx(1e-6 + 2 * (4096**2 + 2 * 4096) / (0.5 * 819e9))


def test_weight_only_formats_win_at_one_row_and_not_in_a_large_batch() -> None:
    plain = LinearParams(LANE)
    narrow = LinearParams(replace(LANE, ec=0.8 * LANE.ec), GemmWidths(weight=0.516))
    gain = [
        float(
            linear_time(H100, plain, m, 8192, 8192).seconds / linear_time(H100, narrow, m, 8192, 8192).seconds
        )
        for m in (1.0, 4096.0)
    ]
    assert gain[0] > 2.5
    assert gain[1] < 1.0


def test_the_quantise_pass_is_charged_once_per_linear() -> None:
    fused = LinearParams(LANE, GemmWidths(1.0, 1.0), "fp8")
    apart = replace(fused, tqz=2.2e-6, eqz=0.38)
    m, k = 256.0, 4096.0
    extra = linear_time(H100, apart, m, 4096.0, k).seconds - linear_time(H100, fused, m, 4096.0, k).seconds
    assert extra == pytest.approx(2.2e-6 + 3 * m * k / (0.38 * 3.35e12))


def test_a_fused_quantise_pass_takes_its_fixed_time_with_it() -> None:
    chip = Chip({"bf16": 989e12, "fp8": 1979e12}, 3.35e12, 132)
    own = LinearParams(GemmParams(9e-6, 0.8, 0.9, 3.0), GemmWidths(1, 1, 2), "fp8", tqz=2e-6, eqz=0.4)
    none, half, all_of_them = (
        float(linear_time(chip, own.fused(share, 2e-6), 64.0, 8192.0, 4096.0).seconds)
        for share in (0, 0.5, 1)
    )
    assert none - all_of_them == pytest.approx(7e-6 + 2e-6 + 3 * 64 * 4096 / (0.4 * 3.35e12))
    assert half == pytest.approx((none + all_of_them) / 2)


def test_rows_that_raise_one_maximum_wait_for_each_other_in_the_quantise_pass() -> None:
    apart = LinearParams(LANE, GemmWidths(1.0, 1.0), "fp8", tqz=2.2e-6, eqz=0.38)
    waits = replace(apart, tqr=6e-9)
    for m in (1.0, 2048.0):
        extra = (
            linear_time(H100, waits, m, 64.0, 64.0).seconds - linear_time(H100, apart, m, 64.0, 64.0).seconds
        )
        assert extra == pytest.approx(6e-9 * m)


@given(SIZES, SIZES)
def test_a_ruled_tile_is_never_faster_than_the_best_of_all(m: int, n: int) -> None:
    ruled, free = replace(LANE, by_m=1, wq=0.0), replace(LANE, wq=0.0)
    assert seconds(m, n, 4096, ruled) >= seconds(m, n, 4096, free) * (1.0 - 1e-9)


def test_rows_that_only_fill_a_pair_of_tiles_up_cost_more_than_rows_with_data() -> None:
    ruled = replace(LANE, by_m=1, pad=1.0, q=16.0, eb=10.0)
    assert seconds(257, 16384, 16384, ruled) > 1.3 * seconds(512, 16384, 16384, ruled)
    assert seconds(512, 16384, 16384, ruled) == seconds(512, 16384, 16384, replace(ruled, pad=0.0))
    assert seconds(257, 64, 16384, ruled) == seconds(257, 64, 16384, replace(ruled, pad=0.0))  # one wave


def test_every_rule_gives_every_product_one_tile() -> None:
    m, n = np.meshgrid([1.0, 16.0, 17.0, 64.0, 65.0, 128.0, 257.0, 16384.0], [1.0, 4097.0, 16384.0, 65536.0])
    for rule in RULES:
        rows, columns, together = ruled_tiles(rule, m, n)
        assert set(rows.ravel()) | set(columns.ravel()) <= {16.0, 32.0, 64.0, 128.0, 256.0}
        assert set(together.ravel()) <= {1.0, 2.0}
        assert bool(together.max() > 1.0) is comes_in_pairs(rule)


def test_smooth_maximum_and_its_shares() -> None:
    assert pn(3.0, 4.0, 2.0) == 5.0
    assert power_shares(2.0, 3.0, 4.0) == (pytest.approx(9 / 25), pytest.approx(16 / 25))
    assert power_shares(16.0, 1e-9, 1e-12)[0] == pytest.approx(1.0)  # no underflow at tiny times


def test_waves_are_whole_only_in_part() -> None:
    assert soft_waves(0.2, 0.1) == pytest.approx(1.0)
    assert soft_waves(2.5, 0.1) == pytest.approx(2.55)
    assert soft_waves(2.5, 1.0) == pytest.approx(3.0)


def test_small_tiles_wait_for_operands_that_warps_load() -> None:
    # An A100: 128 B a clock feed 2048 FLOP a clock. A column of a 64 x 64 tile takes 4 clocks of matrix work and, each
    # operand loaded twice, 4 of loads: twice as long in all; of a 128 x 256 tile 1.375 times, where ec is taken.
    lane = replace(IDEAL, fd=1.0, ts=1.0)
    chip = Chip({"bf16": 2048e9 * 100}, 1e18, 100, feed=128e9 * 100)
    small = seconds(64, 64, 4096, lane, chip)
    assert small == pytest.approx(4 * 4096e-9 * 2.0 / (1.0 + 0.375), rel=1e-3)
    # Read while they compute, the longer of the two counts: loads of 2 clocks hide behind 4 of work.
    hidden = seconds(64, 64, 4096, lane, replace(chip, feed_waits=False))
    assert hidden == pytest.approx(4 * 4096e-9 * (1.0 + 0.5**4) ** 0.25, rel=5e-3)


def test_a_device_of_unknown_feed_has_no_loss_of_small_tiles() -> None:
    assert seconds(64, 64, 4096, replace(LANE, fd=1.0, ct=0.0)) == seconds(
        64, 64, 4096, replace(LANE, ct=0.0)
    )
