"""``membound plan``: the answer first, then the others, and why they cannot."""

from __future__ import annotations

import csv
import io
import json

import pytest

PLAN = """\
base: small.yaml
load: {rate_per_s: 50}
slo: {attainment: 0.9, classes: {default: {ttft_s: 1s, tpot_s: 50ms}}}
candidates: {device: [h100_sxm, l40s], model: [llama-3.1-8b, llama-2-70b]}
requests: 60
"""


@pytest.fixture
def file(small, tmp_path):
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return path


def test_the_answer_names_gpus_cost_and_chance(membound, file):
    ran = membound("plan", file, "--jobs", 1, "--draws", 3)
    assert ran.code == 0
    assert "50.00 requests/s within the SLO take" in " ".join(ran.out.split())
    assert "% sure" in " ".join(ran.out.split())
    assert "llama-2-70b does not fit" in ran.out
    assert max(map(len, ran.out.splitlines())) <= 120


def test_json_has_the_points_of_the_contract(membound, file):
    points = json.loads(membound("plan", file, "--jobs", 1, "--draws", 0, "--format", "json").out)["points"]
    wanted = {"settings", "metrics", "interval", "level", "hash", "rank", "meets_slo_probability", "gpus"}
    assert wanted | {"usd_per_million_output_tokens"} <= set(points[0])
    assert [point["rank"] for point in points] == [1, 2, None, None]


def test_csv_has_a_row_a_configuration(membound, file):
    text = membound("plan", file, "--jobs", 1, "--draws", 0, "--format", "csv").out
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 4
    assert {row["device"] for row in rows} == {"h100_sxm", "l40s"}


def test_a_load_that_nothing_serves_is_an_answer(membound, file):
    file.write_text(PLAN.replace("tpot_s: 50ms", "tpot_s: 10us"))
    ran = membound("plan", file, "--jobs", 1)
    assert ran.code == 0
    assert "none of the 4 configurations serves the load within the SLO" in ran.out


def test_a_plan_that_is_not_there_is_one_line(membound, file):
    ran = membound("plan", "plam.yaml")
    assert (ran.code, ran.out) == (2, "")
    assert "plan 'plam.yaml' not found; nearest: 'plan.yaml'" in ran.err
