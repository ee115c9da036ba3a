"""Experts: a fit recovers the parameters it was made from, routing included, and leaves models out."""

from __future__ import annotations

import numpy as np
import pytest
from membound.calibrate.errors import CalibrationError
from membound.calibrate.fit.moe import (
    common_shapes,
    expert_rows,
    fit_moe_least_squares,
    models_of,
    timed_routing,
)
from membound.calibrate.table import KernelTable
from membound.hwmodels.device import load_device
from membound.hwmodels.routing import BalancedStride, GroupLimited, PowerLaw
from membound.hwmodels.steptypes import chip_of

TRUTH = {
    "t0_us": 20.0, "t1_us": 10.0, "tc": 20.0, "te_ns": 15.0, "ec": 0.55, "ct": 60.0, "k0": 200.0, "eb": 0.88,
    "q": 2.6, "sat": 2.5, "oe": 0.25, "wq": 0.3, "xl": 1.2, "xg": 1.3, "tr_ns": 0.1, "al": 1.8, "l2f": 0.4,
    "l2b": 2.0, "allrows": 1.0,
}  # fmt: skip
MODELS = ((2048, 768, 8, 128), (4096, 1536, 8, 128), (4096, 14336, 2, 8), (6144, 2560, 8, 160))
H100 = chip_of(load_device("h100_sxm"))


def table(rows: int = 500, dtype: str = "bfloat16", seed: int = 1) -> KernelTable:
    """Return shapes as the public tables have them, without times."""
    rng = np.random.default_rng(seed)
    models = rng.choice(len(MODELS), rows)
    hidden, inter, top_k, experts = np.array(MODELS)[models].T
    return KernelTable.of(
        {
            "op": ["moe"] * rows,
            "dtype": [dtype] * rows,
            "num_tokens": 2 ** rng.integers(0, 14, rows),
            "hidden": hidden,
            "inter": inter,
            "topk": top_k,
            "n_experts": experts,
            "tp": 2 ** rng.integers(0, 3, rows),
            "ep": 2 ** rng.integers(0, 4, rows),
            "distribution": rng.choice(["balanced", "power_law_1.01", "power_law_1.2"], rows),
            "latency_us": [1.0] * rows,
        }
    )


def timed(shapes: KernelTable, noise: float, seed: int = 2) -> KernelTable:
    """Return the shapes with times of the true parameters under log-normal noise."""
    us = expert_rows(shapes).predict_us(H100, TRUTH)
    us = us * np.exp(np.random.default_rng(seed).normal(0.0, noise, len(us)))
    return KernelTable.of({**shapes.columns, "latency_us": us})


def test_a_fit_recovers_what_made_the_times_and_predicts_a_model_it_has_not_seen() -> None:
    data = timed(table(), 0.03)
    held = models_of(data) == "4096x1536 top 8 of 128"
    fit = fit_moe_least_squares(data.where(~held), H100, all_rows=True, evaluations=12)
    unseen = data.where(held)
    error = np.abs(expert_rows(unseen).predict_us(H100, fit.params) / timed(unseen, 0.0).latency_us - 1.0)
    assert float(error.mean()) < 0.03
    for name in ("t0_us", "eb", "ec"):
        assert fit.values[name].identified
        assert fit.params[name] == pytest.approx(TRUTH[name], rel=0.25)
    assert fit.residual_sd["tokens>512"] == pytest.approx(0.03, rel=0.3)


def test_the_wrong_routing_costs_accuracy() -> None:
    data = timed(table(300), 0.0)
    as_if_even = KernelTable.of({**data.columns, "distribution": ["balanced"] * len(data)})
    us = expert_rows(as_if_even).predict_us(H100, TRUTH)
    skewed = data["distribution"] == "power_law_1.2"
    assert float(np.mean(np.abs(us / data.latency_us - 1.0)[skewed])) > 0.05


def test_distributions_are_the_routings_of_the_simulator() -> None:
    assert timed_routing("balanced") == BalancedStride()
    assert timed_routing("power_law_1.2") == timed_routing("power_law_1.2", "vllm 0.24.0") == PowerLaw(1.2)
    assert timed_routing("balanced", "vllm 0.24.0", grouped=True) == GroupLimited(BalancedStride())
    assert timed_routing("balanced", "trtllm 1.3.0rc20", grouped=True) == BalancedStride()
    assert timed_routing("power_law_1.2", "trtllm 1.0.0") == PowerLaw(1.2, heaped=True)
    for name in ("zipf", "power_law_x", ""):
        with pytest.raises(CalibrationError, match="allowed: balanced, power_law_<exponent>"):
            timed_routing(name)


def test_rows_of_several_or_unknown_dtypes_are_refused_in_one_line() -> None:
    rows = table(4)
    mixed = KernelTable.of({**rows.columns, "dtype": ["bfloat16", "fp8", "fp8", "fp8"]})
    with pytest.raises(CalibrationError, match="found: bfloat16, fp8"):
        expert_rows(mixed)
    with pytest.raises(CalibrationError, match="unknown dtype of experts 'fp3'"):
        expert_rows(table(4, dtype="fp3"))


def test_common_shapes_are_at_most_sixteen_ranks_and_not_too_narrow() -> None:
    rows = KernelTable.of(
        {
            "op": ["moe"] * 3,
            "tp": [1, 8, 32],
            "ep": [8, 1, 1],
            "inter": [512, 1024, 8192],
            "latency_us": [1.0] * 3,
        }
    )
    assert common_shapes(rows).tolist() == [True, False, False]
