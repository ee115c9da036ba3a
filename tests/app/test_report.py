"""``membound report``: a result directory as one page that fetches nothing, or as pictures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("altair", reason="draws charts")
pytest.importorskip("vl_convert", reason="draws charts")


@pytest.fixture
def result(membound, small: Path) -> str:
    assert membound("simulate", small, "--out", "result", "--quiet").code == 0
    return "result"


def test_the_page_is_one_file_that_fetches_nothing_and_knows_both_grounds(
    membound, tmp_path: Path, result: str
):
    ran = membound("report", result)
    assert (ran.code, ran.out, ran.err) == (0, "wrote result/report.html\n", "")
    page = (tmp_path / "result" / "report.html").read_text()
    summary = json.loads((tmp_path / "result" / "summary.json").read_text())
    for said in ("<h1>small</h1>", summary["verdict"]["sentence"], "TTFT p50", "prefers-color-scheme: dark",
                 "HBM weights", "id='chart5'", "as printed", "#12171d"):  # fmt: skip
        assert said in page, said
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href|url)\s*[=(]", outside)


def test_pictures_are_written_one_a_chart(membound, tmp_path: Path, result: str):
    ran = membound("report", result, "--svg", "pictures", "--theme", "dark")
    assert ran.code == 0, ran.err
    names = {path.stem for path in (tmp_path / "pictures").glob("*.svg")}
    assert names == {
        "time_share",
        "shares",
        "limiter",
        "monitors",
        "latencies",
        "itl_by_position",
        "waterfall",
        "timeline",
    }
    assert not (tmp_path / "result" / "report.html").exists()
    for name in names:
        text = (tmp_path / "pictures" / f"{name}.svg").read_text()
        assert text.startswith("<svg"), name
        assert "NaN" not in text, name


def test_a_result_without_steps_says_so(membound, tmp_path: Path, small: Path):
    membound("simulate", small, "--out", "bare", "--no-steps", "--quiet")
    assert membound("report", "bare").code == 0
    page = (tmp_path / "bare" / "report.html").read_text()
    assert "Steps were not kept" in page
    assert "id='chart2'" in page


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ("report", "nowhere"),
            "result directory 'nowhere' is not there; allowed: a folder that `membound simulate",
        ),
        (("report", "."), "result directory '.' lacks summary.json"),
    ],
)
def test_a_wrong_folder_is_one_line(membound, words: tuple[str, ...], said: str):
    ran = membound(*words)
    assert ran.code == 2
    assert ran.err.count("\n") == 1
    assert said in ran.err


def test_a_page_that_cannot_be_written_is_one_line(membound, tmp_path: Path, result: str):
    (tmp_path / "file").write_text("")
    ran = membound("report", result, "--html", "file/page.html")
    assert ran.code == 2
    assert "'file/page.html' cannot be written" in ran.err
    assert ran.err.count("\n") == 1


def test_the_roofline_is_of_the_scenario_that_ran(membound, tmp_path: Path, result: str):
    ran = membound("report", result, "--roofline")
    assert ran.code == 0, ran.err
    assert "Roofline of h100_sxm" in (tmp_path / "result" / "report.html").read_text()


def test_a_broken_result_is_named(membound, tmp_path: Path, result: str):
    (tmp_path / "result" / "requests.parquet").write_bytes(b"no parquet")
    ran = membound("report", result)
    assert ran.code == 2
    assert "'result' cannot be read" in ran.err
    assert ran.err.count("\n") == 1


def test_without_a_steady_state_no_mean_is_quoted(membound, tmp_path: Path, small: Path):
    words = (
        "--set",
        "workload.arrivals.rate_per_s=400",
        "--set",
        "workload.requests=300",
        "--set",
        "scheduler.max_num_seqs=4",
    )
    membound("simulate", small, *words, "--out", "flood", "--quiet")
    summary = json.loads((tmp_path / "flood" / "summary.json").read_text())
    assert summary["verdict"]["stability"] != "steady"
    assert membound("report", "flood").code == 0
    page = (tmp_path / "flood" / "report.html").read_text()
    assert "<tr><td>TTFT</td><td class='r'>–</td>" in page
