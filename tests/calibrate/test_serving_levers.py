"""Held: which served points make a pair, host time from fit rows alone, and what the tables say of it."""

from __future__ import annotations

import numpy as np
import pytest
from membound.benchmarks.serving_levers import Point, device_lines, group_lines, host_s, mixture_lines, off
from membound.calibrate.serving.run import Label, ServedRun, scenario_of
from membound.hwmodels.engine import load_engine


def point(
    part: str = "judge",
    gpu: str = "H100-SXM-80GB",
    version: str = "0.19.0",
    *,
    tp: int = 4,
    users: int = 8,
    predicted: float = 0.010,
    measured: float = 0.012,
    present: bool = True,
) -> Point:
    scenario = scenario_of(
        {
            "device": "h100_sxm" if gpu.startswith("H100") else "b200_sxm",
            "model": "minimax-m2.5",
            "engine": "vllm-0.19",
            "parallelism": {"tensor_parallel_size": tp},
            "workload": {
                "arrivals": {"kind": "closed_loop", "concurrency": users},
                "requests": 2 * users,
                "input_tokens": 64,
                "output_tokens": 8,
            },
        }
    )
    label = Label(f"{gpu}-{tp}-{users}", gpu, "MiniMaxAI/MiniMax-M2.5", f"vllm {version}", part, "points")
    run = ServedRun(label, scenario, {"tpot_mean": measured}, concurrency=users)
    return Point(run, predicted, measured, mixture=True, present=present)


def test_host_time_has_the_least_mean_error_of_all() -> None:
    fitted = [
        point("fit", predicted=p, measured=m)
        for p, m in ((0.010, 0.011), (0.008, 0.0082), (0.02, 0.0235), (0.03, 0.036), (0.005, 0.0066))
    ]

    def error(added: float) -> float:
        return float(np.abs(off((e.predicted + added for e in fitted), (e.measured for e in fitted))).mean())

    best = host_s(fitted)
    assert error(best) <= min(error(added) for added in np.linspace(0.0, 0.01, 201)) + 1e-9


def test_host_time_is_not_negative() -> None:
    fitted = [point("fit", predicted=0.012, measured=0.010)]
    assert host_s(fitted) == -load_engine("vllm-0.19").step.host_exposed_s.value


def test_host_time_comes_from_fit_rows_of_the_same_gpu_and_version_alone() -> None:
    fitted = point("fit", tp=2, predicted=0.010, measured=0.012)
    same = point(predicted=0.020, measured=0.022)
    other = point(version="0.20.0", predicted=0.020, measured=0.022)
    lines = list(mixture_lines([fitted, same, other], "judge"))
    nothing, host = lines[-2:]
    assert nothing.split()[:3] == ["nothing", "fitted", "2"]
    assert host.split()[:4] == ["host", "time", "fitted", "1"]
    assert host.split()[4] == "0.0"
    assert host.endswith("met")


def test_a_mixture_without_a_lane_of_its_own_is_not_judged() -> None:
    assert "no points" in "\n".join(mixture_lines([point(present=False)], "judge"))


@pytest.mark.parametrize(("predicted", "verdict"), [(0.021, "met"), (0.030, "MISSED")])
def test_a_ratio_of_groups_is_of_points_that_differ_in_nothing_else(predicted: float, verdict: str) -> None:
    found = [
        point(tp=2, predicted=predicted, measured=0.020),
        point(tp=4, predicted=0.010, measured=0.010),
        point(tp=4, users=16, predicted=0.5, measured=0.010),
        point(tp=2, version="0.20.0", predicted=0.5, measured=0.010),
    ]
    last = list(group_lines(found, "judge"))[-1]
    assert last.split()[:2] == ["all", "1"]
    assert last.endswith(verdict)


def test_a_ratio_of_devices_is_between_versions_too_and_a_fit_row_may_be_its_base() -> None:
    found = [
        point("fit", "H100-SXM-80GB", "0.18.0", predicted=0.010, measured=0.010),
        point("judge", "B200-SXM", "0.19.0", predicted=0.006, measured=0.005),
        point("judge", "B200-SXM", "0.19.0", tp=2, predicted=0.006, measured=0.005),
    ]
    title, line = device_lines(found, "judge", 0)
    assert "H100 to B200" in title
    assert line.split()[:3] == ["all", "1", "20.0"]
    assert line.endswith("MISSED")
    title, line = device_lines(found[:1], "judge", 0)
    assert line.endswith("no points")
