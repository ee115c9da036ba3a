"""Draws of devices and engines: what they keep, what they share, and how wide they are."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.datasheet import sourced_fields
from membound.hwmodels.device import DeviceProfile, list_devices, load_device
from membound.hwmodels.engine import load_engine
from membound.hwmodels.lanes import Lane
from membound.hwmodels.model import load_model
from membound.hwmodels.spreads import REGIMES, RESIDUAL, WHATIF_PER_LOG, Spread, kind_of
from membound.hwmodels.stepmodel import StepModel
from membound.hwmodels.uncertainty import (
    correlated,
    draw_device,
    draw_engine,
    draw_lane,
    normal,
    residual_of,
)

H100 = load_device("h100_sxm")
ENGINE = load_engine("vllm-0.24")
MODEL = load_model("llama-3.1-8b")


def known(device: DeviceProfile, *, stderr: float = 0.0, residual: float = 0.0) -> DeviceProfile:
    """Return the device with every lane measured, to the same relative error."""
    fitted = {
        family: {
            name: lane.model_copy(
                update={
                    "level": "measured",
                    "residual": {"all": residual},
                    "correlation": None,
                    "parameters": {
                        symbol: parameter.model_copy(update={"stderr": stderr * parameter.value})
                        for symbol, parameter in lane.parameters.items()
                    },
                }
            )
            for name, lane in lanes.items()
        }
        for family, lanes in device.fitted.items()
    }
    return device.model_copy(update={"fitted": fitted})


def sure(engine=ENGINE):
    step = {
        name: getattr(engine.step, name).model_copy(update={"stderr": 0.0})
        for name in type(engine.step).model_fields
    }
    return engine.model_copy(update={"step": engine.step.model_copy(update=step)})


def step_ns(device, engine=ENGINE, batch: int = 16, context: int = 1000) -> int:
    return StepModel(device, engine, MODEL).step_ns(batch, batch * context, context, (), batch)


def spread(device: DeviceProfile, n: int = 40) -> float:
    times = [step_ns(draw_device(device, 0, draw)) for draw in range(n)]
    return float(np.std(np.log(times)))


def test_normal_numbers_are_standard_paired_and_keyed_by_everything() -> None:
    z = np.array([normal(seed, draw, "gemm", "eb") for seed in range(4) for draw in range(0, 1000, 2)])
    assert abs(z.mean()) < 0.08
    assert abs(z.std() - 1.0) < 0.06
    assert normal(0, 6, "a") == -normal(0, 7, "a")
    assert (
        len({normal(0, 0, "a", "b"), normal(0, 0, "ab"), normal(1, 0, "a", "b"), normal(0, 2, "a", "b")}) == 4
    )


def test_what_is_known_exactly_is_drawn_as_it_is() -> None:
    device, engine = known(H100), sure()
    for family in device.families():
        assert draw_device(device, 3, 5).lane(family).params == device.lane(family).params
    assert draw_engine(engine, 3, 5) == engine
    assert step_ns(draw_device(device, 3, 5), draw_engine(engine, 3, 5)) == step_ns(device, engine)


@given(seed=st.integers(0, 2**40), draw=st.integers(0, 500))
@settings(max_examples=20)
def test_a_draw_is_the_same_whoever_asks_and_in_whichever_order(seed: int, draw: int) -> None:
    first, second = draw_device(H100, seed, draw), draw_device(H100, seed, draw)
    families = H100.families()
    there = {family: first.lane(family) for family in families}
    back = {family: second.lane(family) for family in reversed(families)}
    assert there == back
    assert draw_engine(ENGINE, seed, draw) == draw_engine(ENGINE, seed, draw)


@pytest.mark.parametrize("name", list_devices())
def test_every_device_can_be_drawn_and_its_parameters_stay_finite_and_of_their_sign(name: str) -> None:
    device = load_device(name)
    for draw in range(4):
        drawn = draw_device(device, 1, draw)
        for family in device.families():
            point = device.lane(family).params
            for symbol, value in drawn.lane(family).params.items():
                assert math.isfinite(value)
                assert (value > 0.0) == (point[symbol] > 0.0) or point[symbol] == 0.0


def test_a_residual_scales_a_lane_as_a_whole() -> None:
    # Attention takes its residual in full, matrices half of it (a step sums over several shapes).
    device = known(H100, residual=0.1)
    lane = device.lane("decode_attention")
    drawn = draw_lane(device, lane, 0, 0)
    factor = math.exp(0.1 * normal(0, 0, "all", "h100_sxm", "decode_attention", "vllm"))
    for symbol, power in {
        "t0_us": 1,
        "tb_us": 1,
        "ts_us": 1,
        "tcta_us": 1,
        "eb": -1,
        "ec": -1,
        "q": 0,
        "occ": 0,
    }.items():
        assert drawn.params[symbol] == pytest.approx(lane.params[symbol] * factor**power, rel=1e-12)
    gemm = draw_lane(device, device.lane("gemm"), 0, 0)
    half = math.exp(0.05 * normal(0, 0, "all", "h100_sxm", "gemm", "vllm"))
    assert gemm.params["eb"] == pytest.approx(device.lane("gemm").params["eb"] / half, rel=1e-12)


def test_steps_spread_the_more_the_larger_the_residual_and_the_standard_errors() -> None:
    by_residual = [spread(known(H100, residual=sd)) for sd in (0.0, 0.03, 0.1, 0.3)]
    by_stderr = [spread(known(H100, stderr=sd)) for sd in (0.0, 0.01, 0.05, 0.2)]
    assert by_residual[0] < 1e-12
    assert by_stderr[0] < 1e-12
    assert by_residual == sorted(by_residual)
    assert by_stderr == sorted(by_stderr)


def test_the_rate_inside_an_engine_and_the_lane_it_was_fitted_through_are_known_together() -> None:
    def prompt_ns(device, engine) -> float:
        return float(StepModel(device, engine, MODEL).step_ns(0, 0, 0, [(2048, 0)], 1, None))

    def spread(name: str, *, known_together: bool) -> float:
        device, alone = load_device(name), ENGINE.model_copy(update={"fitted_through": ""})
        engine = ENGINE if known_together else alone
        drawn = [prompt_ns(draw_device(device, 0, d), draw_engine(engine, 0, d)) for d in range(60)]
        return float(np.std(np.log(drawn)))

    assert ENGINE.fitted_through == "h100_sxm"
    assert spread("h100_sxm", known_together=True) < 0.9 * spread("h100_sxm", known_together=False)
    # Elsewhere the figure brings along what it was fitted through.
    assert spread("a100_sxm_80gb", known_together=True) > spread("a100_sxm_80gb", known_together=False)


def test_a_borrowed_lane_is_less_sure_than_its_own_and_one_of_another_architecture_least() -> None:
    def spread_of(name: str, symbol: str) -> float:
        device = load_device(name)
        drawn = [draw_lane(device, device.lane("gemm"), 0, draw).params[symbol] for draw in range(400)]
        return float(np.std(np.log(drawn)))

    assert load_device("h200_sxm").lane("gemm").level == "transferred_same_arch"
    assert load_device("mi300x").lane("gemm").level == "transferred_cross_arch"
    for symbol in ("eb", "ec", "t0_us"):
        assert spread_of("h100_sxm", symbol) < spread_of("h200_sxm", symbol) < spread_of("mi300x", symbol)


def test_a_what_if_shares_all_but_what_the_change_brings() -> None:
    faster = load_device({"base": "h100_sxm", "hbm_bandwidth": "x1.43"})
    same = load_device({"base": "h100_sxm", "hbm_bandwidth": "x1.0"})
    point = step_ns(faster) / step_ns(H100)
    ratios = [step_ns(draw_device(faster, 0, d)) / step_ns(draw_device(H100, 0, d)) for d in range(40)]
    assert np.std(np.log(ratios)) < 1.3 * WHATIF_PER_LOG.memory * math.log(1.43)
    assert abs(np.mean(ratios) / point - 1.0) < 0.02
    assert all(step_ns(draw_device(same, 0, d)) == step_ns(draw_device(H100, 0, d)) for d in range(4))


def test_a_what_if_is_the_less_sure_the_more_it_changes() -> None:
    def width(factor: float) -> float:
        device = load_device({"base": "h100_sxm", "hbm_bandwidth": f"x{factor}"})
        drawn = [draw_lane(device, device.lane("decode_attention"), 0, d).params["eb"] for d in range(400)]
        return float(np.std(np.log(drawn)))

    widths = [width(factor) for factor in (1.0, 1.1, 1.5, 2.0, 3.0)]
    assert widths == sorted(widths)
    assert widths[-1] ** 2 - widths[0] ** 2 == pytest.approx(
        (WHATIF_PER_LOG.memory * math.log(3)) ** 2, rel=0.2
    )
    assert width(1 / 2) == pytest.approx(width(2.0), rel=1e-9)


TRANSFERS = (
    ("a100_sxm_80gb", "h100_sxm"), ("h100_sxm", "a100_sxm_80gb"), ("h100_sxm", "b200_sxm"),
    ("b200_sxm", "h100_sxm"), ("a100_sxm_80gb", "b200_sxm"),
)  # fmt: skip
STEPS = (
    (1, 1024, 1024, [], 1), (32, 32 * 2048, 2048, [], 32), (128, 128 * 4096, 4096, [], 128),
    (0, 0, 0, [(2048, 0)], 1), (0, 0, 0, [(8192, 0)], 1),
)  # fmt: skip


def test_what_ifs_that_make_one_calibrated_device_another_hold_its_steps_in_their_intervals() -> None:
    """Three generations, each given the datasheet of another: what is predicted against what was fitted there."""
    held: list[bool] = []
    for name, other in TRANSFERS:
        target = load_device(other)
        figures = sourced_fields(target.datasheet)
        common = sourced_fields(load_device(name).datasheet).keys() & figures.keys() - {"hbm_type"}
        device = load_device({"base": name, **{key: figures[key].value for key in sorted(common)}})
        drawn = [StepModel(draw_device(device, 0, d), ENGINE, MODEL) for d in range(40)]
        truth = StepModel(target, ENGINE, MODEL)
        for step in STEPS:
            low, high = np.quantile([model.step_ns(*step) for model in drawn], (0.05, 0.95))
            held.append(bool(low <= truth.step_ns(*step) <= high))
    assert np.mean(held) >= 0.8


def test_versions_of_an_engine_share_their_draws() -> None:
    other = load_engine("vllm-0.23")
    for draw in range(4):
        ours, theirs = draw_engine(ENGINE, 0, draw), draw_engine(other, 0, draw)
        ratio = ours.engine_gemm_efficiency / ENGINE.engine_gemm_efficiency
        assert ratio == pytest.approx(theirs.engine_gemm_efficiency / other.engine_gemm_efficiency)


def test_correlated_numbers_have_the_correlation_asked_for() -> None:
    correlation = np.array([[1.0, -0.95, 0.3], [-0.95, 1.0, -0.2], [0.3, -0.2, 1.0]])
    z = np.array([[normal(0, draw, str(i)) for i in range(3)] for draw in range(4000)])
    mixed = np.array([correlated(correlation, each) for each in z])
    np.testing.assert_allclose(np.corrcoef(mixed.T), correlation, atol=0.05)
    np.testing.assert_allclose(mixed.std(axis=0), 1.0, atol=0.05)


def test_parameters_that_only_their_product_is_known_of_cancel_in_it() -> None:
    # Two lanes of equal standard errors: with ec and ct all but tied, ec / ct hardly moves.
    lane = replace(
        known(H100, stderr=0.2).lane("gemm"),
        params={"ec": 0.8, "ct": 3.0},
        stderr={"ec": 0.16, "ct": 0.6},
        correlation=((1.0, 0.999), (0.999, 1.0)),
        residual={"all": 0.0},
    )
    device = known(H100, stderr=0.2)
    ratios = [(p := draw_lane(device, lane, 0, d).params)["ec"] / p["ct"] for d in range(200)]
    alone = [draw_lane(device, lane, 0, d).params["ec"] for d in range(200)]
    assert np.std(np.log(ratios)) < 0.1 * np.std(np.log(alone))
    assert np.std(np.log(alone)) == pytest.approx(0.2, rel=0.2)


def test_a_lane_s_own_residual_comes_before_the_table_s() -> None:
    lane: Lane = H100.lane("gemm")
    assert residual_of(replace(lane, residual={}), "memory", "measured") == RESIDUAL["gemm"].memory
    assert residual_of(replace(lane, residual={"all": 0.07}), "memory", "measured") == 0.07
    stated = replace(lane, residual={"memory": 0.04, "compute": 0.06})
    assert [residual_of(stated, r, "measured") for r in ("memory", "compute")] == [0.04, 0.06]
    assert residual_of(replace(lane, residual={"small": 0.03, "large": 0.04}), "memory", "measured") == (
        pytest.approx(math.sqrt((0.03**2 + 0.04**2) / 2))
    )


def test_every_family_of_the_catalogue_has_a_row_in_the_table_of_residuals() -> None:
    families = {family for name in list_devices() for family in load_device(name).fitted}
    assert {kind_of(family) for family in families} <= set(RESIDUAL)
    assert all(Spread.flat(0.1).of(regime) == 0.1 for regime in REGIMES)


def test_whole_steps_that_were_served_and_seen_are_drawn_not_each_of_their_kernels() -> None:
    served = ENGINE.served
    assert served is not None

    def logs(name: str, sequences: int, draws: int = 120):
        device = load_device(name)
        batch = (sequences, sequences * 1000, 1000, (), sequences)
        known = StepModel(device, ENGINE, MODEL).step_ns(*batch)
        drawn = [
            StepModel(draw_device(device, 0, d, ENGINE), draw_engine(ENGINE, 0, d, device), MODEL).step_ns(
                *batch
            )
            for d in range(draws)
        ]
        return np.log(np.array(drawn) / known)

    for sequences in (1, 64):
        assert np.std(logs("h100_sxm", sequences)) == pytest.approx(served.spread, rel=0.25)
        assert abs(np.mean(logs("h100_sxm", sequences))) < 0.2 * served.spread
        assert np.std(logs("h200_sxm", sequences)) > 1.2 * np.std(
            logs("h100_sxm", sequences)
        )  # it is another board
    for name in ("a100_sxm_80gb", "b200_sxm"):  # nobody has shown their steps
        device = load_device(name)
        assert draw_device(device, 0, 3, ENGINE).lane("gemm") == draw_device(device, 0, 3).lane("gemm")
        assert draw_engine(ENGINE, 0, 3, device) == draw_engine(ENGINE, 0, 3)
    unseen = [("moe", "vllm"), ("allreduce", "vllm"), ("gemm", "sglang"), ("linear_fp8", "vllm")]
    for family, lane in unseen:
        assert draw_device(H100, 0, 3, ENGINE).lane(family, lane) == draw_device(H100, 0, 3).lane(
            family, lane
        )
