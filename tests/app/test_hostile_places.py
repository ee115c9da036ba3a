"""Disks that are full, folders that are none, names in any script, a million lines, terminals of other encodings."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .conftest import SMALL

STUDY = "base: small.yaml\nover: {simulation.seed: [1, 2]}\n"
NAMES = ["출력", "ausgabe mit leerzeichen", "🚀\u200d", "İıŞ", "-dash", "a'b\"c", "new\nline", "%s{}$HOME"]


@contextmanager
def full_disk(left: int) -> Iterator[None]:
    """Let no file of this process grow beyond so many bytes: what a full disk refuses, refused at a certain place."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (left, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.fixture
def one_line(membound):
    """Return a check that a command fails in one line that names ``word``."""

    def check(word: str, *words: object) -> None:
        ran = membound(*words, "--quiet")
        assert ran.code in (1, 2), ran
        assert ran.err.startswith("error: ")
        assert ran.err.count("\n") == 1
        assert word in ran.err
        assert "internal" not in ran.err

    return check


@pytest.mark.parametrize("left", [0, 2000, 20_000])
def test_a_full_disk_is_told_and_leaves_no_result(one_line, small, tmp_path, left):
    (tmp_path / "study.yaml").write_text(STUDY)
    for words in (["simulate", small, "--out", "out"], ["sweep", "study.yaml", "--out", "kept", "--jobs", 1]):
        if left < 20_000 or words[0] == "simulate":
            with full_disk(left):
                one_line("too large", *words)
    assert not (tmp_path / "out").exists()
    assert list(tmp_path.rglob("*.parquet")) == []
    assert list(tmp_path.rglob("*.tmp")) == []


@pytest.mark.parametrize(
    "words",
    [
        ["simulate", "small.yaml", "--out", "file"], ["simulate", "small.yaml", "--out", "file/deeper"],
        ["sweep", "study.yaml", "--out", "file", "--jobs", "1"],
        ["sweep", "study.yaml", "--out", "file/deeper", "--jobs", "1"],
        ["explain", "small.yaml", "--out", "file", "--jobs", "1", "--requests", "5"],
        ["calibrate", "measure", "--device", "cpu", "--budget", "1s", "--out", "file/deeper"],
        ["scenario", "init", "file/deeper.yaml"], ["simulate", "small.yaml", "--out", "x" * 300],
        ["sweep", "study.yaml", "--out", "x" * 300, "--jobs", "1"],
    ],
    ids=lambda words: " ".join(words)[:60],
)  # fmt: skip
def test_a_place_that_cannot_be_written_is_told(one_line, small, tmp_path, words):
    (tmp_path / "study.yaml").write_text(STUDY)
    (tmp_path / "file").write_text("no folder")
    one_line("x" * 20 if "x" * 300 in words else "file", *words)
    assert (tmp_path / "file").read_text() == "no folder"


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_name_in_any_script_is_a_name(membound, tmp_path, name):
    import yaml

    scenario = yaml.safe_load(SMALL) | {"name": name}
    (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(scenario), encoding="utf-8")
    trace = tmp_path / f"{name}.csv"
    trace.write_text("arrival_s,input_tokens,output_tokens\n0,9,9\n", encoding="utf-8")
    given = f"./{name}"
    ran = membound("simulate", f"{given}.yaml", "--trace", f"{given}.csv", "--out", given, "--quiet")
    assert ran.code == 0, ran.err
    assert membound("simulate", f"{given}/scenario.yaml", "--quiet").out == ran.out


def test_a_trace_of_a_million_lines_is_read(membound, tmp_path):
    lines = (f"{at / 100},100,10\n" for at in range(10**6))
    with (tmp_path / "t.csv").open("w") as file:
        file.write("arrival_s,input_tokens,output_tokens\n")
        file.writelines(lines)
    ran = membound("trace", "inspect", "t.csv")
    assert ran.code == 0
    assert "1,000,000" in ran.out


@pytest.mark.parametrize(
    ("environment", "same"),
    [({"LC_ALL": "C"}, True), ({"LC_ALL": "tr_TR.UTF-8"}, True), ({"PYTHONIOENCODING": "ascii"}, False)],
    ids=str,
)
def test_no_locale_changes_a_figure(membound, small, environment, same):
    plain = membound("simulate", small, "--quiet").out.encode()
    command = [sys.executable, "-c", "import sys; from membound.app.cli import main; sys.exit(main())"]
    ran = subprocess.run(
        [*command, "simulate", str(small), "--quiet"],
        env=os.environ | environment,
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    expected = plain if same else plain.decode().encode("ascii", errors="replace")
    assert ran.stdout == expected
