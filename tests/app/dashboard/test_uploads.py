"""Files that readers bring: told by their content, held against what they are of, refused in one line."""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import pickle
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from membound.app.dashboard import uploads
from membound.app.dashboard.asked import base_of, scenario_of
from membound.app.dashboard.uploads import UploadError, check
from membound.hwmodels.errors import MemboundError
from membound.sim.run import simulate
from pyarrow import parquet

BASE = base_of()
SCENARIO = scenario_of(BASE, BASE.defaults() | {"n": 20, "isl": 64, "osl": 8, "rate": 20.0})
ZIP = (b"PK\x03\x04\x14\x00\x00\x00\x08\x00" + bytes(20) + b"\xff../../x") * 9
RUNS = "run_id,gpu,model,engine,isl_mean,osl_mean,arrival"


def _bomb() -> bytes:
    """Return 20 million equal values in a few kilobytes."""
    packed = io.BytesIO()
    value = pa.repeat(pa.scalar(1, pa.int8()), 20_000_000)
    parquet.write_table(pa.table({"latency_us": value}), packed, compression="zstd")
    return packed.getvalue()


BOMB = _bomb()


@pytest.fixture(scope="module")
def bench() -> bytes:
    """Return what a load generator would have written of the sidebar's scenario, 10 % slower than simulated."""
    from membound.sim.output.tables import requests_table

    record = simulate(SCENARIO).record
    client = record.setup.client_overhead_s or 0.0
    rows = [
        ",".join(str(each) for each in (
            row["arrival_s"], row["input_tokens"], row["output_tokens"],
            1.1 * (row["ttft_s"] + client), 1.1 * (row["e2e_s"] + client),
        ))
        for row in requests_table(record).to_pylist()
    ]  # fmt: skip
    return "\n".join(["arrival_s,input_tokens,output_tokens,ttft_s,e2e_s", *rows, ""]).encode()


def timings(rows: int = 60) -> bytes:
    rng = np.random.default_rng(0)
    m, n, k = (rng.choice(sizes, rows) for sizes in ([1, 16, 256, 4096], [4096, 8192], [4096, 14336]))
    us = 2.0 * m * n * k / 6e14 * 1e6 + 2.0 * n * k / 2.8e12 * 1e6 + 4.0
    lines = [f"h100_sxm,vllm,gemm,bfloat16,{m[i]},{n[i]},{k[i]},{us[i]:.3f}" for i in range(rows)]
    return "\n".join(["gpu,framework,op,dtype,m,n,k,latency_us", *lines, ""]).encode()


def test_a_load_generators_file_is_replayed_on_the_sidebars_server(bench: bytes):
    seen: list[tuple[int, int]] = []
    found = check([("run.csv", bench)], SCENARIO, lambda done, total: seen.append((done, total)))
    assert len(found.served) == 1
    assert found.served[0].error["ttft_mean"] == pytest.approx(1 / 1.1 - 1, abs=0.01)
    assert found.served[0].measured["ttft_mean"] > 0
    assert seen == [(1, 1)]


def test_timings_are_held_against_the_lanes_of_the_device():
    found = check([("timings.csv", timings())], SCENARIO)
    assert [each.family for each in found.points] == ["gemm"]
    assert found.points[0].errors.n == 60
    assert {point["role"] for point in found.points[0].points} == {"held out"}


def test_a_packed_file_is_read_as_the_same_file(bench: bytes):
    plain, packed = check([("a.csv", bench)], SCENARIO), check([("a.csv.gz", gzip.compress(bench))], SCENARIO)
    assert plain.served[0].error == packed.served[0].error


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("empty.csv", b"", "empty.csv is empty"),
        ("blank.csv", b"\n \n", "blank.csv"),
        ("words.json", b"not json at all", "words.json"),
        ("fit.json", b'{"fits": [], "schema_version": 99}', "schema_version 99"),
        ("fit.json", b'{"fits": [{"family": 1}], "schema_version": 1}', "not a calibration run"),
        ("table.csv", b"a,b,c\n1,2,3\n", "table.csv"),
        ("timings.csv", b"latency_us\n1\n", "timings.csv"),
        ("timings.parquet", b"PAR1 and nothing else", "timings.parquet"),
        ("pickle.json", pickle.dumps({"fits": print}), "pickle.json"),
        ("fit.json", b'"fits"' + pickle.dumps(print), "not a calibration run"),
        ("zip.csv", ZIP, "not UTF-8"), ("zip.parquet", ZIP, "zip.parquet"), ("a.yaml", b"a: &a [*a]\n", "a.yaml"),
        ("fit.json", b'{"fits": ' + b"[" * 100_000, "nested too deep"),
        ("deep.json", b"[" * 100_000, "nested too deep"),
        ("fit.json", b'{"fits": [], "schema_version": ' + b"9" * 9999 + b"}", "digits"),
        ("fit.json", b'{"fits": {"__class__": "os.system"}, "schema_version": 1}', "not a calibration run"),
        ("quote.csv", b'"' * 300_000, "quote.csv"), ("many.csv", b"latency_us," + b"x," * 9999 + b"\n", "many.csv"),
        ("bomb.parquet", BOMB, "rows of 1 columns"),
        ("twice.csv.gz", gzip.compress(gzip.compress(b"a", mtime=0), mtime=0), "twice.csv.gz"),
        ("nul\0.csv", b"a\n1\n", "not a known trace"), ("..", b"x", "not a known trace"),
        ("bad.csv.gz", b"\x1f\x8bgarbage", "bad.csv.gz is no gzip file"),
        ("runs.csv", f"{RUNS},file\nx,h100_sxm,llama-3.1-8b,vllm,1,1,poisson,../../etc/passwd\n".encode(), "a file"),
        ("runs.csv", f"{RUNS}\nx,h100_sxm,/etc/passwd,vllm,1,1,poisson\n".encode(), "names a file"),
    ],
)  # fmt: skip
def test_a_bad_file_is_one_line_that_names_it(name: str, content: bytes, told: str):
    with pytest.raises(MemboundError, match=re.escape(name)) as refused:
        check([(name, content)], SCENARIO)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert "/tmp" not in str(refused.value)


POINTS = "run_id,gpu,model,engine,isl,osl,concurrency,ttft_ms,tpot_ms,n_gpus,tp_size,mode"


def test_measured_points_stand_beside_a_plan_by_user_and_by_gpu():
    lines = [
        "a,h100_sxm,llama-3.1-8b,vllm,1024,1024,16,80,10,2,2,agg",
        "b,h100_sxm,llama-3.1-8b,vllm,1024,1024,16,80,10,2,2,disagg",
        "c,h100_sxm,qwen3-14b,vllm,1024,1024,16,80,10,1,1,agg",
    ]
    rows, note = uploads.measured_points("p.csv", "\n".join([POINTS, *lines, ""]).encode(), "llama-3.1-8b")
    assert [row["label"] for row in rows] == ["a: vllm on 2 x h100_sxm, 16 users"]
    assert rows[0]["source"] == "measured"
    assert rows[0]["tokens_per_s_per_user"] == pytest.approx(100)
    assert rows[0]["tokens_per_s_per_gpu"] == pytest.approx(16 * 1024 / (0.080 + 1023 * 0.010) / 2)
    assert note.startswith("p.csv: 1 measured points of llama-3.1-8b; 1 rows left out: prefill and decode")


@pytest.mark.parametrize("content", [b"a,b\n1,2\n", b"\x00" * 99, f"{POINTS}\n".encode(), b"PK\x03\x04"])
def test_what_holds_no_measured_points_is_refused_in_one_line(content: bytes):
    with pytest.raises(MemboundError, match=r"p\.csv") as refused:
        uploads.measured_points("p.csv", content, "llama-3.1-8b")
    assert "\n" not in str(refused.value)
    assert "/tmp" not in str(refused.value)


def test_a_name_of_any_length_is_told_short():
    with pytest.raises(MemboundError) as refused:
        check([("x" * 5000 + ".csv", b"a\n1\n")], SCENARIO)
    assert len(str(refused.value)) < 2000


def test_a_file_that_is_too_large_is_refused_packed_or_not(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(uploads, "LARGEST", 1000)
    monkeypatch.setattr(uploads, "LARGEST_UNPACKED", 2000)
    with pytest.raises(UploadError, match="allowed: 0 MiB"):
        check([("a.csv", b"x" * 1001)], SCENARIO)
    with pytest.raises(UploadError, match="unpacks to more"):
        check([("a.csv.gz", gzip.compress(b"x" * 100_000))], SCENARIO)


NAMES = ("a.json", "a.jsonl", "a.csv", "a.parquet", "a.csv.gz")


@given(content=st.binary(min_size=1, max_size=300), name=st.sampled_from(NAMES))
@example(content=json.dumps({"fits": 3, "schema_version": 1}).encode(), name="a.json")
@example(content=b"[1, 2]", name="a.json")
@example(content=b"arrival_s,input_tokens,output_tokens\nnan,1,1\n", name="a.csv")
def test_whatever_is_in_a_file_it_is_read_or_refused(content: bytes, name: str):
    with contextlib.suppress(MemboundError):
        check([(name, content)], SCENARIO)


def test_what_a_file_is_called_is_never_where_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bench: bytes
):
    monkeypatch.chdir(tmp_path)
    check([("../../outside.csv", bench)], SCENARIO)
    assert list(tmp_path.rglob("*")) == []
    assert not (tmp_path.parent / "outside.csv").exists()
