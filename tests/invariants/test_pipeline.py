"""Pipelines: what holds for every scheduler whatever the stages take, and makespans in closed form."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.engine.engine import Engine
from membound.sim.engine.flight import Flight
from membound.sim.engine.request import Request, Status
from membound.sim.policies import find_policy, policy_names
from membound.sim.scheduler.base import ScheduledBatch

from .harness import Case, run
from .strategies import cases
from .test_conformance import EACH, Auditor

SCHEDULERS = [
    name
    for name in policy_names("scheduler")
    if not find_policy("scheduler", name, "scheduler.name").holds_batch
]
COSTS = st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 50)), min_size=2, max_size=4).map(tuple)


class PipelineAuditor(Auditor):
    """Looks also at who is in which of the batches under way."""

    def composed(self, engine: Engine, flight: Flight, batch: ScheduledBatch) -> None:
        super().composed(engine, flight, batch)
        assert engine.pipeline is not None
        assert len(engine.flights) <= engine.pipeline.depth
        waited: list[Request] = [request for ahead in engine.flights for request in ahead.emitting]
        assert len(waited) == len(set(waited)), "a next token is computed from the one before, not beside it"


@pytest.mark.parametrize("scheduler", SCHEDULERS)
@settings(max_examples=EACH, deadline=None)
@given(data=st.data())
def test_nothing_is_lost_in_a_pipeline_and_tokens_come_one_after_the_other(
    scheduler: str, data: st.DataObject
) -> None:
    case = data.draw(cases(scheduler, "paged"))
    case = replace(case, async_scheduling=False, host=Case(()).host, stages=data.draw(COSTS))
    record, engine = run(case, observer=PipelineAuditor(case))
    requests = record["requests"]
    assert requests["index"] == list(range(len(case.requests)))
    assert engine.allocator.free_blocks == engine.allocator.num_blocks
    assert engine.allocator.held_blocks == engine.live_tokens == 0
    through = sum(cost[0] for cost in case.stages)
    for row, status in enumerate(requests["status"]):
        if status != Status.COMPLETED:
            continue
        first, last = requests["first_token_ns"][row], requests["last_token_ns"][row]
        assert requests["arrival_ns"][row] <= requests["first_scheduled_ns"][row] <= first - through
        # Every token passes all stages after the one before has left the last.
        assert last - first >= (requests["output_tokens"][row] - 1) * through
    busiest = max(cost[0] for cost in case.stages)
    assert record["busy_ns"] >= record["steps"] * busiest
    assert run(case)[0] == record


@settings(max_examples=EACH, deadline=None)
@given(data=st.data())
def test_a_pipeline_of_one_stage_is_an_engine_without_one(data: st.DataObject) -> None:
    cost = data.draw(st.tuples(st.integers(1, 2000), st.integers(0, 50)))
    case = replace(
        data.draw(cases("vllm_v1", "paged")), async_scheduling=False, host=Case(()).host, cost=cost
    )
    plain, piped = (
        run(given_case, fast_forward=False, cohort=False)[0]
        for given_case in (case, replace(case, stages=(cost,)))
    )
    # An instant at which nobody has anything to compute is no step; a preemption recalls what is under way.
    for known in (plain, piped):
        for left_out in ("empty_batches", "end_ns"):
            del known[left_out]
    assert piped == plain


def prompts(count: int, tokens: int = 32) -> tuple[dict[str, Any], ...]:
    return tuple({"arrival_ns": 0, "input_tokens": tokens, "output_tokens": 1} for _ in range(count))


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 12), st.lists(st.integers(1, 2000), min_size=1, max_size=5))
def test_micro_batches_take_one_passage_and_the_slowest_stage_for_each_further_one(
    batches: int, stages: list[int]
) -> None:
    """Each prompt fills a batch: sum of the stages + (M - 1) times the slowest (Huang et al., GPipe, 2019)."""
    case = Case(
        prompts(batches),
        stages=tuple((stage,) for stage in stages),
        num_blocks=256,
        settings={"max_num_batched_tokens": 32, "max_num_seqs": 16},
    )
    record, _ = run(case)
    assert record["steps"] == batches
    assert record["busy_ns"] == sum(stages) + (batches - 1) * max(stages)
    assert max(record["requests"]["last_token_ns"]) == record["busy_ns"]
    if len(set(stages)) == 1:
        depth = len(stages)
        bubble = 1 - batches * stages[0] / record["busy_ns"]
        assert bubble == pytest.approx((depth - 1) / (batches + depth - 1))


def test_answers_of_one_batch_leave_all_stages_but_one_idle() -> None:
    """A token needs the one before: with one batch under way, n tokens take n passages."""
    case = Case(({"arrival_ns": 0, "input_tokens": 8, "output_tokens": 10},), stages=((100,), (300,), (50,)))
    record, _ = run(case)
    assert record["requests"]["last_token_ns"] == [10 * 450]


def test_as_many_batches_as_stages_keep_the_slowest_stage_busy() -> None:
    """Prompts that fill a batch each stay apart: their tokens take turns on the stages."""
    stages = ((200,), (200,))
    loads = tuple({"arrival_ns": 0, "input_tokens": 32, "output_tokens": 21} for _ in range(2))
    case = Case(
        loads, stages=stages, num_blocks=256, settings={"max_num_batched_tokens": 32, "max_num_seqs": 8}
    )
    record, _ = run(case)
    passages = list(accumulate([400] * 21))
    assert record["requests"]["last_token_ns"] == [passages[-1], passages[-1] + 200]
    assert record["busy_ns"] == 21 * 400 + 200


def test_who_arrives_while_a_batch_is_under_way_waits_for_it_if_nobody_else_could_be_composed() -> None:
    """As in vLLM's ``step_with_batch_queue``: nothing left to schedule, so it blocks on the oldest batch."""
    loads = (
        {"arrival_ns": 0, "input_tokens": 8, "output_tokens": 2},
        {"arrival_ns": 10, "input_tokens": 8, "output_tokens": 1},
    )
    record, _ = run(Case(loads, stages=((100,), (100,))))
    assert record["requests"]["first_scheduled_ns"] == [0, 200]
    assert record["requests"]["last_token_ns"] == [400, 400]
