"""LogHistogram: exact counts and mean, percentiles within its resolution, whatever the order and grouping."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.metrics.histogram import (
    N_BINS,
    RESOLUTION,
    LogHistogram,
    bin_edges_ns,
    exact_dot,
    exact_sum,
)

IN_RANGE = st.integers(min_value=1_000, max_value=10**14)
ANY_TIME = st.integers(min_value=0, max_value=2**60)
WEIGHTED = st.lists(st.tuples(ANY_TIME, st.integers(0, 10_000)), min_size=1, max_size=60)


def histogram(values: list[int], weights: list[int] | None = None) -> LogHistogram:
    counted = LogHistogram()
    counted.add(np.array(values, dtype=np.int64), 1 if weights is None else np.array(weights))
    return counted


def test_no_bin_is_wider_than_half_a_percent_and_they_cover_a_microsecond_to_1e5_seconds():
    edges = bin_edges_ns()
    assert edges.size == N_BINS + 1
    assert edges[0] <= 1_000
    assert edges[-1] >= 10**14
    assert (np.diff(edges) / edges[:-1]).max() <= RESOLUTION <= 0.005


@given(IN_RANGE)
@settings(deadline=None)
def test_a_time_is_counted_between_the_edges_of_its_bin(value):
    low, high, counts = histogram([value]).nonempty()
    assert counts.tolist() == [1]
    assert low[0] <= value < high[0]


def test_an_edge_belongs_to_the_bin_that_it_opens():
    edges = bin_edges_ns()[:-1]
    low, _, counts = histogram(edges.tolist()).nonempty()
    assert (low == edges).all()
    assert (counts == 1).all()


@given(WEIGHTED)
@settings(deadline=None)
def test_total_sum_mean_and_extremes_are_exact(pairs):
    values, weights = [v for v, _ in pairs], [w for _, w in pairs]
    counted = histogram(values, weights)
    present = [v for v, w in pairs if w]
    assert counted.total == sum(weights)
    assert counted.sum_ns == sum(v * w for v, w in pairs)
    assert counted.min_ns == min(present, default=None)
    assert counted.max_ns == max(present, default=None)
    if present:
        assert counted.mean_ns() == counted.sum_ns / counted.total


@given(WEIGHTED, st.randoms(use_true_random=False), st.integers(1, 9))
@settings(deadline=None)
def test_neither_order_nor_grouping_nor_merging_changes_anything(pairs, random, pieces):
    whole = histogram([v for v, _ in pairs], [w for _, w in pairs])
    shuffled = list(pairs)
    random.shuffle(shuffled)
    merged = LogHistogram()
    for start in range(pieces):
        part = LogHistogram()
        for value, weight in shuffled[start::pieces]:
            part.add(value, weight)
        merged.merge(part)
    assert merged == whole
    assert [merged.percentile_ns(p) for p in (50, 99)] == [
        whole.percentile_ns(p) for p in (50, 99)
    ] or not whole.total


@given(WEIGHTED)
@settings(deadline=None)
def test_a_weight_counts_like_repetition(pairs):
    few = [(v, w % 7) for v, w in pairs]
    repeated = [v for v, w in few for _ in range(w)]
    assert histogram([v for v, _ in few], [w for _, w in few]) == histogram(repeated)


@given(st.lists(IN_RANGE, min_size=1, max_size=200), st.integers(0, 100))
@settings(deadline=None)
def test_a_percentile_is_within_the_resolution_of_numpys(values, percent):
    exact = float(np.percentile(np.array(values), percent))
    assert histogram(values).percentile_ns(percent) == pytest.approx(exact, rel=RESOLUTION)


@given(st.lists(ANY_TIME, min_size=1, max_size=50))
@settings(deadline=None)
def test_percentiles_grow_with_the_percent_and_stay_between_the_extremes(values):
    counted = histogram(values)
    found = [counted.percentile_ns(p) for p in range(0, 101, 5)]
    assert found == sorted(found)
    assert found[0] == float(min(values))
    assert found[-1] == float(max(values))


def test_a_million_values_have_the_percentiles_of_their_distribution():
    values = np.random.default_rng(1).lognormal(np.log(2e7), 0.7, 1_000_000).astype(np.int64)
    counted = LogHistogram()
    for part in np.array_split(values, 7):
        counted.add(part)
    for percent in (1, 50, 90, 99, 99.9):
        assert counted.percentile_ns(percent) == pytest.approx(np.percentile(values, percent), rel=5e-4)
    assert counted.mean_ns() == int(values.sum()) / values.size
    assert counted.std_ns() == pytest.approx(values.std(), rel=1e-3)


def test_nothing_counted_has_no_mean_and_no_percentile():
    empty = LogHistogram()
    empty.add([])
    empty.add([5], weights=0)
    assert (empty.total, empty.min_ns, empty.max_ns) == (0, None, None)
    assert math.isnan(empty.mean_ns())
    assert math.isnan(empty.percentile_ns(50))
    assert math.isnan(empty.std_ns())


def test_the_callers_arrays_may_be_reused_after_adding():
    values, counted = np.array([1_000_000]), LogHistogram()
    counted.add(values)
    values[0] = 7
    assert counted.sum_ns == 1_000_000


@pytest.mark.parametrize(
    ("values", "weights", "message"),
    [
        ([-1], [1], "time -1 ns is negative"),
        ([1], [-2], "weight -2 is negative"),
        ([1, 2], [1], r"weights have shape \(1,\)"),
    ],
)
def test_impossible_input_is_refused_with_its_value(values, weights, message):
    with pytest.raises(ValueError, match=message):
        _ = histogram(values, weights).total


def test_a_percent_outside_0_to_100_is_refused():
    with pytest.raises(ValueError, match=r"percentile 101 is outside 0\.\.100"):
        histogram([1]).percentile_ns(101)


def test_a_growing_thing_has_no_hash():
    with pytest.raises(TypeError, match="no hash"):
        hash(LogHistogram())


@given(st.lists(st.integers(-(2**62), 2**62), max_size=20))
@settings(deadline=None)
def test_a_sum_of_whole_numbers_never_overflows(values):
    assert exact_sum(np.array(values, dtype=np.int64)) == sum(values)


@given(st.lists(st.tuples(st.integers(0, 2**60), st.integers(0, 2**40)), min_size=1, max_size=20))
@settings(deadline=None)
def test_a_sum_of_products_never_overflows(pairs):
    values, weights = np.array([v for v, _ in pairs]), np.array([w for _, w in pairs])
    expected = sum(v * w for v, w in pairs)
    assert exact_dot(values, weights, expected) == expected
