"""Several engines behind a router: jumps change nothing there either, and nothing is lost or served twice."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.clock import Clock
from membound.sim.cluster.failures import Outages
from membound.sim.cluster.fleet import Fleet
from membound.sim.engine.engine import Engine
from membound.sim.engine.request import Request, Status
from membound.sim.engine.source import Source
from membound.sim.policies import find_policy, policy_names
from membound.sim.workload.workload import ClosedLoopLoad, Follows

from .harness import Case, make_engine, play, recorded
from .strategies import cases, drafting_cases

EXAMPLES = int(os.environ.get("MEMBOUND_EXAMPLES", "50"))


@dataclass(frozen=True)
class FleetCase:
    """Engines behind a router; the requests are those of the first."""

    engines: tuple[Case, ...]
    router: str
    closed_loop: ClosedLoopLoad | None = None
    follows: tuple[tuple[int, int], ...] | None = None
    sessions: int = 0


class Stub:
    """What a fleet needs of a replica."""

    def __init__(self, case: Case, **options: Any) -> None:
        self.case, self.options = case, options

    def start(
        self,
        env: Clock,
        on_finish: Callable[[Request], None],
        *,
        among_others: bool = False,
        kind: type[Engine] = Engine,
    ) -> Engine:
        self.engine = make_engine(
            self.case, env, kind, on_finish=on_finish, among_others=among_others, **self.options
        )
        return self.engine


@st.composite
def fleets(draw: st.DrawFn) -> FleetCase:
    """Draw two to four engines, alike or not, on a load that is open, of users in a loop, or of turns."""
    one = draw(cases() | drafting_cases())
    if one.speculation is not None:
        # Drafting that goes on and off with the batch counts blocks differently one by one, on a single engine too.
        one = replace(one, speculation={**one.speculation, "disable_by_batch_size": None})
    count = draw(st.integers(2, 4))
    others = [
        replace(
            one, cost=draw(st.sampled_from((one.cost, one.cost, (700,)))), num_blocks=one.num_blocks + more
        )
        for more in draw(st.lists(st.sampled_from((0, 0, 3)), min_size=count - 1, max_size=count - 1))
    ]
    return draw(loaded((one, *others)))


@st.composite
def loaded(draw: st.DrawFn, engines: tuple[Case, ...]) -> FleetCase:
    """Draw a router for engines, and a load that is open, of users in a loop, or of turns."""
    load = draw(st.sampled_from(("open", "loop", "turns")))
    pauses = (0, 0, 1000, 7)
    n = len(engines[0].requests)
    return FleetCase(
        engines,
        draw(st.sampled_from(policy_names("router"))),
        ClosedLoopLoad(draw(st.integers(1, 6)), draw(st.sampled_from(pauses))) if load == "loop" else None,
        tuple(
            (draw(st.sampled_from((-1, at - 1))) if at else -1, draw(st.sampled_from(pauses)))
            for at in range(n)
        )
        if load == "turns"
        else None,
        draw(st.integers(0, 3)),
    )


def plain_fleet(
    case: FleetCase, env: Clock, stubs: list[Any], on_finish: Callable[[Request], None], **others: Any
) -> Fleet:
    """Put the engines of a case behind its router."""
    return Fleet(env, stubs, find_policy("router", case.router, "cluster.router")(), on_finish, **others)


def run_fleet(
    case: FleetCase,
    outages: Outages | None = None,
    make_fleet: Callable[..., Fleet] = plain_fleet,
    others: dict[str, Any] | None = None,
    **options: Any,
) -> tuple[list[dict[str, Any]], list[Engine]]:
    """Run a fleet, whose replicas may fail, to the end; return what was recorded on each engine, and the engines."""
    env = Clock(0)
    requests = [
        Request(index, **fields, session=index % case.sessions if case.sessions else None)
        for index, fields in enumerate(case.engines[0].requests)
    ]
    if case.closed_loop is not None:
        for request in requests:
            request.arrival_ns = 0
    stubs = [Stub(each, **options) for each in case.engines]
    ended = 0

    def on_finish(request: Request) -> None:
        nonlocal ended
        ended += 1
        source.finished(request)
        fleet.closed = ended == len(requests)

    fleet = make_fleet(case, env, stubs, on_finish, outages=outages, **(others or {}))
    follows = None
    if case.follows is not None:
        after, pause = np.array(case.follows, dtype=np.int64).T
        follows = Follows(after, np.where(after >= 0, pause, 0))
    source = Source(env, iter(requests), fleet.submit, case.closed_loop, follows, in_turn=True)
    play(env)
    for stub in stubs:
        stub.engine.recorder.close_books()
    assert fleet.outstanding == [0] * len(stubs)
    engines = [stub.engine for stub in stubs]
    return [recorded(engine.recorder, engine) for engine in engines], engines


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=fleets())
def test_fast_forward_equals_step_by_step_behind_every_router(case: FleetCase) -> None:
    plain, _ = run_fleet(case, fast_forward=False, cohort=False)
    fast, _ = run_fleet(case)
    assert fast == plain


@settings(max_examples=EXAMPLES, deadline=None)
@given(case=fleets())
def test_every_request_ends_once_on_one_replica(case: FleetCase) -> None:
    records, engines = run_fleet(case)
    ended = sorted(index for record in records for index in record["requests"]["index"])
    assert ended == list(range(len(case.engines[0].requests)))
    for record, engine in zip(records, engines, strict=True):
        assert set(record["requests"]["status"]) <= {Status.COMPLETED, Status.REJECTED}
        assert engine.allocator.free_blocks == engine.allocator.num_blocks
        assert sum(record["limiter_ns"].values()) == record["busy_ns"]
