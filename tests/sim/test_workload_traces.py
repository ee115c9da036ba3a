"""Every trace format is told by its header and read to the same columns."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.workload.build import build_workload
from membound.sim.workload.spec import WorkloadSpec
from membound.sim.workload.trace.formats import Wanted
from membound.sim.workload.trace.read import read_trace
from membound.sim.workload.workload import Workload

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:05.4799601,110,27
"""
AZURE_2024 = """TIMESTAMP,ContextTokens,GeneratedTokens
2024-05-10 00:00:00.009930+00:00,4808,10
2024-05-10 00:00:00.061930+00:00,3180,8
2024-05-10 00:00:01.5099301+00:00,110,27
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,4808,10,4818,Conversation log
5.052,GPT-4,3180,8,3188,Conversation log
6,ChatGPT,99,0,99,API log
6.5000001,ChatGPT,110,27,137,API log
"""
VIDUR = """arrived_at,num_prefill_tokens,num_decode_tokens
10.0,4808,10
10.052,3180,8
11.5000001,110,27
"""
SPLITWISE = """request_id,request_type,application_id,arrival_timestamp,batch_size,prompt_size,token_size
0,2,0,0.5,1,4808,10
1,2,0,0.552,1,3180,8
2,2,0,2.0000001,1,110,27
"""
GENERIC = """arrival_s,input_tokens,output_tokens
0.0,4808,10
0.052,3180,8
1.5000001,110,27
"""
MOONCAKE = "".join(
    json.dumps({"timestamp": t, "input_length": i, "output_length": o, "hash_ids": h}) + "\n"
    for t, i, o, h in [
        (27482, 4808, 10, list(range(10))),
        (27534, 3180, 8, [0, 1, 90, 91, 92, 93, 94]),
        (28982.0001, 110, 27, [77]),
    ]
)
GENERIC_JSONL = "".join(
    json.dumps({"arrival_ms": t, "input_tokens": i, "output_tokens": o}) + "\n"
    for t, i, o in [(0, 4808, 10), (52, 3180, 8), (1500.0001, 110, 27)]
)


def aiperf(start_ns: int, isl: int, osl: int, **more: Any) -> str:
    record = {
        "metadata": {"x_request_id": f"r{start_ns}", "request_start_ns": start_ns, "was_cancelled": False},
        "metrics": {
            "input_sequence_length": {"value": isl, "unit": "tokens"},
            "output_sequence_length": {"value": osl, "unit": "tokens"},
            "time_to_first_token": {"value": 44.2, "unit": "ms"},
            "request_latency": {"value": 6600.0, "unit": "ms"},
        },
        "error": None,
    }
    return json.dumps(record | more) + "\n"


AIPERF = (
    aiperf(1759813207_532900363, 4808, 10)
    + aiperf(1759813207_584900363, 3180, 8)
    + aiperf(1759813208_000000000, 550, 9, metrics={"error_isl": {"value": 550}}, error={"code": 499})
    + aiperf(1759813209_032900463, 110, 27)
)


def guidellm_run() -> dict[str, Any]:
    rows = [
        {"request_id": f"r{at}", "request_start_time": at, "prompt_tokens": i, "output_tokens": o,
         "time_to_first_token_ms": 44.2, "request_latency": 6.6}
        for at, i, o in [(1700.0, 4808, 10), (1700.052, 3180, 8), (1701.5000001, 110, 27)]
    ]  # fmt: skip
    return {"requests": {"successful": rows, "incomplete": [{}], "errored": []}}


GUIDELLM = json.dumps({"benchmarks": [guidellm_run()]}, indent=1)
VLLM = json.dumps(
    {
        "duration": 5.0, "completed": 3, "total_input_tokens": 8098, "request_throughput": 0.6,
        "input_lens": [4808, 3180, 64, 110], "output_lens": [10, 8, 0, 27],
        "start_times": [900.0, 900.052, 901.0, 901.5000001],
        "ttfts": [0.1, 0.2, 0.0, 0.3], "itls": [[0.01] * 9, [0.02] * 7, [], [0.03] * 26],
        "errors": ["", "", "connection reset", ""],
    }
)  # fmt: skip

FILES = {
    "azure": ("azure", AZURE),
    "azure 2024": ("azure", AZURE_2024),
    "burstgpt": ("burstgpt", BURSTGPT),
    "vidur": ("vidur", VIDUR),
    "splitwise": ("splitwise", SPLITWISE),
    "generic csv": ("generic", GENERIC),
    "generic tab": ("generic", GENERIC.replace(",", "\t")),
    "generic semicolon": ("generic", GENERIC.replace(",", ";")),
    "mooncake": ("mooncake", MOONCAKE),
    "generic jsonl": ("generic", GENERIC_JSONL),
    "aiperf": ("aiperf", AIPERF),
    "guidellm": ("guidellm", GUIDELLM),
    "vllm": ("vllm_bench", VLLM),
}


def write(folder: Path, text: str, name: str = "trace") -> str:
    path = folder / name
    path.write_bytes(text.encode())
    return str(path)


def read(path: str, **options: Any) -> Workload:
    wanted = {
        key: options.pop(key) for key in list(options) if key in ("format", "needs_arrival", "part", "extra")
    }
    return read_trace(Wanted(path, **wanted), **options)


@pytest.mark.parametrize("kind", FILES)
def test_a_format_is_told_by_its_header_and_read_exactly(kind: str, tmp_path: Path) -> None:
    name, text = FILES[kind]
    load = read(write(tmp_path, text))
    assert load.report.format == name
    assert load.arrival_ns.tolist() == [0, 52_000_000, 1_500_000_100]
    assert load.input_tokens.tolist() == [4808, 3180, 110]
    assert load.output_tokens.tolist() == [10, 8, 27]
    assert sum(load.report.dropped.values()) == load.report.rows - 3
    assert read(write(tmp_path, text), format=name).input_tokens.tolist() == [4808, 3180, 110]


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize("change", ["crlf", "bom", "no final newline", "gzip", "blank lines"])
def test_reading_does_not_depend_on_how_the_text_was_saved(kind: str, change: str, tmp_path: Path) -> None:
    text = FILES[kind][1]
    plain = read(write(tmp_path, text))
    data = text.encode()
    if change == "crlf":
        data = data.replace(b"\n", b"\r\n")
    elif change == "bom":
        data = b"\xef\xbb\xbf" + data
    elif change == "no final newline":
        data = data.rstrip(b"\n")
    elif change == "gzip":
        data = gzip.compress(data)
    else:
        data = data.replace(b"\n", b"\n\n") + b"\n \n"
    path = tmp_path / "changed"
    path.write_bytes(data)
    changed = read(str(path))
    assert changed.arrival_ns.tolist() == plain.arrival_ns.tolist()
    assert changed.input_tokens.tolist() == plain.input_tokens.tolist()
    assert changed.output_tokens.tolist() == plain.output_tokens.tolist()


def test_parquet_has_the_columns_of_any_table_format(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    stamps = np.array(["2023-11-16T18:17:03.9799600", "2023-11-16T18:17:04.0319600"], dtype="datetime64[ns]")
    azure = {"TIMESTAMP": stamps, "ContextTokens": [4808, 3180], "GeneratedTokens": [10, 8]}
    generic = {"arrival_s": [0.5, 0.552], "input_tokens": [4808, 3180], "output_tokens": [10, 8],
               "hash_ids": [[1, 2], [1, 3]]}  # fmt: skip
    for name, columns in (("azure", azure), ("generic", generic)):
        pq.write_table(pa.table(columns), tmp_path / name)
        load = read(str(tmp_path / name))
        assert load.report.format == name
        assert load.arrival_ns.tolist() == [0, 52_000_000]
        assert load.input_tokens.tolist() == [4808, 3180]


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 10**7), st.integers(1, 10**6), st.integers(1, 10**6)),
        min_size=1,
        max_size=30,
    )
)
@settings(deadline=None, max_examples=40)
def test_csv_and_jsonl_of_the_same_requests_are_the_same_load(
    rows: list[tuple[int, int, int]], tmp_path_factory
) -> None:
    folder = tmp_path_factory.mktemp("same")
    csv_text = "arrival_us,input_tokens,output_tokens\n" + "".join(f"{t},{i},{o}\n" for t, i, o in rows)
    lines = [json.dumps({"arrival_us": t, "input_tokens": i, "output_tokens": o}) for t, i, o in rows]
    a, b = read(write(folder, csv_text, "a")), read(write(folder, "\n".join(lines), "b"))
    order = sorted(range(len(rows)), key=lambda row: rows[row][0])
    assert a.arrival_ns.tolist() == b.arrival_ns.tolist()
    assert a.input_tokens.tolist() == b.input_tokens.tolist() == [rows[row][1] for row in order]
    first = min(t for t, _, _ in rows)
    assert a.arrival_ns.tolist() == [(rows[row][0] - first) * 1000 for row in order]
    assert a.report.out_of_order == b.report.out_of_order


def test_optional_columns_reach_the_requests(tmp_path: Path) -> None:
    text = (
        "arrival_s,input_tokens,output_tokens,request_id,session_id,priority,slo_class,hash_ids,note\n"
        "0,1024,8,a,s1,2,batch,0 1,x\n1,1100,8,b,,0,,0 1 2,y\n2,512,8,c,s1,-1,default,0,z\n"
    )
    load = read(write(tmp_path, text), slo_classes=["default", "batch"])
    requests = list(load.iter_requests(16))
    assert [request.request_id for request in requests] == ["a", "b", "c"]
    assert [request.session for request in requests] == [0, None, 0]
    assert [request.priority for request in requests] == [2, 0, -1]
    assert [request.slo_class for request in requests] == ["batch", "default", "default"]
    assert [len(request.block_hashes) for request in requests] == [64, 68, 32]


def test_time_scale_scales_intervals_and_limit_takes_the_earliest(tmp_path: Path) -> None:
    text = "arrival_s,input_tokens,output_tokens\n100,1,1\n104,3,1\n102,2,1\n"
    path = write(tmp_path, text)
    assert read(path, time_scale=0.5).arrival_ns.tolist() == [0, 1_000_000_000, 2_000_000_000]
    assert read(path, limit=2).input_tokens.tolist() == [1, 2]
    assert read(path, limit=9).input_tokens.tolist() == [1, 2, 3]


def test_a_trace_with_other_arrivals_gives_only_its_lengths(tmp_path: Path) -> None:
    path = write(tmp_path, "input_tokens,output_tokens\n5,1\n7,2\n")
    section = {"trace": {"path": path}, "arrivals": {"kind": "constant", "rate_per_s": 2}}
    load = build_workload(WorkloadSpec.model_validate(section))
    assert load.arrival_ns.tolist() == [0, 500_000_000]
    assert load.input_tokens.tolist() == [5, 7]
    closed = {"trace": {"path": path}, "arrivals": {"kind": "closed_loop", "concurrency": 1}}
    loop = build_workload(WorkloadSpec.model_validate(closed), turnaround_s=0.0035).closed_loop
    assert loop is not None
    assert loop.next_arrival_ns(1, 10) == 3_500_010


def test_measured_latencies_come_with_the_requests(tmp_path: Path) -> None:
    load = read(write(tmp_path, VLLM))
    assert load.measured["ttft_s"].tolist() == [0.1, 0.2, 0.3]
    assert load.measured["e2e_s"] == pytest.approx([0.19, 0.34, 1.08])
    assert load.measured["tpot_s"] == pytest.approx([0.01, 0.02, 0.03])
    text = "arrival_s,input_tokens,output_tokens,status,ttft_ms,e2e_ms\n"
    text += "0,9,2,ok,70,80\n1,9,2,error,0,0\n2,9,1,ok,,\n"
    load = read(write(tmp_path, text))
    assert load.measured["ttft_s"][0] == 0.07
    assert np.isnan(load.measured["tpot_s"][1])
    assert load.report.dropped == {"status not ok": 1}


def test_a_report_of_several_runs_needs_a_part(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({"benchmarks": [guidellm_run(), guidellm_run()]}))
    assert len(read(path, part=1)) == 3
    with pytest.raises(ValueError, match=r"holds 2 runs; choose one with trace.part: 0 to 1"):
        read(path)
    with pytest.raises(ValueError, match="part is 2"):
        read(path, part=2)


@pytest.mark.parametrize(
    ("text", "offset_ns"),
    [
        ("2024-05-10 02:00:00+02:00", 0),
        ("2024-05-09T19:30:00.5-04:30", 500_000_000),
        ("2024-05-10T00:00:01Z", 10**9),
    ],
)
def test_timestamps_with_a_zone_are_read_as_instants(text: str, offset_ns: int, tmp_path: Path) -> None:
    rows = f"TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00,5,5\n{text},6,5\n"
    assert read(write(tmp_path, rows)).arrival_ns.tolist() == [0, offset_ns]


def test_the_summary_states_unit_origin_rate_and_lengths(tmp_path: Path) -> None:
    summary = read(write(tmp_path, AZURE)).summary()
    assert summary["time_unit"] == "timestamp"
    assert summary["origin"] == "2023-11-16T18:17:03.979960000"
    assert summary["rate_per_s"] == pytest.approx(3 / 1.5000001)
    assert summary["input_tokens"]["max"] == 4808
    assert summary["max_gap_s"] == pytest.approx(1.4480001)
    one = read(write(tmp_path, AZURE), limit=1).summary()
    assert one["rate_per_s"] is None
    assert one["max_gap_s"] is None


def test_quoted_values_and_block_borders_keep_rows_whole(tmp_path: Path) -> None:
    n = (1 << 14) + 3
    rows = "".join(f'{i}.5,"{i % 100 + 1}",7,"a, ""b"" {i}"\n' for i in range(n))
    load = read(write(tmp_path, "arrival_s,input_tokens,output_tokens,note\n" + rows))
    assert len(load) == n
    assert load.input_tokens.tolist() == [i % 100 + 1 for i in range(n)]


SHARED = Path(__file__).resolve().parents[2].parent / "shared" / "measured"


@pytest.mark.skipif(not SHARED.is_dir(), reason="no measured traces beside the repository")
@pytest.mark.parametrize(
    "file",
    [path for folder in ("traces", "e2e/requests") for path in sorted((SHARED / folder).glob("*.csv.gz"))],
    ids=lambda path: path.name,
)
def test_every_measured_trace_is_read(file: Path) -> None:
    if file.name.startswith("servegen"):
        pytest.skip("statistics of clients, not requests")
    load = read(str(file), needs_arrival="lengths" not in file.name)
    with gzip.open(file, "rt") as text:
        assert load.report.rows == len(load) == sum(1 for _ in text) - 1
    assert (np.diff(load.arrival_ns) >= 0).all()


@pytest.mark.parametrize("column", ["tenant", "tenant_id", "user_id"])
def test_a_trace_says_whose_a_request_is(tmp_path: Path, column: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        f"arrival_s,input_tokens,output_tokens,{column}\n0,5,5,shop\n1,5,5,bank\n2,5,5,\n3,5,5,shop\n"
    )
    load = build_workload(WorkloadSpec.model_validate({"trace": {"path": str(path)}}))
    assert [request.tenant for request in load.iter_requests()] == [0, 1, None, 0]
