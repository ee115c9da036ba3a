"""What a killed process leaves half written goes with the next write; what another process is at work on stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import membound as mb
import pytest
from membound.sim import litter
from membound.sim.output.output import write_result
from membound.sim.studies.store import Store


@pytest.fixture(scope="module")
def dead() -> int:
    """Return the number of a process that is no more."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def left_by(
    process: int, folder: Path, name: str, *, age_s: float = 2 * litter.OLD_S, whole: bool = False
) -> Path:
    """Leave something under the temporary name of a process, so long ago."""
    left = folder / f".{name}.{process}.tmp"
    if whole:
        left.mkdir(parents=True)
        (left / "requests.parquet").write_text("half")
    else:
        folder.mkdir(parents=True, exist_ok=True)
        left.write_text("half")
    then = left.stat().st_mtime - age_s
    os.utime(left, (then, then))
    return left


@pytest.mark.parametrize("whole", [True, False])
def test_only_what_is_old_and_of_a_dead_process_goes(tmp_path: Path, dead: int, whole: bool):
    gone = left_by(dead, tmp_path, "out", whole=whole)
    kept = [
        left_by(os.getpid(), tmp_path, "out", whole=whole),
        left_by(dead, tmp_path, "other", whole=whole),
        left_by(dead, tmp_path, "out.2", age_s=1.0, whole=whole),
    ]
    (tmp_path / ".out.mine.tmp").write_text("a file of the user's")
    litter.clear(tmp_path, "out")
    assert not gone.exists()
    assert all(each.exists() for each in [*kept, tmp_path / ".out.mine.tmp"])


def test_the_next_result_takes_away_what_a_killed_run_left(tmp_path: Path, dead: int):
    out = tmp_path / "out"
    before, inside = left_by(dead, tmp_path, "out", whole=True), left_by(dead, out, "out", whole=True)
    workload = {
        "requests": 5,
        "input_tokens": 64,
        "output_tokens": 4,
        "arrivals": {"kind": "poisson", "rate_per_s": 5},
    }
    scenario = mb.Scenario.model_validate(
        {"device": "h100_sxm", "model": "llama-3.1-8b", "workload": workload}
    )
    write_result(mb.simulate(scenario).record, out)
    assert (out / "summary.json").exists()
    assert not before.exists()
    assert not inside.exists()


def test_the_next_write_to_a_store_takes_away_what_a_killed_sweep_left(tmp_path: Path, dead: int):
    store = Store(tmp_path)
    left = [left_by(dead, folder, "a.parquet") for folder in (store.folder, store.runs)]
    store.keep_points([{"a": 1.0}])
    assert not any(each.exists() for each in left)
