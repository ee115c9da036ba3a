"""Metrics are what their definitions say, worked out by hand, and to the last digit."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.power import PowerModel
from membound.sim.books.record import CAUSES
from membound.sim.engine.request import Status
from membound.sim.metrics import metrics
from membound.sim.metrics.figures import Unknown
from membound.sim.metrics.histogram import LogHistogram
from membound.sim.metrics.latency import itl_by_position, latency, percentile
from membound.sim.metrics.slo import met_slo, slo

WHOLE = st.lists(st.integers(0, 10**15), min_size=1, max_size=50)


@given(WHOLE, st.sampled_from([0, 50, 90, 95, 99, 99.9, 100]))
@settings(deadline=None)
def test_a_percentile_is_numpys_without_its_rounding(values, percent):
    found = percentile(np.sort(np.array(values)), percent)
    assert float(found) == pytest.approx(np.percentile(values, percent), rel=1e-12)


def test_a_percentile_between_two_times_is_exact():
    assert percentile(np.array([10, 20, 40]), 90) == Fraction(36)
    assert percentile(np.array([1, 2**62 + 1]), 50) == Fraction(2**62 + 2, 2)


def test_each_latency_is_the_interval_it_is_defined_as(make_record, row):
    one = row(arrival=5, scheduled=8, first=25, last=125, outputs=11)
    itl = LogHistogram()
    itl.add(10_000_000, 10)
    table = latency(make_record([one], itl=itl, setup={"client_overhead_s": 0.0025}))
    means = {name: statistics["mean"] for name, statistics in table.items()}
    assert means == {
        "queue_s": 0.003,
        "ttft_s": 0.02,
        "client_ttft_s": 0.0225,
        "tpot_s": 0.01,
        "itl_s": 0.01,
        "e2e_s": 0.12,
    }
    for statistics in table.values():
        assert list(statistics) == ["mean", "p50", "p90", "p95", "p99", "max"]
        assert len(set(statistics.values())) == 1


def test_an_answer_of_one_token_has_no_tpot_and_is_left_out_of_its_mean(make_record, row):
    both = [row(first=10, last=110, outputs=11), row(first=10, last=10, outputs=1)]
    assert latency(make_record(both))["tpot_s"]["mean"] == 0.01
    alone = latency(make_record([both[1]]))
    assert isinstance(alone["tpot_s"]["p50"], Unknown)
    assert isinstance(alone["itl_s"]["p50"], Unknown)
    assert alone["ttft_s"]["mean"] == 0.01


def test_only_completed_requests_enter_latencies_and_throughput(make_record, row):
    rows = [
        row(),
        row(scheduled=None, first=None, last=None, status=Status.REJECTED, inputs=10**6, reject_reason=0),
    ]
    rows += [row(first=50, last=None, status=Status.ABORTED, outputs=10**6)]
    record = make_record(rows, reject_reasons=["prompt_too_long"])
    assert latency(record)["ttft_s"]["max"] == 0.01
    assert metrics.token_counts(record) == (100, 11)
    assert metrics.request_counts(record) == {
        "submitted": 3, "completed": 1, "rejected": 1, "aborted": 1, "preemptions": 0,
        "rejected_by_reason": {"prompt_too_long": 1},
    }  # fmt: skip


def test_inter_token_times_are_weighted_by_emissions(make_record, row):
    itl = LogHistogram()
    itl.add(np.array([10_000_000, 40_000_000]), np.array([30, 10]))
    found = latency(make_record([row()], itl=itl))["itl_s"]
    assert found["mean"] == 0.0175
    assert found["p50"] == pytest.approx(0.01, rel=0.004)
    assert found["max"] == 0.04


def test_the_gap_by_position_is_its_sum_over_its_count(make_record, row):
    gaps = (np.array([0, 30, 0, 80]) * 1_000_000, np.array([0, 3, 0, 2]))
    positions, mean_s = itl_by_position(make_record([row()], itl_by_position=gaps))
    assert positions.tolist() == [1, 3]
    assert mean_s.tolist() == [0.01, 0.04]
    assert itl_by_position(make_record([row()])) is None


def test_without_a_client_overhead_the_clients_ttft_is_unknown_rather_than_the_engines(make_record, row):
    assert isinstance(latency(make_record([row()]))["client_ttft_s"]["mean"], Unknown)


def test_rates_are_over_first_arrival_to_last_token(make_record, row):
    rows = [
        row(arrival=1000, first=1100, last=1500, inputs=300, outputs=20),
        row(arrival=2000, first=2100, last=5000),
    ]
    found = metrics.throughput(make_record(rows, setup={"gpus_per_replica": 2, "replicas": 2}))
    assert found == {
        "requests_per_s": 0.5, "input_tokens_per_s": 100.0, "output_tokens_per_s": 7.75,
        "output_tokens_per_s_per_gpu": 1.9375, "duration_s": 4.0,
    }  # fmt: skip


def test_time_shares_sum_to_one(make_record, row):
    shares = metrics.time_share(make_record([row(last=777.777777)], shares=dict.fromkeys(CAUSES, 1)))
    assert math.fsum(shares.values()) == pytest.approx(1, abs=1e-12)
    assert tuple(shares) == CAUSES


def test_limiter_shares_are_of_busy_time_and_sum_to_one(make_record, row):
    limiter_ns = {"kv_blocks": 30, "max_num_seqs": 10, "token_budget": 0, "arrivals": 60}
    found = metrics.limiter_share(make_record([row()], limiter_ns=limiter_ns))
    assert found == {"kv_blocks": 0.3, "max_num_seqs": 0.1, "token_budget": 0.0, "arrivals": 0.6}


def test_the_mean_batch_is_littles_law_over_busy_time(make_record, row):
    rows = [row(scheduled=10, last=110), row(scheduled=10, last=60)]
    record = make_record(rows, busy_ns=100_000_000)
    assert metrics.mean_running(record) == 1.5


def test_utilization_is_over_busy_time_and_what_monitors_show_over_wall_time(make_record, row):
    work = {
        "useful_flop_seconds": 0.02,
        "useful_hbm_bytes": 6e9,
        "kernel_busy_s": 0.05,
        "dram_active_s": 0.04,
    }
    record = make_record(
        [row(last=100)], shares={"hbm_weights": 80, "idle": 20}, work=work, setup={"hbm_bandwidth": 100e9}
    )
    found = metrics.utilization(record)
    numbers = {name: value for name, value in found.items() if not isinstance(value, Unknown)}
    expected = {
        "mfu": 0.25,
        "mbu": 0.75,
        "mfu_wall": 0.2,
        "mbu_wall": 0.6,
        "gpu_util": 0.5,
        "dram_active": 0.4,
    }
    assert numbers == pytest.approx(expected)
    assert isinstance(found["sm_active"], Unknown)


def test_an_slo_is_met_by_the_requests_that_meet_every_threshold(make_record, row):
    rows = [
        row(first=100, last=1100, outputs=11),
        row(first=600, last=1600, outputs=11),
        row(first=100, last=3100, outputs=11),
        row(first=100, last=100, outputs=1),
        row(scheduled=None, first=None, last=None, status=Status.REJECTED),
    ]
    setup = {"slo_classes": {"default": {"ttft_s": 0.5, "tpot_s": 0.1}}, "slo_attainment": 0.4}
    record = make_record(rows, setup=setup)
    assert met_slo(record).tolist() == [True, False, False, True, False]
    assert slo(record) == {"met": True, "goodput_per_s": 2 / 3.1, "attainment": 0.4}


def test_a_threshold_is_met_by_reaching_it_exactly(make_record, row):
    setup = {"slo_classes": {"default": {"ttft_s": 0.01, "e2e_s": 0.11}}, "slo_attainment": 1.0}
    assert slo(make_record([row(first=10, last=110)], setup=setup))["met"] is True
    late = make_record([row(first=10.000001, last=110)], setup=setup)
    assert slo(late)["met"] is False


def test_each_class_is_held_to_its_own_thresholds(make_record, row):
    rows = [row(first=300, last=400, slo_class=0), row(first=300, last=400, slo_class=1)]
    classes = {"chat": {"ttft_s": 0.2}, "batch": {"ttft_s": 5.0}}
    record = make_record(rows, slo_classes=["chat", "batch"], setup={"slo_classes": classes})
    assert met_slo(record).tolist() == [False, True]
    assert isinstance(slo(record)["met"], Unknown)


@pytest.mark.parametrize("thresholds", [{"itl_s": 0.1}, {"client_ttft_s": 0.1}])
def test_a_threshold_that_cannot_be_held_against_requests_gives_an_unknown_goodput(
    make_record, row, thresholds
):
    record = make_record([row()], setup={"slo_classes": {"default": thresholds}})
    assert isinstance(slo(record)["goodput_per_s"], Unknown)


def test_cost_is_all_gpus_for_the_duration(make_record, row):
    setup = {"usd_per_gpu_hour": 3.6, "gpus_per_replica": 2}
    found = metrics.cost(make_record([row(last=10_000, inputs=3000, outputs=1000)], setup=setup))
    assert found["usd_per_million_output_tokens"] == pytest.approx(3.6 * 2 * 10 / 3600 * 1e6 / 1000)
    assert found["usd_per_million_tokens"] == pytest.approx(3.6 * 2 * 10 / 3600 * 1e6 / 4000)
    assert isinstance(metrics.cost(make_record([row()]))["usd_per_million_tokens"], Unknown)


BOARD = PowerModel(400.0, 0.25, 1.0, 0.5, "measured", 0.1, "by hand")


def test_energy_is_the_idle_board_for_the_wall_time_and_what_steps_drew_above_it(make_record, row):
    rows = [row(last=10_000, inputs=300, outputs=100)]
    record = make_record(
        rows, setup={"power": BOARD, "gpus_per_replica": 2}, work={"power_above_idle_s": 3.0}
    )
    found = metrics.energy(record)
    joule = 2 * 400.0 * (0.25 * record.wall_ns / 1e9 + 3.0)
    assert found["joule_total"] == pytest.approx(joule)
    assert found["joule_per_output_token"] == pytest.approx(joule / 100)
    assert found["joule_per_token"] == pytest.approx(joule / 400)
    assert found["mean_watts"] == pytest.approx(joule / (record.wall_ns / 1e9))
    assert (found["level"], found["spread"]) == ("measured", 0.1)


def test_energy_without_a_power_limit_is_unknown_and_never_zero(make_record, row):
    found = metrics.energy(make_record([row(last=1000, outputs=100)]))
    assert all(isinstance(value, Unknown) for value in found.values())


def test_classes_share_money_and_energy_by_their_time_in_service(make_record, row):
    rows = [
        row(scheduled=0, first=100, last=1000, slo_class=0),
        row(scheduled=0, first=100, last=3000, slo_class=1),
    ]
    setup = {"power": BOARD, "usd_per_gpu_hour": 3.6}
    record = make_record(rows, setup=setup, work={"power_above_idle_s": 1.0}, slo_classes=("a", "b"))
    found, whole = metrics.classes(record), metrics.cost(record)["usd_total"]
    assert found["a"]["usd_per_request"] == pytest.approx(whole / 4)
    assert found["b"]["usd_per_request"] == pytest.approx(whole * 3 / 4)
    assert found["a"]["joule_per_request"] * 3 == pytest.approx(found["b"]["joule_per_request"])
    assert metrics.classes(make_record([row()])) == {}


def test_the_prefix_hit_rate_is_hits_over_lookups(make_record, row):
    kv = {"prefix_queried_tokens": 400, "prefix_hit_tokens": 100, "peak_usage": 0.5, "preemptions": 3}
    found = metrics.kv(make_record([row()], kv=kv))
    assert (found["prefix_hit_rate"], found["peak_usage"], found["preemptions"]) == (0.25, 0.5, 3)
    assert isinstance(found["mean_usage"], Unknown)
    assert isinstance(metrics.kv(make_record([row()]))["prefix_hit_rate"], Unknown)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(1, 2000)), min_size=1, max_size=30
    )
)
@settings(deadline=None)
def test_no_figure_depends_on_the_order_of_the_requests(make_record, row, items):
    rows = [row(arrival=a, scheduled=a, first=a + d, last=a + 3 * d, outputs=n) for a, d, n in items]
    forward, backward = make_record(rows), make_record(rows[::-1])
    assert latency(forward) == latency(backward)
    assert metrics.throughput(forward) == metrics.throughput(backward)


def test_where_nothing_completed_every_figure_is_unknown_and_none_is_zero(make_record, row):
    record = make_record([row(scheduled=None, first=None, last=None, status=Status.REJECTED)])
    for figures in (*latency(record).values(), metrics.throughput(record), metrics.cost(record)):
        assert all(isinstance(value, Unknown) for value in figures.values())
