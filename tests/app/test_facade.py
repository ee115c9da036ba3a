"""``import membound as mb``: every name is there, loaded when used, and answers as the command line does."""

from __future__ import annotations

import json

import membound as mb
import pytest


def test_every_name_is_there():
    for name in mb.__all__:
        assert getattr(mb, name) is not None
        assert name in dir(mb)


def test_an_unknown_name_says_what_there_is():
    with pytest.raises(AttributeError, match=r"no attribute 'simulte'; it has .*simulate"):
        _ = mb.simulte


def test_a_script_simulates_and_sizes(membound, small):
    scenario = mb.load_scenario(small)
    summary = mb.simulate(scenario).summary()
    assert summary == json.loads(membound("simulate", small, "--format", "json").out)
    assert mb.size(scenario).memory["num_gpu_blocks"] == summary["memory"]["num_gpu_blocks"]


def test_a_script_asks_the_catalogues():
    assert mb.load_device("h100_sxm").n_sm == 132
    assert mb.load_model("llama-3.1-8b").n_layers == 32
    assert mb.load_engine("vllm-0.24").async_scheduling
    assert "h100_sxm" in mb.list_devices()
    with pytest.raises(mb.MemboundError, match="nearest: 'h100_sxm'"):
        mb.load_device("h10_sxm")


def test_results_show_themselves_and_become_frames(membound, small, tmp_path):
    pandas = pytest.importorskip("pandas", reason="makes frames")
    result = mb.simulate(mb.load_scenario(small), keep_steps=True)
    assert result.bottleneck() in result._repr_html_()
    frame = result.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert frame["ttft_s"].mean() == pytest.approx(result.summary()["latency"]["ttft_s"]["mean"])
    assert len(result.to_pandas("steps")) == result.summary()["simulation"]["steps"]
    with pytest.raises(mb.MemboundError, match="table 'step'; this run has: requests, steps, kv"):
        result.to_pandas("step")
    both = mb.compare([mb.load_scenario(small), mb.load_scenario(small).replace(device="l40s")], jobs=1)
    assert "TTFT p50" in both._repr_html_()
    assert both.to_pandas()["latency.tpot_s.mean"].is_monotonic_increasing
    assert "H100" in mb.load_device("h100_sxm")._repr_html_()


def test_a_study_in_a_script_is_that_of_a_file(small, tmp_path):
    (tmp_path / "study.yaml").write_text("base: small.yaml\nover: {workload.arrivals.rate_per_s: [2, 8]}\n")
    told = mb.load_study(tmp_path / "study.yaml")
    said = mb.study(mb.load_scenario(small), over={"workload.arrivals.rate_per_s": [2, 8]})
    assert said.settings == told.settings
    assert said.scenarios == told.scenarios
    found = mb.sweep(said, tmp_path / "runs", jobs=1)
    assert "error" in found._repr_html_()
    assert found.to_pandas().columns[0] == "workload.arrivals.rate_per_s"
    with pytest.raises(mb.MemboundError, match=r"study: .*rate_per_sec"):
        mb.study(mb.load_scenario(small), over={"workload.arrivals.rate_per_sec": [2]})


def test_without_pandas_the_message_names_the_command_that_installs_it(small, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pandas", None)
    result = mb.simulate(mb.load_scenario(small))
    with pytest.raises(mb.MemboundError, match=r"pip install 'membound\[notebook\]'"):
        result.to_pandas()


def test_calibrate_can_be_called_though_it_is_a_package_too(tmp_path):
    from membound.calibrate.run import CalibrationRun  # puts the package where the function's name is

    assert CalibrationRun is mb.CalibrationRun
    with pytest.raises(mb.MemboundError, match="budget is 0"):
        mb.calibrate("cpu", out=tmp_path / "run", budget_s=0)
