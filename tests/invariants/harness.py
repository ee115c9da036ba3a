"""Small engines with declared step costs, for laws that must hold whatever the numbers are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import simpy
from membound.hwmodels.steptypes import Phase
from membound.hwmodels.tier import TierProfile
from membound.sim.books.recorder import Recorder
from membound.sim.engine.engine import Engine
from membound.sim.engine.flight import Observer
from membound.sim.engine.pipeline import Pipeline
from membound.sim.engine.request import Request
from membound.sim.engine.source import Source
from membound.sim.engine.speculative import Speculation
from membound.sim.kvcache.base import KVAllocator, PoolShape
from membound.sim.kvcache.paged import PagedAllocator
from membound.sim.policies import find_policy, make_policy
from membound.sim.scheduler.base import Scheduler
from membound.sim.tiers.mover import Mover
from membound.sim.tiers.offload import figures_of, mover_of
from membound.sim.tiers.route import Route
from membound.sim.tiers.swap import SwapSpace
from membound.sim.tiers.tiers import Tier, TierStack

SLO = {"default": {"ttft_s": 30e-6, "tpot_s": 2e-6}, "slow": {"ttft_s": 90e-6}, "batch": {"tpot_s": 1.0}}
"""Thresholds of the classes of random requests, some of which a step of a microsecond cannot meet [s]."""


class LinearCost:
    """A step's cost is linear in what a step model is told of it [ns].

    ``hbm_load`` is the share of HBM that it holds while it reads.

    ``base`` + ``per_token`` a token + ``per_context`` a thousand keys read + ``per_row`` a sampled row +
    ``per_length`` a key of the longest context.
    """

    def __init__(
        self, base: int, per_token: int = 0, per_context: int = 0, per_row: int = 0, per_length: int = 0, *,
        needs_contexts: bool = False,
    ) -> None:  # fmt: skip
        self.base, self.per_token, self.per_context = base, per_token, per_context
        self.per_row, self.per_length = per_row, per_length
        self.needs_contexts = needs_contexts
        self.hbm_load = 1.0

    def step_ns(
        self, n_decode: int, context_sum: int, longest: int, prefill: Sequence[tuple[int, int]], sampled: int,
        contexts: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        if contexts is not None:
            assert (sum(contexts), max(contexts, default=0), len(contexts)) == (
                context_sum,
                longest,
                n_decode,
            )
        tokens = n_decode + sum(new for new, _ in prefill)
        context = context_sum + sum(new + cached for new, cached in prefill)
        spent = self.base + self.per_token * tokens + self.per_context * context // 1000
        return spent + self.per_row * sampled + self.per_length * longest

    def decode_run_ns(
        self, n_decode: int, context_sum: int, longest: int, steps: int, contexts: Sequence[int] | None = None
    ) -> np.ndarray:
        later = np.arange(steps, dtype=np.int64)
        spent = (
            self.base
            + self.per_token * n_decode
            + self.per_context * (context_sum + n_decode * later) // 1000
        )
        return spent + self.per_row * n_decode + self.per_length * (longest + later)

    def phases(self, *step: Any) -> tuple[Phase, ...]:
        """A step reads HBM for three quarters of its time, at a share of its rate, and computes for the rest."""
        seconds = self.step_ns(*step) / 1e9
        return (
            Phase("hbm", 0.75 * seconds, {"hbm": self.hbm_load * 0.75 * seconds}),
            Phase("compute", 0.25 * seconds, {"compute": 0.25 * seconds}),
        )

    def peak_loads(self, *_: Any) -> dict[str, float]:
        return {"hbm": self.hbm_load, "compute": 1.0}


@dataclass(frozen=True)
class Host:
    """What is behind a device's memory: (policy, blocks, write through) of each tier, and blocks to swap to.

    A block takes 700 ns over the host's link, which holds a third of HBM, and three times that from the second tier;
    steps hold ``hbm_load`` of HBM while they read.
    """

    tiers: tuple[tuple[str, int, bool], ...] = ()
    swap: int = 0
    layerwise: bool = True
    hbm_load: float = 1.0

    def attach(self, allocator: KVAllocator) -> Mover | None:
        """Give an allocator these tiers, and return what carries blocks."""
        if not (self.tiers or self.swap) or not isinstance(allocator, PagedAllocator):
            return None
        mover = allocator.mover = Mover(4, layerwise=self.layerwise)
        if self.tiers and allocator.enable_prefix_caching:
            allocator.below = TierStack(
                [
                    Tier(
                        f"t{number}", route_of(number + 1), find_policy("tierpolicy", name, "")(size), through
                    )
                    for number, (name, size, through) in enumerate(self.tiers)
                ],
                mover,
            )
        if self.swap:
            allocator.swap = SwapSpace(self.swap, route_of(1), mover)
        return mover


class HostedDevice:
    """A device whose host link is a third as fast as its memory."""

    id, link_type, link_bandwidth = "any", "NVLink", 1e9
    hbm_bandwidth, pcie_bandwidth, c2c_bandwidth = 3 / 0.7e-6, 1 / 0.7e-6, None


def route_of(slower: int) -> Route:
    sheet = {name: {"value": value, "source": "test"} for name, value in {
        "capacity": 1, "read_bandwidth": 1 / (0.7e-6 * slower), "write_bandwidth": 1 / (0.7e-6 * slower),
        "latency": 3e-7, "queue_depth": 4, "host_link_share": 1,
    }.items()}  # fmt: skip
    profile = TierProfile.model_validate({"id": f"t{slower}", "name": "test", "datasheet": sheet})
    return Route(profile, HostedDevice(), 1, 1)


class StagesCost:
    """The cost of a step on every stage, each linear as in ``LinearCost`` [ns]."""

    def __init__(self, stages: Sequence[tuple[int, ...]], needs_contexts: bool = False) -> None:
        self.stages = [LinearCost(*cost, needs_contexts=needs_contexts) for cost in stages]

    def stages_ns(self, *counts: Any) -> list[int]:
        return [stage.step_ns(*counts) for stage in self.stages]


class SpeculativeCost(LinearCost):
    """A linear cost in which a decoding sequence computes ``queries`` tokens, and ``draft`` is added for each [ns]."""

    def __init__(self, *cost: int, queries: int, draft: int = 13, needs_contexts: bool = False) -> None:
        super().__init__(*cost, needs_contexts=needs_contexts)
        self.queries, self.draft = queries, draft
        self.plain = LinearCost(*cost, needs_contexts=needs_contexts)

    def step_ns(
        self, n_decode: int, context_sum: int, longest: int, prefill: Sequence[tuple[int, int]], sampled: int,
        contexts: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        spent = super().step_ns(n_decode, context_sum, longest, prefill, sampled, contexts)
        more = self.draft + self.per_token * (self.queries - 1)
        return spent + n_decode * more + self.draft * len(prefill)

    def verify_run_ns(self, n_decode: int, context_sums: np.ndarray, longest: np.ndarray) -> np.ndarray:
        assert len(context_sums) == len(longest) > 0
        return np.array(
            [
                self.step_ns(n_decode, keys, most, [], n_decode * self.queries)
                for keys, most in zip(context_sums.tolist(), longest.tolist(), strict=True)
            ],
            dtype=np.int64,
        )


@dataclass(frozen=True)
class Case:
    """One engine and its load; ``requests`` are keyword arguments of ``Request`` in order of arrival.

    ``bounded_blocks`` is the most that a sequence takes in layers with a window; ``stages`` are the costs of those
    of a pipeline.
    """

    requests: tuple[dict[str, Any], ...]
    cost: tuple[int, ...] = (1000,)
    scheduler: str = "vllm_v1"
    allocator: str = "paged"
    num_blocks: int = 64
    block_size: int = 4
    bounded_blocks: int = 0
    prefix_caching: bool = True
    max_model_len: int = 128
    async_scheduling: bool = False
    needs_contexts: bool = False
    speculation: dict[str, Any] | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    host: Host = Host()
    stages: tuple[tuple[int, ...], ...] = ()

    def bounded(self, tokens: int) -> int:
        """Blocks that a sequence of so many tokens takes in layers with a window."""
        return min(self.bounded_blocks, -(-tokens // self.block_size))


def make_scheduler(case: Case) -> Scheduler:
    settings = {"max_num_seqs": 8, "max_num_batched_tokens": 32, "slo_classes": SLO, **case.settings}
    policy = find_policy("scheduler", case.scheduler, "scheduler.name")
    return make_policy(
        policy, {"max_model_len": case.max_model_len, **settings}, case.options, "scheduler.options"
    )


def make_allocator(case: Case) -> KVAllocator:
    allocator: KVAllocator = find_policy("kvcache", case.allocator, "kv_cache.allocator").of(
        PoolShape(case.num_blocks, case.block_size, case.bounded if case.bounded_blocks else None),
        max_model_len=case.max_model_len,
        enable_prefix_caching=case.prefix_caching,
    )
    case.host.attach(allocator)
    return allocator


def run(
    case: Case,
    *,
    fast_forward: bool = True,
    cohort: bool = True,
    observer: Observer | None = None,
) -> tuple[dict[str, Any], Engine]:
    """Run a case to the end; return everything that was recorded, and the engine."""
    env = simpy.Environment(0)
    requests = [Request(index, **fields) for index, fields in enumerate(case.requests)]
    assert all(a.arrival_ns <= b.arrival_ns for a, b in pairwise(requests))
    engine = make_engine(case, env, fast_forward=fast_forward, cohort=cohort, observer=observer)
    engine.connect(Source(env, iter(requests), engine.submit))
    play(env)
    engine.recorder.close_books()
    return recorded(engine.recorder, engine), engine


def make_engine(case: Case, env: Any, kind: type[Engine] = Engine, **options: Any) -> Engine:
    """Make the engine of a case; ``options`` are further arguments of ``Engine``."""
    allocator = make_allocator(case)
    rules = None if case.speculation is None else Speculation(**case.speculation)
    cost = (
        LinearCost(*case.cost, needs_contexts=case.needs_contexts)
        if rules is None
        else SpeculativeCost(*case.cost, queries=rules.queries, needs_contexts=case.needs_contexts)
    )
    for each in (cost, getattr(cost, "plain", cost)):
        each.hbm_load = case.host.hbm_load
    return kind(
        env, make_scheduler(case), allocator, cost,
        Recorder(keep_steps=True),
        max_model_len=case.max_model_len, async_scheduling=case.async_scheduling, mover=mover_of(allocator),
        speculation=rules, pipeline=Pipeline(StagesCost(case.stages, case.needs_contexts)) if case.stages else None,
        **options,
    )  # fmt: skip


def play(env: Any) -> None:
    """Let a clock run until nothing is due any more."""
    for _ in range(60_000):
        if env.peek() == float("inf"):
            return
        env.step()
    raise AssertionError("the run does not end")


def recorded(recorder: Recorder, engine: Engine) -> dict[str, Any]:
    """Return all that a recorder keeps, in comparable form."""
    sums, counts = recorder.itl_by_position()
    return {
        "requests": {name: column.tolist() for name, column in recorder.requests().items()},
        "reasons": recorder.reject_reasons,
        "busy_ns": recorder.busy_ns,
        "limiter_ns": recorder.limiter_ns,
        "peak_blocks": recorder.peak_blocks,
        "memory": (recorder.used_block_ns, recorder.held_block_ns, recorder.live_token_ns),
        "itl": (recorder.itl.total, recorder.itl.mean_ns() if recorder.itl.total else None),
        "itl_percentiles": [recorder.itl.percentile_ns(q) for q in (1, 10, 50, 90, 99)]
        if recorder.itl.total
        else [],
        "itl_by_position": (sums.tolist(), counts.tolist()),
        "steps": recorder.steps,
        "step_columns": {name: column.tolist() for name, column in (recorder.step_columns() or {}).items()},
        "empty_batches": recorder.empty_batches,
        "wasted_tokens": recorder.wasted_tokens,
        "late_tokens": recorder.late_tokens,
        "preemptions": recorder.preemptions,
        "prefix": (engine.allocator.queried_tokens, engine.allocator.hit_tokens),
        "end_ns": engine.device_free_ns,
        "host": _moved(engine.allocator),
        "drafts": None
        if (rules := engine.speculation) is None
        else (rules.num_drafts, rules.num_draft_tokens, rules.num_accepted_tokens),
    }


def _moved(allocator: KVAllocator) -> dict[str, Any]:
    mover = mover_of(allocator)
    if mover is None:
        return {}
    moved = {"mover": (mover.waited_ns, mover.in_bytes, mover.out_bytes)}
    return moved | figures_of(allocator, 10**9)
