"""An engine's step parameters come back from runs it served and from logs of its steps; bad input is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from membound.app.cli import main
from membound.calibrate.engineprofile import with_step, write_engine
from membound.calibrate.errors import CalibrationError
from membound.calibrate.serving.exports import served_export
from membound.calibrate.serving.fitengine import fit_engine
from membound.calibrate.serving.runs import served_run
from membound.calibrate.serving.table import Row
from membound.calibrate.widesteps import Axis, search, standard_errors
from membound.hwmodels.device import load_device
from membound.hwmodels.engine import EngineProfile, load_engine
from membound.hwmodels.model import load_model
from membound.hwmodels.stepmodel import StepModel
from membound.sim.output.output import write_result
from membound.sim.run import simulate
from membound.sim.scenario import Scenario

from .test_serving import RUN

TRUTH = {"host_exposed_s": 8e-4, "engine_gemm_efficiency": 0.74, "client_overhead_s": 6e-3}
SERVER = {
    "device": "h100_sxm",
    "model": "llama-3.1-8b",
    "engine": "vllm-0.23",
    "kv_cache": {"enable_prefix_caching": False},
}
Steps = list[tuple[float, list[list[int]]]]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the results of three loads that an engine of known parameters served."""
    folder = tmp_path_factory.mktemp("served")
    write_engine(with_step(load_engine("vllm-0.23"), TRUTH, "test"), folder / "truth.yaml")
    paths: list[Path] = []
    for rate in (2, 8, 16):
        load = {
            "arrivals": {"kind": "poisson", "rate_per_s": rate},
            "input_tokens": {"kind": "uniform", "low": 200, "high": 3000},
            "output_tokens": {"kind": "uniform", "low": 20, "high": 120},
            "requests": 30,
        }
        scenario = Scenario.model_validate(SERVER | {"engine": str(folder / "truth.yaml"), "workload": load})
        write_result(simulate(scenario).record, folder / str(rate))
        paths.append(folder / str(rate) / "vllm_bench.json")
    return paths


def test_parameters_come_back_from_the_runs_they_made(results: list[Path]) -> None:
    server = Scenario.model_validate(SERVER)
    found = fit_engine([served_export(path, server) for path in results])
    assert found.base.id == "vllm-0.23"
    for each in found.estimates:
        assert abs(each.value - TRUTH[each.name]) < 2 * each.error, each
        assert each.value == pytest.approx(TRUTH[each.name], rel=0.15)
        assert each.error < 0.5 * each.value
    for run in found.outcomes:
        assert abs(run.after["ttft_mean"]) < 0.02 < abs(run.before["ttft_mean"])
        assert run.left_out is not None
        assert abs(run.left_out["e2e_mean"]) < 0.02


def test_a_run_left_out_is_judged_by_a_fit_that_never_saw_it(results: list[Path]) -> None:
    server = Scenario.model_validate(SERVER)
    runs = [served_export(path, server) for path in results]
    runs = [_named(run, str(at)) for at, run in enumerate(runs)]
    start = TRUTH | {"engine_gemm_efficiency": 0.85}
    found = fit_engine(runs, ["engine_gemm_efficiency"], held_out=["1"], start=start)
    assert [(each.run_id, each.fitted) for each in found.outcomes] == [("0", True), ("2", True), ("1", False)]
    assert abs(found.outcomes[-1].after["e2e_mean"]) < 0.01


def _named(run, name: str):
    from dataclasses import replace

    return replace(run, label=replace(run.label, run_id=name))


@given(low=st.floats(0.2, 0.5), high=st.floats(0.8, 1.5), wave=st.floats(0.0, 0.02))
def test_waves_do_not_hold_the_search_up(low: float, high: float, wave: float) -> None:
    def residuals(values: tuple[float, ...]) -> np.ndarray:
        a, b = values
        return np.array([a - low, b - high, a + b - low - high]) + wave * np.sin(900 * a + 700 * b)

    found = search(residuals, [Axis("a", 1.0, 0.2, 0.0, 2.0), Axis("b", 0.1, 0.2, 0.0, 2.0)])
    assert found.values == pytest.approx((low, high), abs=0.005 + 2 * wave)


def test_what_no_residual_shows_stays_where_it_was_and_has_no_finite_error() -> None:
    found = search(
        lambda values: np.array([values[0] - 0.3, 2 * values[0] - 0.6]),
        [Axis("seen", 1.0, 0.2, 0.0, 2.0), Axis("unseen", 0.7, 0.2, 0.0, 2.0)],
    )
    assert found.values == pytest.approx((0.3, 0.7), abs=1e-3)
    assert np.isinf(standard_errors(found.slopes, 1.0)).all()


@pytest.fixture(scope="module")
def timed() -> Callable[[int, float], Steps]:
    """Return a function that draws steps and times them with known parameters and noise."""
    truth = with_step(
        load_engine("vllm-0.23"),
        {"host_exposed_s": 2e-3, "host_per_seq_s": 6e-5, "engine_gemm_efficiency": 0.8, "mixed_decode_factor": 1.5},
        "test",
    )  # fmt: skip
    model = StepModel(load_device("h100_sxm"), truth, load_model("llama-3.1-8b"))

    def draw(seed: int, noise: float) -> Steps:
        rng = np.random.default_rng(seed)
        found: Steps = []
        for at in range(80):
            decodes = rng.integers(10, 2000, rng.integers(1, 60)).tolist()
            chunk = [[int(rng.integers(100, 4000)), 0]] if at % 3 == 0 else []
            ns = model.step_ns(
                len(decodes),
                sum(decodes),
                max(decodes),
                [(new, before) for new, before in chunk],
                len(decodes) + len(chunk),
            )
            scheduled = [[1, keys - 1] for keys in decodes] + chunk
            found.append((ns * 1e-9 * rng.normal(1.0, noise), scheduled))
        return found

    return draw


def _log(path: Path, steps: Steps) -> str:
    lines = [json.dumps({"seconds": seconds, "scheduled": scheduled}) for seconds, scheduled in steps]
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@pytest.mark.parametrize("logs", [1, 3])
def test_parameters_come_back_from_logs_of_steps(
    logs: int, timed: Callable[[int, float], Steps], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [_log(tmp_path / f"{at}.jsonl", timed(at, 0.03)) for at in range(logs)]
    server, out = tmp_path / "server.json", tmp_path / "fitted.yaml"
    server.write_text(json.dumps(SERVER))
    words = ["--scenario", str(server), "--out", str(out), "--format", "json"]
    assert main(["calibrate", "fit-engine", *paths, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    truth = {"host_exposed_s": 2e-3, "host_per_seq_s": 6e-5, "engine_gemm_efficiency": 0.8}
    for each in found["estimates"]:
        assert abs(each["value"] - truth[each["name"]]) < max(
            2 * each["stderr"], 0.02 * truth[each["name"]]
        ), each
    assert all(abs(run["after"]["sum"]) < 0.02 for run in found["runs"])
    assert all((run["left_out"] is not None) == (logs > 1) for run in found["runs"])
    profile = load_engine(out)
    assert (profile.id, profile.step.host_exposed_s.run) == ("fitted", "fitted")
    assert profile.engine_gemm_efficiency == pytest.approx(0.8, abs=0.03)
    assert profile.step.engine_gemm_efficiency.stderr > 0
    assert _same_but_step(profile, load_engine("vllm-0.23"))
    load = {
        "arrivals": {"kind": "poisson", "rate_per_s": 1},
        "requests": 3,
        "input_tokens": 100,
        "output_tokens": 5,
    }
    server.write_text(json.dumps(SERVER | {"workload": load}))
    assert main(["simulate", str(server), "--set", f"engine={out}", "--quiet"]) == 0


def _same_but_step(one: EngineProfile, other: EngineProfile) -> bool:
    return (one.defaults, one.graphs, one.capacity) == (other.defaults, other.graphs, other.capacity)


def test_rows_that_a_split_keeps_for_judging_are_never_fitted() -> None:
    judged = served_run(Row(RUN, 2), Path("runs.csv"), "judge")
    with pytest.raises(CalibrationError, match="their split keeps them; allowed: part fit"):
        fit_engine([judged])


def test_two_engines_at_once_are_refused() -> None:
    runs = [
        served_run(Row(RUN | {"engine_version": version}, 2), Path("r.csv")) for version in ("0.15", "0.23")
    ]
    with pytest.raises(CalibrationError, match=r"2 engines \(vllm-0.15, vllm-0.23\); allowed: one"):
        fit_engine(runs)


STEP = '{"seconds": 0.01, "scheduled": [[1, 20]]}\n'


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        (STEP, [], "a log of steps needs --scenario"),
        (STEP + '{"seconds": 0.01}\n', ["--scenario", "S"], "line 2: no step"),
        (
            STEP + '{"seconds": -1, "scheduled": [[1, 0]]}\n',
            ["--scenario", "S"],
            "line 2: -1 s for 1 sequences",
        ),
        (STEP + '{"seconds": 1, "scheduled": [[0, 0]]}\n', ["--scenario", "S"], "line 2: token counts"),
        (STEP * 3, ["--scenario", "S"], "3 steps to fit; allowed: 40 or more"),
        (STEP * 60, ["--scenario", "S", "--leave-out", "other"], "'other' is none of the 1 logs"),
        (STEP, ["--scenario", "S", "--parameter", "host_exposed"], "logs of steps fit"),
        ("a,b\n1,2\n", [], "no table of served runs"),
        ("a,b\n1,2\n", ["--parameter", "host_expose"], "nearest: 'host_exposed_s'"),
        ("a,b\n1,2\n", ["--parameter", "host_exposed=fast"], "'fast' is not a number"),
        ("a,b\n1,2\n", ["--set", "device=l40s"], "add --scenario"),
        ("a,b\n1,2\n", ["--engine", "vllm-9"], "vllm-9"),
    ],
)
def test_bad_input_is_one_line(
    text: str, words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, server = tmp_path / "runs.txt", tmp_path / "server.json"
    path.write_text(text)
    server.write_text(json.dumps(SERVER))
    given = [str(server) if word == "S" else word for word in words]
    assert main(["calibrate", "fit-engine", str(path), *given]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1


def test_fewer_figures_than_parameters_are_refused() -> None:
    run = served_run(Row(RUN | {"ttft_mean_ms": "", "e2e_mean_ms": ""}, 2), Path("runs.csv"))
    with pytest.raises(CalibrationError, match="1 runs give 1 figures to fit 3 parameters"):
        fit_engine([run])
