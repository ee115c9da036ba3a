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
from membound.sim.resources import SharedDevice

steps = StepModel(load_device("h100_sxm"), load_engine("vllm-0.24"), load_model("llama-3.1-8b"))
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
