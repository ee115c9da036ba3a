"""``membound compare``: one table, what differs, and every fault as one line."""

from __future__ import annotations

import csv
import io
import json

import pytest


@pytest.fixture
def pair(small, tmp_path):
    other = tmp_path / "other.yaml"
    other.write_text(small.read_text().replace("name: small", "name: other\nscheduler: {max_num_seqs: 2}"))
    return small, other


def test_the_table_names_what_differs_and_answers_for_each(membound, pair):
    ran = membound("compare", *pair, "--jobs", 1)
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].split() == ["A", "small"]
    assert lines[1].split() == ["B", "other:", "scheduler.max_num_seqs", "2"]
    for word in ("TTFT p99", "output tok/s", "HBM weights", "answer A", "answer B", "prediction"):
        assert word in ran.out
    assert max(map(len, lines)) <= 110


def test_json_has_the_points_of_the_contract(membound, pair):
    found = json.loads(membound("compare", *pair, "--jobs", 1, "--format", "json").out)
    base, other = found["points"]
    assert {"settings", "metrics", "interval", "level", "hash"} <= set(base)
    assert other["settings"] == {"scheduler.max_num_seqs": 2}
    ratio = other["metrics"]["latency.e2e_s.mean"] / base["metrics"]["latency.e2e_s.mean"] - 1
    assert other["change"]["latency.e2e_s.mean"] == pytest.approx(ratio)
    shares = [value for name, value in base["metrics"].items() if name.startswith("time_share.")]
    assert sum(shares) == pytest.approx(1)


def test_csv_has_one_row_a_scenario(membound, pair):
    rows = list(csv.DictReader(io.StringIO(membound("compare", *pair, "--jobs", 1, "--format", "csv").out)))
    assert [row["label"] for row in rows] == ["small", "other"]
    assert rows[1]["settings.scheduler.max_num_seqs"] == "2"


def test_set_changes_all_of_them(membound, pair):
    ran = membound("compare", *pair, "--jobs", 1, "--set", "workload.requests=7", "--format", "json")
    counts = [point["metrics"]["requests.submitted"] for point in json.loads(ran.out)["points"]]
    assert counts == [7, 7]


def test_more_scenarios_than_columns_make_several_tables(membound, small, tmp_path):
    paths = [small]
    for at in range(7):
        paths.append(tmp_path / f"s{at}.yaml")
        paths[-1].write_text(small.read_text().replace("name: small", f"name: s{at}"))
    ran = membound("compare", *paths, "--jobs", 1, "--set", "workload.requests=3")
    assert ran.code == 0
    assert ran.out.count("latency [ms]") == 2
    assert max(map(len, ran.out.splitlines())) <= 110


def test_repeats_show_intervals(membound, pair):
    ran = membound("compare", *pair, "--jobs", 1, "--repeat", 3)
    assert "means of 3 seeds" in ran.out
    assert ".." in ran.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["small.yaml"], "compare needs two scenario files or more"),
        (["small.yaml", "small.yaml"], "is given twice"),
        (["small.yaml", "smal.yaml"], "nearest: 'small.yaml'"),
        (["small.yaml", "other.yaml", "--repeat", "0"], "repeat 0; allowed: 1"),
    ],
)
def test_faults_are_one_line(membound, pair, words, message):
    ran = membound("compare", *words)
    assert ran.code == 2
    assert ran.out == ""
    assert message in ran.err
    assert ran.err.count("\n") == 1
