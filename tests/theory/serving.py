"""Engines with a declared cost of a step, under loads that queueing theory knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from membound.sim.books.recorder import Recorder
from membound.sim.clock import Clock
from membound.sim.cluster.fleet import Fleet
from membound.sim.engine.engine import Engine
from membound.sim.engine.request import Request
from membound.sim.engine.source import Source
from membound.sim.kvcache.base import PoolShape
from membound.sim.policies import find_policy, make_policy
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
    shape = Shape(prompt, prompt + max(answers), max_num_seqs, scheduler, options or {})
    engine = shape.engine(env, cost, on_finish=lambda request: source.finished(request))
    source = Source(env, _requests(answers, arrivals, prompt), engine.submit, closed_loop)
    engine.connect(source)
    env.run()
    engine.recorder.close_books()
    table = engine.recorder.requests()
    return Served(table["arrival_ns"], table["first_scheduled_ns"], table["last_token_ns"], engine.recorder)


def serve_behind(
    router: str,
    replicas: int,
    answers: Sequence[int],
    cost: StepCost,
    arrivals: Sequence[int],
    **options: Any,
) -> Served:
    """Serve requests on several engines of one sequence at a time; the recorder is that of the first."""
    env = Clock(0)
    shape = Shape(1, 1 + max(answers), 1, "vllm_v1", {})
    homes = [Home(shape, cost) for _ in range(replicas)]
    chosen = find_policy("router", router, "")(**options)
    fleet = Fleet(env, homes, chosen, lambda request: source.finished(request))
    source = Source(env, _requests(answers, arrivals, 1), fleet.submit, in_turn=True)
    env.run()
    for engine in fleet.engines:
        engine.recorder.close_books()
    tables = [engine.recorder.requests() for engine in fleet.engines]
    order = np.argsort(np.concatenate([table["index"] for table in tables]))
    names = ("arrival_ns", "first_scheduled_ns", "last_token_ns")
    columns = (np.concatenate([table[name] for table in tables])[order] for name in names)
    return Served(*columns, fleet.engines[0].recorder)


@dataclass(frozen=True)
class Shape:
    """An engine with memory for all its requests: their prompt, the longest, how many at once, and the policy."""

    prompt: int
    most: int
    max_num_seqs: int
    scheduler: str
    options: dict[str, Any]

    def engine(self, env: Clock, cost: StepCost, **arguments: Any) -> Engine:
        """Make it; ``arguments`` are further ones of ``Engine``."""
        pool = PoolShape(self.max_num_seqs * self.most, 1)
        allocator = find_policy("kvcache", "paged", "").of(
            pool, max_model_len=self.most, enable_prefix_caching=False
        )
        limits = {"max_num_seqs": self.max_num_seqs, "max_num_batched_tokens": 1 << 30}
        offered = limits | {"max_model_len": self.most, "slo_classes": SLO}
        policy = make_policy(find_policy("scheduler", self.scheduler, ""), offered, self.options, "")
        recorder = Recorder(keep_steps=True)
        return Engine(env, policy, allocator, cost, recorder, max_model_len=self.most, **arguments)


@dataclass(frozen=True)
class Home:
    """What a fleet needs of a replica."""

    shape: Shape
    cost: StepCost

    def start(
        self, env: Clock, on_finish: Callable[[Request], None], *, among_others: bool = False
    ) -> Engine:
        return self.shape.engine(env, self.cost, on_finish=on_finish, among_others=among_others)


def _requests(answers: Sequence[int], arrivals: Sequence[int] | None, prompt: int) -> Iterator[Request]:
    for index, answer in enumerate(answers):
        yield Request(index, 0 if arrivals is None else arrivals[index], prompt, answer)


def poisson(rate_per_s: float, count: int, seed: int) -> list[int]:
    """Draw arrival times of a Poisson process [ns]."""
    gaps = np.random.default_rng(seed).exponential(S / rate_per_s, count)
    return np.cumsum(np.rint(gaps).astype(np.int64)).tolist()
