"""Attribution: exact to the nanosecond, the same in any company, FLOP and bytes counted by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.account import STEP_CAUSES, StepAccount, StepColumns, account
from membound.hwmodels.device import load_device
from membound.hwmodels.engine import load_engine
from membound.hwmodels.kernelcall import OpCost, StepBatch, lower_step
from membound.hwmodels.model import load_model
from membound.hwmodels.stepmodel import StepModel

from .physics import ALL, QWEN3_14B, Device, Engine

MODELS = {name: StepModel(Device(), Engine(), spec) for name, spec in ALL.items()}
MODELS["one call"] = StepModel(
    load_device("rtx_4090"), load_engine("vllm-0.19"), load_model("llama-3.1-8b")
)  # decodes and chunks in one call of attention
Row = tuple[list[int], list[tuple[int, int]], int]

CONTEXTS = st.lists(st.integers(1, 5000), max_size=20)
CHUNKS = st.lists(st.tuples(st.integers(2, 2000), st.integers(0, 3000)), max_size=3)
ROWS = st.lists(
    st.tuples(CONTEXTS, CHUNKS, st.integers(1, 40)).filter(lambda row: bool(row[0] or row[1])),
    min_size=1,
    max_size=6,
)


def columns(step: StepModel, rows: Sequence[Row]) -> StepColumns:
    """Unfold (contexts, chunks, steps) into columns; only rows without chunks repeat."""
    steps, durations = [], []
    for contexts, chunks, repeats in rows:
        count = 1 if chunks else repeats
        batch = (len(contexts), sum(contexts), max(contexts, default=0))
        if chunks:
            took = [step.step_ns(*batch, chunks, len(contexts) + len(chunks), contexts)]
        else:
            took = step.decode_run_ns(*batch, count, contexts).tolist()
        steps.append(count)
        durations += took
    chunks = [chunk for row in rows for chunk in row[1]]
    return StepColumns(
        steps=np.array(steps),
        n_decode=np.array([len(row[0]) for row in rows]),
        context_sum=np.array([sum(row[0]) for row in rows]),
        longest=np.array([max(row[0], default=0) for row in rows]),
        sampled=np.array([len(row[0]) + len(row[1]) for row in rows]),
        prefill_starts=np.cumsum([0, *(len(row[1]) for row in rows)]),
        prefill_new=np.array([chunk[0] for chunk in chunks], dtype=np.int64),
        prefill_cached=np.array([chunk[1] for chunk in chunks], dtype=np.int64),
        duration_ns=np.array(durations, dtype=np.int64),
        contexts=[row[0] for row in rows],
    )


def one_by_one(rows: Sequence[Row]) -> list[Row]:
    """Spell a run out as single steps."""
    return [
        ([context + i for context in contexts], chunks, 1)
        for contexts, chunks, repeats in rows
        for i in range(1 if chunks else repeats)
    ]


def same(a: StepAccount, b: StepAccount) -> bool:
    for part in fields(StepAccount):
        left, right = getattr(a, part.name), getattr(b, part.name)
        pairs = [(left[k], right[k]) for k in left] if isinstance(left, dict) else [(left, right)]
        if not all(np.array_equal(x, y) for x, y in pairs):
            return False
    return True


@pytest.mark.parametrize("name", list(MODELS))
@settings(deadline=None, max_examples=40)
@given(rows=ROWS, stretch=st.sampled_from([1.0, 1.7]))
def test_causes_sum_exactly_to_the_durations_given(name: str, rows: list[Row], stretch: float) -> None:
    step = MODELS[name]
    cols = columns(step, rows)
    cols = replace(cols, duration_ns=np.rint(cols.duration_ns * stretch).astype(np.int64))
    found = account(step, cols)
    assert found.causes_ns.sum(axis=1).tolist() == cols.duration_ns.tolist()
    assert found.causes_ns.min() >= 0
    assert np.all(found.kernel_busy_s * 1e9 <= cols.duration_ns)
    assert np.all(found.dram_active_s <= found.kernel_busy_s + 1e-9)
    assert np.all(found.sm_active_s <= found.kernel_busy_s + 1e-9)
    assert np.all(found.useful_flop_seconds <= found.kernel_busy_s)


@pytest.mark.parametrize("name", list(MODELS))
@settings(deadline=None, max_examples=40)
@given(rows=ROWS)
def test_a_run_is_accounted_as_its_steps_one_by_one(name: str, rows: list[Row]) -> None:
    step = MODELS[name]
    assert same(account(step, columns(step, rows)), account(step, columns(step, one_by_one(rows))))


@pytest.mark.parametrize("name", ["dense", "windows", "experts", "one call"])
@settings(deadline=None, max_examples=40)
@given(rows=ROWS)
def test_a_step_is_accounted_the_same_in_any_company(name: str, rows: list[Row]) -> None:
    step = MODELS[name]
    together = account(step, columns(step, rows)).causes_ns
    alone = [account(step, columns(step, [row])).causes_ns for row in rows]
    assert together.tolist() == np.concatenate(alone).tolist()


@pytest.mark.parametrize("name", ["dense", "latent", "experts"])
@settings(deadline=None, max_examples=40)
@given(contexts=CONTEXTS, chunks=CHUNKS)
def test_flop_and_bytes_are_those_of_the_kernel_list(
    name: str, contexts: list[int], chunks: list[tuple[int, int]]
) -> None:
    if not contexts and not chunks:
        return
    step = MODELS[name]
    found = account(step, columns(step, [(contexts, chunks, 1)]))
    batch = StepBatch(
        len(contexts), sum(contexts), max(contexts, default=0), chunks, len(contexts) + len(chunks)
    )
    cost = OpCost()
    for call in lower_step(step.plan, batch):
        cost = cost + call.cost.times(call.count)
    assert sum(work[0] for work in found.flop.values()) == pytest.approx(cost.flop, rel=2e-2)
    assert found.weight_bytes[0] == pytest.approx(cost.weight_bytes)
    assert found.kv_bytes[0] == pytest.approx(cost.kv_bytes)


def test_a_decode_step_of_qwen3_14b_is_bound_by_its_weights() -> None:
    step = StepModel(Device(), Engine(), QWEN3_14B)
    cols = columns(step, [([1050] * 4, [], 1)])
    found = account(step, cols)
    shares = dict(zip(STEP_CAUSES, found.causes_ns[0] / cols.duration_ns[0], strict=True))
    assert max(shares, key=lambda cause: shares[cause]) == "hbm_weights"
    assert shares["hbm_weights"] == pytest.approx(0.81, abs=0.02)
    assert shares["host"] == pytest.approx(1e5 / cols.duration_ns[0], rel=1e-3)
    assert found.useful_bytes[0] / 3.35e12 * 1e9 / cols.duration_ns[0] == pytest.approx(0.745, abs=0.01)


def test_a_prefill_step_is_bound_by_compute() -> None:
    step = StepModel(Device(), Engine(), QWEN3_14B)
    cols = columns(step, [([], [(4096, 0)], 1)])
    found = account(step, cols)
    shares = found.causes_ns[0] / cols.duration_ns[0]
    assert STEP_CAUSES[int(np.argmax(shares))] == "compute"
    # 4,096 tokens through 13.2 B weights, plus causal attention
    flop = 2 * 13.21e9 * 4096 + 40 * 4 * 40 * 128 * 4096 * 4097 / 2
    assert found.flop["bf16"][0] == pytest.approx(flop, rel=5e-3)


def test_padding_does_work_that_is_not_counted() -> None:
    step = MODELS["dense"]
    found = account(step, columns(step, [([100] * 17, [], 1), ([100] * 24, [], 1)]))
    assert found.flop["bf16"][0] < found.flop["bf16"][1]
    assert found.tensor_active_s[0] > found.useful_flop_seconds[0]


@settings(deadline=None, max_examples=40)
@given(
    contexts=CONTEXTS.filter(bool), chunks=CHUNKS.filter(bool), name=st.sampled_from(["dense", "one call"])
)
def test_kernels_of_a_step_with_chunks_are_busy_for_all_of_it_but_the_host(
    contexts: list[int], chunks: list[tuple[int, int]], name: str
) -> None:
    step = MODELS[name]
    cols = columns(step, [(contexts, chunks, 1)])
    host_s = float(step.host_seconds(np.array([len(contexts) + len(chunks)]))[0])
    assert account(step, cols).kernel_busy_s[0] + host_s == pytest.approx(cols.duration_ns[0] / 1e9, rel=1e-6)
