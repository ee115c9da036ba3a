"""The engine against queueing theory, where its setting makes it one of theory's queues."""

from __future__ import annotations

import numpy as np
import pytest
from membound.sim.workload.workload import ClosedLoopLoad

from .queues import (
    assert_agrees,
    batch_means,
    md1_wait,
    mg1_wait,
    mm1_wait,
    mmc_wait,
    one_server_waits,
    ps_sojourn,
)
from .serving import S, Served, StepCost, poisson, serve

STEP = 1_000_000  # 1 ms
MEAN = 100  # output tokens: 0.1 s of service, one token a step
COUNT = 8_000
WARM_UP = 500


def geometric(seed: int, count: int = COUNT) -> list[int]:
    """Draw answer lengths without memory, as an exponential service counted in steps has them."""
    return np.random.default_rng(seed + 1000).geometric(1 / MEAN, count).tolist()


def mean_wait_s(served: Served) -> tuple[float, float]:
    return batch_means(served.waits[WARM_UP:] / S)


def test_one_sequence_at_a_time_waits_as_lindley_says_to_the_nanosecond() -> None:
    arrivals, answers = poisson(7.0, 3000, 1), geometric(1, 3000)
    waits = serve(answers, StepCost(STEP), arrivals=arrivals).waits
    assert waits.tolist() == one_server_waits(arrivals, [answer * STEP for answer in answers])


@pytest.mark.parametrize("load", [0.3, 0.5])
def test_one_sequence_at_a_time_with_answers_without_memory_is_mm1(load: float) -> None:
    rate = load / (MEAN * STEP / S)
    served = serve(geometric(2), StepCost(STEP), arrivals=poisson(rate, COUNT, 2))
    service = MEAN * STEP / S
    assert_agrees(*mean_wait_s(served), mm1_wait(rate, service), resolution=0.1)
    # To the grain of a step: the variance of a geometric number of steps.
    grained = mg1_wait(rate, service, MEAN * (MEAN - 1) * (STEP / S) ** 2)
    assert grained == pytest.approx(mm1_wait(rate, service), rel=0.01)
    assert_agrees(*mean_wait_s(served), grained, resolution=0.1)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_one_sequence_at_a_time_with_equal_answers_is_md1(load: float) -> None:
    rate = load / (MEAN * STEP / S)
    served = serve([MEAN] * COUNT, StepCost(STEP), arrivals=poisson(rate, COUNT, 3))
    assert_agrees(*mean_wait_s(served), md1_wait(rate, MEAN * STEP / S), resolution=0.1)


def test_several_sequences_at_no_extra_cost_are_several_servers() -> None:
    rate = 0.6 * 4 / (MEAN * STEP / S)
    served = serve(geometric(4), StepCost(STEP), arrivals=poisson(rate, COUNT, 4), max_num_seqs=4)
    # Whoever comes while a step runs waits for its end, whether or not a place is free.
    mean, error = mean_wait_s(served)
    theory = mmc_wait(rate, MEAN * STEP / S, 4)
    assert error <= 0.15 * theory
    assert -3 * error <= mean - theory <= 3 * error + STEP / S


def test_steps_that_cost_by_the_token_share_the_processor() -> None:
    """A compute-bound device serves n sequences at 1/n of its speed: M/G/1 processor sharing."""
    rate = 0.5 / (MEAN * STEP / S)
    served = serve(geometric(5), StepCost(0, STEP), arrivals=poisson(rate, COUNT, 5), max_num_seqs=10_000)
    mean, error = batch_means(served.sojourns[WARM_UP:] / S)
    assert_agrees(mean, error, ps_sojourn(rate, MEAN * STEP / S), resolution=0.05)


@pytest.mark.parametrize("users", [1, 3, 8, 20])
def test_closed_loop_keeps_to_its_asymptotes(users: int) -> None:
    """Throughput is that of the users' cycle as long as each finds a place, then that of the places."""
    places, think, cycles = 8, S // 10, 60
    load = ClosedLoopLoad(users, think)
    served = serve([MEAN] * users * cycles, StepCost(STEP), closed_loop=load, max_num_seqs=places)
    service = MEAN * STEP
    duration = int(served.last.max())
    throughput = users * cycles / duration
    by_users, by_places = users / (service + think), places / service
    assert throughput <= min(by_users, by_places) * (1 + 1 / cycles)
    assert throughput >= min(by_users, by_places) * (1 - 2 / cycles)
    # Nobody is answered faster than alone; with places for all, nobody slower, up to the end of a step.
    assert served.sojourns.min() >= service
    if users <= places:
        assert served.sojourns.max() <= service + STEP
    # The interactive law: users = throughput x (response + think time), up to the pauses before the start and end.
    cycle = served.sojourns.mean() + think
    assert throughput * cycle == pytest.approx(users, rel=2 / cycles)


@pytest.mark.parametrize("scheduler", ["vllm_v1", "static"])
def test_littles_law_holds_to_the_nanosecond(scheduler: str) -> None:
    """Sequences in steps, summed over the steps' time, are the times that requests spent in them."""
    answers = geometric(6, 2000)
    served = serve(
        answers,
        StepCost(STEP, 10_000),
        arrivals=poisson(60.0, 2000, 6),
        prompt=50,
        max_num_seqs=16,
        scheduler=scheduler,
    )
    steps = served.recorder.step_columns()
    assert steps is not None
    assert int((steps["running"] * steps["duration_ns"]).sum()) == int((served.last - served.scheduled).sum())
    busy = int(steps["duration_ns"].sum())
    assert (
        busy == served.recorder.busy_ns == int((steps["start_ns"] + steps["duration_ns"])[-1]) - _idle(steps)
    )


def _idle(steps: dict[str, np.ndarray]) -> int:
    ends = steps["start_ns"] + steps["duration_ns"]
    return int(steps["start_ns"][0] + (steps["start_ns"][1:] - ends[:-1]).sum())
