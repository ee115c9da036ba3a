"""What a bad trace gets: one line that names file, line and column; nothing is dropped without a count."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.fields import WorkloadError
from membound.sim.workload.trace.formats import Wanted
from membound.sim.workload.trace.read import read_trace
from membound.sim.workload.workload import Workload

REPORT_KEYS = [
    "start_times", "input_lens", "output_lens", "ttfts", "itls", "errors", "benchmarks", "metadata",
    "metrics", "error",
]  # fmt: skip
REPORT_MARKS = [
    {"total_input_tokens": 1, "request_throughput": 1.0, "input_lens": [5], "output_lens": [6]},
    {"benchmarks": [{}]},
    {"metadata": {}, "metrics": {}},
]
HEADER = "arrival_s,input_tokens,output_tokens\n"


def complaint(folder: Path, data: bytes | str, name: str = "trace.csv", **wanted: object) -> str:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(WorkloadError) as caught:
        read_trace(Wanted(str(path), **wanted))  # type: ignore[arg-type]
    text = str(caught.value)
    assert "\n" not in text
    assert name in text
    return text


@pytest.mark.parametrize(
    ("row", "parts"),
    [
        ("1,-5,3", ["line 3", "'input_tokens'", "-5 tokens", "allowed: 1 to"]),
        ("1,0,3", ["line 3", "'input_tokens'", "0 tokens"]),
        ("1,5,0", ["line 3", "'output_tokens'", "0 tokens"]),
        ("1,5,-1", ["line 3", "'output_tokens'", "-1 tokens"]),
        ("1,nan,3", ["line 3", "'input_tokens'", "'nan' is not a whole number"]),
        ("1,5,NaN", ["line 3", "'output_tokens'", "'NaN'"]),
        ("1,5.5,3", ["line 3", "'input_tokens'", "'5.5' is not a whole number"]),
        ("1,inf,3", ["line 3", "'input_tokens'", "'inf'"]),
        ("1,1e30,3", ["line 3", "'input_tokens'", "too large"]),
        ("1,99999999999,3", ["line 3", "'input_tokens'", "99999999999 tokens"]),
        ("1,five,3", ["line 3", "'input_tokens'", "'five' is not a number"]),
        ("1,,3", ["line 3", "'input_tokens'", "missing value"]),
        ("nan,5,3", ["line 3", "'arrival_s'", "nan"]),
        ("inf,5,3", ["line 3", "'arrival_s'", "inf"]),
        ("-1,5,3", ["line 3", "'arrival_s'", "-1", "0 or later"]),
        (",5,3", ["line 3", "'arrival_s'", "missing value"]),
        ("soon,5,3", ["line 3", "'arrival_s'", "'soon' is not a number"]),
        ("1e12,5,3", ["line 3", "'arrival_s'", "146 years"]),
        ("1,5", ["line 3", "2 values", "3 columns"]),
        ("1,5,3,9", ["line 3", "4 values", "3 columns"]),
    ],
)
def test_a_bad_value_is_named_by_line_and_column(row: str, parts: list[str], tmp_path: Path) -> None:
    text = complaint(tmp_path, HEADER + "0,5,3\n" + row + "\n2,6,3\n")
    for part in parts:
        assert part in text


def test_line_numbers_count_blank_lines_and_line_breaks_inside_quotes(tmp_path: Path) -> None:
    text = 'arrival_s,input_tokens,output_tokens,note\n\n0,5,3,"two\nlines"\n\n1,-5,3,x\n'
    assert "line 6" in complaint(tmp_path, text)


def test_line_numbers_are_right_beyond_a_block_and_after_sorting(tmp_path: Path) -> None:
    rows = [f"{i},5,3\n" for i in range(40_000)]
    rows[39_000] = "39000,5,0\n"
    assert "line 39002" in complaint(tmp_path, HEADER + "".join(rows))
    rows[39_000] = "39000,5,x\n"
    assert "line 39002" in complaint(tmp_path, HEADER + "".join(rows))


def test_an_azure_timestamp_that_is_none_is_named(tmp_path: Path) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,5,5\n"
    for bad in ("yesterday", "2023-11-16", "2023-13-16 18:17:03", "NaT", "18:17:03"):
        text = complaint(tmp_path, header + bad + ",5,5\n")
        assert "line 3, column 'TIMESTAMP'" in text
        assert repr(bad) in text
    assert "missing value" in complaint(tmp_path, header + ",5,5\n")


def test_a_missing_column_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    text = complaint(tmp_path, "arrival_s,input_tokens,output_token\n0,5,3\n")
    assert "line 1: missing column 'output_tokens'" in text
    assert "nearest: 'output_token'" in text
    text = complaint(tmp_path, "input_tokens,output_tokens\n5,3\n")
    assert "'arrival_s' or 'arrival_ms'" in text
    assert "workload.arrivals" in text
    assert "'TIMESTAMP'" in complaint(tmp_path, "TIME,ContextTokens,GeneratedTokens\n0,5,3\n")


def test_an_unknown_header_lists_what_is_known(tmp_path: Path) -> None:
    text = complaint(tmp_path, "a,b,c\n1,2,3\n")
    assert "not a known trace: has a, b, c" in text
    assert "azure: ContextTokens,GeneratedTokens" in text


def test_a_format_asked_for_must_be_that_of_the_file(tmp_path: Path) -> None:
    text = complaint(tmp_path, HEADER + "0,5,3\n", format="azure")
    assert "missing column 'TIMESTAMP' of the azure format" in text
    assert "not a mooncake trace" in complaint(tmp_path, HEADER + "0,5,3\n", format="mooncake")


@pytest.mark.parametrize("data", ["", "\n \n", HEADER, HEADER + "\n\n"])
def test_an_empty_trace_is_refused(data: str, tmp_path: Path) -> None:
    assert "no requests to simulate" in complaint(tmp_path, data)


def test_a_column_given_twice_is_refused(tmp_path: Path) -> None:
    text = complaint(tmp_path, "arrival_s,input_tokens,input_tokens,output_tokens\n0,1,2,3\n")
    assert "column 'input_tokens' appears 2 times" in text


def test_duplicate_ids_name_both_lines(tmp_path: Path) -> None:
    text = complaint(tmp_path, "request_id," + HEADER + "a,0,5,3\nb,1,5,3\nb,2,5,3\na,3,5,3\n")
    assert "line 4, column 'request_id'" in text
    assert "id 'b' again; first at line 3" in text


def test_damaged_files_are_named(tmp_path: Path) -> None:
    whole = gzip.compress((HEADER + "0,5,3\n" * 1000).encode(), mtime=0)
    assert "gzip" in complaint(tmp_path, whole[: len(whole) // 2])
    assert "line 3: not UTF-8 text" in complaint(tmp_path, HEADER.encode() + b"0,5,3\n1,\xff5,3\n")
    assert "not a readable Parquet file" in complaint(tmp_path, b"PAR1 is not enough")


def test_more_hash_ids_than_a_prompt_has_blocks_are_refused(tmp_path: Path) -> None:
    """An id covers 512 tokens, the last one what is left: 513 tokens have two."""
    line = '{"timestamp": 0, "input_length": 513, "output_length": 3, "hash_ids": [0, 1]}\n'
    said = complaint(tmp_path, line + line.replace("[0, 1]", "[0, 1, 2]"))
    assert (
        "line 2, column 'hash_ids': 3 hash ids for a prompt of 513 tokens; allowed: at most 2, one for each 512 tokens"
        in said
    )


def test_damaged_json_is_named(tmp_path: Path) -> None:
    good = '{"timestamp": 0, "input_length": 5, "output_length": 3, "hash_ids": [0]}\n'
    assert "line 2: not JSON" in complaint(tmp_path, good + '{"timestamp": 1,\n')
    assert "line 2" in complaint(tmp_path, good + "[1, 2]\n")
    assert "line 2, column 17" in complaint(tmp_path, '{"timestamp": 0,\n "input_length" 5}\n')
    bad = good + good.replace("[0]", '["x"]')
    assert "line 2, column 'hash_ids': ['x'] is not a list of whole-number hash ids" in complaint(
        tmp_path, bad
    )
    bad = good + good.replace('"input_length": 5', '"input_length": null')
    assert "line 2, column 'input_length': missing value" in complaint(tmp_path, bad)
    bad = good + good.replace('"output_length": 3', '"output_length": 0')
    assert "line 2, column 'output_length': 0 tokens" in complaint(tmp_path, bad)
    bad = good + good.replace('"input_length": 5, ', "")
    assert "line 2, column 'input_length': missing value" in complaint(tmp_path, bad)


def test_a_report_without_per_request_lists_says_how_to_get_them(tmp_path: Path) -> None:
    report = '{"total_input_tokens": 5, "request_throughput": 1.0}'
    assert "--save-detailed" in complaint(tmp_path, report)


def test_a_file_that_is_not_there_gets_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "azure_conv.csv").write_text(HEADER)
    with pytest.raises(WorkloadError, match=r"not found; nearest: '.*azure_conv.csv'"):
        read_trace(Wanted(str(tmp_path / "azure_con.csv")))
    with pytest.raises(WorkloadError, match="no folder"):
        read_trace(Wanted(str(tmp_path / "nowhere" / "azure_con.csv")))
    with pytest.raises(WorkloadError, match="cannot be read"):
        read_trace(Wanted(str(tmp_path)))


def test_an_unknown_slo_class_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,slo_class\n0,5,3,\n1,5,3,bacth\n")
    with pytest.raises(
        WorkloadError, match=r"line 3, column 'slo_class': unknown SLO class 'bacth'; nearest: 'batch'"
    ):
        read_trace(Wanted(str(path)), slo_classes=["default", "batch"])


def test_unsorted_arrivals_are_sorted_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(HEADER + "3,30,1\n1,10,1\n2,20,1\n4,40,1\n2,21,1\n")
    load = read_trace(Wanted(str(path)))
    assert load.input_tokens.tolist() == [10, 20, 21, 30, 40]
    assert load.report.out_of_order == 3
    assert load.report.warnings == (f"{path}: 3 of 5 arrivals out of order (first line 3): sorted",)


def test_pauses_of_nobody_are_warned_about(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,turn,think_time_s\n0,5,1,0,2.5\n")
    assert read_trace(Wanted(str(path))).report.warnings == (
        f"{path}: think_time_s not used: without session_id nobody knows whose pauses they are",
    )


def test_a_negative_pause_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,session_id,think_time_s\n0,5,1,a,0\n1,5,1,a,-2\n")
    with pytest.raises(WorkloadError, match=r"line 3, column 'think_time_s': pause -2; allowed: from 0"):
        read_trace(Wanted(str(path)))


def read_or_refuse(path: Path) -> Workload | None:
    """Read a trace; None if it was refused, in one line."""
    refusal = ""
    try:
        return read_trace(Wanted(str(path)))
    except WorkloadError as error:
        refusal = str(error)
    assert str(path) in refusal
    assert "\n" not in refusal
    return None


VALUES = st.one_of(
    st.integers(-10, 10**25).map(str),
    st.floats().map(str),
    st.sampled_from(
        ["", " ", "nan", "NaT", "-0", "1e400", "1_0", "0x10", '"', "2023-11-16 18:17:03.97", "\x00"]
    ),
    st.text(max_size=6),
)
HEADERS = [
    HEADER,
    "TIMESTAMP,ContextTokens,GeneratedTokens\n",
    "arrival_ns,input_tokens,output_tokens,hash_ids\n",
]


@given(header=st.sampled_from(HEADERS), rows=st.lists(st.lists(VALUES, min_size=2, max_size=5), max_size=4))
@settings(deadline=None, max_examples=200)
def test_whatever_is_in_a_table_it_is_read_or_refused_in_one_line(
    header: str, rows: list[list[str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "trace.csv"
    path.write_text(header + "".join(",".join(row) + "\n" for row in rows), encoding="utf-8", newline="")
    load = read_or_refuse(path)
    if load is None:
        return
    assert load.arrival_ns.min() == 0
    assert min(load.input_tokens.min(), load.output_tokens.min()) >= 1
    assert len(list(load.iter_requests(16))) == len(load) <= len(rows)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**25) | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
KEYS = ["timestamp", "input_length", "output_length", "hash_ids", "session_id"]


@given(records=st.lists(st.fixed_dictionaries(dict.fromkeys(KEYS, JSON)), min_size=1, max_size=3))
@settings(deadline=None, max_examples=200)
def test_whatever_is_in_a_record_it_is_read_or_refused_in_one_line(
    records: list[dict[str, object]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "trace.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    load = read_or_refuse(path)
    if load is None:
        return
    assert len(list(load.iter_requests(16))) == len(load) == len(records)


@given(
    report=st.dictionaries(st.sampled_from(REPORT_KEYS), JSON, min_size=1),
    known=st.sampled_from(REPORT_MARKS),
)
@settings(deadline=None, max_examples=200)
def test_whatever_is_in_a_report_it_is_read_or_refused_in_one_line(
    report: dict[str, object], known: dict[str, object], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "report.json"
    path.write_text(json.dumps(report | {key: report.get(key, value) for key, value in known.items()}))
    read_or_refuse(path)


def test_failed_requests_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("Timestamp,Request tokens,Response tokens\n1,5,0\n2,5,3\n3,5,0\n")
    load = read_trace(Wanted(str(path)))
    assert len(load) == 1
    assert load.arrival_ns.tolist() == [0]
    assert load.report.dropped == {"no response tokens": 2}
    assert load.report.warnings == (f"{path}: 2 of 3 requests left out: no response tokens",)
    path.write_text("Timestamp,Request tokens,Response tokens\n1,5,0\n")
    with pytest.raises(WorkloadError, match="every one of its 1 requests failed"):
        read_trace(Wanted(str(path)))
