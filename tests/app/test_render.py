"""The printed table is aligned, deterministic and readable without colour; JSON and CSV say the same."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from membound.app.render import render, render_csv
from membound.sim.histogram import LogHistogram
from membound.sim.output import summary
from membound.sim.request import Status


class Scenario:
    """Stands in for a scenario: all that rendering asks of it."""

    def model_dump(self, mode: str) -> dict:
        return {
            "name": "by hand",
            "quantization": {"weights": "fp8", "kv_cache": "bf16"},
            "scheduler": {"name": "vllm_v1"},
            "slo": {"classes": {"default": {"ttft_s": 0.5, "tpot_s": 0.05}}},
        }


@pytest.fixture
def found(make_record, row):
    itl = LogHistogram()
    itl.add(np.array([10_000_000, 30_000_000]), np.array([290, 10]))
    rows = [
        row(arrival=100 * i, scheduled=100 * i, first=100 * i + 20, last=100 * i + 120) for i in range(30)
    ]
    rows.append(row(scheduled=None, first=None, last=None, status=Status.REJECTED, reject_reason=0))
    record = make_record(
        rows,
        itl=itl,
        scenario=Scenario(),
        reject_reasons=["prompt_too_long"],
        kv={"peak_usage": 0.74, "prefix_queried_tokens": 100, "prefix_hit_tokens": 40},
        work={"elasticity": {"hbm_bandwidth": 0.6}, "useful_flop_seconds": 0.1},
        shares={"hbm_weights": 55, "hbm_kv": 6, "compute": 22, "latency": 7, "idle": 10},
        provenance={
            "device": "h200_sxm",
            "model": "llama-3.1-8b",
            "engine": "vllm-0.24",
            "seed": 0,
            "level": "prior",
        },
        warnings=["3 arrivals were not sorted"],
        setup={
            "usd_per_gpu_hour": 3.6,
            "client_overhead_s": 0.0025,
            "max_num_seqs": 256,
            "slo_classes": {"default": {"ttft_s": 0.5, "tpot_s": 0.05}},
            "slo_attainment": 0.9,
        },
    )
    return summary(record)


def test_the_table_reads_as_it_should(found):
    assert render(found) == EXPECTED


EXPECTED = ""


def test_no_line_is_wider_than_the_page_or_ends_in_blanks_and_none_has_colour(found):
    for line in render(found).splitlines():
        assert len(line) <= 110
        assert line == line.rstrip()
        assert "\x1b" not in line


def test_colour_only_adds_escapes(found):
    import re

    colored = render(found, color=True)
    assert colored != render(found)
    plain = [line.rstrip() for line in re.sub(r"\x1b\[[0-9;]*m", "", colored).splitlines()]
    assert plain == render(found).splitlines()


@pytest.mark.parametrize("name", ["NO_COLOR", "FORCE_COLOR", "COLUMNS", "TERM", "LC_ALL"])
def test_the_environment_changes_nothing(found, monkeypatch, name):
    before = render(found)
    monkeypatch.setenv(name, "40")
    assert render(found) == before


def test_without_a_steady_state_the_means_are_not_quoted(make_record, row):
    rows = [
        row(arrival=10 * i, scheduled=100 * i, first=100 * i + 20, last=100 * i + 120) for i in range(100)
    ]
    found = summary(make_record(rows))
    text = render(found)
    assert "unstable: " in text
    ttft = next(line for line in text.splitlines() if line.startswith("TTFT "))
    assert ttft.split()[1] == "-"
    assert found["latency"]["ttft_s"]["mean"] is not None


def test_a_run_of_nothing_still_renders(make_record):
    text = render(summary(make_record([])))
    assert "nothing ran: no request was submitted" in text
    assert "None" not in text


def test_json_is_the_summary(found):
    assert json.loads(render(found, "json")) == found


def test_csv_is_one_row_a_run_under_dotted_names_and_unknown_is_empty(found):
    rows = list(csv.DictReader(io.StringIO(render_csv([found, found]))))
    assert len(rows) == 2
    assert rows[0]["latency.ttft_s.p99"] == str(found["latency"]["ttft_s"]["p99"])
    assert rows[0]["scenario.name"] == "by hand"
    assert rows[0]["energy.mean_watts"] == ""
    assert rows[0] == rows[1]
    assert render(found, "csv") == render_csv([found])


def test_an_unknown_format_is_refused_with_what_is_allowed(found):
    with pytest.raises(ValueError, match="format 'xml'; allowed: table, json, csv"):
        render(found, "xml")
