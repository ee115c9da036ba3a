"""On a share of the compute units, compute takes longer by what is missing, and memory time stays."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.device import load_device
from membound.hwmodels.engine import load_engine
from membound.hwmodels.errors import MemboundError
from membound.hwmodels.model import load_model
from membound.hwmodels.stepmodel import StepModel
from membound.hwmodels.unitshare import SplitTimer, UnitShare

H100 = load_device("h100_sxm")
PARTS = (load_engine("vllm-0.24"), load_model("llama-3.1-8b"))
whole = StepModel(H100, *PARTS)
DECODE = (64, 64 * 1500, 1500, [], 64)
PREFILL = (0, 0, 0, [(4096, 0)], 1)
timers = {
    share: SplitTimer(whole, StepModel(UnitShare(H100, share), *PARTS), share)
    for share in (0.2, 0.4, 0.5, 0.8)
}


def slowdown(share, step):
    phases = timers[share].phases(*step)
    return sum(p.seconds_on_share for p in phases) / sum(p.seconds for p in phases)


@given(
    st.sampled_from(sorted(timers)),
    st.lists(st.integers(1, 9000), min_size=1, max_size=60),
    st.integers(2, 8000),
)
@settings(deadline=None)
def test_no_phase_is_faster_on_a_share_nor_slower_than_in_proportion(share, contexts, new):
    step = (len(contexts), sum(contexts), max(contexts), [(new, 0)], len(contexts) + 1)
    for phase in timers[share].phases(*step):
        assert phase.seconds <= phase.seconds_on_share <= phase.seconds / share


def test_prefill_slows_down_nearly_in_proportion_and_decode_hardly():
    assert 1.8 < slowdown(0.5, PREFILL) < 2.0
    assert 1.0 < slowdown(0.5, DECODE) < 1.2


def test_all_units_are_no_share():
    timer = SplitTimer(whole, StepModel(UnitShare(H100, 1.0), *PARTS), 1.0)
    for step in (DECODE, PREFILL):
        assert all(p.seconds_on_share == p.seconds for p in timer.phases(*step))


@pytest.mark.parametrize("share", [0.0, -0.5, 1.01, float("nan")])
def test_a_share_is_above_0_and_at_most_1(share):
    with pytest.raises(MemboundError, match="above 0, at most 1"):
        UnitShare(H100, share)
