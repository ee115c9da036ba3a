"""``membound sweep``: one line a point, on this machine and on clusters whose workers die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

STUDY = "base: small.yaml\nover: {scheduler.max_num_seqs: [1, 2, 4, 8], simulation.seed: [0, 1]}\n"


@pytest.fixture
def study(small, tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    return path


def test_a_sweep_prints_a_line_a_point_and_finds_them_again(membound, study):
    ran = membound("sweep", study, "--jobs", 1)
    assert ran.code == 0
    assert len([line for line in ran.out.splitlines() if line.endswith("memory")]) == 8
    assert "8 runs done, 0 kept from before" in ran.out
    assert "0 runs done, 8 kept from before" in membound("sweep", study, "--jobs", 1).out


def test_a_dry_run_runs_nothing(membound, study, tmp_path):
    ran = membound("sweep", study, "--dry-run")
    assert "8 points, 8 runs, of which 8 are to do" in ran.out
    assert not (tmp_path / "study-results").exists()


def test_slices_of_one_folder_make_the_whole(membound, study):
    for part in ("1/2", "2/2"):
        assert membound("sweep", study, "--jobs", 1, "--slice", part, "--out", "r").code == 0
    assert "0 runs done, 8 kept from before" in membound("sweep", study, "--out", "r").out


def test_json_has_the_points_of_the_contract(membound, study):
    points = json.loads(membound("sweep", study, "--jobs", 1, "--format", "json").out)["points"]
    assert points[0]["settings"] == {"scheduler.max_num_seqs": 1, "simulation.seed": 0}
    assert {"settings", "metrics", "interval", "level", "hash"} <= set(points[0])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--slice", "3"], "allowed: 3/16"),
        (["--slice", "0/2"], "slice 0/2; allowed: 1/2 to 2/2"),
        (["--backend", "dusk"], "nearest: 'dask'"),
        (["--jobs", "0"], "jobs 0; allowed: 1 to 1,024"),
    ],
)
def test_faults_are_one_line(membound, study, words, message):
    ran = membound("sweep", study, *words)
    assert ran.code == 2
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_killed_half_way_it_goes_on_where_it_was(study, tmp_path):
    """SIGKILL as soon as two runs are there; what they were is found, the rest is run, the table is the same."""
    command = [
        sys.executable,
        "-m",
        "membound.app.cli",
        "sweep",
        str(study),
        "--jobs",
        "1",
        "--format",
        "json",
    ]
    first = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    runs = tmp_path / "study-results" / "runs"
    while first.poll() is None and len(list(runs.glob("*.parquet"))) < 2:
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.wait()
    kept = len(list(runs.glob("*.parquet")))
    rest = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f"{8 - kept} runs done, {kept} found" in rest.stderr
    whole = subprocess.run([*command, "--out", "x"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert rest.stdout == whole.stdout


KILLING = """
import os, pathlib, sys
from membound.sim.studies import backends, sweep

def once(task, plain=sweep.one_run):
    mark = pathlib.Path({mark!r})
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), 9)
    return plain(task)

if __name__ == "__main__":
    from membound.sim.studies.study import load_study
    sweep.one_run = once
    found = sweep.sweep(load_study({study!r}), {out!r}, backend={backend!r}, jobs=2)
    print(found.ran, len(found.points))
"""


@pytest.mark.parametrize("backend", ["joblib", "dask", "ray"])
def test_a_worker_that_is_killed_loses_nothing(backend, study, tmp_path, membound):
    if backend != "joblib":
        pytest.importorskip({"dask": "distributed"}.get(backend, backend))
    out = tmp_path / backend
    script = tmp_path / "killing.py"
    text = KILLING.format(mark=str(tmp_path / "mark"), study=str(study), out=str(out), backend=backend)
    script.write_text(textwrap.dedent(text))
    environment = os.environ | {"RAY_DEDUP_LOGS": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)], cwd=tmp_path, capture_output=True, text=True,
        env=environment, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split() == ["8", "8"]
    here = membound("sweep", study, "--out", out, "--format", "json")
    assert "0 runs done, 8 found" in here.err
    alone = membound("sweep", study, "--out", tmp_path / "alone", "--jobs", 1, "--format", "json")
    assert here.out == alone.out
