"""SIGKILL at any moment: nothing is lost or doubled, and no file under its final name is half written.

Children are forked from a clean server that has imported everything; `make test-long` kills fifty times.
"""

from __future__ import annotations

import gzip
import json
import multiprocessing
import os
import random
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from membound.app.cli import main
from pyarrow import parquet

MANY = "MEMBOUND_EXAMPLES" in os.environ
KILLS = {"sweep": 20, "simulate": 20, "measure": 10} if MANY else {"sweep": 2, "simulate": 3, "measure": 1}
STUDY = (
    "base: small.yaml\nover: {workload.requests: [11, 12, 13, 14, 15, 16, 17, 18], simulation.seed: [1, 2]}\n"
)


@pytest.fixture(scope="module")
def start() -> Callable[..., multiprocessing.Process]:
    """Return a function that runs ``membound WORDS…`` in a process of its own."""
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(
        ["membound.app.cli", "membound.sim.run", "membound.sim.output.output", "pyarrow.parquet"]
    )

    def run(*words: object) -> multiprocessing.Process:
        child = server.Process(target=main, args=([*map(str, words), "--quiet"],))
        child.start()
        return child

    return run


@pytest.fixture
def disturbed(start) -> Callable[..., Iterator[None]]:
    """Return a generator that kills a command again and again, and yields after each kill."""

    def kill(times: int, *words: object, longest_s: float = 0.0) -> Iterator[None]:
        draw = random.Random(times)
        whole = longest_s
        if not longest_s:
            begun = time.monotonic()
            start(*words).join()
            whole = time.monotonic() - begun
            yield None
        for _ in range(times):
            child = start(*words)
            time.sleep(draw.uniform(0.0, whole))
            child.kill()
            child.join()
            yield None

    return kill


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files under their final names, each read whole by what its name promises."""
    read: dict[str, Callable[[bytes], object]] = {
        ".json": json.loads, ".gz": lambda data: json.loads(gzip.decompress(data)), ".yaml": yaml.safe_load,
        ".parquet": lambda data: parquet.read_table(path).num_rows,
    }  # fmt: skip
    found: dict[str, bytes] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_dir() or any(part.startswith(".") for part in path.relative_to(folder).parts):
            continue
        data = path.read_bytes()
        assert data, path
        read.get(path.suffix, len)(data)
        assert path.suffix != ".prom" or data.endswith(b"# EOF\n")
        found[str(path.relative_to(folder))] = data
    return found


def test_a_sweep_keeps_each_run_once_however_often_it_is_killed(membound, small, tmp_path, disturbed):
    (tmp_path / "study.yaml").write_text(STUDY)
    out, earlier = tmp_path / "out", dict[str, bytes]()
    words = ("sweep", tmp_path / "study.yaml", "--out", out, "--jobs", 1)
    for _ in disturbed(KILLS["sweep"], *words):
        kept = {name: data for name, data in contents(out).items() if name.startswith("runs")}
        assert earlier.items() <= kept.items()
        earlier = kept
        if len(kept) == 16:  # begin anew: nothing would be left to disturb
            shutil.rmtree(out)
            earlier = {}
    after = membound(*words, "--format", "json")
    alone = membound("sweep", "study.yaml", "--out", "alone", "--jobs", 1, "--format", "json")
    assert after.out == alone.out
    assert len(json.loads(after.out)["points"]) == 16
    assert contents(out).keys() == contents(tmp_path / "alone").keys()


def test_a_result_is_there_whole_or_not_at_all(membound, small, tmp_path, disturbed):
    out = tmp_path / "out"
    words = ("simulate", small, "--num-prompts", 300, "--out", out)
    first: dict[str, bytes] = {}
    for again, _ in enumerate(disturbed(KILLS["simulate"], *words)):
        found = contents(out) if out.exists() else {}
        first = first or found
        assert set(found.items()) <= set(first.items())
        assert found in ({}, first) or "summary.json" not in found  # which comes last, over an earlier result
        if again % 2:  # every second time over an earlier result
            shutil.rmtree(out, ignore_errors=True)
    assert first
    assert membound(*words).code == 0
    assert contents(out) == first


def test_a_calibration_times_nothing_twice_and_loses_nothing(tmp_path, start, disturbed):
    pytest.importorskip("torch", reason="times real kernels")
    from membound.calibrate.runfolder import read_records

    out, earlier = tmp_path / "run", list[object]()
    words = ("calibrate", "measure", "--device", "cpu", "--budget", "6s", "--out", out)
    for _ in disturbed(KILLS["measure"], *words, longest_s=8.0):
        contents(out) if out.exists() else None
        records = read_records(out)
        assert records[: len(earlier)] == earlier
        earlier = list(records)
    start(*words).join()
    records = read_records(out)
    ids = [record["id"] for record in records if "id" in record]
    assert records[: len(earlier)] == earlier
    assert len(ids) == len(set(ids))
    assert parquet.read_table(out / "table.parquet").num_rows == sum("latency_us" in each for each in records)
