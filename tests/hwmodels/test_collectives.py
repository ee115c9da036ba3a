"""How groups sum: sequence parallel, and over machines."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.collectives import Collectives
from membound.hwmodels.lowering import Parallelism
from membound.hwmodels.model import load_model
from membound.hwmodels.stepmodel import StepModel
from membound.hwmodels.timing.allreduce import allreduce_seconds
from membound.hwmodels.timing.form import KernelTime
from membound.hwmodels.timing.hop import Network

from .physics import Device, Engine

MODEL = load_model("llama-3.1-70b")


def timed(group: int, how: Collectives | None = None, **options: Any) -> StepModel:
    return StepModel(
        Device(), Engine(), MODEL, Parallelism(group), collectives=how or Collectives(), **options
    )


def part(model: StepModel, name: str, m: int) -> KernelTime:
    return model.tokens.parts(np.array([float(m)]))[name]


def seconds(model: StepModel, name: str, m: int) -> float:
    return float(np.sum(part(model, name, m).seconds))


def test_scattered_norms_move_a_share_of_their_bytes_and_each_sum_is_two_kernels() -> None:
    """80 layers of two norms, 4 x 8,192 x 2 B a token each, and the last one of half that; 1/8 is left."""
    plain, cut = timed(8), timed(8, Collectives(scattered_from=1024))
    m = 4096
    saved = (part(plain, "elementwise", m).hbm_activations - part(cut, "elementwise", m).hbm_activations)[0]
    norms = (160 * 4 + 2) * 8192 * 2 * m
    assert saved == pytest.approx(norms * 7 / 8 / (cut.tokens.streaming.eb * 3.35e12), rel=1e-9)
    allreduce = cut.tokens.allreduce
    assert allreduce is not None
    floor = float(allreduce_seconds(cut.chip, allreduce, 1.0, 8))
    more = seconds(cut, "communication", m) - seconds(plain, "communication", m)
    assert more == pytest.approx(160 * floor)


def test_below_the_threshold_nothing_changes_and_long_prompts_gain() -> None:
    plain, cut = timed(8), timed(8, Collectives(scattered_from=1024))
    for m in (1, 64, 1023):
        step = (0, 0, 0, [(m, 0)], 1)
        if m < 900:  # times are linear inside the cell of 64 tokens that the threshold lies in
            assert cut.step_ns(*step) == plain.step_ns(*step)
        assert (
            cut.tokens.parts(np.array([float(m)])).keys() == plain.tokens.parts(np.array([float(m)])).keys()
        )
    assert cut.step_ns(0, 0, 0, [(8192, 0)], 1) < plain.step_ns(0, 0, 0, [(8192, 0)], 1)


@settings(max_examples=25, deadline=None)
@given(m=st.integers(1, 9000), since=st.integers(1, 4000), halved=st.booleans())
def test_by_kernel_it_takes_as_long(m: int, since: int, halved: bool) -> None:
    how = Collectives(halved=halved, scattered_from=since)
    step = (0, 0, 0, [(m, 0)], 1)
    spent = [timed(4, how, fidelity=fidelity) for fidelity in ("step", "kernel")]
    sums = [sum(phase.seconds for phase in model.phases(*step)) for model in spent]
    assert sums[0] == pytest.approx(sums[1], rel=1e-9)
    assert spent[0].step_ns(*step) == spent[1].step_ns(*step)


def test_a_sum_over_machines_is_a_sum_inside_and_a_ring_around_them() -> None:
    """16 GPUs in two machines of eight at 50 GB/s and 5 us: Z = 64 MB; every GPU sends 8 MB / 2 twice."""
    network = Network(50e9, 5e-6)
    over = timed(16, Collectives(machine=8, network=network))
    m = 4096
    message = m * 8192 * 2
    allreduce = over.tokens.allreduce
    assert allreduce is not None
    local = float(allreduce_seconds(over.chip, allreduce, float(message), 8))
    ring = 2 * 5e-6 + 2 * (message / 8 / 2) / 50e9
    assert seconds(over, "communication", m) == pytest.approx(160 * (local + ring))


@given(bandwidth=st.floats(1e9, 400e9), m=st.integers(1, 8192))
@settings(max_examples=25, deadline=None)
def test_a_slower_network_is_never_quicker(bandwidth: float, m: int) -> None:
    slow, quick = (
        timed(16, Collectives(machine=8, network=Network(rate, 5e-6))) for rate in (bandwidth, 2 * bandwidth)
    )
    assert seconds(slow, "communication", m) > seconds(quick, "communication", m)
    assert seconds(quick, "communication", m) > seconds(timed(8), "communication", m)
