"""Steps of a real step model on the shared device."""

import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.device import load_device
from membound.hwmodels.engine import load_engine
from membound.hwmodels.model import load_model
from membound.hwmodels.stepmodel import StepModel
from membound.hwmodels.steptypes import Phase
from membound.hwmodels.unitshare import SplitTimer, UnitShare
from membound.sim.device.resources import SharedDevice

H100, PARTS = load_device("h100_sxm"), (load_engine("vllm-0.24"), load_model("llama-3.1-8b"))
models = {fidelity: StepModel(H100, *PARTS, fidelity=fidelity) for fidelity in ("step", "kernel")}
steps = models["step"]
chunks = st.lists(st.tuples(st.integers(2, 4096), st.integers(0, 30_000)), max_size=3)


def batch(contexts, prefill=()):
    """Return the arguments of the step model for some decoding contexts and prefill chunks."""
    return len(contexts), sum(contexts), max(contexts, default=0), prefill, len(contexts) + len(prefill)


def run(*works):
    """Return when each work ends [ns], all started at 0; a work is the arguments of ``submit``."""
    env = simpy.Environment()
    device = SharedDevice(env)
    submitted = [device.submit(*work) for work in works]
    env.run()
    return [work.end_ns for work in submitted]


@given(st.lists(st.integers(1, 30_000), max_size=64), chunks)
@settings(deadline=None)
def test_a_step_alone_takes_exactly_what_the_step_model_says(contexts, prefill):
    if not contexts and not prefill:
        return
    step = batch(contexts, prefill)
    phases, duration = steps.phases(*step), steps.step_ns(*step)
    assert run((phases, duration)) == [duration]
    # Without being told the rounded duration it may fall on the other side of half a nanosecond.
    assert run((phases,)) == [pytest.approx(duration, abs=1)]


def test_a_copy_beside_a_step_slows_both_but_less_than_one_after_the_other():
    step = batch([1500] * 64)
    alone = steps.step_ns(*step)
    copy = [Phase("kv copy", alone * 1e-9, {"hbm": 0.8e-9 * alone, "link": 1e-9 * alone})]
    ends = run((steps.phases(*step), alone), (copy,))
    assert all(alone < end < 2 * alone for end in ends)
    lumped = {
        name: sum(p.demands.get(name, 0.0) for p in steps.phases(*step))
        for name in ("hbm", "compute", "host")
    }
    (too_early, _) = run(([Phase("step", alone * 1e-9, lumped)], alone), (copy,))
    assert too_early < ends[0]


@given(
    st.lists(st.integers(1, 9000), min_size=1, max_size=48),
    st.integers(64, 6000),
    st.sampled_from([None, 0.3, 0.6]),
    st.sampled_from(["step", "kernel"]),
)
@settings(deadline=None, max_examples=30)
def test_two_steps_side_by_side_keep_between_their_busiest_resource_and_taking_turns(
    contexts, new, split, fidelity
):
    """A decoding model beside one that reads a prompt; on all units, and each on a share of its own."""
    works = []
    for step, share in ((batch(contexts), split), (batch([], [(new, 0)]), split and 1 - split)):
        model = models[fidelity]
        part = share and StepModel(UnitShare(H100, share), *PARTS, fidelity=fidelity)
        timer = SplitTimer(model, part, share) if part else model
        works.append((timer.phases(*step), model.step_ns(*step)))
    end, slack = max(run(*works)), sum(len(phases) for phases, _ in works) + 2
    assert max(alone for _, alone in works) <= end <= sum(alone for _, alone in works) + slack
    for resource in ("hbm", "compute"):
        held = sum(phase.demands.get(resource, 0.0) for phases, _ in works for phase in phases)
        if resource == "hbm" or split is None:  # on a share a kernel holds fewer units, for longer
            assert end >= held * 1e9 - slack
