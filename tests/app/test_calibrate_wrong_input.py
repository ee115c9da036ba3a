"""What calibration does with timings that cannot be, devices that are not there, and a machine without torch."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from membound.calibrate.predict import predict_us
from membound.calibrate.table import KernelTable
from membound.hwmodels.device import load_device

H100 = load_device("h100_sxm")
BAD = {
    3: (0.0, "latency is zero"),
    7: (-5.0, "latency is negative"),
    11: (math.nan, "latency is missing or no number"),
    13: (20.0, "faster than HBM of h100_sxm"),
    14: (20.0, "faster than HBM of h100_sxm"),
    20: (1e-3, "faster than the peak rate of h100_sxm"),
}
"""Row (from 1): time that no kernel took [us], and what is said of it."""


def written(path: Path, bad: dict[int, float], rows: int = 60) -> Path:
    rng = np.random.default_rng(1)
    columns = {
        "gpu": ["h100_sxm"] * rows, "framework": ["vllm"] * rows, "op": ["gemm"] * rows, "dtype": ["bfloat16"] * rows,
        "m": rng.choice([1, 16, 256], rows), "n": np.full(rows, 8192), "k": rng.choice([8192, 16384], rows),
    }  # fmt: skip
    columns["m"][12:14] = 1  # too few rows for the matrix units to be what holds them up
    us = predict_us(H100, KernelTable.of({**columns, "latency_us": np.ones(rows)}))
    us = us * np.exp(rng.normal(0.0, 0.02, rows))
    for row, time in bad.items():
        us[row - 1] = time
    lines = [",".join(map(str, row)) for row in zip(*columns.values(), us, strict=True)]
    path.write_text("\n".join([",".join([*columns, "latency_us"]), *lines]) + "\n")
    return path


def excluded(out: str) -> dict[str, str]:
    """Return what was said of each reason: how many rows, and which."""
    lines = [line for line in out.splitlines() if line.startswith("excluded")]
    return {line.partition(": ")[2].rpartition(" (")[0].partition(" for data")[0]: line for line in lines}


@pytest.mark.parametrize("verb", [["fit"], ["import"], ["evaluate", "--table"]])
def test_rows_that_cannot_be_are_counted_and_named_and_the_rest_is_used(
    membound, tmp_path: Path, verb: list[str]
):
    written(tmp_path / "bad.csv", {row: time for row, (time, _) in BAD.items()})
    ran = membound("calibrate", *verb, "bad.csv", "--device", "h100_sxm")
    assert ran.code == 0, ran.err
    found = excluded(ran.out)
    assert set(found) == {reason for _, reason in BAD.values()}
    for reason, line in found.items():
        rows = [row for row, (_, why) in BAD.items() if why == reason]
        assert line.startswith(f"excluded {len(rows)} of 60 rows of bad.csv: ")
        assert line.endswith(f"({'row' if len(rows) == 1 else 'rows'} {', '.join(map(str, rows))})")
    if verb == ["fit"]:
        assert "gemm / vllm: 54 rows" in ran.out


def test_a_table_of_nothing_else_is_refused_in_one_line(membound, tmp_path: Path):
    written(tmp_path / "bad.csv", dict.fromkeys(range(1, 61), 0.0))
    ran = membound("calibrate", "fit", "bad.csv", "--device", "h100_sxm", "--out", "fit.json")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: nothing to fit in bad.csv: ")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "fit.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        ["design", "--device", "h100_sxn"],
        ["fit", "bad.csv", "--device", "h100_sxn"],
        ["import", "bad.csv", "--device", "h100_sxn"],
        ["evaluate", "--table", "bad.csv", "--device", "h100_sxn"],
        ["bridge", "--device", "h100_sxn", "--to", "new.yaml"],
    ],
)
def test_a_device_that_does_not_exist_names_the_nearest(membound, tmp_path: Path, words: list[str]):
    written(tmp_path / "bad.csv", {})
    ran = membound("calibrate", *words)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.count("\n") == 1
    assert "unknown device 'h100_sxn'" in ran.err
    assert "nearest: 'h100_sxm'" in ran.err


def test_a_device_that_is_not_in_this_machine_names_those_that_are(membound, tmp_path: Path):
    pytest.importorskip("torch", reason="asks torch which devices there are")
    ran = membound("calibrate", "measure", "--device", "cuda:97", "--out", "run")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("error: unknown device 'cuda:97' in this machine; ")
    assert ran.err.count("\n") == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("verb", ["measure", "design"])
def test_without_torch_measuring_names_the_command_that_installs_it_and_planning_goes_on(
    tmp_path: Path, verb: str
):
    script = (
        "import sys, importlib.util as u\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda name, *rest: None if name == 'torch' else find(name, *rest)\n"
        "sys.modules['torch'] = None\n"
        "from membound.app.cli import main\n"
        "sys.exit(main(['calibrate', *sys.argv[1:]]))"
    )
    words = [verb, "--device", "cpu", "--budget", "2s", *(["--out", "run"] if verb == "measure" else [])]
    done = subprocess.run(
        [sys.executable, "-c", script, *words], capture_output=True, text=True, cwd=tmp_path
    )
    if verb == "design":
        assert (done.returncode, done.stderr) == (0, "")
        return
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "needs torch" in done.stderr
    assert "pip install 'membound[calibrate]'" in done.stderr
    assert not (tmp_path / "run").exists()
