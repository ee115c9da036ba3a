"""All-reduce and streaming kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.timing.allreduce import AllReduceParams, allreduce_seconds, allreduce_time
from membound.hwmodels.timing.elementwise import ElementwiseParams, elementwise_time
from membound.hwmodels.timing.form import Chip

H100 = Chip({"bf16": 989e12}, 3.35e12, 132, link_bandwidth=450e9)
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


def test_a_table_of_another_group_size_is_not_used() -> None:
    assert allreduce_seconds(H100, TABLE, 65536.0, 8) == allreduce_seconds(H100, FORM, 65536.0, 8)


def test_an_all_reduce_is_communication_throughout() -> None:
    time = allreduce_time(H100, FORM, 1e6, 4)
    assert time.seconds == time.communication == time.link_demand


def test_streaming_is_launches_plus_bytes() -> None:
    time = elementwise_time(H100, ElementwiseParams(2e-6, 0.75), 0.75 * 3.35e6, 3.0)
    assert time.seconds == pytest.approx(7e-6)
    assert time.latency == pytest.approx(6e-6)
