"""What every scheduler and every allocator must keep to, whoever wrote it: found by name, tried on random engines."""

from __future__ import annotations

import os
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.engine.engine import Engine
from membound.sim.engine.flight import Flight
from membound.sim.engine.request import Request, Status
from membound.sim.kvcache.base import KVAllocator
from membound.sim.kvcache.paged import PagedAllocator
from membound.sim.policies import find_policy, policy_names
from membound.sim.scheduler.base import ScheduledBatch, Scheduler

from .harness import Case, make_allocator, run
from .strategies import cases

EXAMPLES = int(os.environ.get("MEMBOUND_EXAMPLES", "50"))
POLICIES = list(product(policy_names("scheduler"), policy_names("kvcache")))
each_policy = pytest.mark.parametrize(("scheduler", "allocator"), POLICIES)
EACH = 2 * EXAMPLES // 5  # 20 for each pair in `make test`, 300 in `make test-long`


class Auditor:
    """Looks at every step as it is composed and applied, and compares what is counted with what is there."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.end_ns = 0
        self.steps = 0
        self.left: set[Request] = set()

    def composed(self, engine: Engine, flight: Flight, batch: ScheduledBatch) -> None:
        self.check(engine)
        assert self.end_ns <= flight.start_ns <= flight.end_ns, "the device does one step at a time"
        assert flight.composed_ns <= flight.start_ns
        assert flight.step == self.steps
        self.end_ns, self.steps = flight.end_ns, self.steps + flight.steps
        assert len(engine.running) <= self.case.settings["max_num_seqs"]
        assert not (set(batch.preempted) & set(batch.admitted)), (
            "nobody is preempted and admitted in one breath"
        )
        if batch.preempted:
            assert batch.limiter in engine.scheduler.preempts_for, (
                "who stops others for their blocks is short of blocks"
            )
        for request, tokens in batch.tokens.items():
            assert tokens > 0
            assert request.arrival_ns <= flight.composed_ns, "nobody is served before it is there"
            assert request.num_computed_tokens <= request.num_tokens + request.num_pending_tokens

    def repeated(self, engine: Engine, flight: Flight, starts_ns: np.ndarray, ends_ns: np.ndarray) -> None:
        raise AssertionError("fast-forward is off")

    def applied(self, engine: Engine, flight: Flight, finished: list[Request]) -> None:
        self.check(engine)
        assert not (set(finished) & self.left), "nobody ends twice"
        self.left.update(finished)

    def check(self, engine: Engine) -> None:
        allocator = engine.allocator
        used = allocator.num_blocks - allocator.free_blocks
        assert 0 <= used <= allocator.num_blocks
        # Of a sequence computed along as padding only what it asked for counts as live.
        holders = [*engine.running, *engine.padding.members]
        tokens = sum(request.num_computed_tokens for request in holders)
        assert engine.live_tokens == tokens <= allocator.held_blocks * allocator.block_size
        # Blocks may be shared, never lost: each that is in use is held by somebody.
        held = allocator.held_blocks
        if not allocator.reserves:
            held += sum(self.case.bounded(request.num_tokens_needed) for request in holders)
        assert used <= held
        if not self.case.prefix_caching:
            assert used == held
        assert len(set(engine.running)) == len(engine.running)
        assert all(request.status is Status.RUNNING for request in engine.running)
        assert not (set(engine.waiting) & set(engine.running))
        if isinstance(allocator, PagedAllocator):
            check_memory_behind(allocator, engine)


def check_memory_behind(allocator: PagedAllocator, engine: Engine) -> None:
    """Check that each tier holds what came in and did not go, and that only who waits has blocks swapped out."""
    for tier in allocator.below.tiers if allocator.below else ():
        assert len(tier.policy) == tier.written_blocks - tier.evicted_blocks <= tier.policy.capacity
        assert len(tier.policy) <= tier.peak_blocks <= tier.policy.capacity
    if (swap := allocator.swap) is not None:
        assert 0 <= swap.used <= swap.peak <= swap.capacity
        assert not any(request in swap for request in engine.running)
        assert (swap.used > 0) == any(request in swap for request in engine.waiting)


@each_policy
@settings(max_examples=EACH, deadline=None)
@given(data=st.data())
def test_nothing_is_lost_or_counted_twice_and_jumps_change_nothing(
    scheduler: str, allocator: str, data: st.DataObject
) -> None:
    """Requests, tokens and blocks are conserved step by step, and a run with jumps leaves the same record."""
    case = data.draw(cases(scheduler, allocator))
    auditor = Auditor(case)
    record, engine = run(case, fast_forward=False, cohort=False, observer=auditor)
    requests = record["requests"]
    assert requests["index"] == list(range(len(case.requests)))
    assert not engine.running
    assert not engine.waiting
    assert engine.allocator.free_blocks == engine.allocator.num_blocks
    assert engine.allocator.held_blocks == engine.live_tokens == 0
    assert record["steps"] == auditor.steps
    for status, *times in zip(
        *(
            requests[name]
            for name in ("status", "arrival_ns", "first_scheduled_ns", "first_token_ns", "last_token_ns")
        ),
        strict=True,
    ):
        if status == Status.COMPLETED:
            arrival, scheduled, first, last = times
            assert arrival <= scheduled < first <= last
        else:
            assert status == Status.REJECTED
            assert times[1:] == [-1, -1, -1]
    assert run(case)[0] == record


@each_policy
@settings(max_examples=-(-EACH // 10), deadline=None)
@given(data=st.data())
def test_the_same_run_twice_gives_the_same_record(
    scheduler: str, allocator: str, data: st.DataObject
) -> None:
    case = data.draw(cases(scheduler, allocator))
    assert run(case)[0] == run(case)[0]


STREAM = 400
UNENDING = {"priority": {"aging_s": 10e-6}}
"""Options with which a promise can be kept within the stream."""


@pytest.mark.parametrize(
    ("name", "settings_of"),
    [*((name, {}) for name in policy_names("scheduler")), ("vllm_v1", {"scheduling_policy": "priority"})],
)
def test_nobody_starves_where_it_is_promised(name: str, settings_of: dict[str, Any]) -> None:
    """A long answer of low priority, no deadline and a tenant of its own arrives in a stream beyond capacity.

    Two run at a time and take four steps each, and one arrives every step: the line only grows. Who promises to serve
    everybody serves the long one before the stream ends; who does not serves it after.
    """
    short = {"input_tokens": 4, "output_tokens": 4, "tenant": 1}
    requests = [{"arrival_ns": 1000 * step, **short} for step in range(STREAM)]
    victim = {"arrival_ns": 10_000, "input_tokens": 8, "output_tokens": 40, "priority": 5, "tenant": 0}
    requests.insert(11, {**victim, "slo_class": "batch"})
    case = Case(tuple(requests), scheduler=name, num_blocks=400, options=UNENDING.get(name, {}),
                settings={"max_num_seqs": 2, "max_num_batched_tokens": 64, **settings_of})  # fmt: skip
    record, engine = run(case)
    begun, last_arrival = record["requests"]["first_scheduled_ns"][11], 1000 * (STREAM - 1)
    assert (begun < last_arrival) == engine.scheduler.everyone_served, begun


@pytest.mark.parametrize("name", policy_names("scheduler"))
def test_a_scheduler_says_what_it_optimises_and_what_it_starves(name: str) -> None:
    policy = find_policy("scheduler", name, "scheduler.name")
    assert issubclass(policy, Scheduler)
    for word in ("What it optimises", "What it starves", "Source"):
        assert word in " ".join((policy.__doc__ or "").split()), word


@pytest.mark.parametrize("name", policy_names("kvcache"))
def test_an_allocator_refuses_without_a_trace(name: str) -> None:
    """A refusal changes no count, and what was refused can be asked again."""
    case = Case(requests=(), allocator=name, num_blocks=40, block_size=4, max_model_len=80)
    allocator = make_allocator(case)
    assert isinstance(allocator, KVAllocator)
    for index in range(allocator.num_blocks):
        request = Request(index, 0, allocator.block_size + 1, 1)
        before = (allocator.free_blocks, allocator.held_blocks, allocator.hit_tokens)
        if not allocator.admit(request, request.input_tokens, 0):
            break
    else:
        pytest.fail("a pool without end")
    assert index
    assert (allocator.free_blocks, allocator.held_blocks, allocator.hit_tokens) == before
    assert request.kv is None
