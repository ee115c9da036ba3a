"""Intervals of a run: the same requests, served by hardware as it might be."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from membound.hwmodels.errors import MemboundError
from membound.sim.draws import Draws, headline, one_draw, run_draws, simulate_draws, with_interval
from membound.sim.output.output import to_json
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario, resolve

BASE = {
    "device": "h100_sxm",
    "model": "llama-3.1-8b",
    "engine": "vllm-0.24",
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 6},
        "input_tokens": 300,
        "output_tokens": 12,
        "requests": 25,
    },
    "slo": {"classes": {"default": {"ttft_s": 0.5}}},
}


def resolved(**changes):
    return resolve(parse_scenario({**BASE, **changes}))


@pytest.fixture(scope="module")
def case():
    return resolved()


@pytest.fixture(scope="module")
def drawn(case) -> Draws:
    return run_draws(case, 24, jobs=1)


def sure(case):
    """Return the scenario on hardware whose every figure is known exactly."""
    fitted = {
        family: {
            name: lane.model_copy(
                update={
                    "level": "measured",
                    "residual": {"all": 0.0},
                    "parameters": {
                        symbol: parameter.model_copy(update={"stderr": 0.0})
                        for symbol, parameter in lane.parameters.items()
                    },
                }
            )
            for name, lane in lanes.items()
        }
        for family, lanes in case.device.fitted.items()
    }
    step = {
        name: getattr(case.engine.step, name).model_copy(update={"stderr": 0.0})
        for name in type(case.engine.step).model_fields
    }
    step_section = case.engine.step.model_copy(update=step)
    engine = case.engine.model_copy(update={"step": step_section, "served": None})
    return replace(case, device=case.device.model_copy(update={"fitted": fitted}), engine=engine)


def test_what_is_known_exactly_has_intervals_of_no_width_at_the_point_result(case) -> None:
    certain = sure(case)
    point = headline(simulate(certain).record)
    assert run_draws(certain, 4, jobs=1).interval() == {name: (value, value) for name, value in point.items()}


def test_the_point_result_is_that_of_a_run_without_draws(case) -> None:
    with_draws = simulate_draws(case, 4, jobs=1).summary()
    without = simulate(case).summary()
    for summary in (with_draws, without):
        summary["confidence"] = {"level": summary["confidence"]["level"]}
    assert to_json(with_draws) == to_json(without)


def test_intervals_are_the_same_with_any_number_of_processes(case, drawn) -> None:
    two = run_draws(case, 24, jobs=2)
    assert two.metrics.keys() == drawn.metrics.keys()
    assert all(np.array_equal(two.metrics[name], values) for name, values in drawn.metrics.items())
    assert to_json(two.interval()) == to_json(run_draws(case, 24, jobs=1).interval())


def test_a_draw_does_not_depend_on_how_many_there_are(case, drawn) -> None:
    assert one_draw(case, 7) == {name: values[7] for name, values in drawn.metrics.items()}


def test_every_headline_figure_has_an_interval_that_holds_the_point(case, drawn) -> None:
    summary = with_interval(simulate(case), drawn).summary()
    interval = summary["confidence"]["interval"]
    latencies = ("ttft_s", "client_ttft_s", "tpot_s", "itl_s", "e2e_s")
    for metric in (
        *(f"latency.{name}.{at}" for name in latencies for at in ("mean", "p50", "p99")),
        "throughput.output_tokens_per_s", "time_share.hbm_weights", "time_share.idle", "utilization.mbu",
        "utilization.gpu_util", "cost.usd_per_million_output_tokens", "slo.attainment",
    ):  # fmt: skip
        part = summary
        for key in metric.split("."):
            part = part[key]
        low, high = interval[metric]
        assert low <= part <= high
    assert summary["confidence"]["draws"] == 24
    assert interval["latency.e2e_s.mean"][1] > 1.02 * interval["latency.e2e_s.mean"][0]
    json.loads(to_json(summary))


def test_the_workload_is_common_to_all_draws(drawn) -> None:
    # Whatever the hardware, the same tokens are served: input per output is fixed.
    per_output = (
        drawn.metrics["throughput.input_tokens_per_s"] / drawn.metrics["throughput.output_tokens_per_s"]
    )
    np.testing.assert_allclose(per_output, 25.0, rtol=1e-12)


def test_a_scenario_over_itself_is_one_in_every_draw(case, drawn) -> None:
    ratio = run_draws(case, 24, jobs=2).ratio(drawn)
    assert set(ratio.interval().values()) == {(1.0, 1.0)}
    assert "latency.e2e_s.mean" in ratio.metrics


def test_a_what_if_is_surer_than_either_of_its_sides(drawn) -> None:
    faster = resolved(device={"base": "h100_sxm", "hbm_bandwidth": "x1.1"})
    low, high = run_draws(faster, 24, jobs=1).ratio(drawn).interval()["latency.tpot_s.mean"]
    alone_low, alone_high = drawn.interval()["latency.tpot_s.mean"]
    assert low <= headline(simulate(faster).record)["latency.tpot_s.mean"] / headline(
        simulate(resolved()).record
    )["latency.tpot_s.mean"] <= high  # fmt: skip
    assert high / low < 1.0 + 0.7 * (alone_high / alone_low - 1.0)


def test_intervals_hold_nine_tenths_of_further_draws() -> None:
    # 200 intervals from 32 lognormal draws each, tried on a further one: 90 % +- 2 % (one standard error).
    rng = np.random.default_rng(5)
    inside = 0
    for _ in range(400):
        values = rng.lognormal(0.0, 0.2, 33)
        low, high = Draws({"x": values[:32]}, 32).interval()["x"]
        inside += low <= values[32] <= high
    assert 0.86 < inside / 400 < 0.94


def test_a_closed_loop_waits_for_the_drawn_client() -> None:
    load = {**BASE["workload"], "arrivals": {"kind": "closed_loop", "concurrency": 2}, "requests": 12}
    closed = resolved(workload=load)
    certain = replace(sure(closed), engine=closed.engine)  # only the step parameters are unsure
    durations = run_draws(certain, 4, jobs=1).metrics["throughput.duration_s"]
    assert len(set(durations.tolist())) == 4


def test_few_draws_are_said_to_be_few(case) -> None:
    warned = simulate_draws(case, 2, jobs=1).summary()["confidence"]["warnings"]
    assert any(note.startswith("2 draws cannot resolve a 90 % interval") for note in warned)


@pytest.mark.parametrize(("draws", "jobs"), [(0, None), (1, None), (-3, None), (10**6, None), (4, 0)])
def test_numbers_that_cannot_be_are_refused_in_one_line(case, draws, jobs) -> None:
    with pytest.raises(MemboundError, match="allowed") as caught:
        run_draws(case, draws, jobs=jobs)
    assert "\n" not in str(caught.value)


def test_sides_of_a_ratio_have_as_many_draws(drawn) -> None:
    with pytest.raises(MemboundError, match="as many"):
        drawn.ratio(Draws(drawn.metrics, 3))
