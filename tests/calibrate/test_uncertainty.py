"""Predictive intervals: they hold what they say they hold, and widen for the reasons they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.calibrate.errors import CalibrationError
from membound.calibrate.fit.base import FitResult, Parameter, hull_of, robust_fit
from membound.calibrate.fit.beyond import growth_beyond
from membound.calibrate.localspread import local_factor, spread_90
from membound.calibrate.table import KernelTable
from membound.calibrate.uncertainty import (
    Predictive,
    conformal_scale,
    coverage,
    coverage_figures,
    hull_distance,
    of_fit,
    of_lane,
)
from membound.hwmodels.device import load_device
from membound.hwmodels.spreads import beyond_per_log
from membound.hwmodels.steptypes import chip_of
from membound.hwmodels.timing.gemm import GemmParams, gemm_time

SMALL, LARGE = 0.03, 0.12
"""Noise of log(time) of short and long calls in the synthetic truth."""


def model_of(x: np.ndarray):
    def model(p: Mapping[str, float]) -> np.ndarray:
        return p["t0_us"] + x / p["eb"]

    return model


def regimes_of(x: np.ndarray) -> np.ndarray:
    return np.where(x < 30.0, "latency", "bandwidth")


def truth(seed: int, n: int = 400, low: float = 1.0, high: float = 1000.0):
    rng = np.random.default_rng(seed)
    x = np.exp(rng.uniform(np.log(low), np.log(high), n))
    noise = np.where(x < 30.0, SMALL, LARGE) * rng.standard_normal(n)
    return x, model_of(x)({"t0_us": 4.0, "eb": 0.8}) * np.exp(noise)


def fitted(x: np.ndarray, measured: np.ndarray) -> FitResult:
    params = [Parameter("t0_us", 5.0, 0.3), Parameter("eb", 0.7, 0.3)]
    return robust_fit(
        model_of(x), params, measured, family="line", regimes=regimes_of(x), hull=hull_of(x=x), scale=0.08
    )


def predicted(fit: FitResult, x: np.ndarray) -> Predictive:
    return of_fit(fit, model_of(x), regimes=regimes_of(x), axes={"x": x})


def test_nine_tenths_of_unseen_calls_are_inside_in_every_regime() -> None:
    inside: list[np.ndarray] = []
    for seed in range(10):
        fit = fitted(*truth(seed, 150))
        x, measured = truth(1000 + seed, 400)
        low, high = predicted(fit, x).interval()
        inside.append(np.stack([(measured >= low) & (measured <= high), x < 30.0], axis=1))
    held, short = np.concatenate(inside).T
    for part in (short, ~short):
        assert 0.85 < held[part].mean() < 0.95


@given(nominal=st.sampled_from([0.5, 0.8, 0.9, 0.98]), seed=st.integers(0, 5))
@settings(max_examples=12, deadline=None)
def test_a_nominal_share_is_what_is_covered(nominal: float, seed: int) -> None:
    x, measured = truth(50 + seed, 2000)
    share = coverage(measured, predicted(fitted(*truth(seed)), x).interval(nominal))
    assert share == pytest.approx(nominal, abs=0.05)


def test_the_width_grows_with_the_residual_the_standard_error_and_the_nominal_share() -> None:
    x, measured = truth(0)
    fit = fitted(x, measured)

    def half(fit: FitResult, nominal: float = 0.9) -> float:
        return float(np.median(predicted(fit, x).half_width(nominal)))

    noisier = replace(fit, residual_sd={name: 2 * sd for name, sd in fit.residual_sd.items()})
    less_known = replace(
        fit, values={name: replace(value, stderr=20 * value.stderr) for name, value in fit.values.items()}
    )
    assert half(fit, 0.8) < half(fit) < min(half(noisier), half(less_known))


def test_without_noise_or_doubt_the_interval_has_no_width() -> None:
    x, measured = truth(0)
    fit = fitted(x, measured)
    certain = replace(
        fit,
        residual_sd=dict.fromkeys(fit.residual_sd, 0.0),
        residual_bias={},
        values={name: replace(value, stderr=0.0) for name, value in fit.values.items()},
    )
    low, high = predicted(certain, x).interval()
    assert np.array_equal(low, high)
    assert np.array_equal(low, model_of(x)(fit.params))


def test_outside_the_hull_the_interval_widens_with_the_distance() -> None:
    fit = fitted(*truth(0))
    x = np.array([500.0, 1000.0, 2000.0, 4000.0, 16000.0])
    found = predicted(replace(fit, hull={"x": (1.0, 1000.0)}), x)
    half = found.half_width()
    assert found.inside.tolist() == [True, True, False, False, False]
    assert half[0] == pytest.approx(half[1], rel=0.05)
    assert np.all(np.diff(half[1:]) > 0.0)
    assert hull_distance({"a": (1, 10), "b": (1, 10)}, {"a": np.array([20.0]), "b": np.array([20.0])}, 1) == (
        pytest.approx(np.sqrt(2) * np.log(2))
    )


def test_how_fast_errors_grow_beyond_is_shown_by_the_long_contexts_that_are_there() -> None:
    keys = np.tile(2.0 ** np.arange(12), 20)
    noise = np.exp(0.03 * np.random.default_rng(0).standard_normal(len(keys)))
    params = [Parameter("a", 1.0, 1.0), Parameter("b", 5.0, 1.0)]

    def shown(bend: float, rows: int | None = None) -> float | None:
        times = (5.0 + keys + bend * keys**2) * noise
        table = KernelTable.of(
            {"op": ["attn_decode"] * len(keys), "kv_len": keys.astype(int), "latency_us": times}
        )
        table = table if rows is None else table.take(np.arange(rows))

        def model(rows: KernelTable):
            return lambda p: p["b"] + p["a"] * rows["kv_len"]

        def fit(rows: KernelTable, starts: list[Parameter]) -> FitResult:
            return robust_fit(model(rows), starts, rows.latency_us, family="decode_attention")

        return growth_beyond(
            table,
            table["kv_len"],
            params,
            fit,
            lambda found, far: of_fit(found, model(far)),
            shares=(0.25, 0.0625),
        )

    of_a_right_form, of_a_wrong_one = shown(0.0), shown(2e-4)
    assert of_a_right_form == pytest.approx(0.5 * beyond_per_log("decode_attention"), abs=0.1)
    assert of_a_wrong_one is not None
    assert of_a_wrong_one > 2.0 * of_a_right_form
    assert shown(0.0, rows=3) is None


def test_a_conformal_factor_mends_a_width_that_was_wrong() -> None:
    x, measured = truth(3, 300)
    fit = fitted(x, measured)
    wrong = replace(fit, residual_sd={name: sd / 3 for name, sd in fit.residual_sd.items()})
    held_x, held = truth(4, 300)
    scale = conformal_scale(held, predicted(wrong, held_x))
    new_x, new = truth(5, 2000)
    assert scale > 2.0
    assert coverage(new, predicted(wrong, new_x).interval()) < 0.6
    assert coverage(new, predicted(wrong, new_x).interval(scale=scale)) == pytest.approx(0.9, abs=0.05)


def test_a_conformal_factor_needs_rows_for_its_rank() -> None:
    x, measured = truth(3, 8)
    with pytest.raises(CalibrationError, match="8 rows to set a 90 % interval by; allowed: 9 or more"):
        conformal_scale(measured, predicted(fitted(*truth(0)), x))


def test_figures_of_a_group_tell_inside_from_outside_and_of_nothing_there_are_none() -> None:
    fit = replace(fitted(*truth(0)), hull={"x": (1.0, 100.0)})
    x, measured = truth(9, 1000)
    found = coverage_figures(measured, predicted(fit, x))
    assert 0.85 < found["coverage_90"] < 0.97
    assert found["coverage_90_outside"] > 0.85  # widened: a form that is right is over-covered there
    nothing = coverage_figures(measured[:0], predicted(fit, x[:0]))
    assert set(nothing.values()) == {None}


def uneven(seed: int, n: int = 1500):
    """Return calls of one regime whose noise grows with their size."""
    rng = np.random.default_rng(seed)
    x = np.exp(rng.uniform(0.0, np.log(1000.0), n))
    noise = 0.02 * x**0.3 * rng.standard_normal(n)
    return x, model_of(x)({"t0_us": 4.0, "eb": 0.8}) * np.exp(noise)


def test_within_a_regime_the_interval_is_as_wide_as_residuals_are_there() -> None:
    x, measured = uneven(0)
    params = [Parameter("t0_us", 5.0, 0.3), Parameter("eb", 0.7, 0.3)]
    one = np.full(len(x), "all")
    fit = robust_fit(
        model_of(x), params, measured, family="line", regimes=one, hull=hull_of(x=x), axes={"x": x}
    )
    new, held = uneven(1)

    def inside(fit: FitResult) -> tuple[np.ndarray, np.ndarray]:
        found = of_fit(fit, model_of(new), regimes=one, axes={"x": new})
        low, high = found.interval()
        return (held >= low) & (held <= high), found.half_width()

    (even, flat), (local, width) = inside(replace(fit, local={})), inside(fit)
    thirds = [new < 10.0, (new >= 10.0) & (new < 100.0), new >= 100.0]
    assert max(even[part].mean() for part in thirds) > 0.97  # one width for all: too wide here,
    assert min(even[part].mean() for part in thirds) < 0.80  # too narrow there
    assert all(0.85 < local[part].mean() < 0.95 for part in thirds)
    assert np.median(width) < np.median(flat)


def test_what_is_known_better_at_the_edge_is_not_so_far_outside() -> None:
    x, terms = np.array([100.0, 100.0, 100.0]), {"x": np.ones(3)}
    away = np.array([0.0, 1.0, 50.0])
    regimes = np.full(len(x), "all")
    assert local_factor({"x": -1.0}, regimes, terms).tolist() == pytest.approx([np.exp(-1.0)] * 3)
    assert local_factor({"x": -1.0}, regimes, terms, away) == pytest.approx(
        [np.exp(-1.0), np.exp(-np.exp(-1.0)), 1.0]
    )
    assert local_factor({"x": 1.0}, regimes, terms, away) == pytest.approx(
        [np.e] * 3
    )  # what is worse stays so


def test_few_rows_have_one_spread_a_regime() -> None:
    x, measured = uneven(0, 100)
    params = [Parameter("t0_us", 5.0, 0.3), Parameter("eb", 0.7, 0.3)]
    fit = robust_fit(model_of(x), params, measured, family="line", hull=hull_of(x=x), axes={"x": x})
    assert fit.local == {}


def test_the_spread_is_that_of_kinds_which_the_fit_had_not_seen() -> None:
    rng = np.random.default_rng(5)
    kind = rng.integers(0, 6, 300)
    x, measured = truth(5, 300)
    measured *= np.exp(0.2 * rng.standard_normal(6))[kind]  # every kind is off by something of its own
    params = [Parameter("t0_us", 5.0, 0.3), Parameter("eb", 0.7, 0.3)]

    def fit(rows: np.ndarray, **options) -> FitResult:
        return robust_fit(model_of(x[rows]), params, measured[rows], family="line", scale=0.2, **options)

    every = np.ones(300, dtype=bool)
    unseen = np.empty(300)
    for each in range(6):
        own = kind == each
        unseen[own] = np.log(model_of(x[own])(fit(~own).params) / measured[own])
    seen, left_out = fit(every).residual_sd["all"], fit(every, alike=(kind,)).residual_sd["all"]
    assert seen < left_out == pytest.approx(spread_90(unseen), rel=0.1)


def gemm_model(device):
    m = np.array([1.0, 16.0, 256.0, 4096.0])
    chip = chip_of(device)

    class Values:
        def __init__(self, params):
            self.params = params

    return lambda p: np.asarray(gemm_time(chip, GemmParams.from_lane(Values(p)), m, 4096.0, 14336.0).seconds)


@pytest.mark.parametrize("name", ["h200_sxm", "l4", "mi300x", "tpu_v5e"])
def test_a_borrowed_lane_is_wider_than_where_it_was_fitted(name: str) -> None:
    device = load_device(name)
    lane = device.lane("gemm")
    origin = load_device(lane.device)
    there = of_lane(origin, origin.lane("gemm"), gemm_model(device)).half_width()
    here = of_lane(device, lane, gemm_model(device)).half_width()
    assert np.all(here > there)


def test_starting_values_are_as_wide_as_they_proved_on_the_tables() -> None:
    a100 = load_device("a100_sxm_80gb")
    prior = replace(a100.lane("gemm"), level="prior", correlation=None, residual={})
    fitted = a100.fitted["gemm"]["vllm"].model_copy(
        update={"level": "prior", "correlation": None, "residual": {}}
    )
    device = a100.model_copy(update={"fitted": {**a100.fitted, "gemm": {"vllm": fitted}}})
    half = of_lane(device, prior, gemm_model(device)).half_width()
    assert np.all((half > 0.12) & (half < 0.35))
