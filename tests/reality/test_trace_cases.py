"""Published questions about trace input, each as a test (theme ``trace_input`` of the public cases)."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from membound.sim.fields import WorkloadError
from membound.sim.workload.trace.formats import Wanted
from membound.sim.workload.trace.read import read_trace

CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "cases.jsonl"
TESTED = {"TR2", "TR4", "TR6", "TR8", "TR10", "TR12"}


@pytest.mark.skipif(not CASES.is_file(), reason="no public cases beside the repository")
def test_every_trace_input_case_has_its_test() -> None:
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    assert {case["id"] for case in cases if case["theme"] == "trace_input"} == TESTED


def read(path: Path, text: str | bytes, **options: Any):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_trace(Wanted(str(path)), **options)


def test_tr2_a_negative_arrival_is_an_error_that_names_the_row(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match=r"line 3, column 'arrival_us': arrival time -1"):
        read(tmp_path / "t.csv", "arrival_us,input_tokens,output_tokens\n0,5,5\n-1,5,5\n")


@pytest.mark.parametrize("first", [0, 1_700_000_000])
@pytest.mark.parametrize(("unit", "scale"), [("s", 1), ("ms", 1_000), ("us", 1_000_000)])
def test_tr4_the_first_arrival_is_time_0_and_a_rate_scales_intervals(
    first: int, unit: str, scale: int, tmp_path: Path
) -> None:
    rows = "".join(f"{(first + at) * scale},5,5\n" for at in (0, 1, 4))
    text = f"arrival_{unit},input_tokens,output_tokens\n{rows}"
    load = read(tmp_path / "t.csv", text, time_scale=1 / 2)  # rate 2
    assert load.arrival_ns.tolist() == [0, 500_000_000, 2_000_000_000]
    assert load.report.time_unit == unit
    assert load.report.origin == f"{float(first * scale)} {unit}"


def test_tr6_no_output_tokens_is_an_error_and_one_token_has_no_tpot(tmp_path: Path) -> None:
    header = "arrival_s,input_tokens,output_tokens,ttft_ms,e2e_ms\n"
    with pytest.raises(WorkloadError, match=r"line 2, column 'output_tokens': 0 tokens"):
        read(tmp_path / "t.csv", header + "0,5,0,1,1\n")
    measured = read(tmp_path / "t.csv", header + "0,5,1,7,7\n1,5,3,7,27\n").measured
    assert np.isnan(measured["tpot_s"][0])
    assert np.nanmean(measured["tpot_s"]) == pytest.approx(0.010)
    rate = read(tmp_path / "t.csv", header + "0,5,1,0,0\n").summary()["rate_per_s"]
    assert rate is None  # not infinite, not negative


def test_tr8_tpot_comes_from_first_and_last_token_not_from_chunks(tmp_path: Path) -> None:
    record = {
        "metadata": {"request_start_ns": 1_759_813_207_532_900_363},
        "metrics": {
            "input_sequence_length": {"value": 550, "unit": "tokens"},
            "output_sequence_length": {"value": 101, "unit": "tokens"},
            "time_to_first_token": {"value": 44.2, "unit": "ms"},
            "time_to_second_token": {"value": 0.251, "unit": "ms"},
            "request_latency": {"value": 6600.0, "unit": "ms"},
        },
    }
    load = read(tmp_path / "profile_export.jsonl", json.dumps(record) + "\n")
    assert load.measured["tpot_s"] == pytest.approx([(6.6 - 0.0442) / 100])


@pytest.mark.parametrize("compress", [False, True])
def test_tr10_a_file_like_the_public_code_trace_is_read_to_the_last_digit(
    compress: bool, tmp_path: Path
) -> None:
    """8,819 rows with CRLF, seven fractional digits and no final newline, and the sums of the public file."""
    prompts, answers, ticks = public_code_trace()
    stamps = np.datetime64("2023-11-16T18:17:03.9799600", "ns") + ticks * np.timedelta64(100, "ns")
    rows = [
        f"{str(stamp).replace('T', ' ')[:27]},{prompt},{answer}"
        for stamp, prompt, answer in zip(stamps, prompts, answers, strict=True)
    ]
    assert rows[0].startswith("2023-11-16 18:17:03.9799600,")
    data = "\r\n".join(["TIMESTAMP,ContextTokens,GeneratedTokens", *rows]).encode()
    load = read(tmp_path / "AzureLLMInferenceTrace_code.csv", gzip.compress(data) if compress else data)
    assert load.arrival_ns.tolist() == (ticks * 100).tolist()
    assert load.output_tokens.tolist() == answers.tolist()
    summary = load.summary()
    assert summary["format"] == "azure"
    assert summary["rows"] == 8819
    assert round(summary["span_s"], 3) == 3435.948
    assert round(summary["rate_per_s"], 3) == 2.567
    assert round(summary["max_gap_s"], 3) == 217.169
    lengths = summary["input_tokens"]
    assert (lengths["sum"], lengths["min"], lengths["max"]) == (18_059_974, 3, 7437)
    assert round(lengths["mean"], 3) == 2047.848
    lengths = summary["output_tokens"]
    assert (lengths["sum"], lengths["min"]) == (245_896, 6)
    assert round(lengths["mean"], 3) == 27.883


def public_code_trace() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return prompts, answers [tokens] and arrivals [100 ns] of the public file's count, sums, extremes."""
    rng = np.random.default_rng(0)
    n = 8819
    prompts = np.full(n, 2047)
    prompts[1:3] = 3, 7437
    answers = np.full(n, 27)
    answers[1] = 6
    for lengths, total in ((prompts, 18_059_974), (answers, 245_896)):
        lengths[10 : 10 + total - int(lengths.sum())] += 1
    before, gap, end, half = 1500 * 10**7, 2171690000, 34359480000, n // 2
    ticks = np.concatenate(
        [
            [0], np.sort(rng.integers(1, before, half - 2)), [before],
            [before + gap], np.sort(rng.integers(before + gap + 1, end, n - half - 2)), [end],
        ]
    )  # fmt: skip
    return prompts, answers, ticks


def test_tr12_a_byte_order_mark_leaves_the_first_column_intact(tmp_path: Path) -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,5,7\r\n"
    load = read(tmp_path / "t.csv", text.encode("utf-8-sig"))
    assert load.report.format == "azure"
    assert load.report.time_unit == "timestamp"
