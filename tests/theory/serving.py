"""Engines with a declared cost of a step, under loads that queueing theory knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from membound.sim.clock import Clock
from membound.sim.engine import Engine
from membound.sim.kvcache.base import PoolShape
from membound.sim.policies import find_policy, make_policy
from membound.sim.recorder import Recorder
from membound.sim.request import Request
from membound.sim.source import Source
from membound.sim.workload.workload import ClosedLoopLoad

S = 1_000_000_000
SLO = {"default": {"ttft_s": 1e6}}


@dataclass(frozen=True)
class StepCost:
    """A step takes ``base`` + ``per_token`` for each of its tokens [ns]."""

    base: int
    per_token: int = 0
    needs_contexts: bool = False

    def step_ns(
        self, n_decode: int, context_sum: int, longest: int, prefill: Sequence[tuple[int, int]], sampled: int,
        contexts: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        return self.base + self.per_token * (n_decode + sum(new for new, _ in prefill))

    def decode_run_ns(
        self, n_decode: int, context_sum: int, longest: int, steps: int, contexts: Sequence[int] | None = None
    ) -> np.ndarray:
        return np.full(steps, self.base + self.per_token * n_decode, dtype=np.int64)


@dataclass(frozen=True)
class Served:
    """What became of the requests, in order of submission; times as columns [ns]."""

    arrival: np.ndarray
    scheduled: np.ndarray
    last: np.ndarray
    recorder: Recorder

    @property
    def waits(self) -> np.ndarray:
        return self.scheduled - self.arrival

    @property
    def sojourns(self) -> np.ndarray:
        return self.last - self.arrival


def serve(
    answers: Sequence[int], cost: StepCost, *, arrivals: Sequence[int] | None = None,
    closed_loop: ClosedLoopLoad | None = None, prompt: int = 1, max_num_seqs: int = 1, scheduler: str = "vllm_v1",
    options: dict[str, Any] | None = None,
) -> Served:  # fmt: skip
    """Serve requests of one prompt length, with memory for all of them."""
    env = Clock(0)
    most = prompt + max(answers)
    pool = PoolShape(max_num_seqs * most, 1)
    allocator = find_policy("kvcache", "paged", "").of(pool, max_model_len=most, enable_prefix_caching=False)
    limits = {"max_num_seqs": max_num_seqs, "max_num_batched_tokens": 1 << 30, "max_model_len": most}
    policy = make_policy(
        find_policy("scheduler", scheduler, ""), limits | {"slo_classes": SLO}, options or {}, ""
    )

    def requests() -> Iterator[Request]:
        for index, answer in enumerate(answers):
            yield Request(index, 0 if arrivals is None else arrivals[index], prompt, answer)

    recorder = Recorder(growth_tokens=1, keep_steps=True)
    engine = Engine(
        env,
        policy,
        allocator,
        cost,
        recorder,
        max_model_len=most,
        on_finish=lambda request: source.finished(request),
    )
    source = Source(env, requests(), engine.submit, closed_loop)
    engine.connect(source)
    env.run()
    recorder.close_books()
    table = recorder.requests()
    return Served(table["arrival_ns"], table["first_scheduled_ns"], table["last_token_ns"], recorder)


def poisson(rate_per_s: float, count: int, seed: int) -> list[int]:
    """Draw arrival times of a Poisson process [ns]."""
    gaps = np.random.default_rng(seed).exponential(S / rate_per_s, count)
    return np.cumsum(np.rint(gaps).astype(np.int64)).tolist()
