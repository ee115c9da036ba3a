"""Replicas that fail: nothing is lost or served twice, jumps change nothing, and a failure too late is none."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.cluster.failures import Outages
from membound.sim.engine.request import Status
from membound.sim.scenario.cluster import Failures

from .harness import Host
from .strategies import STEP
from .test_cluster import FleetCase, fleets, run_fleet

EXAMPLES = int(os.environ.get("MEMBOUND_EXAMPLES", "20"))
LATER_S = 3600.0


@st.composite
def failing(draw: st.DrawFn) -> tuple[FleetCase, Failures]:
    """Draw a fleet without tiers, and failures that are drawn or given, on step boundaries and off them."""
    case = draw(fleets())
    case = replace(case, engines=tuple(replace(each, host=Host()) for each in case.engines))
    if draw(st.booleans()):
        mtbf = draw(st.sampled_from((20, 60, 300))) * STEP / 1e9
        return case, Failures(mtbf=mtbf, mttr=draw(st.sampled_from((0, 1, 5 * STEP, 40 * STEP))) / 1e9)
    given: list[dict[str, Any]] = []
    for replica in range(len(case.engines)):
        time = 0
        for _ in range(draw(st.integers(0, 3))):
            time += draw(st.sampled_from((0, 1, STEP - 1, STEP, 4 * STEP, 17 * STEP + 3)))
            lasts = draw(st.sampled_from((1, STEP, 12 * STEP + 1, 90 * STEP)))
            given.append({"replica": replica, "after": time / 1e9, "lasts": lasts / 1e9})
            time += lasts + 1
    return case, Failures.model_validate({"at": given or [{"replica": 0, "after": LATER_S, "lasts": 1}]})


def outages(case: FleetCase, asked: Failures) -> Outages:
    return Outages(asked, 3, [7 * number for number in range(len(case.engines))])


@settings(max_examples=EXAMPLES, deadline=None)
@given(drawn=failing())
def test_fast_forward_equals_step_by_step_where_replicas_fail(drawn: tuple[FleetCase, Failures]) -> None:
    case, asked = drawn
    slow, fast = outages(case, asked), outages(case, asked)
    plain, _ = run_fleet(case, slow, fast_forward=False, cohort=False)
    quick, _ = run_fleet(case, fast)
    assert quick == plain
    assert fast.requeued == slow.requeued
    last = max(time for record in plain for time in record["requests"]["last_token_ns"] or [0])
    downs = [
        [book.down_ns(number, 0, max(last, 0)) for number in range(len(case.engines))]
        for book in (slow, fast)
    ]
    assert downs[0] == downs[1]


@settings(max_examples=EXAMPLES, deadline=None)
@given(drawn=failing())
def test_every_request_ends_once_with_all_its_tokens(drawn: tuple[FleetCase, Failures]) -> None:
    case, asked = drawn
    book = outages(case, asked)
    records, engines = run_fleet(case, book)
    ended = sorted(index for record in records for index in record["requests"]["index"])
    assert ended == list(range(len(case.engines[0].requests)))
    tokens = {index: each["output_tokens"] for index, each in enumerate(case.engines[0].requests)}
    answered = 0
    for record, engine in zip(records, engines, strict=True):
        rows = record["requests"]
        assert set(rows["status"]) <= {Status.COMPLETED, Status.REJECTED}
        for index, status, wanted in zip(rows["index"], rows["status"], rows["output_tokens"], strict=True):
            assert wanted == tokens[index]
            answered += wanted - 1 if status == Status.COMPLETED else 0
        assert engine.allocator.free_blocks == engine.allocator.num_blocks
        assert engine.live_tokens == 0
        assert sum(record["limiter_ns"].values()) == record["busy_ns"]
    gaps = sum(record["itl"][0] for record in records)
    refused = any(status == Status.REJECTED for record in records for status in record["requests"]["status"])
    if case.engines[0].speculation is None and not refused:
        assert gaps == answered


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=fleets())
def test_a_failure_after_the_end_changes_nothing(case: FleetCase) -> None:
    late = Failures.model_validate({"at": [{"replica": 0, "after": LATER_S, "lasts": 1}]})
    book = outages(case, late)
    records, _ = run_fleet(case, book)
    without, _ = run_fleet(case)
    assert records == without
    assert sum(book.requeued) == 0
