"""``membound simulate --draws``: what it adds, and that it takes nothing away."""

from __future__ import annotations

import json
import re

import pytest


def test_the_table_says_how_sure_it_is_of_its_headlines_and_is_the_same_with_any_jobs(membound, small):
    ran = membound("simulate", small, "--draws", 20, "--jobs", 1)
    text = " ".join(ran.out.split())
    assert (ran.code, ran.err) == (0, "")
    for label in ("TTFT", "TTFT p99", "TPOT", "E2E", "output tok/s"):
        assert re.search(rf"{label} ± \d+\.\d %", text), label
    assert "(90 %, 20 draws)" in text
    assert membound("simulate", small, "--draws", 20, "--jobs", 2).out == ran.out


def test_all_but_the_prediction_line_is_that_of_a_run_without_draws(membound, small):
    plain, drawn = (membound("simulate", small, *words).out for words in ([], ["--draws", 4, "--jobs", 1]))
    assert drawn.split("\nprediction")[0] == plain.split("\nprediction")[0]


def test_the_json_and_the_result_directory_have_the_intervals(membound, small, tmp_path):
    words = ("--draws", 4, "--jobs", 1, "--format", "json", "--out", "run", "--quiet")
    found = json.loads(membound("simulate", small, *words).out)["confidence"]
    assert found["draws"] == 4
    low, high = found["interval"]["latency.e2e_s.mean"]
    assert 0.0 < low < high
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["confidence"] == found


def test_without_draws_there_is_no_interval_and_a_reason(membound, small):
    found = json.loads(membound("simulate", small, "--format", "json").out)["confidence"]
    assert found["interval"] is None
    assert "confidence.interval is null: no draws were asked for" in found["warnings"]
    assert "draws" not in found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--draws", 1), "draws 1; allowed: 2 to 10000"),
        (("--draws", 8, "--jobs", 0), "jobs 0; allowed: 1 to 1,024"),
        (("--jobs", 2), "add --draws 32"),
    ],
)
def test_numbers_that_cannot_be_are_refused_before_the_run(membound, small, words, said):
    ran = membound("simulate", small, *words)
    assert (ran.code, ran.out, ran.err.count("\n")) == (2, "", 1)
    assert said in ran.err
