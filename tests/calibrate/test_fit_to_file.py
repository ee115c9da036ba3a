"""From timings to a device file that a scenario can name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from membound.calibrate.device import device_of
from membound.calibrate.fitting import fit_table
from membound.calibrate.machine import Machine
from membound.calibrate.publish import device_text, publish
from membound.calibrate.run import CalibrationRun
from membound.calibrate.table import KernelTable
from membound.hwmodels.device import load_device

MACHINE = Machine(
    "cpu", "cpu", units=1, cache_bytes=2**25, memory_bytes=2**34, flop_rate={"": 4e10}, bandwidth=2e10,
    overhead_s=5e-6, lanes=(),
).as_dict()  # fmt: skip


def timings(rows: int = 80) -> KernelTable:
    """Matrix products of a CPU that needs 5 us, half its peak and 0.8 of its bandwidth, one after the other."""
    rng = np.random.default_rng(3)
    m, n, k = (rng.choice(sizes, rows) for sizes in ([1, 4, 16, 64], [256, 1024, 4096], [512, 2048]))
    seconds = 5e-6 + 2.0 * m * n * k / (0.5 * 4e10) + 2.0 * (m * k + n * k + m * n) / (0.8 * 2e10)
    noise = np.exp(rng.normal(0.0, 0.02, rows))
    return KernelTable.of(
        {
            "gpu": ["cpu"] * rows, "framework": ["torch"] * rows, "op": ["gemm"] * rows, "dtype": ["bfloat16"] * rows,
            "m": m, "n": n, "k": k, "latency_us": 1e6 * seconds * noise,
        }
    )  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> CalibrationRun:
    environment = {"machine": MACHINE}
    found = fit_table(
        timings(), device_of(environment), run_id="r1", source="test", frozen=False, environment=environment
    )
    found.save(tmp_path / "fit.json")
    return CalibrationRun.load(tmp_path / "fit.json")


def test_a_saved_fit_still_knows_where_it_was_timed(run: CalibrationRun) -> None:
    """Otherwise a device without a file could never get one."""
    assert device_of(run.environment) == device_of({"machine": MACHINE})


def test_published_fits_are_the_lanes_of_the_device_file(run: CalibrationRun, tmp_path: Path) -> None:
    """What was drawn is recovered, written and read back."""
    path = tmp_path / "mine.yaml"
    path.write_text(device_text(device_of(run.environment)), encoding="utf-8")
    assert [each.done for each in publish(run, path)] == ["written"]
    lane = load_device(str(path)).lane("gemm", "torch")
    assert lane.level == "measured"
    assert lane.params["ec"] == pytest.approx(0.5, rel=0.05)
    assert lane.params["eb"] == pytest.approx(0.8, rel=0.05)
    assert lane.params["t0_us"] == pytest.approx(5.0, rel=0.25)
