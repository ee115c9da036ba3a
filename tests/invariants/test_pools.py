"""Prefill and decode on replicas of their own: nothing is lost or served twice, and jumps change nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.clock import Clock
from membound.sim.cluster.failures import Outages
from membound.sim.cluster.fleet import Fleet
from membound.sim.cluster.handover import Handovers
from membound.sim.cluster.pools import SplitFleet
from membound.sim.cluster.prefilling import PrefillEngine
from membound.sim.engine.request import Request, Status
from membound.sim.policies import find_policy, policy_names
from membound.sim.scenario.cluster import Failures, Pools

from .harness import Host
from .strategies import STEP, cases
from .test_cluster import FleetCase, loaded, run_fleet

EXAMPLES = int(os.environ.get("MEMBOUND_EXAMPLES", "20"))


@dataclass(frozen=True)
class SplitCase:
    """Engines of which the first ``prefill`` compute prompts; a block takes so long over a link, a message so long."""

    fleet: FleetCase
    prefill: int
    decode_router: str
    block_ns: int
    message_ns: int
    rules: Pools
    failures: Failures | None

    def make(
        self,
        case: FleetCase,
        env: Clock,
        stubs: list[Any],
        on_finish: Callable[[Request], None],
        **others: Any,
    ) -> Fleet:
        routers = tuple(find_policy("router", name, "")() for name in (case.router, self.decode_router))
        return SplitFleet(env, stubs, self.prefill, routers, on_finish, **others)

    def handovers(self) -> Handovers:
        return Handovers(
            self.rules,
            len(self.fleet.engines),
            1,
            lambda blocks: (self.message_ns + blocks * self.block_ns) / 1e9,
        )

    def outages(self) -> Outages | None:
        return self.failures and Outages(self.failures, 3, [7 * n for n in range(len(self.fleet.engines))])


@st.composite
def split_cases(draw: st.DrawFn) -> SplitCase:
    """Draw one to three prefill replicas and as many for decode, with short pools, few seats and slow links."""
    one = draw(cases("vllm_v1", "paged", st.just(Host())))
    count = draw(st.integers(2, 5))
    costs = st.sampled_from((one.cost, one.cost, (700,)))
    engines = tuple(
        replace(one, cost=draw(costs), num_blocks=one.num_blocks + draw(st.sampled_from((0, 0, 3))))
        for _ in range(count)
    )
    failures = None
    if draw(st.booleans()):
        mtbf = draw(st.sampled_from((20, 60, 300))) * STEP / 1e9
        failures = Failures(mtbf=mtbf, mttr=draw(st.sampled_from((0, 1, 5 * STEP, 40 * STEP))) / 1e9)
    rules = Pools(
        max_local_prefill_length=draw(st.sampled_from((0, 0, 5, 40))),
        max_prefill_queue_size=draw(st.sampled_from((None, None, 2))),
    )
    return SplitCase(
        draw(loaded(engines)),
        draw(st.integers(1, count - 1)),
        draw(st.sampled_from(policy_names("router"))),
        draw(st.sampled_from((1, 90, STEP))),
        draw(st.sampled_from((0, 1, STEP, 10 * STEP))),
        rules,
        failures,
    )


def play(case: SplitCase, **options: Any) -> tuple[list[dict[str, Any]], list[Any], Handovers]:
    handovers = case.handovers()
    records, engines = run_fleet(case.fleet, case.outages(), case.make, {"handovers": handovers}, **options)
    return records, engines, handovers


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=split_cases())
def test_fast_forward_equals_step_by_step_with_pools(case: SplitCase) -> None:
    plain, _, slow = play(case, fast_forward=False, cohort=False)
    quick, _, fast = play(case)
    assert quick == plain
    assert {name: column.tolist() for name, column in slow.columns().items()} == {
        name: column.tolist() for name, column in fast.columns().items()
    }
    assert slow.local == fast.local


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=split_cases())
def test_every_request_ends_once_and_every_block_and_nanosecond_is_accounted(case: SplitCase) -> None:
    records, engines, handovers = play(case)
    requests = case.fleet.engines[0].requests
    ended = sorted(index for record in records for index in record["requests"]["index"])
    assert ended == list(range(len(requests)))
    answered = 0
    for record, engine in zip(records, engines, strict=True):
        rows = record["requests"]
        assert set(rows["status"]) <= {Status.COMPLETED, Status.REJECTED}
        for index, status, tokens in zip(rows["index"], rows["status"], rows["output_tokens"], strict=True):
            assert tokens == requests[index]["output_tokens"]
            answered += tokens - 1 if status == Status.COMPLETED else 0
        assert engine.allocator.free_blocks == engine.allocator.num_blocks
        assert engine.live_tokens == engine.allocator.held_blocks == 0
        assert not engine.fetching
        assert not (isinstance(engine, PrefillEngine) and engine.held)
        assert sum(record["limiter_ns"].values()) == record["busy_ns"]
    assert sum(record["itl"][0] for record in records) == answered
    for record in records[: case.prefill]:
        assert set(record["requests"]["output_tokens"]) <= {1}, (
            "what ends on a prefill replica is its first token"
        )
    _check_order(case, records, handovers)


def _check_order(case: SplitCase, records: list[dict[str, Any]], handovers: Handovers) -> None:
    """Handovers come after the first token, in order, each link carrying one at a time."""
    first = {
        index: time
        for record in records
        for index, time in zip(record["requests"]["index"], record["requests"]["first_token_ns"], strict=True)
    }
    table = {name: column.tolist() for name, column in handovers.columns().items()}
    held: dict[int, list[tuple[int, int]]] = {}
    for row in zip(*table.values(), strict=True):
        index, prefill, decode, handed, asked, sent, arrived, moved = row
        assert prefill < case.prefill <= decode
        assert first[index] < handed
        if arrived < 0:
            assert case.failures is not None
            continue
        assert handed < asked <= sent < arrived
        assert arrived - sent == max(case.message_ns + moved * case.block_ns, 1)
        for end in (prefill, decode):
            held.setdefault(end, []).append((sent, arrived))
    for end, spans in held.items():
        spans.sort()
        assert all(one[1] <= other[0] for one, other in pairwise(spans))
        assert sum(until - since for since, until in spans) == handovers.busy_ns[end]
