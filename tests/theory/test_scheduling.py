"""Orders of serving against closed forms, bounds and runs that can be worked out by hand."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from membound.sim.engine.engine import Engine
from membound.sim.engine.flight import Flight
from membound.sim.engine.request import Request
from membound.sim.scheduler.base import ScheduledBatch
from membound.sim.scheduler.reordered import produced
from membound.sim.scheduler.vtc import tenant_of

from ..invariants.harness import Case, run
from .queues import assert_agrees, mean_and_error, mg1_wait, priority_waits
from .serving import S, StepCost, poisson, serve

SHORT, LONG, SHARE_LONG = 5, 50, 0.1
MEAN = (1 - SHARE_LONG) * SHORT + SHARE_LONG * LONG
SECOND = (1 - SHARE_LONG) * SHORT**2 + SHARE_LONG * LONG**2
RATE = 0.7 / MEAN


@cache
def one_slot_waits(scheduler: str, seed: int, error: float = 0.0) -> tuple[float, float]:
    """Return the mean waits of short and of long answers in one place; a token takes a second [s]."""
    answers = np.where(np.random.default_rng([seed, 1]).random(3000) < SHARE_LONG, LONG, SHORT)
    arrivals = poisson(RATE, len(answers), seed)
    options = {"predictor_error": error} if error else {}
    served = serve(answers.tolist(), StepCost(S), arrivals=arrivals, scheduler=scheduler, options=options)
    waits, answers = served.waits[300:] / S, answers[300:]
    return waits[answers == SHORT].mean(), waits[answers == LONG].mean()


def test_in_one_slot_shortest_first_waits_as_two_priorities_do() -> None:
    """Two lengths, one place: the shorter class waits R / (1 - rho_1), the longer R / ((1 - rho_1)(1 - rho)).

    R is the residual service (Cobham 1954). First come, first served waits as Pollaczek and Khinchine say.
    """
    short, long = np.array([one_slot_waits("sjf", seed) for seed in range(8)]).T
    rates = (RATE * (1 - SHARE_LONG), RATE * SHARE_LONG)
    expected = priority_waits(rates, (SHORT, LONG), (SHORT**2, LONG**2))
    assert_agrees(*mean_and_error(short), expected[0], resolution=0.08)
    assert_agrees(*mean_and_error(long), expected[1], resolution=0.15)
    mixed = (1 - SHARE_LONG) * short + SHARE_LONG * long
    short, long = np.array([one_slot_waits("vllm_v1", seed) for seed in range(8)]).T
    everybody = (1 - SHARE_LONG) * short + SHARE_LONG * long
    theory = mg1_wait(RATE, MEAN, SECOND - MEAN**2)
    assert_agrees(*mean_and_error(everybody), theory, resolution=0.15)
    assert (mixed < 0.7 * everybody).all(), "on every one of the loads"


@pytest.mark.parametrize("seed", range(2))
def test_a_poor_prediction_is_between_a_perfect_one_and_none(seed: int) -> None:
    perfect, poor = one_slot_waits("sjf", seed)[0], one_slot_waits("sjf", seed, 2.0)[0]
    assert perfect < 0.95 * poor < 0.9 * one_slot_waits("vllm_v1", seed)[0]


def finish_ns(scheduler: str, requests: list[dict[str, Any]], **case: Any) -> list[int]:
    record, _ = run(Case(tuple(requests), scheduler=scheduler, **case))
    return record["requests"]["last_token_ns"]


def test_shortest_remaining_stops_a_long_answer_for_a_short_one() -> None:
    """A step takes 1,000 ns; the short one arrives in the 5th of 20 and runs from 5,000 to 8,000.

    The long one then computes what it had again, and one more token, in one step: its 15 others end at 23,000.
    """
    requests = [
        {"arrival_ns": 0, "input_tokens": 4, "output_tokens": 20},
        {"arrival_ns": 4500, "input_tokens": 4, "output_tokens": 3},
    ]
    one = {"settings": {"max_num_seqs": 1}}
    assert finish_ns("srpt", requests, **one) == [23_000, 8_000]
    assert finish_ns("sjf", requests, **one) == [20_000, 23_000]
    # After half of its answer it is not stopped any more, and 5 of 20 are not half.
    assert finish_ns("srpt", requests, options={"preempt_until": 0.5}, **one) == [23_000, 8_000]
    assert finish_ns("srpt", requests, options={"preempt_until": 0.2}, **one) == [20_000, 23_000]


def test_a_level_of_priority_is_worth_its_seconds_of_waiting() -> None:
    """One place, taken until 10,000 ns; a level counts 2,000 ns: of those who wait, arrival + level x 2,000 decides."""
    requests: list[dict[str, Any]] = [{"arrival_ns": 0, "input_tokens": 4, "output_tokens": 10}]
    waiting = [(1000, 1), (1500, 0), (2500, 0), (3500, 0), (4000, 2), (5000, -1)]
    requests += [
        {"arrival_ns": at, "input_tokens": 4, "output_tokens": 1, "priority": level} for at, level in waiting
    ]
    ends = finish_ns("priority", requests, settings={"max_num_seqs": 1}, options={"aging_s": 2e-6})
    # Due at 3000, 1500, 2500, 3500, 8000 and 3000 (later arrival).
    assert np.argsort(ends[1:]).tolist() == [1, 2, 0, 5, 3, 4]


class Service:
    """The service of two tenants while both wait, as the paper counts it: prompt tokens, and answers' tokens twice."""

    def __init__(self) -> None:
        self.apart: list[int] = []
        self.seen: dict[Request, None] = {}

    def composed(self, engine: Engine, flight: Flight, batch: ScheduledBatch) -> None:
        self.seen.update(dict.fromkeys(batch.admitted))
        served = {0: 0, 1: 0}
        for request in self.seen:
            served[tenant_of(request)] += request.input_tokens + 2 * min(
                produced(request), request.output_tokens
            )
        if {tenant_of(request) for request in engine.waiting} == {0, 1}:
            self.apart.append(abs(served[0] - served[1]))

    def repeated(self, *_: object) -> None: ...

    def applied(self, *_: object) -> None: ...


@pytest.mark.parametrize("lengths", [((8, 4), (8, 4)), ((4, 30), (30, 2)), ((40, 1), (4, 6))])
def test_two_tenants_who_always_wait_get_equal_service_within_the_bound(lengths: Any) -> None:
    """Sheng et al. 2024, theorem 4.4: apart by at most 2 max(longest prompt, 2 x tokens that a batch holds)."""
    tenants = [0, 0, 0, 1] * 100  # three times as many requests of one
    requests = tuple(
        {"arrival_ns": 0, "input_tokens": lengths[who][0], "output_tokens": lengths[who][1], "tenant": who}
        for who in tenants
    )
    held = 4 * max(prompt + answer for prompt, answer in lengths)
    bound = 2 * max(max(prompt for prompt, _ in lengths), 2 * held)
    limits = {"num_blocks": 200, "settings": {"max_num_seqs": 4, "max_num_batched_tokens": 64}}
    service: dict[str, Service] = {}
    for name in ("vtc", "vllm_v1"):
        service[name] = Service()
        run(
            Case(requests, scheduler=name, **limits), fast_forward=False, cohort=False, observer=service[name]
        )
    assert len(service["vtc"].apart) > 50
    assert max(service["vtc"].apart) <= bound
    assert max(service["vllm_v1"].apart) > 2 * bound, "first come, first served follows who asks more"


def test_a_tenant_who_comes_back_has_not_saved_up_service() -> None:
    """Tenant 1 comes when tenant 0 has been served alone for long: from then on they take turns."""
    one = {"input_tokens": 2, "output_tokens": 2}
    requests = [{"arrival_ns": 0, "tenant": 0, **one}] * 60 + [
        {"arrival_ns": 40_500, "tenant": 1, **one}
    ] * 20
    record, _ = run(Case(tuple(requests), scheduler="vtc", settings={"max_num_seqs": 1}))
    order = np.argsort(record["requests"]["first_scheduled_ns"], kind="stable")
    later = [requests[at]["tenant"] for at in order if record["requests"]["first_scheduled_ns"][at] > 40_500]
    assert later[:38] in ([0, 1] * 19, [1, 0] * 19)


def test_orca_never_stops_anybody_because_it_reserves() -> None:
    """Ten sequences of 100 tokens fit 1,000; each writes 30 tokens at most, so vLLM runs all 24 at once."""
    requests = [{"arrival_ns": 0, "input_tokens": 10, "output_tokens": 20}] * 24
    pool = {"num_blocks": 250, "block_size": 4, "max_model_len": 100,
            "settings": {"max_num_seqs": 64, "max_num_batched_tokens": 256}}  # fmt: skip
    running = {}
    for name, options in (("orca", {}), ("orca", {"reserve": "max_tokens"}), ("vllm_v1", {})):
        record, _ = run(Case(tuple(requests), scheduler=name, options=options, **pool))
        running[name, *options.values()] = max(record["step_columns"]["running"])
        assert record["preemptions"] == 0
    assert running == {("orca",): 10, ("orca", "max_tokens"): 24, ("vllm_v1",): 24}
    tight = {**pool, "num_blocks": 60}
    assert run(Case(tuple(requests), scheduler="vllm_v1", **tight))[0]["preemptions"] > 0
    assert (
        run(Case(tuple(requests), scheduler="orca", options={"reserve": "max_tokens"}, **tight))[0][
            "preemptions"
        ]
        == 0
    )


@pytest.mark.parametrize(
    ("name", "budget", "gap_ns", "first_ns"),
    [
        # A step takes 1,000 ns and 10 a token. Whole prompt alone (1,600), then the decode (1,020):
        ("vllm_v0", 80, 2620, 1600),
        # Whole prompt and the decode in one step of 61 tokens:
        ("orca", 80, 1610, 1610),
        ("vllm_v1", 80, 1610, 1610),
        # 15 of the prompt's tokens beside the decode, four times:
        ("sarathi", 16, 1160, 4640),
    ],
)
def test_the_longest_gap_is_what_a_prompt_adds_to_a_step(
    name: str, budget: int, gap_ns: int, first_ns: int
) -> None:
    """One decodes; a prompt of 60 tokens comes on a step's boundary."""
    start = 1040 + 3 * 1010  # its prompt of 4, then three decodes
    requests = (
        {"arrival_ns": 0, "input_tokens": 4, "output_tokens": 30},
        {"arrival_ns": start, "input_tokens": 60, "output_tokens": 2},
    )
    case = Case(
        requests,
        (1000, 10),
        name,
        num_blocks=200,
        settings={"max_num_seqs": 4, "max_num_batched_tokens": budget},
    )
    record, _ = run(case)
    gaps, count = record["itl_by_position"]
    assert max(gap for gap, n in zip(gaps[4:], count[4:], strict=True) if n) == gap_ns
    assert record["requests"]["first_token_ns"][1] - start == first_ns


def test_who_cannot_make_its_deadline_is_not_begun() -> None:
    """A token a microsecond, one place, first tokens due after 30.

    Answers of 8 start at 0, 8, 16 and 24; the fifth, at 32, is too late to start, and so are all after it.
    """
    requests = tuple({"arrival_ns": 0, "input_tokens": 4, "output_tokens": 8} for _ in range(10))
    record, _ = run(Case(requests, scheduler="deadline", settings={"max_num_seqs": 1}))
    assert record["requests"]["first_scheduled_ns"] == [0, 8000, 16_000, 24_000, *[-1] * 6]
    assert record["reasons"] == {"cannot meet its TTFT threshold": 0}


def test_beyond_capacity_shedding_serves_more_in_time_than_first_come_first_served() -> None:
    """Twice the load one place can carry: first come, first served is soon late for everybody."""
    requests = tuple({"arrival_ns": 4000 * n, "input_tokens": 4, "output_tokens": 8} for n in range(100))
    in_time = {}
    for name in ("deadline", "vllm_v1"):
        table = run(Case(requests, scheduler=name, settings={"max_num_seqs": 1}))[0]["requests"]
        waits = np.array(table["first_token_ns"]) - np.array(table["arrival_ns"])
        in_time[name] = int(((waits > 0) & (waits <= 30_000)).sum())
    assert in_time["vllm_v1"] < 10 < 45 < in_time["deadline"] <= 55
