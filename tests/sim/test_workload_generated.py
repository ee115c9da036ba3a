"""Laws of drawn workloads: they follow their distributions, and a longer run extends a shorter one."""

from __future__ import annotations

import math
import sys
import types
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.fields import WorkloadError
from membound.sim.workload.arrivals.base import ArrivalProcess, find_processes
from membound.sim.workload.build import build_workload
from membound.sim.workload.spec import WorkloadSpec
from membound.sim.workload.workload import Workload
from pydantic import ValidationError
from scipy import stats

PROCESSES: dict[str, dict[str, Any]] = {
    "poisson": {"kind": "poisson", "rate_per_s": 5},
    "gamma": {"kind": "gamma", "rate_per_s": 5, "cv": 2.5},
    "constant": {"kind": "constant", "rate_per_s": 5},
    "on_off": {"kind": "on_off", "rate_per_s": 10, "on_s": 3, "off_s": "2s", "off_rate_per_s": 1},
    "closed_loop": {"kind": "closed_loop", "concurrency": 4, "think_time_s": 0.5},
}


def draw(seed: int = 0, **section: Any) -> Workload:
    base = {"arrivals": PROCESSES["poisson"], "input_tokens": 100, "output_tokens": 10, "requests": 50}
    given = {key: value for key, value in (base | section).items() if value is not None}
    return build_workload(WorkloadSpec.model_validate(given), seed)


def gaps_s(load: Workload) -> np.ndarray:
    return np.diff(load.arrival_ns) / 1e9


def test_every_process_of_the_folder_is_tested_here() -> None:
    assert set(PROCESSES) == set(find_processes())


@pytest.mark.parametrize("kind", PROCESSES)
@given(seed=st.integers(0, 2**63), n=st.integers(1, 40), more=st.integers(1, 40))
@settings(deadline=None, max_examples=20)
def test_a_longer_run_extends_a_shorter_one(kind: str, seed: int, n: int, more: int) -> None:
    lengths = {"kind": "lognormal", "p50": 900, "sigma": 1.0}
    long = draw(seed, arrivals=PROCESSES[kind], input_tokens=lengths, requests=n + more)
    short = draw(seed, arrivals=PROCESSES[kind], input_tokens=lengths, requests=n)
    assert short.arrival_ns.tolist() == long.arrival_ns[:n].tolist()
    assert short.input_tokens.tolist() == long.input_tokens[:n].tolist()
    assert (np.diff(long.arrival_ns) >= 0).all()


def test_the_first_requests_of_a_load_are_a_load_with_the_same_requests() -> None:
    whole = build_workload(
        WorkloadSpec.model_validate(
            {
                "arrivals": {"kind": "poisson", "rate_per_s": 3},
                "input_tokens": {"kind": "uniform", "low": 10, "high": 900},
                "output_tokens": 7,
                "requests": 50,
                "sessions": {"groups": 3, "prompts_per_group": 2, "system_prompt_tokens": 100},
            }
        ),
        5,
    )
    key = [(each.arrival_ns, each.input_tokens, each.block_hashes) for each in whole.iter_requests(16)]
    some = whole.first(20)
    assert [
        (each.arrival_ns, each.input_tokens, each.block_hashes) for each in some.iter_requests(16)
    ] == key[:20]
    assert whole.first(50) is whole


def test_lengths_do_not_change_when_the_arrival_process_does() -> None:
    lengths = {"kind": "lognormal", "p50": 900, "sigma": 1.0}
    drawn = {kind: draw(arrivals=section, input_tokens=lengths) for kind, section in PROCESSES.items()}
    assert len({tuple(load.input_tokens.tolist()) for load in drawn.values()}) == 1


def test_prompts_and_answers_are_drawn_independently() -> None:
    lengths = {"kind": "lognormal", "p50": 900, "sigma": 1.0}
    load = draw(input_tokens=lengths, output_tokens=lengths, requests=20_000)
    correlation = np.corrcoef(np.log(load.input_tokens), np.log(load.output_tokens))[0, 1]
    assert abs(correlation) < 4.5 / math.sqrt(20_000)


def test_poisson_gaps_are_exponential_and_independent() -> None:
    gaps = gaps_s(draw(requests=20_001))
    assert stats.kstest(gaps, stats.expon(scale=1 / 5).cdf).pvalue > 1e-4
    assert abs(np.corrcoef(gaps[1:], gaps[:-1])[0, 1]) < 4.5 / math.sqrt(20_000)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gamma_gaps_have_their_mean_and_coefficient_of_variation(cv: float) -> None:
    gaps = gaps_s(draw(arrivals={"kind": "gamma", "rate_per_s": 5, "cv": cv}, requests=20_001))
    law = stats.gamma(cv**-2, scale=cv**2 / 5)
    assert law.mean() == pytest.approx(0.2)
    assert law.std() / law.mean() == pytest.approx(cv)
    for q in (0.1, 0.25, 0.5, 0.75, 0.9, 0.99):  # not KS: many gaps round to 0 ns
        assert (gaps <= law.ppf(q)).mean() == pytest.approx(q, abs=4.5 * math.sqrt(q * (1 - q) / len(gaps)))


def test_gamma_with_cv_1_is_poisson() -> None:
    gaps = gaps_s(draw(arrivals={"kind": "gamma", "rate_per_s": 5, "cv": 1}, requests=20_001))
    assert stats.kstest(gaps, stats.expon(scale=1 / 5).cdf).pvalue > 1e-4


def test_constant_arrivals_are_evenly_spaced() -> None:
    assert draw(arrivals={"kind": "constant", "rate_per_s": 4}, requests=5).arrival_ns.tolist() == [
        0, 250_000_000, 500_000_000, 750_000_000, 1_000_000_000,
    ]  # fmt: skip


def test_on_off_arrivals_have_the_rate_of_their_phase_and_are_uniform_within_it() -> None:
    times = draw(arrivals=PROCESSES["on_off"], requests=40_000).arrival_ns / 1e9
    phase = times % 5.0
    on = phase < 3.0
    cycles = times[-1] / 5.0
    assert on.sum() == pytest.approx(30 * cycles, abs=4.5 * math.sqrt(30 * cycles))
    assert (~on).sum() == pytest.approx(2 * cycles, abs=4.5 * math.sqrt(2 * cycles))
    assert stats.kstest(phase[on] / 3.0, stats.uniform.cdf).pvalue > 1e-4
    assert stats.kstest((phase[~on] - 3.0) / 2.0, stats.uniform.cdf).pvalue > 1e-4


def test_on_off_without_an_off_rate_is_silent_in_between() -> None:
    section = {"kind": "on_off", "rate_per_s": 10, "on_s": 3, "off_s": 2}
    times = draw(arrivals=section, requests=5_000).arrival_ns / 1e9
    assert (times % 5.0 <= 3.0 + 1e-6).all()


def test_a_closed_loop_starts_together_and_then_waits_for_completions() -> None:
    load = draw(arrivals=PROCESSES["closed_loop"], requests=10)
    assert load.arrival_ns.tolist() == [0] * 10
    assert load.closed_loop is not None
    assert load.closed_loop.concurrency == 4
    assert load.closed_loop.next_arrival_ns(7, 1_000) == 1_000 + 500_000_000


def test_exponential_think_times_belong_to_the_request_and_have_their_mean() -> None:
    section = {"kind": "closed_loop", "concurrency": 4, "think_time_s": 2, "think_time": "exponential"}
    loop = draw(arrivals=section, requests=10).closed_loop
    assert loop is not None
    thinks = np.array([loop.next_arrival_ns(index, 0) for index in range(5_000)]) / 1e9
    assert loop.next_arrival_ns(17, 5) - 5 == loop.next_arrival_ns(17, 0)
    assert stats.kstest(thinks, stats.expon(scale=2).cdf).pvalue > 1e-4


def test_lognormal_lengths_have_their_median_and_99th_percentile() -> None:
    load = draw(input_tokens={"kind": "lognormal", "p50": 900, "p99": "5k"}, requests=50_000)
    sigma = math.log(5000 / 900) / stats.norm.ppf(0.99)
    law = stats.lognorm(sigma, scale=900)
    noise = stats.uniform.rvs(-0.5, 1.0, size=50_000, random_state=0)  # undoes the rounding to tokens
    assert stats.kstest(load.input_tokens + noise, law.cdf).pvalue > 1e-4


def test_lognormal_lengths_are_clipped_not_redrawn() -> None:
    clipped = {"kind": "lognormal", "p50": 900, "sigma": 0.8, "min": 500, "max": 1000}
    free = draw(input_tokens={"kind": "lognormal", "p50": 900, "sigma": 0.8}, requests=2_000).input_tokens
    assert (
        draw(input_tokens=clipped, requests=2_000).input_tokens.tolist() == np.clip(free, 500, 1000).tolist()
    )


def test_uniform_lengths_reach_both_ends_equally_often() -> None:
    lengths = draw(input_tokens={"kind": "uniform", "low": 3, "high": 7}, requests=50_000).input_tokens
    counts = np.bincount(lengths, minlength=9)
    assert counts[:3].sum() == counts[8:].sum() == 0
    assert stats.chisquare(counts[3:8]).pvalue > 1e-4


def test_quantile_lengths_have_those_quantiles() -> None:
    points = {0: 10, 0.5: 1000, 0.9: 2000, 1: 9000}
    lengths = draw(input_tokens={"kind": "quantiles", "points": points}, requests=50_000).input_tokens
    assert np.median(lengths) == pytest.approx(1000, rel=0.02)
    assert np.quantile(lengths, 0.9) == pytest.approx(2000, rel=0.02)
    assert lengths.min() >= 10
    assert lengths.max() <= 9000


def test_empirical_lengths_keep_the_pairs_of_the_file(tmp_path) -> None:
    pairs = {(10, 3), (20, 5), (400, 7)}
    path = tmp_path / "lengths.csv"
    path.write_text("input_tokens,output_tokens\n" + "".join(f"{a},{b}\n" for a, b in sorted(pairs)))
    empirical = {"kind": "empirical", "path": str(path)}
    load = draw(input_tokens=empirical, output_tokens=empirical, requests=3_000)
    drawn = list(zip(load.input_tokens.tolist(), load.output_tokens.tolist(), strict=True))
    assert set(drawn) == pairs
    assert stats.chisquare([drawn.count(pair) for pair in sorted(pairs)]).pvalue > 1e-4


def test_empirical_draws_do_not_depend_on_the_folder(tmp_path) -> None:
    drawn = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        path = tmp_path / folder / "lengths.csv"
        path.write_text("input_tokens,output_tokens\n10,3\n20,5\n400,7\n")
        drawn.append(draw(input_tokens={"kind": "empirical", "path": str(path)}).input_tokens.tolist())
    assert drawn[0] == drawn[1]


def test_a_duration_takes_every_arrival_before_it_and_none_after() -> None:
    many = draw(requests=5_000).arrival_ns
    load = draw(requests=None, duration_s="10min")
    assert load.arrival_ns.tolist() == many[many < 600_000_000_000].tolist()
    assert len(draw(requests=7, duration_s=600)) == 7


@pytest.mark.parametrize(
    ("section", "text"),
    [
        ({"requests": None, "duration_s": "1us"}, "no request arrives"),
        ({"arrivals": PROCESSES["closed_loop"], "requests": None, "duration_s": 5}, "closed loop"),
    ],
)
def test_a_load_without_requests_is_refused(section: dict[str, Any], text: str) -> None:
    with pytest.raises(WorkloadError, match=text) as caught:
        draw(**section)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "lengths",
    [
        {"kind": "lognormal", "p50": 900},
        {"kind": "lognormal", "p50": 900, "p99": 5000, "sigma": 1},
        {"kind": "lognormal", "p50": 900, "p99": 90},
        {"kind": "uniform", "low": 9, "high": 8},
        {"kind": "fixed", "value": 0},
        {"kind": "fixed", "value": 10, "min": 20, "max": 10},
        {"kind": "quantiles", "points": {0: 5, 0.5: 7}},
        {"kind": "quantiles", "points": {0: 5, 1: 4}},
        -3, 0, 1.5, "NaN", True, None,
    ],
)  # fmt: skip
def test_impossible_lengths_are_refused(lengths: object) -> None:
    section = {"arrivals": PROCESSES["poisson"], "input_tokens": lengths, "output_tokens": 10, "requests": 5}
    with pytest.raises(ValidationError):
        WorkloadSpec.model_validate(section)


def test_a_process_of_ones_own_is_named_by_module_and_class() -> None:
    class Twice(ArrivalProcess):
        name = "twice"
        kind: str
        every_s: float

        def times_s(self, seed: int, count: int) -> np.ndarray:
            return np.arange(count) // 2 * self.every_s

    module = types.ModuleType("my_arrivals")
    module.Twice = Twice  # type: ignore[attr-defined]
    sys.modules["my_arrivals"] = module
    try:
        load = draw(arrivals={"kind": "my_arrivals:Twice", "every_s": 2}, requests=4)
    finally:
        del sys.modules["my_arrivals"]
    assert load.arrival_ns.tolist() == [0, 0, 2_000_000_000, 2_000_000_000]


def test_requests_are_made_in_order_as_they_are_taken() -> None:
    load = draw(requests=3_000, input_tokens={"kind": "uniform", "low": 1, "high": 99})
    requests = list(load.iter_requests())
    assert [request.index for request in requests] == list(range(3_000))
    assert [request.arrival_ns for request in requests] == load.arrival_ns.tolist()
    assert [request.input_tokens for request in requests] == load.input_tokens.tolist()
    assert {type(request.arrival_ns) for request in requests} == {int}
    assert requests[0].slo_class == "default"
    assert requests[0].session is None


def test_a_million_requests_fit_in_24_megabytes_of_columns() -> None:
    load = draw(requests=1_000_000)
    columns = (load.arrival_ns, load.input_tokens, load.output_tokens, load.priority, load.session)
    assert sum(column.nbytes for column in columns if column is not None) <= 24e6
    first = next(load.iter_requests())
    assert first.index == 0


def test_tenants_ask_in_the_shares_given_and_nobody_s_lengths_move() -> None:
    lengths = {"kind": "lognormal", "p50": 90, "sigma": 1}
    arrivals = {"kind": "poisson", "rate_per_s": 8}
    spec = {"arrivals": arrivals, "input_tokens": lengths, "output_tokens": 15, "requests": 4000}
    plain, shared = (
        build_workload(WorkloadSpec.model_validate(spec | more))
        for more in ({}, {"tenants": {"a": 3, "b": 1}})
    )
    assert shared.tenant is not None
    assert np.bincount(shared.tenant).tolist()[1] == pytest.approx(1000, abs=90)
    assert (shared.input_tokens == plain.input_tokens).all()
    assert plain.tenant is None
    assert [request.tenant for request in shared.iter_requests()] == shared.tenant.tolist()
    assert {request.tenant for request in plain.iter_requests()} == {None}
