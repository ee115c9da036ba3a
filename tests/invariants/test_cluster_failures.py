"""Replicas that fail, come and go: nothing is lost or served twice, and jumps change nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.clock import Clock
from membound.sim.cluster.failures import Outages
from membound.sim.cluster.fleet import Fleet
from membound.sim.cluster.scaling import ElasticFleet, Scaler
from membound.sim.engine.request import Request, Status
from membound.sim.policies import find_policy
from membound.sim.scenario.cluster import Autoscale, Failures

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


@st.composite
def scaling(draw: st.DrawFn) -> tuple[FleetCase, Failures | None, dict[str, Any]]:
    """Draw a fleet that fails, or does not, and the rules of its autoscaler."""
    case, failures = draw(failing())
    count = len(case.engines)
    metric = draw(st.sampled_from(("utilization", "outstanding", "slo")))
    rules: dict[str, Any] = {
        "min": draw(st.integers(1, count)),
        "max": count,
        "metric": metric,
        "every": draw(st.sampled_from((1, 3 * STEP, 10 * STEP + 1))) * (1000 if metric == "slo" else 3) / 1e9,
        "scale_down_after": draw(st.sampled_from((0, 20 * STEP))) / 1e9,
        "start_up": draw(st.sampled_from((0, 1, 7 * STEP, 30 * STEP + 3))) / 1e9,
    }
    if metric != "slo":
        rules["target"] = draw(st.sampled_from((0.2, 0.7) if metric == "utilization" else (1.0, 3.0, 8.0)))
    rules["every"] = max(rules["every"], STEP / 1e9)
    return case, failures if draw(st.booleans()) else None, rules


def scaled(drawn: tuple[FleetCase, Failures | None, dict[str, Any]], **options: Any) -> Any:
    """Run an autoscaled fleet; return what was recorded, the engines and the autoscaler."""
    case, failures, rules = drawn
    count = len(case.engines)
    asked = Autoscale(**rules)
    book = Scaler(
        asked,
        asked.min,
        case.engines[0].settings["max_num_seqs"],
        [max(round(asked.start_up * 1e9), 1)] * count,
        lambda request: request.index % 3 > 0,
        0.7,
    )

    def make(
        case: FleetCase, env: Clock, stubs: list[Any], on_finish: Callable[[Request], None], **others: Any
    ) -> Fleet:
        router = find_policy("router", case.router, "")()
        return ElasticFleet(env, stubs, router, on_finish, book, **others)

    records, engines = run_fleet(case, failures and outages(case, failures), make, **options)
    return records, engines, book


@settings(max_examples=EXAMPLES, deadline=None)
@given(drawn=scaling())
def test_fast_forward_equals_step_by_step_where_replicas_come_and_go(
    drawn: tuple[FleetCase, Failures | None, dict[str, Any]],
) -> None:
    plain, _, slow = scaled(drawn, fast_forward=False, cohort=False)
    quick, _, fast = scaled(drawn)
    assert quick == plain
    assert slow.lives == fast.lives


@settings(max_examples=EXAMPLES, deadline=None)
@given(drawn=scaling())
def test_every_request_ends_once_and_no_replica_works_when_it_is_not_there(
    drawn: tuple[FleetCase, Failures | None, dict[str, Any]],
) -> None:
    case, _, rules = drawn
    records, engines, book = scaled(drawn)
    ended = sorted(index for record in records for index in record["requests"]["index"])
    assert ended == list(range(len(case.engines[0].requests)))
    for number, (record, engine) in enumerate(zip(records, engines, strict=True)):
        assert set(record["requests"]["status"]) <= {Status.COMPLETED, Status.REJECTED}
        assert engine.allocator.free_blocks == engine.allocator.num_blocks
        assert engine.live_tokens == 0
        assert book.alive_ns(number, 0, 1 << 60) >= record["busy_ns"]
        steps = record["step_columns"]
        for start, took in zip(steps.get("start_ns", []), steps.get("duration_ns", []), strict=True):
            spans = book.lives[number]
            assert any(since <= start and (until is None or start + took <= until) for since, until in spans)
    changes = sorted(
        change
        for lives in book.lives
        for since, until in lives
        for change in ((since, 1), *(() if until is None else ((until, -1),)))
    )
    there = 0
    for _, change in changes:
        there += change
        assert there <= rules["max"]
