"""All-reduce and streaming kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.timing.allreduce import AllReduceParams, allreduce_seconds, allreduce_time
from membound.hwmodels.timing.elementwise import ElementwiseParams, elementwise_time, streams_time
from membound.hwmodels.timing.form import Chip

H100 = Chip({"bf16": 989e12}, 3.35e12, 132, l2_bytes=50e6, link_bandwidth=450e9)
FORM = AllReduceParams(4.2e-6, 0.09e-6, 0.45, 9.5e-6, 0.01e-6, 0.73)
SIZES, TIMES = np.array([1024.0, 65536.0, 1048576.0]), np.array([4e-6, 6e-6, 12e-6])
TABLE = AllReduceParams(4.2e-6, 0.09e-6, 0.45, 9.5e-6, 0.01e-6, 0.73, tables={4: (SIZES, TIMES)})


def test_one_device_sums_with_nobody() -> None:
    assert allreduce_seconds(H100, FORM, 1e6, 1) == 0.0


def test_large_messages_take_the_ring_time() -> None:
    # 1 GB over 8: 2 x 7/8 x 1e9 B over 0.73 x 450e9 B/s = 5.327 ms
    assert allreduce_seconds(H100, FORM, 1e9, 8) == pytest.approx(5.327e-3, rel=0.02)


def test_small_messages_take_the_fixed_time() -> None:
    assert allreduce_seconds(H100, FORM, 256, 8) == pytest.approx(4.2e-6 + 7 * 0.09e-6, rel=0.03)


@settings(deadline=None)
@given(st.floats(1.0, 1e9), st.sampled_from([2, 4, 8]))
def test_more_bytes_never_take_less_time(size: float, group: int) -> None:
    assert allreduce_seconds(H100, TABLE, size * 1.1, group) >= allreduce_seconds(H100, TABLE, size, group)


def test_a_measured_table_is_met_at_its_points_and_continued_without_a_jump() -> None:
    assert allreduce_seconds(H100, TABLE, SIZES, 4) == pytest.approx(TIMES)
    inside, outside = (float(allreduce_seconds(H100, TABLE, 1048576.0 * f, 4)) for f in (1.0, 1.0001))
    assert outside == pytest.approx(inside, rel=1e-3)
    assert float(allreduce_seconds(H100, TABLE, 1e9, 4)) > 100 * inside


@given(st.floats(1024.0, 1e9), st.floats(0.5, 2.0))
def test_between_measured_sizes_a_table_bends_as_the_form_does(size: float, factor: float) -> None:
    sizes = np.array([1024.0, 32768.0, 1048576.0, 1e9])
    measured = factor * allreduce_seconds(H100, FORM, sizes, 4)
    table = AllReduceParams(4.2e-6, 0.09e-6, 0.45, 9.5e-6, 0.01e-6, 0.73, tables={4: (sizes, measured)})
    expected = factor * float(allreduce_seconds(H100, FORM, size, 4))
    assert float(allreduce_seconds(H100, table, size, 4)) == pytest.approx(expected, rel=1e-9)


def test_a_table_of_another_group_size_is_not_used() -> None:
    assert allreduce_seconds(H100, TABLE, 65536.0, 8) == allreduce_seconds(H100, FORM, 65536.0, 8)


def test_an_all_reduce_is_communication_throughout() -> None:
    time = allreduce_time(H100, FORM, 1e6, 4)
    assert time.seconds == time.communication == time.link_demand


def test_streaming_is_launches_plus_bytes() -> None:
    time = elementwise_time(H100, ElementwiseParams(2e-6, 0.75), 0.75 * 3.35e6, 3.0)
    assert time.seconds == pytest.approx(7e-6)
    assert time.latency == pytest.approx(6e-6)


CACHED = ElementwiseParams(2e-6, 0.75, l2f=0.5, l2b=2.0)


def test_streams_without_a_known_cache_take_their_bytes_over_bandwidth() -> None:
    plain = ElementwiseParams(2e-6, 0.75)
    together = streams_time(H100, plain, [(2.0, 1000.0), (1.0, 500.0)], 64.0, 4.0)
    assert together.seconds == pytest.approx(elementwise_time(H100, plain, 2500.0 * 64, 4.0).seconds)


def test_a_stream_that_fits_the_cache_runs_at_its_rate_and_loads_no_memory() -> None:
    # 1 MB against 0.5 x 50 MB: all but 6e-5 of it is found there, at twice the HBM rate.
    small = streams_time(H100, CACHED, [(1.0, 1e6)], 1.0, 0.0)
    assert small.seconds == pytest.approx(1e6 / (2.0 * 0.75 * 3.35e12), rel=1e-3)
    assert small.hbm_demand < 1e-3 * small.seconds


def test_a_stream_far_beyond_the_cache_runs_at_the_memory_s_rate() -> None:
    large = streams_time(H100, CACHED, [(1.0, 1e9)], 1.0, 0.0)
    assert large.seconds == pytest.approx(1e9 / (0.75 * 3.35e12), rel=1e-3)
    assert large.hbm_demand == pytest.approx(large.seconds, rel=1e-3)


def test_more_tokens_never_stream_faster() -> None:
    times = streams_time(H100, CACHED, [(3.0, 4e4), (1.0, 1e5)], np.arange(1.0, 4000.0), 4.0)
    assert (np.diff(times.seconds) > 0).all()
    assert (times.hbm_demand <= times.seconds).all()
