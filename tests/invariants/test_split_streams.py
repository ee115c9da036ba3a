"""Prefill and decode as streams of their own: everybody is served, nothing is lost, and the clock keeps its bounds."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.steptypes import Phase
from membound.sim.books.recorder import Recorder
from membound.sim.clock import Clock
from membound.sim.device.resources import SharedDevice
from membound.sim.engine.request import Request, Status
from membound.sim.engine.source import Source
from membound.sim.split import DecodeEngine, PoolMeter, PrefillEngine

from .harness import Case, LinearCost, make_allocator, make_scheduler


class OnShare(LinearCost):
    """A linear cost whose compute, a third of a step, takes its time over ``share`` on fewer units."""

    def __init__(self, share: float, *cost: int) -> None:
        super().__init__(*cost)
        self.share = share
        self.alone_ns = 0
        self.demands = {"hbm": 0.0, "compute": 0.0}

    def step_ns(self, *step: Any) -> int:
        found = super().step_ns(*step)
        self.alone_ns += found
        self.demands["hbm"] += found * 2 / 3
        self.demands["compute"] += found / 3
        return found

    def phases(self, *step: Any) -> tuple[Phase, ...]:
        seconds = LinearCost.step_ns(self, *step) / 1e9
        reads, computes = seconds * 2 / 3, seconds / 3
        return (
            Phase("reads", reads, {"hbm": reads}, reads),
            Phase("computes", computes, {"compute": computes}, computes / self.share),
        )


@st.composite
def split_cases(draw: st.DrawFn) -> tuple[Case, float]:
    """Engines under every pressure: short pools, few seats, small budgets."""
    lengths = st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(0, 3000))
    drawn = sorted(draw(st.lists(lengths, min_size=1, max_size=14)), key=lambda request: request[2])
    burst = draw(st.booleans())
    requests = tuple(
        {"arrival_ns": 0 if burst else at, "input_tokens": new, "output_tokens": out}
        for new, out, at in drawn
    )
    case = Case(
        requests,
        cost=(draw(st.integers(30, 500)), draw(st.integers(0, 20))),
        num_blocks=draw(st.integers(25, 80)),
        prefix_caching=draw(st.booleans()),
        settings={
            "max_num_seqs": draw(st.integers(1, 8)),
            "max_num_batched_tokens": draw(st.sampled_from([8, 32, 128])),
        },
    )
    return case, draw(st.floats(0.1, 0.9))


def serve(case: Case, share: float) -> dict[str, Any]:
    env = Clock(0)
    device = SharedDevice(env, dict.fromkeys(("hbm", "compute", "link"), 1.0))
    allocator = make_allocator(case)
    free = allocator.free_blocks
    recorders = [Recorder() for _ in range(2)]
    costs = [OnShare(share, *case.cost), OnShare(1.0 - share, *case.cost)]
    meter = PoolMeter(lambda: (prefill, decode))
    common: dict[str, Any] = {
        "max_model_len": case.max_model_len, "observer": meter, "device": device, "among_others": True,
    }  # fmt: skip
    ended: list[Request] = []

    def on_finish(request: Request) -> None:
        ended.append(request)
        prefill.wake()

    decode = DecodeEngine(
        env, make_scheduler(case), allocator, costs[1], recorders[1], on_finish=on_finish, **common
    )
    prefill = PrefillEngine(
        env,
        make_scheduler(case),
        allocator,
        costs[0],
        recorders[0],
        on_finish=on_finish,
        decode=decode,
        **common,
    )
    Source(
        env,
        iter([Request(index, **fields) for index, fields in enumerate(case.requests)]),
        prefill.submit,
        in_turn=True,
    )
    for _ in range(100_000):
        if env.peek() == math.inf:
            break
        env.step()
    else:
        raise AssertionError("the run does not end")
    for recorder in recorders:
        recorder.close_books()
    return {
        "ended": ended, "costs": costs, "end": env.now, "recorders": recorders, "meter": meter, "device": device,
        "leaked": free - allocator.free_blocks, "live": prefill.live_tokens + decode.live_tokens,
    }  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(split_cases())
def test_everybody_is_served_and_the_pool_is_empty_again(drawn: tuple[Case, float]) -> None:
    case, share = drawn
    found = serve(case, share)
    assert len(found["ended"]) == len(case.requests)
    served = [request for request in found["ended"] if request.status is Status.COMPLETED]
    for request in served:
        assert request.num_output_tokens == request.output_tokens
        assert (
            request.arrival_ns <= request.first_scheduled_ns < request.first_token_ns <= request.last_token_ns
        )
    assert (found["leaked"], found["live"]) == (0, 0)
    # A gap before each token but the first, whichever stream it came from.
    gaps = sum(recorder.itl.total for recorder in found["recorders"])
    assert gaps == sum(request.output_tokens - 1 for request in served)
    assert found["meter"].peak_blocks <= case.num_blocks


@settings(max_examples=60, deadline=None)
@given(split_cases())
def test_two_streams_keep_between_their_busiest_resource_and_taking_turns(drawn: tuple[Case, float]) -> None:
    case, share = drawn
    burst = replace(case, requests=tuple({**fields, "arrival_ns": 0} for fields in case.requests))
    found = serve(burst, share)
    prefill, decode = found["costs"]
    steps = sum(recorder.steps for recorder in found["recorders"])
    slack = 2 * steps + 2
    assert found["end"] <= prefill.alone_ns + decode.alone_ns + slack
    for resource in ("hbm", "compute"):
        assert found["end"] >= prefill.demands[resource] + decode.demands[resource] - slack
    assert found["end"] >= max(prefill.alone_ns, decode.alone_ns) - slack
    # Nobody waits while the device has nothing to do.
    assert found["device"].busy_ns == found["end"]
