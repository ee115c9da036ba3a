"""The reference engine on a fake clock does, step by step, what the simulator's engine does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.calibrate.errors import CalibrationError
from membound.calibrate.realclock import RealClock
from membound.calibrate.reference_engine import ReferenceEngine
from membound.kernels.scheduled import Scheduled
from membound.sim.books.recorder import Recorder
from membound.sim.clock import Clock
from membound.sim.engine.engine import Engine
from membound.sim.engine.flight import Flight
from membound.sim.engine.request import Request
from membound.sim.engine.source import Source
from membound.sim.kvcache.paged import PagedAllocator
from membound.sim.scheduler.base import ScheduledBatch
from membound.sim.scheduler.static import Static
from membound.sim.scheduler.vllm_v1 import VllmV1
from membound.sim.workload.workload import ClosedLoopLoad, LoadReport, Workload

BLOCK = 4


class LinearCost:
    """What a step costs: a fixed time, and some for each token, key and sequence [ns]."""

    needs_contexts = False

    def step_ns(
        self, n_decode: int, context_sum: int, longest: int, prefill: Sequence[tuple[int, int]], sampled: int,
        contexts: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        tokens = n_decode + sum(new for new, _ in prefill)
        return 1000 + 70 * tokens + 3 * (context_sum + sum(sum(chunk) for chunk in prefill)) + 11 * sampled

    def decode_run_ns(
        self, n_decode: int, context_sum: int, longest: int, steps: int, contexts: Sequence[int] | None = None
    ) -> np.ndarray:
        ramp = np.arange(steps, dtype=np.int64)
        return self.step_ns(n_decode, 0, longest, (), n_decode) + 3 * (context_sum + n_decode * ramp)


class FakeClock:
    """Time that passes when it is told to."""

    def __init__(self) -> None:
        self.time_ns = 0

    def now_ns(self) -> int:
        return self.time_ns

    def advance_to(self, time_ns: int) -> None:
        self.time_ns = time_ns


class CheckedModel:
    """Takes the time of ``LinearCost``, and checks that no block belongs to two sequences."""

    def __init__(self, clock: FakeClock, num_blocks: int) -> None:
        self.clock, self.num_blocks = clock, num_blocks
        self.engine: ReferenceEngine | None = None

    def step(self, batch: Sequence[Scheduled]) -> list[int]:
        held = [block for each in batch for block in each.blocks]
        assert len(set(held)) == len(held)
        assert all(0 <= block < self.num_blocks for block in held)
        assert all(len(each.blocks) * BLOCK >= each.after for each in batch)
        assert self.engine is not None
        assert self.engine.free_blocks == self.engine.allocator.free_blocks
        decodes = [each.after for each in batch if len(each.tokens) == 1]
        chunks = [(len(each.tokens), each.before) for each in batch if len(each.tokens) > 1]
        spent = LinearCost().step_ns(len(decodes), sum(decodes), max(decodes, default=0), chunks, len(batch))
        self.clock.time_ns += spent
        return [each.after % 7 for each in batch]


class Compositions:
    """What the simulator's engine composes."""

    def __init__(self) -> None:
        self.steps: list[tuple[int, dict[int, int]]] = []

    def composed(self, engine: Engine, flight: Flight, batch: ScheduledBatch) -> None:
        if flight.steps:
            self.steps.append((flight.start_ns, {each.index: n for each, n in batch.tokens.items()}))

    def repeated(self, engine: Engine, flight: Flight, starts_ns: np.ndarray, ends_ns: np.ndarray) -> None:
        raise AssertionError("steps are taken one by one")

    def applied(self, engine: Engine, flight: Flight, finished: list[Request]) -> None:
        pass


def scheduler(**flags: Any) -> VllmV1:
    return VllmV1(**({"max_num_seqs": 4, "max_num_batched_tokens": 12, "max_model_len": 64} | flags))


def load(seed: int, closed: bool) -> Workload:
    rng = np.random.default_rng(seed)
    n = 25
    arrivals = np.zeros(n) if closed else rng.exponential(4000.0, n).cumsum()
    return Workload(
        arrival_ns=arrivals.astype(np.int64),
        input_tokens=rng.integers(1, 30, n),
        output_tokens=rng.integers(1, 15, n),
        report=LoadReport("test", "generated"),
        closed_loop=ClosedLoopLoad(concurrency=5, think_time_ns=900) if closed else None,
    )


def simulated(workload: Workload, policy: VllmV1, num_blocks: int) -> tuple[Compositions, list[Request]]:
    """Serve a load on the simulator's engine."""
    env, seen, ended = Clock(0), Compositions(), list[Request]()
    allocator = PagedAllocator(num_blocks, BLOCK, enable_prefix_caching=False)

    def finished(request: Request) -> None:
        ended.append(request)
        source.finished(request)

    engine = Engine(
        env, policy, allocator, LinearCost(), Recorder(), max_model_len=64,
        fast_forward=False, cohort=False, on_finish=finished, observer=seen,
    )  # fmt: skip
    source = Source(env, workload.iter_requests(), engine.submit, workload.closed_loop)
    engine.connect(source)
    env.run()
    return seen, sorted(ended, key=lambda request: request.index)


def served(workload: Workload, policy: VllmV1, num_blocks: int) -> tuple[ReferenceEngine, list[Request]]:
    """Serve a load on the reference engine."""
    clock = FakeClock()
    model = CheckedModel(clock, num_blocks)
    allocator = PagedAllocator(num_blocks, BLOCK, enable_prefix_caching=False)
    engine = model.engine = ReferenceEngine(policy, allocator, model, clock, vocab=50)
    return engine, engine.serve(workload)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    closed=st.booleans(),
    num_blocks=st.sampled_from((12, 15, 60)),
    flags=st.fixed_dictionaries(
        {},
        optional={
            "max_num_batched_tokens": st.sampled_from((5, 40)),
            "long_prefill_token_threshold": st.just(6),
            "scheduler_reserve_full_isl": st.just(False),
            "scheduling_policy": st.just("priority"),
        },
    ),
)
def test_steps_and_times_equal_the_simulators(
    seed: int, closed: bool, num_blocks: int, flags: dict[str, Any]
) -> None:
    workload = load(seed, closed)
    seen, wanted = simulated(workload, scheduler(**flags), num_blocks)
    engine, found = served(workload, scheduler(**flags), num_blocks)
    assert [(step.start_ns, step.tokens) for step in engine.steps] == seen.steps
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.index == theirs.index
        assert mine.arrival_ns == theirs.arrival_ns
        assert mine.first_token_ns == theirs.first_token_ns
        assert mine.last_token_ns == theirs.last_token_ns
        assert mine.num_preemptions == theirs.num_preemptions
    assert engine.free_blocks == engine.allocator.free_blocks == num_blocks, "every block came back"


def test_scarce_blocks_do_preempt() -> None:
    _, found = served(load(3, closed=True), scheduler(), 12)
    assert sum(request.num_preemptions for request in found) > 0


def test_a_second_load_starts_at_its_own_time_zero() -> None:
    engine, first = served(load(5, closed=False), scheduler(), 60)
    again = engine.serve(load(5, closed=False))
    times = [(each.first_token_ns, each.last_token_ns) for each in first]
    assert [(each.first_token_ns, each.last_token_ns) for each in again] == times


def test_what_cannot_be_served_is_refused_by_name() -> None:
    with pytest.raises(CalibrationError, match="exceed the KV pool"):
        served(load(1, closed=False), scheduler(), 2)
    clock = FakeClock()
    allocator = PagedAllocator(8, BLOCK, enable_prefix_caching=False)
    with pytest.raises(CalibrationError, match="static"):
        ReferenceEngine(Static(max_num_seqs=2), allocator, CheckedModel(clock, 8), clock, vocab=5)


def test_idle_time_is_skipped_and_never_taken_back() -> None:
    clock = RealClock(cpu=True)
    clock.advance_to(10**12)
    assert 10**12 <= clock.now_ns() < 2 * 10**12
    clock.advance_to(5)
    assert clock.now_ns() >= 10**12
