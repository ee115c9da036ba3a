"""Run the command line in this process and see what each stream got."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from membound.app.cli import main

SMALL = """\
name: small
device: h100_sxm
model: llama-3.1-8b
workload:
  arrivals: {kind: poisson, rate_per_s: 4}
  input_tokens: 256
  output_tokens: 16
  requests: 40
"""


@dataclass(frozen=True)
class Ran:
    """What a command left: exit code and both streams."""

    code: int
    out: str
    err: str


@pytest.fixture
def membound(capsys, monkeypatch, tmp_path) -> Callable[..., Ran]:
    """Return a function that runs ``membound WORDS…`` in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def run(*words: object) -> Ran:
        capsys.readouterr()
        code = main([str(word) for word in words])
        streams = capsys.readouterr()
        return Ran(code, streams.out, streams.err)

    return run


@pytest.fixture
def small(tmp_path) -> Path:
    """Return a scenario that runs in a moment."""
    path = tmp_path / "small.yaml"
    path.write_text(SMALL)
    return path


@pytest.fixture
def trace(tmp_path) -> Callable[..., Path]:
    """Return a function that writes a trace in the generic format."""

    def write(*rows: str, header: str = "arrival_s,input_tokens,output_tokens") -> Path:
        path = tmp_path / "trace.csv"
        path.write_text("\n".join([header, *rows]) + "\n")
        return path

    return write
