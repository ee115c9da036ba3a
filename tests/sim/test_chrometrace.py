"""The timeline: tracks on which nothing overlaps, and events that sum exactly to the summary."""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import membound as mb
import numpy as np
import pytest
from membound.sim.books.record import CAUSES
from membound.sim.output import chrometrace

SCENARIO = {
    "device": "h100_sxm",
    "model": "llama-3.1-8b",
    "kv_cache": {"num_gpu_blocks_override": 1500},
    "workload": {
        "arrivals": {"kind": "poisson", "rate_per_s": 12},
        "input_tokens": {"kind": "lognormal", "p50": 600, "sigma": 0.8, "min": 16, "max": 4000},
        "output_tokens": {"kind": "lognormal", "p50": 100, "sigma": 0.7, "min": 1, "max": 600},
        "requests": 1000,
    },
}
PIPELINE = {**SCENARIO, "parallelism": {"pipeline_parallel_size": 2, "tensor_parallel_size": 2}}


@pytest.fixture(scope="module", params=[SCENARIO, PIPELINE], ids=["one GPU", "two stages of two"])
def result(request: pytest.FixtureRequest) -> mb.SimulationResult:
    return mb.simulate(mb.Scenario.model_validate(request.param), keep_steps=True)


@pytest.fixture(scope="module")
def trace(result: mb.SimulationResult, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.json.gz"
    chrometrace.write_trace(result.record, path)
    return path


def read(path: Path) -> dict[str, Any]:
    """Return the trace with every time as an exact decimal [us]."""
    with gzip.open(path, "rt", encoding="utf-8") as text:
        return json.load(text, parse_float=Decimal)


def spans(events: list[dict[str, Any]]) -> Iterator[tuple[Any, list[tuple[int, int, str]]]]:
    """Yield each track's spans: start and end [ns], and name."""
    tracks: dict[Any, list[tuple[int, int, str]]] = {}
    for event in events:
        if event["ph"] == "X":
            start, length = (int(Decimal(event[key]) * 1000) for key in ("ts", "dur"))
            tracks.setdefault((event["pid"], event["tid"]), []).append((start, start + length, event["name"]))
    yield from tracks.items()


def test_every_cause_sums_exactly_to_the_summary(result: mb.SimulationResult, trace: Path):
    sums = dict.fromkeys(CAUSES, 0)
    for (pid, _), track in spans(read(trace)["traceEvents"]):
        for start, end, name in track:
            if pid and name in sums:
                sums[name] += end - start
    assert sums == dict(result.record.causes_ns)
    share = result.summary()["time_share"]
    assert {name: ns / result.record.wall_ns for name, ns in sums.items()} == pytest.approx(share, abs=1e-6)


def test_spans_of_a_track_are_nested_and_never_overlap(
    trace: Path, colocated: tuple[mb.SimulationResult, dict[str, Any]]
):
    nested(read(trace)["traceEvents"])
    nested(colocated[1]["traceEvents"])


def nested(events: list[dict[str, Any]]) -> None:
    """Check that what lies on a track lies inside or behind what was there before."""
    tracks = dict(spans(events))
    assert len(tracks) > 5
    for track, found in tracks.items():
        open_until: list[int] = []
        for start, end, name in sorted(found, key=lambda span: (span[0], -span[1])):
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], (track, name, start)
            open_until.append(end)


def test_requests_lie_in_lanes_with_their_latencies(result: mb.SimulationResult, trace: Path):
    requests = result.record.requests
    found = [event for event in read(trace)["traceEvents"] if str(event["name"]).startswith("request ")]
    lasted = {int(event["name"].split()[1]): int(Decimal(event["dur"]) * 1000) for event in found}
    expected = (requests["last_token_ns"] - requests["arrival_ns"]).tolist()
    assert lasted == dict(enumerate(expected))
    mean = sum(lasted.values()) / len(lasted) / 1e9
    assert mean == pytest.approx(result.summary()["latency"]["e2e_s"]["mean"], rel=1e-9)


def test_counters_reach_the_peak_and_end_at_nothing(result: mb.SimulationResult, trace: Path):
    events = [event for event in read(trace)["traceEvents"] if event["ph"] == "C"]
    blocks = [event["args"]["used_blocks"] for event in events if event["name"] == "KV blocks"]
    assert max(blocks) == result.record.steps["used_blocks"].max()
    assert blocks[-1] == 0
    waiting = [event["args"]["waiting"] for event in events if event["name"] == "waiting"]
    assert min(waiting) == waiting[-1] == 0
    assert max(waiting) > 0


def test_the_same_run_gives_the_same_bytes_and_says_that_it_is_simulated(
    result: mb.SimulationResult, trace: Path, tmp_path: Path
):
    chrometrace.write_trace(result.record, tmp_path / "again.json.gz")
    assert (tmp_path / "again.json.gz").read_bytes() == trace.read_bytes()
    about = read(trace)["otherData"]
    assert about["simulated"] == "true"
    assert about["time_by_cause_ns"] == dict(result.record.causes_ns)


def test_long_runs_draw_like_steps_as_one_with_the_same_sums(
    result: mb.SimulationResult, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chrometrace, "MOST_STEPS", 100)
    chrometrace.write_trace(result.record, tmp_path / "short.json.gz")
    few, many = read(tmp_path / "short.json.gz")["traceEvents"], read(trace)["traceEvents"]
    assert len(few) < len(many)
    for cause in CAUSES:
        both = [sum(e["dur"] for e in each if e["ph"] == "X" and e["name"] == cause) for each in (few, many)]
        assert both[0] == both[1], cause


def test_several_replicas_have_tracks_of_their_own(result: mb.SimulationResult):
    steps = dict(result.record.steps)
    count = len(steps["start_ns"])
    steps = {name: np.concatenate((values, values)) for name, values in steps.items()}
    steps["replica"] = np.repeat([0, 1], count)
    record = replace(result.record, steps=steps)
    events = [json.loads(event) for event in chrometrace.trace_events(record)]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names[1].startswith("replica 0")
    assert names[2].startswith("replica 1")
    for pid in (1, 2):
        compute = sum(
            e["dur"] for e in events if e["ph"] == "X" and e["pid"] == pid and e["name"] == "compute"
        )
        assert compute == pytest.approx(result.record.causes_ns["compute"] / 1000, rel=1e-9)


def test_a_run_without_steps_has_no_timeline(result: mb.SimulationResult):
    with pytest.raises(ValueError, match="kept no steps"):
        list(chrometrace.trace_events(replace(result.record, steps=None)))


def test_perfetto_reads_what_we_wrote(result: mb.SimulationResult, trace: Path):
    processor = pytest.importorskip("perfetto.trace_processor", reason="reads traces")
    kept = Path.home() / ".local/share/perfetto/prebuilts"
    binary = shutil.which("trace_processor_shell") or next(
        map(str, kept.glob("trace_processor_shell*")), None
    )
    if binary is None:
        pytest.skip("Perfetto's trace_processor_shell is not on this machine, and its package would fetch it")
    opened = processor.TraceProcessor(
        trace=str(trace), config=processor.TraceProcessorConfig(bin_path=binary)
    )
    with opened as perfetto:
        rows = perfetto.query("select name, sum(dur) as ns from slice group by name")
        sums = {row.name: row.ns for row in rows}
    for cause, nanoseconds in result.record.causes_ns.items():
        assert sums.get(cause, 0) == pytest.approx(nanoseconds, rel=1e-6), cause


SPLIT = {**SCENARIO, "compute_split": {"prefill": 0.5, "decode": 0.5}}
COLOCATED = {
    **SCENARIO, "device": "h200_sxm", "kv_cache": {"gpu_memory_utilization": 0.4},
    "colocated": {"model": "qwen3-8b", "kv_cache": {"gpu_memory_utilization": 0.4}, "workload": SCENARIO["workload"]},
}  # fmt: skip


@pytest.mark.parametrize(
    ("given", "names"), [(SPLIT, ["prefill stream", "decode stream"]), (COLOCATED, ["replica 0"])]
)
def test_streams_and_models_beside_each_other_are_told_apart(
    given: dict[str, Any], names: list[str], tmp_path: Path
):
    few = {**given, "workload": {**given["workload"], "requests": 60}}
    result = mb.simulate(mb.Scenario.model_validate(few), keep_steps=True)
    chrometrace.write_trace(result.record, tmp_path / "trace.json.gz")
    found = read(tmp_path / "trace.json.gz")
    events = found["traceEvents"]
    processes = [e["args"]["name"].partition(" · ")[0] for e in events if e["name"] == "process_name"]
    assert processes[: len(names)] == names
    assert ("beside each other" in found["otherData"]["note"]) is ("compute_split" in given)
    assert ("models" in found["otherData"]) is ("colocated" in given)
    for _, track in spans(events):
        stack: list[int] = []
        for start, end, _ in sorted(track, key=lambda span: (span[0], -span[1])):
            while stack and stack[-1] <= start:
                stack.pop()
            assert not stack or end <= stack[-1]
            stack.append(end)


@pytest.fixture(scope="module")
def colocated(tmp_path_factory: pytest.TempPathFactory) -> tuple[mb.SimulationResult, dict[str, Any]]:
    """Return a run of two models on one device and its trace."""
    load = {
        "arrivals": {"kind": "poisson", "rate_per_s": 6},
        "input_tokens": 300,
        "output_tokens": 40,
        "requests": 60,
    }
    small = {"gpu_memory_utilization": 0.4, "max_model_len": 2048}
    scenario = {
        "device": "h200_sxm",
        "model": "llama-3.1-8b",
        "kv_cache": small,
        "workload": load,
        "colocated": {"model": "qwen3-14b", "kv_cache": small, "workload": {**load, "requests": 20}},
    }
    found = mb.simulate(mb.Scenario.model_validate(scenario), keep_steps=True)
    path = tmp_path_factory.mktemp("colocated") / "trace.json.gz"
    chrometrace.write_trace(found.record, path)
    return found, read(path)


def test_each_model_on_a_device_has_tracks_that_sum_to_its_own_summary(
    colocated: tuple[mb.SimulationResult, dict[str, Any]],
):
    result, trace = colocated
    events = trace["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    summary = result.summary()
    records = (result.record, *result.record.others)
    said = (summary["time_share"], summary["colocated"]["time_share"])
    for record, shares, model in zip(records, said, ("llama-3.1-8b", "qwen3-14b"), strict=True):
        sums = dict.fromkeys(CAUSES, 0)
        for (pid, _), track in spans(events):
            for start, end, name in track:
                if names[pid].endswith(model) and not names[pid].startswith("requests") and name in sums:
                    sums[name] += end - start
        assert {name: ns / record.wall_ns for name, ns in sums.items()} == pytest.approx(shares, abs=1e-6)
        kept = [each for each in trace["otherData"]["models"] if each["model"] == model]
        assert kept == [{"model": model, "time_by_cause_ns": sums}]
        asked = [e for e in events if e["name"].startswith("request ") and names[e["pid"]].endswith(model)]
        assert len(asked) == len(record.requests["index"])
