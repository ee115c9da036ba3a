"""The product takes the very steps that the real vLLM V1 scheduler took in the logs beside the repository."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from .reference import Reference
from .replay import difference, main

SHARED = Path(__file__).parents[3] / "shared"
LOGS = sorted(SHARED.glob("oracle_*/*.jsonl.gz"))
pytestmark = pytest.mark.skipif(
    not LOGS, reason="the logs of the real scheduler (../shared/oracle_*) are not here"
)


def name_of(path: Path) -> str:
    return f"{path.parent.name}/{path.name.removesuffix('.jsonl.gz')}"


def read(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
    with gzip.open(path, "rt") as lines:
        case, *steps, summary = (json.loads(line) for line in lines)
    return case, steps, summary


@pytest.mark.parametrize("path", LOGS, ids=name_of)
def test_every_step_is_that_of_the_real_scheduler(path: Path) -> None:
    log = read(path)
    assert difference(*log, fast_forward=False, cohort=False)[0] is None
    assert difference(*log, fast_forward=False)[0] is None
    found, jumps = difference(*log)
    assert found is None
    # Where prompts contain other requests' answers, each of their tokens must be noted as it comes.
    answers_are_shared = any(
        segment.startswith("out:") for row in log[0]["requests"] for segment, _ in row["prompt"]
    )
    assert jumps > 0 or log[0]["config"]["enable_prefix_caching"]
    if not answers_are_shared:
        found, jumps = difference(*log, private=True)
        assert found is None
        assert jumps > 0


@pytest.mark.parametrize("path", LOGS, ids=name_of)
def test_the_rules_written_a_second_time_take_the_same_steps(path: Path) -> None:
    case, steps, summary = read(path)
    found, end = Reference(case).run()
    for want, got in zip(steps, found, strict=True):
        for field in want.keys() - {"kind", "t_start_us", "t_end_us"}:
            assert got[field] == want[field], (want["step"], field)
    assert end["requests"] == summary["requests"]
    assert end["preemptions"] == summary["preemptions"]


def test_a_difference_is_reported_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with gzip.open(LOGS[0], "rt") as lines:
        rows = [*lines]
    step = json.loads(rows[3])
    step["free_after_schedule"] += 1
    wrong = tmp_path / "wrong.jsonl.gz"
    with gzip.open(wrong, "wt") as lines:
        lines.writelines([*rows[:3], json.dumps(step) + "\n", *rows[4:]])
    assert main([str(LOGS[0]), str(wrong)]) == 1
    exact, mismatch = capsys.readouterr().out.splitlines()
    assert exact == f"{name_of(LOGS[0])} exact"
    assert f"wrong MISMATCH step {step['step']} field free_after_schedule" in mismatch
