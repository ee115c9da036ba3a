"""The table of block counts meets its bars, holds every printed count, and can fail."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from membound.benchmarks.kv_blocks import (
    BARS,
    CASES,
    FOLDER,
    NOT_SIZED,
    RUNS,
    Line,
    all_lines,
    figures,
    main,
    printed_counts,
)

pytestmark = pytest.mark.skipif(
    not ((FOLDER / RUNS).is_file() and (FOLDER / CASES).is_file()),
    reason="the measured runs and cases (../shared) are not here",
)


@cache
def lines() -> tuple[Line, ...]:
    return tuple(all_lines(FOLDER))


def test_block_counts_from_first_principles_meet_their_bars() -> None:
    found = figures(lines())
    assert set(found) == set(BARS)
    assert all(found[name] <= bar for name, bar in BARS.items()), found


def test_every_printed_count_is_in_the_range_that_goes_with_its_prediction() -> None:
    assert [line for line in lines() if not line.inside] == []


def test_every_count_of_the_served_runs_and_every_case_is_answered() -> None:
    assert {line.printed for line in lines() if line.unit == "blocks"} >= printed_counts(FOLDER)
    cases = {line.row for line in lines() if line.row.startswith("KV")}
    assert not cases & set(NOT_SIZED)
    assert len(cases | set(NOT_SIZED)) == 14


def test_no_dense_count_rests_on_a_printed_figure() -> None:
    free = [line for line in lines() if not line.wide and not line.given]
    assert len(free) >= 6


def test_a_worse_prediction_misses_the_bars(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    worse = [replace(line, predicted=1.1 * line.predicted) for line in lines()]
    monkeypatch.setattr("membound.benchmarks.kv_blocks.all_lines", lambda _: worse)
    with pytest.raises(SystemExit) as caught:
        main([])
    assert caught.value.code == 1
    assert capsys.readouterr().out.count("MISSED") == 3
