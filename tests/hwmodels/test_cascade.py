"""Cascade attention: a prefix that a batch shares, read once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from membound.hwmodels.account import StepColumns, account
from membound.hwmodels.cascade import SharedPrefix, is_chosen
from membound.hwmodels.model import load_model
from membound.hwmodels.stepmodel import StepModel

from .physics import Device, Engine


def timed(model: str = "llama-3.1-8b", **options: Any) -> StepModel:
    return StepModel(Device(), Engine(), load_model(model), cascade=True, **options)


def prefix_of(model: StepModel) -> SharedPrefix:
    assert model.shared_prefix is not None
    return model.shared_prefix


def test_vllm_takes_it_for_long_prefixes_and_many_sequences() -> None:
    """32 query and 8 KV heads on 132 units, 32 tiles of 128 keys: one wave of 32 tiles against n x 8 x 32 / 132."""
    assert not is_chosen(255, 100, 32, 8, 132, decodes=True)
    assert not is_chosen(4096, 7, 32, 8, 132, decodes=False)
    assert is_chosen(4096, 8, 32, 8, 132, decodes=False)  # a chunk in the step: no split-KV decode to beat
    assert is_chosen(4096, 8, 32, 32, 132, decodes=True)  # no groups: the same
    assert [is_chosen(4096, n, 32, 8, 132, decodes=True) for n in (16, 17)] == [False, True]


@given(sequences=st.integers(17, 200), shared=st.integers(256, 20000), own=st.integers(1, 2000))
def test_it_is_less_than_whole_contexts_where_vllm_takes_it_and_no_less_than_the_suffixes(
    sequences: int, shared: int, own: int
) -> None:
    model = timed()
    context = shared + own
    step = (sequences, sequences * context, context, [], sequences)
    plain, cascade = model.step_ns(*step), model.step_ns(*step, shared=shared)
    assert cascade > model.step_ns(sequences, sequences * own, own, [], sequences)
    if shared >= 4096 and sequences >= 32:
        assert cascade < plain


def test_few_sequences_lose() -> None:
    """One query tile walks through the prefix alone: what vLLM's rule is there for."""
    model = timed()
    step = (8, 8 * 9000, 9000, [], 8)
    assert not prefix_of(model).chosen(8192, 8, decodes=True)
    assert model.step_ns(*step, shared=8192) > model.step_ns(*step)


@given(cut=st.integers(1, 99))
def test_a_run_is_its_steps_however_it_is_cut(cut: int) -> None:
    model = timed()
    whole = model.decode_run_ns(40, 40 * 5000, 5100, 100, shared=4096)
    rest = model.decode_run_ns(40, 40 * (5000 + cut), 5100 + cut, 100 - cut, shared=4096)
    assert (whole[cut:] == rest).all()
    assert whole[cut] == model.step_ns(40, 40 * (5000 + cut), 5100 + cut, [], 40, shared=4096)


@pytest.mark.parametrize("fidelity", ["step", "kernel"])
@pytest.mark.parametrize("prefill", [[], [(700, 4096)]])
def test_phases_and_causes_are_the_steps_time(fidelity: str, prefill: list[tuple[int, int]]) -> None:
    model = timed(fidelity=fidelity)
    step = (40, 40 * 5000, 5100, prefill, 40 + len(prefill))
    spent = model.step_ns(*step, shared=4096)
    phases = model.phases(*step, shared=4096)
    assert sum(phase.seconds for phase in phases) * 1e9 == pytest.approx(spent, abs=2)
    assert phases[-1].name == "host"
    new, cached = (np.array([chunk[at] for chunk in prefill], dtype=np.int64) for at in (0, 1))

    def columns(shared: int) -> StepColumns:
        return StepColumns(
            np.array([1]),
            np.array([40]),
            np.array([40 * 5000]),
            np.array([5100]),
            np.array([40 + len(prefill)]),
            np.array([0, len(prefill)]),
            new,
            cached,
            np.array([spent]),
            shared=np.array([shared]),
        )

    once, each = account(model, columns(4096)), account(model, columns(0))
    assert once.causes_ns.sum() == spent
    assert once.useful_flop_seconds == pytest.approx(each.useful_flop_seconds)
    saved = float(each.kv_bytes[0] - once.kv_bytes[0])
    assert saved == pytest.approx(39 * 4096 * model.plan.kv_bytes_per_token)


@pytest.mark.parametrize("model", ["gemma-3-27b", "deepseek-v2-lite"])
def test_windows_and_latents_are_never_read_so(model: str) -> None:
    assert timed(model).shared_prefix is None
