"""The page of a calibration: one file, nothing fetched, every lane with its errors, parameters and charts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from membound.calibrate.device import device_of
from membound.calibrate.fitting import fit_table
from membound.calibrate.machine import Machine
from membound.calibrate.run import CalibrationRun
from membound.calibrate.table import KernelTable, write_table

altair = pytest.importorskip("altair", reason="draws charts")
from membound.app.charts import calibration as charts  # noqa: E402
from membound.calibrate.residuals import by_split, residuals_of  # noqa: E402

MACHINE = Machine(
    "cpu", "cpu", units=1, cache_bytes=2**25, memory_bytes=2**34, flop_rate={"": 4e10}, bandwidth=2e10,
    overhead_s=5e-6, lanes=(),
).as_dict()  # fmt: skip
ENVIRONMENT = {"machine": MACHINE, "packages": {"torch": "2.13.0"}, "threads": 1}


def timings(rows: int = 80, seed: int = 3) -> KernelTable:
    """Matrix products of a CPU that needs 5 us, half its peak and 0.8 of its bandwidth, one after the other."""
    rng = np.random.default_rng(seed)
    m, n, k = (rng.choice(sizes, rows) for sizes in ([1, 4, 16, 64], [256, 1024, 5120], [512, 2048]))
    seconds = 5e-6 + 2.0 * m * n * k / (0.5 * 4e10) + 2.0 * (m * k + n * k + m * n) / (0.8 * 2e10)
    noise = np.exp(rng.normal(0.0, 0.02, rows))
    return KernelTable.of(
        {"gpu": ["cpu"] * rows, "framework": ["torch"] * rows, "op": ["gemm"] * rows, "dtype": ["bfloat16"] * rows,
         "m": m, "n": n, "k": k, "latency_us": 1e6 * seconds * noise}
    )  # fmt: skip


@pytest.fixture
def run() -> CalibrationRun:
    return fit_table(
        timings(), device_of(ENVIRONMENT), run_id="r<1>", source="test", frozen=False, environment=ENVIRONMENT
    )


def test_errors_are_those_of_the_rows_of_the_lane_alone(run: CalibrationRun):
    rows = by_split(timings())
    others = KernelTable.of(
        {**timings(30).columns, "framework": ["vllm"] * 30, "latency_us": np.full(30, 9e3)}
    )
    (lane,) = residuals_of(run, device_of(ENVIRONMENT), {**rows, "held out": rows["held out"]})
    assert set(rows["held out"]["n"].tolist()) == {5120}
    assert lane.errors["fitted"].n + lane.errors["held out"].n == 80 == len(lane.points)
    assert lane.errors["fitted"].mape < 0.03
    assert lane.errors["held out"].coverage_90 > 0.7
    (same,) = residuals_of(run, device_of(ENVIRONMENT), {"fitted": rows["fitted"], "held out": others})
    assert same.errors == {"fitted": lane.errors["fitted"]}


def test_every_chart_holds_the_rows_once_and_names_its_units(run: CalibrationRun):
    (lane,) = residuals_of(run, device_of(ENVIRONMENT), by_split(timings()))
    for make in (charts.predicted_against_measured, charts.residuals, charts.residuals_by_regime):
        spec = make(lane.points).to_dict()  # held against Vega-Lite's schema
        assert sorted(len(rows) for rows in spec["datasets"].values())[-1] == 80
        titles = re.findall(r'"title": "([^"]*)"', json.dumps(spec, ensure_ascii=False))
        assert {"measured [µs]", "predicted / measured − 1"} & set(titles)


def test_charts_of_few_or_wild_rows_are_drawn():
    row = {"role": "fitted", "op": "gemm", "shape": "m 1", "regime": "all", "inside": True}
    wild = [
        {**row, "measured_us": m, "predicted_us": p, "error": p / m - 1.0}
        for m, p in ((1e-2, 1e5), (3.0, 3.0))
    ]
    for rows in (wild, wild[1:]):
        for make in (charts.predicted_against_measured, charts.residuals, charts.residuals_by_regime):
            assert make(rows).to_dict()["layer"]


def test_the_page_is_one_file_that_fetches_nothing(membound, tmp_path: Path, run: CalibrationRun):
    run.save(tmp_path / "fit.json")
    write_table(timings(), tmp_path / "rows.parquet")
    ran = membound("calibrate", "report", "fit.json", "--html", "page.html", "--table", "rows.parquet")
    assert (ran.code, ran.out, ran.err) == (0, "wrote page.html: 1 lanes\n", "")
    page = (tmp_path / "page.html").read_text()
    for said in ("<h1>Calibration of CPU, one thread</h1>", "run r&lt;1&gt;", "packages torch 2.13.0", "t0_us",
                 "held out", "Calibrated range: m 1 to 64", "from the timings", "id='chart2'"):  # fmt: skip
        assert said in page, said
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href|url)\s*[=(]", outside)
    assert "<script src" not in page
    assert sum(part.count('"shape":"bfloat16') for part in page.split("const rows")) == 80


def test_fits_without_their_timings_get_a_page_that_says_so(membound, tmp_path: Path, run: CalibrationRun):
    run.save(tmp_path / "fit.json")
    ran = membound("calibrate", "report", "fit.json", "--html", "page.html")
    note = "No charts: the timings are not in this run; name their table with --table FILE."
    assert ran.out == f"wrote page.html: 1 lanes\n{note}\n"
    assert note in (tmp_path / "page.html").read_text()
    assert "vegaEmbed" not in (tmp_path / "page.html").read_text()


def test_without_altair_the_message_names_the_command_that_installs_it(
    membound, tmp_path: Path, run: CalibrationRun, monkeypatch: pytest.MonkeyPatch
):
    from membound.app.charts import page

    run.save(tmp_path / "fit.json")
    monkeypatch.setattr(page, "find_spec", lambda name: None)
    ran = membound("calibrate", "report", "fit.json", "--html", "page.html")
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert "pip install 'membound[app]'" in ran.err
