"""The verdict names the largest cause of busy time and the limiter, and calls no transient a steady state."""

from __future__ import annotations

import re

import numpy as np
import pytest
from membound.sim.books.record import CAUSES
from membound.sim.engine.request import Status
from membound.sim.metrics.figures import Unknown
from membound.sim.metrics.stability import stability
from membound.sim.metrics.verdict import BOUNDS, CAUSE_WORDS, verdict


def served(row, arrivals_ms, servers: int, service_ms: float):
    """Return rows of a first-come queue with ``servers`` servers of constant service time."""
    free, rows = np.zeros(servers), []
    for arrival in arrivals_ms:
        start = max(arrival, free.min())
        free[free.argmin()] = start + service_ms
        rows.append(
            row(arrival=arrival, scheduled=start, first=start + service_ms / 4, last=start + service_ms)
        )
    return rows


def poisson(n: int, rate_per_s: float, seed: int = 0):
    return np.cumsum(np.random.default_rng(seed).exponential(1000 / rate_per_s, n))


def test_every_cause_of_busy_time_counts_towards_exactly_one_bound():
    counted = [cause for causes in BOUNDS.values() for cause in causes]
    assert sorted(counted) == sorted(cause for cause in CAUSES if cause != "idle")
    assert set(CAUSE_WORDS) == set(counted)


def test_the_sentence_names_cause_limiter_batch_idle_time_and_lever(make_record, row):
    rows = served(row, poisson(400, 4), 8, 300)
    record = make_record(
        rows,
        shares={"hbm_weights": 60, "hbm_kv": 10, "compute": 12, "idle": 18},
        work={"elasticity": {"hbm_bandwidth": 0.7, "peak_flops": 0.1}},
        setup={"max_num_seqs": 256},
    )
    found = verdict(record)
    assert found["sentence"] == (
        "memory-bound: 73 % of busy time goes to reading weights from HBM (85 % to HBM in all); the batch is "
        "limited by arrivals (mean 1.3 of 256 sequences); GPU idle 18 % of the time; "
        "next lever: HBM bandwidth (10 % more saves 7.0 % of busy time)"
    )
    assert (found["bound"], found["next_lever"], found["stability"]) == ("memory", "hbm_bandwidth", "steady")


def test_memory_that_is_largest_only_in_sum_is_the_bound_and_the_largest_cause_is_still_named(
    make_record, row
):
    rows = served(row, poisson(400, 4), 8, 300)
    found = verdict(make_record(rows, shares={"hbm_weights": 35, "hbm_kv": 25, "compute": 40}))
    assert found["bound"] == "memory"
    assert "60 % of busy time goes to HBM (the largest single cause is computing, 40 %)" in found["sentence"]
    assert "GPU never idle" in found["sentence"]


@pytest.mark.parametrize(
    ("cause", "bound", "opening"),
    [
        ("compute", "compute", "compute-bound: "),
        ("communication", "communication", "communication-bound: "),
        ("host", "overhead", "bound by overheads: "),
        ("launch", "overhead", "bound by overheads: "),
        ("bubble", "bubble", "bubble-bound: "),
    ],
)
def test_the_bound_is_the_group_with_most_busy_time(make_record, row, cause, bound, opening):
    rows = served(row, poisson(400, 4), 8, 300)
    found = verdict(make_record(rows, shares={cause: 50, "hbm_weights": 10, "idle": 40}))
    assert found["bound"] == bound
    assert found["sentence"].startswith(f"{opening}83 % of busy time goes to {CAUSE_WORDS[cause]}")


def test_idle_time_is_no_bound_but_a_mostly_idle_machine_is_called_one(make_record, row):
    rows = served(row, poisson(400, 4), 8, 300)
    found = verdict(make_record(rows, shares={"hbm_weights": 15, "compute": 5, "idle": 80}))
    assert found["bound"] == "memory"
    assert found["sentence"].startswith("mostly idle, and while busy memory-bound: 75 % of busy time")
    assert "GPU idle 80 % of the time" in found["sentence"]


def test_preemptions_and_rejections_are_mentioned_where_they_happened(make_record, row):
    rows = served(row, poisson(400, 4), 8, 300)
    rows.append(row(scheduled=None, first=None, last=None, status=Status.REJECTED, preemptions=5))
    limiter_ns = {"kv_blocks": 80, "max_num_seqs": 0, "token_budget": 0, "arrivals": 20}
    said = verdict(make_record(rows, limiter_ns=limiter_ns))["sentence"]
    assert "limited by KV blocks 80 % of busy time (mean" in said
    assert "5 preemptions" in said
    assert "1 of 401 requests rejected" in said


def test_without_elasticities_there_is_no_lever_and_a_reason(make_record, row):
    found = verdict(make_record([row()]))
    assert isinstance(found["next_lever"], Unknown)
    assert "lever" not in found["sentence"]
    useless = verdict(make_record([row()], work={"elasticity": {"hbm_bandwidth": 0.0}}))
    assert isinstance(useless["next_lever"], Unknown)


def test_where_nothing_ran_the_sentence_says_why(make_record, row):
    record = make_record([row(scheduled=None, first=None, last=None, status=Status.REJECTED)] * 3)
    found = verdict(record)
    assert isinstance(found["bound"], Unknown)
    assert found["sentence"] == "nothing ran: all 3 requests were rejected"
    assert verdict(make_record([]))["sentence"] == "nothing ran: no request was submitted"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("load", [0.2, 0.5, 0.8])
def test_a_load_well_below_what_the_servers_sustain_is_steady(make_record, row, load, seed):
    rows = served(row, poisson(3000, load * 8 / 0.3, seed), 8, 300)
    assert stability(make_record(rows)).state == "steady"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("load", [1.1, 1.5, 5])
def test_arrivals_beyond_what_the_servers_sustain_are_unstable(make_record, row, load, seed):
    record = make_record(served(row, poisson(3000, load * 8 / 0.3, seed), 8, 300))
    found = stability(record)
    assert found.state == "unstable"
    said = verdict(record)["sentence"]
    assert said.startswith("unstable: ")
    sustained = re.search(r"and ([\d.]+)/s is what this engine sustains", said)
    assert sustained is not None
    assert float(sustained[1]) == pytest.approx(8 / 0.3, rel=0.02)
    assert "memory-bound" in said


def test_a_line_at_every_step_that_empties_again_is_steady(make_record, row):
    rows = []
    for arrival in poisson(4000, 200):
        step = np.ceil(arrival / 20) * 20
        rows.append(row(arrival=arrival, scheduled=step, first=step + 20, last=step + 400))
    assert stability(make_record(rows)).state == "steady"


def test_requests_that_all_arrive_at_once_are_a_batch_however_many(make_record, row):
    found = stability(make_record(served(row, [0.0] * 100, 8, 300)))
    assert found.state == "batch"
    assert "all 100 requests arrived at once" in found.reason


def test_a_few_requests_are_no_steady_state(make_record, row):
    assert (
        stability(make_record(served(row, [0, 1000, 2000], 8, 300))).reason == "only 3 requests were served"
    )
    assert stability(make_record([])).reason == "no request was served"


def test_arrivals_that_last_only_a_few_stays_are_unsettled(make_record, row):
    found = stability(make_record(served(row, poisson(50, 50), 100, 5000)))
    assert found.state == "unsettled"
    assert "times what a request stays (5 s)" in found.reason


def test_service_that_slows_down_all_along_is_unsettled(make_record, row):
    arrivals = poisson(4000, 20)
    rows = [row(arrival=a, scheduled=a, first=a + a / 20, last=a + a / 10) for a in arrivals]
    found = stability(make_record(rows))
    assert found.state == "unsettled"
    assert "still growing" in found.reason


def test_a_rising_but_served_load_is_steady(make_record, row):
    arrivals = np.sqrt(np.sort(np.random.default_rng(0).uniform(0, 1, 6000))) * 600_000
    rows = [row(arrival=a, scheduled=a, first=a + 100, last=a + 4000) for a in arrivals]
    assert stability(make_record(rows)).state == "steady"


def test_a_burst_that_has_not_cleared_is_unsettled(make_record, row):
    arrivals = np.concatenate([np.linspace(0, 1000, 400), np.linspace(1001, 14_000, 100)])
    found = stability(make_record(served(row, arrivals, 8, 250)))
    assert found.state == "unsettled"
    assert "burst" in found.reason


def test_a_closed_loop_that_waits_for_a_slot_is_steady(make_record, row):
    rows, free = [], np.zeros(8)
    ready = np.linspace(0, 50, 12)
    for _ in range(2000):
        client, server = ready.argmin(), free.argmin()
        start = max(ready[client], free[server])
        rows.append(row(arrival=ready[client], scheduled=start, first=start + 50, last=start + 300))
        free[server] = ready[client] = start + 300
    assert stability(make_record(rows)).state == "steady"
