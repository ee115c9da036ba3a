"""Live validation without a live run: step parameters are recovered, files mean what was meant, figures add up."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from membound.calibrate.engineprofile import with_step
from membound.calibrate.errors import CalibrationError
from membound.calibrate.liveloads import SETUPS, scenario_of, sized, write_files
from membound.calibrate.livereport import LiveReport, LoadFigures, LoadReport, figures_of
from membound.calibrate.livesteps import StepFit, fit_steps, step_seconds
from membound.calibrate.reference_engine import ServedStep
from membound.hwmodels.device import DeviceProfile, load_device
from membound.hwmodels.engine import EngineProfile, load_engine
from membound.hwmodels.model import load_model
from membound.sim.run import make_allocator, simulate, size_pool
from membound.sim.scenario.resolve import resolve

NOTHING = {
    "host_exposed_s": 0.0,
    "host_per_seq_s": 0.0,
    "engine_gemm_efficiency": 1.0,
    "mixed_decode_factor": 1.0,
}


@pytest.fixture(scope="module")
def device() -> DeviceProfile:
    return load_device("h100_sxm")


@pytest.fixture(scope="module")
def engine() -> EngineProfile:
    return with_step(load_engine("vllm-0.24"), NOTHING, "test")


def steps_of(n: int) -> list[ServedStep]:
    """Return compositions of mostly decodes and of mostly prompts, times unknown."""
    rng = np.random.default_rng(1)
    found: list[ServedStep] = []
    for i in range(n):
        decodes = tuple(rng.integers(10, 2000, rng.integers(1, 60)).tolist())
        prefill = ((int(rng.integers(100, 4000)), 0),) if i % 3 == 0 else ()
        tokens = dict.fromkeys(range(len(decodes) + len(prefill)), 1)
        found.append(ServedStep(0, 0, tokens, decodes, prefill, 0))
    return found


def timed(
    steps: list[ServedStep], device: DeviceProfile, truth: EngineProfile, noise: float
) -> list[ServedStep]:
    seconds = step_seconds(steps, device, truth, load_model("llama-3.1-8b"))
    seconds = seconds * np.random.default_rng(2).normal(1.0, noise, len(steps))
    return [replace(step, end_ns=round(1e9 * t)) for step, t in zip(steps, seconds, strict=True)]


def test_the_step_parameters_of_a_synthetic_engine_are_recovered(
    device: DeviceProfile, engine: EngineProfile
) -> None:
    known = {"host_exposed_s": 2e-3, "host_per_seq_s": 60e-6, "engine_gemm_efficiency": 0.84}
    truth = with_step(engine, known, "test")
    fit = fit_steps(timed(steps_of(300), device, truth, 0.05), device, engine, load_model("llama-3.1-8b"))
    assert fit.engine.host_exposed_s == pytest.approx(2e-3, rel=0.1)
    assert fit.engine.host_per_seq_s == pytest.approx(60e-6, rel=0.1)
    assert fit.engine.engine_gemm_efficiency == pytest.approx(0.84, abs=0.03)
    assert fit.mape == pytest.approx(0.05 * (2 / np.pi) ** 0.5, rel=0.2)
    assert abs(fit.bias) < 0.01, "seconds add up, whatever the noise"
    assert fit.before < -0.1


def test_times_are_never_negative(device: DeviceProfile, engine: EngineProfile) -> None:
    slower = with_step(engine, {"host_exposed_s": 0.5e-3}, "test")
    steps = timed(steps_of(60), device, engine, 0.02)
    fit = fit_steps(steps, device, slower, load_model("llama-3.1-8b"))
    assert min(fit.engine.host_exposed_s, fit.engine.host_per_seq_s) >= 0.0


def test_few_steps_are_refused(device: DeviceProfile, engine: EngineProfile) -> None:
    with pytest.raises(CalibrationError, match="5 steps"):
        fit_steps(timed(steps_of(5), device, engine, 0.0), device, engine, load_model("llama-3.1-8b"))


@pytest.mark.parametrize("kind", SETUPS)
def test_the_files_that_a_scenario_names_read_back_as_what_was_meant(
    kind: str, device: DeviceProfile, engine: EngineProfile, tmp_path: Path
) -> None:
    setup = sized(SETUPS[kind], device, engine)
    files = write_files(tmp_path, setup, device, engine)
    closed = {"kind": "closed_loop", "concurrency": 3}
    resolved = resolve(scenario_of(setup, files, "load", closed, 9, 0, setup.judged))
    assert resolved.device == device
    assert resolved.engine == engine
    assert replace(resolved.model, id="live") == setup.model
    assert not resolved.scheduler.async_scheduling
    assert not resolved.kv_cache.enable_prefix_caching
    record = simulate(resolved).record
    assert record.n_requests == 9
    assert record.kv["num_gpu_blocks"] == setup.num_blocks + 1
    assert make_allocator(resolved, size_pool(resolved)).num_blocks == setup.num_blocks
    assert setup.judged.prompts[1] + setup.judged.answers[1] <= setup.max_model_len
    assert setup.prefilling.prompts[1] + setup.prefilling.answers[1] <= setup.max_model_len


def test_figures_are_means_over_requests() -> None:
    found = figures_of(
        np.array([0, 10**9]), np.array([10**9, 3 * 10**9]), np.array([3 * 10**9, 3 * 10**9]), np.array([5, 1]),
        steps=4,
    )  # fmt: skip
    assert found.tokens_per_s == pytest.approx(2.0)
    assert found.ttft_s == pytest.approx(1.5)
    assert found.tpot_s == pytest.approx(0.5), "an answer of one token has no time between tokens"


def test_a_report_says_error_noise_and_verdict(engine: EngineProfile) -> None:
    def figures(tokens_per_s: float, tpot_s: float) -> LoadFigures:
        return LoadFigures(tokens_per_s, 1.0, 0.1, tpot_s, 10.0, 20, 100)

    served = (figures(95.0, 0.010), figures(105.0, 0.010))
    load = LoadReport("closed loop", figures(104.0, 0.0095), figures(120.0, 0.010), served)
    fit = StepFit(engine, 100, 0.05, 0.0, -0.2)
    report = LiveReport("cpu", "CPU time", load_model("llama-3.2-1b"), fit, (load,), 60.0)
    throughput, tpot, ttft = report.comparisons
    assert throughput.error == pytest.approx(0.04)
    assert throughput.at_first == pytest.approx(0.2)
    assert throughput.noise == pytest.approx(0.1)
    assert tpot.error == pytest.approx(-0.05)
    assert ttft.error == 0.0
    assert report.within()
    assert not report.within(0.03)
    assert "within the bars" in report.describe()
    assert json.loads(json.dumps(report.to_dict()))["comparisons"][0]["repeats"] == [95.0, 105.0]
    rows = list(csv.DictReader(io.StringIO(report.to_csv())))
    assert [row["metric"] for row in rows] == ["throughput", "mean TPOT", "mean TTFT"]
