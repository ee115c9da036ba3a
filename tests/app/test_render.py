"""The printed table is aligned, deterministic and readable without colour; JSON and CSV say the same."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pytest
from membound.app.render import render, render_csv
from membound.sim.engine.request import Status
from membound.sim.metrics.histogram import LogHistogram
from membound.sim.output.output import summary

EXPECTED = """\
h200_sxm · llama-3.1-8b · fp8 weights, bf16 KV · vllm-0.24 · vllm_v1 · 31 requests in 3.020 s (seed 0)
latency [ms]         mean        p50        p90        p95        p99        max        SLO
───────────────────────────────────────────────────────────────────────────────────────────
queue                   0          0          0          0          0          0
TTFT                20.00      20.00      20.00      20.00      20.00      20.00      500.0
TTFT at client      22.50      22.50      22.50      22.50      22.50      22.50
TPOT                10.00      10.00      10.00      10.00      10.00      10.00      50.00
ITL                 10.67      10.01      10.02      10.03      29.99      30.00
E2E                 120.0      120.0      120.0      120.0      120.0      120.0
requests       30 of 31 completed   1 rejected (1 prompt too long)   0 aborted   0 preemptions
throughput     9.934 requests/s   993.4 input tok/s   109.3 output tok/s   109.3 output tok/s/GPU
SLO            met: 96.8 % of the requests within their thresholds   goodput 9.934 requests/s
cost           9.152 USD per M output tokens   0.9069 USD per M input + output tokens   3.600 USD per GPU hour
time spent     HBM weights 55.0 %   compute 22.0 %   idle 10.0 %   in-kernel latency 7.0 %   HBM KV 6.0 %
batch limit    arrivals 100.0 %
utilization    mfu 3.7 %   mfu_wall 3.3 %
KV pool        peak 74.0 %   prefix hits 40.0 %
answer         memory-bound: 61 % of busy time goes to reading weights from HBM (68 % to HBM in all); the
               batch is limited by arrivals (mean 1.3 of 256 sequences); GPU idle 10 % of the time; 1 of 31
               requests rejected; next lever: HBM bandwidth (10 % more saves 6.0 % of busy time)
prediction     prior: starting values for this device, not calibrated; --draws 32 adds intervals
note           3 arrivals were not sorted
"""


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
