"""An engine on a device that others may use: alone its clock is the same, beside others it is slower."""

from __future__ import annotations

from dataclasses import dataclass, replace

import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.steptypes import Phase
from membound.sim.books.recorder import Recorder
from membound.sim.device.resources import SharedDevice
from membound.sim.engine.engine import Engine
from membound.sim.engine.request import Request
from membound.sim.engine.source import Source

from .harness import Case, Host, LinearCost, make_allocator, make_scheduler, recorded, run
from .strategies import cases


@dataclass
class Shared:
    """An engine of a case on a device it shares."""

    recorder: Recorder
    engine: Engine


def start(case: Case, env: simpy.Environment, device: SharedDevice) -> Shared:
    allocator = make_allocator(case)
    recorder = Recorder(keep_steps=True)
    requests = [Request(index, **fields) for index, fields in enumerate(case.requests)]
    engine = Engine(
        env, make_scheduler(case), allocator, LinearCost(*case.cost, needs_contexts=case.needs_contexts), recorder,
        max_model_len=case.max_model_len, async_scheduling=case.async_scheduling, device=device,
    )  # fmt: skip
    engine.connect(Source(env, iter(requests), engine.submit))
    return Shared(recorder, engine)


@settings(max_examples=50, deadline=None)
@given(case=cases(hosts=st.just(Host())))
def test_alone_on_a_shared_device_the_record_is_the_same(case: Case) -> None:
    """Work that nobody contends with takes exactly the time of the step model, to the nanosecond."""
    expected, _ = run(case, fast_forward=False)
    env = simpy.Environment(0)
    shared = start(case, env, SharedDevice(env))
    env.run()
    shared.recorder.close_books()
    found = recorded(shared.recorder, shared.engine)
    assert {k: v for k, v in found.items() if k != "end_ns"} == {
        k: v for k, v in expected.items() if k != "end_ns"
    }


def _burst(**changes: object) -> Case:
    requests = tuple({"arrival_ns": 0, "input_tokens": 20, "output_tokens": 30} for _ in range(6))
    return replace(Case(requests, cost=(10_000, 0, 0), num_blocks=200), **changes)


def _last_token(case: Case, copies: int) -> list[int]:
    env = simpy.Environment(0)
    device = SharedDevice(env)
    engines = [start(case, env, device) for _ in range(copies)]
    env.run()
    return [max(shared.recorder.requests()["last_token_ns"]) for shared in engines]


def test_two_engines_on_one_device_slow_each_other_but_less_than_in_turn() -> None:
    """HBM phases share the bandwidth; a compute phase beside an HBM phase costs nothing."""
    for asynchronous in (False, True):
        case = _burst(async_scheduling=asynchronous)
        alone = _last_token(case, 1)[0]
        both = _last_token(case, 2)
        assert both[0] == both[1]
        assert 1.5 * alone <= both[0] <= 2 * alone


def test_a_kv_stream_slows_decoding_by_the_share_of_hbm_it_takes() -> None:
    """A copy that would take half of HBM all along leaves HBM phases two thirds of their speed."""
    case = _burst()
    alone = _last_token(case, 1)[0]
    env = simpy.Environment(0)
    device = SharedDevice(env)
    shared = start(case, env, device)
    device.submit([Phase("kv stream", 1.0, {"hbm": 0.5, "link": 1.0})])
    while shared.engine.running or shared.engine.waiting or env.now == 0:
        env.step()
    slowed = max(shared.recorder.requests()["last_token_ns"])
    assert abs(slowed / alone - (0.75 * 1.5 + 0.25)) < 1e-3
