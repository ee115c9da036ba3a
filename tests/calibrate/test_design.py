"""What a design promises: a budget kept, shapes spread evenly, points that no fit may see, the same plan for a seed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.calibrate.design import Plan, design, fits_memory, lane_of, plan_from, point_seconds
from membound.calibrate.errors import CalibrationError
from membound.calibrate.machine import machine_of
from membound.calibrate.spaces import SPACES
from membound.kernels.cost import cost_of

H100 = machine_of("h100_sxm")
CPU = machine_of("cpu")


@pytest.fixture(scope="module")
def plan() -> Plan:
    return design(H100, 300.0)


def of_lane(plan: Plan, lane: str) -> list:
    return [point for point in plan.points if lane_of(point.shape) == lane]


@given(st.sampled_from(["cpu", "l40s"]), st.floats(0.5, 200.0), st.integers(0, 5))
@settings(max_examples=6)
def test_a_plan_keeps_its_budget_and_names_each_point_once(device: str, budget_s: float, seed: int):
    plan = design(machine_of(device), budget_s, seed)
    assert plan.seconds <= budget_s
    assert len({point.id for point in plan.points}) == len(plan.points)


def test_five_minutes_on_a_gpu_hold_the_counts_that_the_fits_need(plan: Plan):
    new = Counter(lane_of(point.shape) for point in plan.points if point.role != "repeat")
    assert 80 <= new["gemm/torch_mm/bfloat16"] <= 160
    assert new["attn_decode/triton_paged/bfloat16"] >= 60
    assert 40 <= new["attn_prefill/torch_sdpa/bfloat16"] <= 60
    assert new["gemm/torch_scaled_mm/fp8"] >= 20


def test_a_minute_on_a_cpu_holds_enough_multiplications_and_decodes():
    new = Counter(lane_of(point.shape) for point in design(CPU, 60.0).points if point.role != "repeat")
    assert new["gemm/torch_mm/bfloat16"] >= 60
    assert new["attn_decode/torch_paged/bfloat16"] >= 50


def test_a_fifth_is_never_fitted_and_a_tenth_is_timed_again_later(plan: Plan):
    for lane in ("gemm/torch_mm/bfloat16", "attn_decode/triton_paged/bfloat16"):
        points = of_lane(plan, lane)
        roles = Counter(point.role for point in points)
        n = roles["fit"] + roles["held_out"]
        assert roles["held_out"] == round(0.2 * n)
        assert roles["repeat"] == round(0.1 * n)
        order = [point.id for point in points]
        again = [point for point in points if point.role == "repeat"]
        first = {point.id: point for point in points}
        for point in again:
            original = first[point.id.partition("#")[0]]
            assert original.role == "fit"
            assert original.shape == point.shape
            assert order.index(original.id) < order.index(point.id)


def test_the_shapes_that_pin_a_parameter_are_there_and_fitted(plan: Plan):
    gemms = [point for point in of_lane(plan, "gemm/torch_mm/bfloat16") if point.role == "fit"]
    sizes = {(p.shape.m, p.shape.n, p.shape.k) for p in gemms}
    assert (8192, 8192, 8192) in sizes  # the sustained rate
    assert min(m * n * k for m, n, k in sizes) <= 128**2  # the fixed time
    for m in (1, 8, 32):  # the bandwidth: weights beyond four times the cache
        assert any(a == m and 2 * n * k > 4 * H100.cache_bytes for a, n, k in sizes)
    assert any(k >= 16384 and m * n <= 64 * 256 for m, n, k in sizes)  # few blocks over a long k
    assert sum(128 <= m <= 1024 for m, _, _ in sizes) >= 20
    assert any(m & (m - 1) for m, _, _ in sizes)
    decodes = [point.shape for point in of_lane(plan, "attn_decode/triton_paged/bfloat16")]
    for below, above in ((0, 0.5), (0.7, 1.5), (4, math.inf)):
        filled = [s for s in decodes if below < s.batch * s.n_kv_heads / H100.units <= above]
        kv = [cost_of(s).kv_bytes / H100.cache_bytes for s in filled]
        assert min(kv) < 0.5
        assert max(kv) > 2.0
    prefills = [point.shape for point in of_lane(plan, "attn_prefill/torch_sdpa/bfloat16")]
    assert sum(shape.kv_len > shape.q_len for shape in prefills) >= 5


def test_each_next_shape_lies_far_from_those_before(plan: Plan):
    points = of_lane(plan, "gemm/torch_mm/bfloat16")
    places = np.array([SPACES["gemm"].place(point.shape) for point in points if point.role != "repeat"])
    rng = np.random.default_rng(0)
    drawn = [SPACES["gemm"].draw(H100, ("gemm", "torch_mm", "bfloat16"), rng) for _ in range(len(places))]
    random = np.array([SPACES["gemm"].place(shape) for shape in drawn])

    def closest(x: np.ndarray) -> float:
        distance = np.linalg.norm(x[:, None] - x[None], axis=2) + 1e9 * np.eye(len(x))
        return float(np.quantile(distance.min(axis=1), 0.1))

    assert closest(places) > 1.3 * closest(random)


def test_the_first_half_of_a_plan_has_half_of_every_large_lane(plan: Plan):
    half = plan.points[: len(plan.points) // 2]
    for lane in (
        "gemm/torch_mm/bfloat16",
        "attn_decode/triton_paged/bfloat16",
        "attn_prefill/torch_sdpa/bfloat16",
    ):
        share = sum(lane_of(point.shape) == lane for point in half) / len(of_lane(plan, lane))
        assert 0.35 < share < 0.6


def test_nothing_takes_more_memory_than_a_quarter_of_the_device():
    small = machine_of("rtx_4090")
    plan = design(small, 100.0)
    assert all(fits_memory(small, point.shape) for point in plan.points)
    assert max(cost_of(point.shape).hbm_bytes for point in plan.points) < small.memory_bytes / 4


def test_lanes_that_a_device_lacks_get_no_time_and_the_plan_says_why():
    from dataclasses import replace

    lanes = tuple(lane for lane in H100.lanes if lane[2] != "fp8")
    plan = design(replace(H100, lanes=lanes), 100.0, skipped={"gemm/torch_scaled_mm/fp8": "no fp8 here"})
    assert not of_lane(plan, "gemm/torch_scaled_mm/fp8")
    assert "skipped gemm/torch_scaled_mm/fp8: no fp8 here" in plan.describe()
    assert "gemm/torch_mm/bfloat16" in plan.describe()


def test_a_plan_is_the_same_for_a_seed_and_survives_its_file(plan: Plan):
    assert design(CPU, 5.0) == design(CPU, 5.0)
    assert design(CPU, 5.0, seed=1) != design(CPU, 5.0)
    assert plan_from(json.loads(json.dumps(plan.as_dict()))) == plan


def test_a_point_is_planned_to_take_its_calls(plan: Plan):
    point = max(plan.points, key=lambda each: each.seconds)
    once = H100.rough_seconds(point.shape.op, point.shape.dtype, cost_of(point.shape))
    assert point_seconds(H100, point.shape) > 10 * once


def test_an_unknown_device_and_a_budget_of_nothing_are_refused_in_one_line():
    with pytest.raises(
        CalibrationError, match=r"unknown device 'h10_sxm'.*nearest: 'h100_sxm'.*or cpu"
    ) as caught:
        machine_of("h10_sxm")
    assert "\n" not in str(caught.value)
    for budget_s in (0.0, -1.0, math.nan):
        with pytest.raises(CalibrationError, match="it must be more than 0"):
            design(CPU, budget_s)


def test_designing_needs_no_torch():
    script = (
        "import sys; sys.modules['torch'] = None; sys.modules['triton'] = None\n"
        "from membound.calibrate.design import design, machine_of\n"
        "print(len(design(machine_of('cpu'), 2.0).points))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 0
