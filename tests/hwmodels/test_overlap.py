"""Communication beside compute: two half batches on one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.account import StepColumns, account
from membound.hwmodels.collectives import Collectives
from membound.hwmodels.lowering import Parallelism
from membound.hwmodels.model import load_model
from membound.hwmodels.overlap import beside
from membound.hwmodels.stepmodel import StepModel
from membound.hwmodels.timing.form import KernelTime

from .physics import Device, Engine


def timed(group: int, *, halved: bool = True, device: Any = None, **options: Any) -> StepModel:
    return StepModel(
        device or Device(),
        Engine(),
        load_model("llama-3.1-70b"),
        Parallelism(group),
        collectives=Collectives(halved=halved),
        **options,
    )


@st.composite
def kernels(draw: st.DrawFn, cause: str) -> KernelTime:
    seconds = draw(st.floats(1e-6, 1e-2))
    demands = {name: seconds * draw(st.floats(0.0, 1.0)) for name in ("hbm_demand", "compute_demand")}
    return KernelTime(**{cause: seconds}, **demands, link_demand=seconds if cause == "communication" else 0.0)


@given(work=kernels("compute"), message=kernels("communication"), alone=st.floats(0.0, 1.0))
def test_two_beside_each_other_are_never_slower_than_in_turn_nor_faster_than_what_both_use(
    work: KernelTime, message: KernelTime, alone: float
) -> None:
    both = beside(work, message, alone)
    seconds = float(both.seconds)
    within = 1 + 1e-9
    assert seconds <= (work.seconds + message.seconds) * within
    assert seconds * within >= max(work.seconds, message.seconds)
    for name in ("hbm_demand", "compute_demand", "link_demand"):
        demand = getattr(both, name)
        assert demand == getattr(work, name) + getattr(message, name)
        assert seconds * within >= demand
    assert both.compute == work.compute
    assert float(both.communication) >= -1e-15


def test_a_message_that_needs_nothing_of_the_device_is_hidden_whole() -> None:
    """3 ms of compute on all units and 1 ms on the link: 3 ms; if the message holds half of HBM and units, 3.5 ms."""
    work = KernelTime(compute=3e-3, compute_demand=3e-3, hbm_demand=1e-3)
    assert beside(work, KernelTime(communication=1e-3, link_demand=1e-3)).seconds == pytest.approx(3e-3)
    greedy = KernelTime(communication=1e-3, link_demand=1e-3, compute_demand=0.5e-3)
    assert beside(work, greedy).seconds == pytest.approx(3.5e-3)


@settings(max_examples=40, deadline=None)
@given(m=st.integers(1, 9000), group=st.sampled_from([2, 4, 8]))
def test_a_step_is_never_slower_than_one_batch_in_turn_nor_faster_than_its_busiest_resource(
    m: int, group: int
) -> None:
    cut, whole = timed(group), timed(group, halved=False)
    step = (0, 0, 0, [(m, 0)], 1)
    assert cut.step_ns(*step) <= whole.step_ns(*step) + 1
    parts = cut.tokens.parts(np.array([float(m)]))
    spent = sum(float(np.sum(time.seconds)) for time in parts.values())
    for name in ("hbm_demand", "compute_demand", "link_demand"):
        assert spent * (1 + 1e-9) >= sum(float(np.sum(getattr(time, name))) for time in parts.values())


def test_long_prompts_gain_and_small_decode_batches_are_not_cut() -> None:
    """A half batch of decodes reads all weights again; a half of a long prompt costs hardly more than half."""
    cut, whole = timed(8), timed(8, halved=False)
    assert cut.step_ns(8, 8000, 1000, [], 8) == whole.step_ns(8, 8000, 1000, [], 8)
    prompt = (0, 0, 0, [(8192, 0)], 1)
    assert cut.step_ns(*prompt) < 0.9 * whole.step_ns(*prompt)


@dataclass(frozen=True)
class FewUnits(Device):
    n_sm: int = 40


def test_overlap_is_not_free_where_the_kernel_that_sends_holds_the_units() -> None:
    """With 40 units, 36 of them with whoever sends, the gain is gone where compute bounds."""
    gains: list[float] = []
    for device in (Device(), FewUnits()):
        spent = [
            timed(8, halved=halved, device=device).step_ns(0, 0, 0, [(8192, 0)], 1)
            for halved in (True, False)
        ]
        message = timed(8, halved=False, device=device).tokens.parts(np.array([8192.0]))["communication"]
        gains.append((spent[1] - spent[0]) / (float(np.sum(message.seconds)) * 1e9))
    assert gains[0] > 2 * max(gains[1], 0.0)


@pytest.mark.parametrize("fidelity", ["step", "kernel"])
@pytest.mark.parametrize("m", [8, 300, 3000])
def test_phases_and_causes_of_a_cut_step_are_its_time(m: int, fidelity: str) -> None:
    model = timed(4, fidelity=fidelity)
    step = (0, 0, 0, [(m, 0)], 1)
    spent = model.step_ns(*step)
    assert spent == timed(4).step_ns(*step)
    assert sum(phase.seconds for phase in model.phases(*step)) * 1e9 == pytest.approx(spent, abs=2)
    one = np.array([1])
    none = np.array([0])
    columns = StepColumns(
        one, none, none, none, one, np.array([0, 1]), np.array([m]), none, np.array([spent])
    )
    assert account(model, columns).causes_ns.sum() == spent


def test_without_a_group_nothing_changes() -> None:
    step = (4, 4000, 1000, [(700, 0)], 5)
    assert timed(1).step_ns(*step) == timed(1, halved=False).step_ns(*step)
