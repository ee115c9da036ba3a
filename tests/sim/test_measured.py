"""A run against what its trace measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from membound.hwmodels.errors import MemboundError
from membound.sim.measured import client_latencies, compare_with_measured
from membound.sim.record import RunRecord
from membound.sim.request import Status


def test_the_client_waits_its_overhead_longer_for_the_first_and_for_the_last_token(
    make_record: Callable[..., RunRecord], row: Any
) -> None:
    # Engine: first token after 10 ms, the other ten within 100 ms. Client: 2.5 ms later, both times.
    record = make_record([row(first=10, last=110, outputs=11)], setup={"client_overhead_s": 0.0025})
    seen = client_latencies(record)
    assert seen["ttft_s"] == pytest.approx([0.0125])
    assert seen["e2e_s"] == pytest.approx([0.1125])
    assert seen["tpot_s"] == pytest.approx([0.010])


def test_an_error_is_simulated_over_measured_minus_one(
    make_record: Callable[..., RunRecord], row: Any
) -> None:
    record = make_record([row(first=10), row(first=30)])
    found = compare_with_measured(record, {"ttft_s": np.array([0.020, 0.020])})["ttft_s"]
    assert found.mean_error == pytest.approx(0.0)
    assert found.mape == pytest.approx(0.5)
    assert found.percentile_error(100) == pytest.approx(0.5)


def test_requests_without_an_answer_or_without_a_measurement_are_left_out(
    make_record: Callable[..., RunRecord], row: Any
) -> None:
    rejected = row(first=None, last=None, status=Status.REJECTED)
    record = make_record([row(first=10), rejected, row(first=10), row(outputs=1, first=10, last=10)])
    measured = {"ttft_s": np.array([0.01, 0.01, np.nan, 0.01]), "tpot_s": np.full(4, 0.01)}
    found = compare_with_measured(record, measured)
    assert len(found["ttft_s"].measured) == 2
    assert len(found["tpot_s"].measured) == 2  # one token has no time per token


def test_a_trace_that_measured_nothing_is_refused_in_one_line(
    make_record: Callable[..., RunRecord], row: Any
) -> None:
    with pytest.raises(MemboundError, match="nothing to compare"):
        compare_with_measured(make_record([row()]), {})
