"""A step by its kernels is the same step: its seconds and its demands on every resource only lie in more pieces."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.device import load_device
from membound.hwmodels.engine import load_engine
from membound.hwmodels.lowering import Parallelism
from membound.hwmodels.model import load_model
from membound.hwmodels.stepmodel import StepModel

MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "gemma-3-12b", "qwen3-next-80b-a3b")
chunks = st.lists(st.tuples(st.integers(2, 3000), st.integers(0, 9000)), max_size=3)
contexts = st.lists(st.integers(1, 9000), max_size=40)


def both(model, ranks=1):
    parts = (load_device("h200_sxm"), load_engine("vllm-0.24"), load_model(model), Parallelism(ranks))
    return StepModel(*parts), StepModel(*parts, fidelity="kernel")


def total(phases, resource=None):
    return math.fsum(p.seconds if resource is None else p.demands.get(resource, 0.0) for p in phases)


@pytest.mark.parametrize(("model", "ranks"), [(name, 1) for name in MODELS] + [("llama-3.1-8b", 4)])
def test_the_kernels_of_a_step_add_up_to_it(model, ranks):
    by_part, by_kernel = both(model, ranks)

    @settings(max_examples=10, deadline=None)
    @given(contexts, chunks)
    def adds_up(seen, prefill):
        if not seen and not prefill:
            return
        step = (len(seen), sum(seen), max(seen, default=0), prefill, len(seen) + len(prefill), seen)
        parts, kernels = by_part.phases(*step), by_kernel.phases(*step)
        assert len(kernels) > len(parts)
        assert by_kernel.step_ns(*step) == by_part.step_ns(*step)
        for resource in (None, "hbm", "compute", "link", "host"):
            # A part that is full of a resource is cut off at its seconds; its kernels are, one by one.
            assert total(kernels, resource) == pytest.approx(total(parts, resource), rel=1e-9, abs=1e-12)

    adds_up()


def test_kernels_differ_in_what_they_ask_for_where_their_part_has_the_mean():
    by_part, by_kernel = both("llama-3.1-8b")
    step = (8, 8000, 1200, [(512, 0), (300, 1000)], 10)
    (gemm,) = (p for p in by_part.phases(*step) if p.name == "gemm")
    shares = [p.demands["hbm"] / p.seconds for p in by_kernel.phases(*step) if p.name.startswith("gemm")]
    assert len(shares) == 4  # qkv, o, gate and up, down
    assert min(shares) < gemm.demands["hbm"] / gemm.seconds < max(shares)
