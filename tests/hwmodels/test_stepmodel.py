"""The step model: exact however a run is cut, equal to its parts, right on a measured step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.errors import MemboundError
from membound.hwmodels.lowering import Parallelism
from membound.hwmodels.precision import Quantization
from membound.hwmodels.stepmodel import StepModel
from membound.hwmodels.timing.decodes_beside import Chunks

from .physics import ALL, EXPERTS, HYBRID, QWEN3_14B, SMALL, WINDOWS, Device, Engine, Lane


class Flash2(Device):
    """A device whose decode attention splits keys by FlashAttention-2's rule."""

    def lane(self, family: str, lane: str = "vllm") -> Lane:
        plain = super().lane(family, lane)
        return Lane({**plain.params, "split": 2.0}) if family == "decode_attention" else plain


MODELS = {name: StepModel(Device(), Engine(), spec) for name, spec in ALL.items()} | {
    "flash2": StepModel(Flash2(), Engine(), QWEN3_14B)
}
CONTEXTS = st.lists(st.integers(1, 6000), min_size=1, max_size=40)
CHUNKS = st.lists(st.tuples(st.integers(2, 3000), st.integers(0, 4000)), max_size=3)


def batch(contexts: Sequence[int]) -> tuple[int, int, int]:
    return len(contexts), sum(contexts), max(contexts, default=0)


def run(step: StepModel, contexts: Sequence[int], steps: int) -> list[int]:
    return step.decode_run_ns(*batch(contexts), steps, contexts).tolist()


@pytest.mark.parametrize("name", list(MODELS))
@settings(deadline=None)
@given(contexts=CONTEXTS, cuts=st.lists(st.integers(1, 400), min_size=1, max_size=6))
def test_a_run_is_the_same_to_the_nanosecond_however_it_is_cut(
    name: str, contexts: list[int], cuts: list[int]
) -> None:
    step = MODELS[name]
    whole = run(step, contexts, sum(cuts))
    pieces: list[int] = []
    for steps in cuts:
        pieces += run(step, [context + len(pieces) for context in contexts], steps)
    assert pieces == whole


@pytest.mark.parametrize("name", list(MODELS))
@settings(deadline=None)
@given(contexts=CONTEXTS, steps=st.integers(1, 12))
def test_a_step_is_the_first_of_its_run(name: str, contexts: list[int], steps: int) -> None:
    step = MODELS[name]
    singles = []
    for i in range(steps):
        later = [context + i for context in contexts]
        singles.append(step.step_ns(*batch(later), (), len(later), later))
    assert run(step, contexts, steps) == singles


@pytest.mark.parametrize("name", list(MODELS))
@settings(deadline=None)
@given(contexts=st.lists(st.integers(1, 6000), max_size=40), chunks=CHUNKS)
def test_phases_add_up_to_the_step(name: str, contexts: list[int], chunks: list[tuple[int, int]]) -> None:
    if not contexts and not chunks:
        return
    step = MODELS[name]
    args = (*batch(contexts), chunks, len(contexts) + len(chunks), contexts)
    phases = step.phases(*args)
    assert sum(phase.seconds for phase in phases) * 1e9 == pytest.approx(step.step_ns(*args), abs=0.6)
    for phase in phases:
        assert all(0.0 <= demand <= phase.seconds for demand in phase.demands.values())


@pytest.mark.parametrize("name", ["dense", "windows", "latent"])
@settings(deadline=None)
@given(contexts=CONTEXTS)
def test_a_run_never_gets_faster_as_contexts_grow(name: str, contexts: list[int]) -> None:
    durations = np.array(run(MODELS[name], contexts, 700))
    # Where the longest context crosses into a new key block, the KV may be split over one more thread block.
    assert min(np.diff(durations) / durations[1:]) > -1e-3
    assert durations[-1] >= 0.999 * durations[0]


@settings(deadline=None)
@given(st.integers(1, 20000))
def test_one_sequence_is_never_served_faster_than_weights_and_cache_are_read(context: int) -> None:
    step = StepModel(Device(), Engine(host_exposed_s=0.0), QWEN3_14B)
    floor = (step.plan.dense_weight_bytes + context * step.plan.kv_bytes_per_token) / 3.35e12
    assert step.step_ns(1, context, context, (), 1) > floor * 1e9


def test_qwen3_14b_at_two_requests_a_second_takes_the_measured_time_between_tokens() -> None:
    # Measured: 11.5 ms between tokens with 3-4 running at a context of about 1,050 (H100, vLLM 0.23).
    step = StepModel(Device(), Engine(), QWEN3_14B)
    parts = {phase.name: phase.seconds * 1e3 for phase in step.phases(4, 4 * 1050, 1100, (), 4)}
    assert step.step_ns(4, 4 * 1050, 1100, (), 4) / 1e6 == pytest.approx(11.5, rel=0.01)
    weights = step.plan.dense_weight_bytes / 3.35e12 * 1e3
    assert weights == pytest.approx(8.35, abs=0.01)
    assert parts["gemm"] + parts["head"] - weights == pytest.approx(1.6, abs=0.2)
    assert parts["attention"] == pytest.approx(0.7, abs=0.05)
    assert parts["elementwise"] == pytest.approx(0.6, abs=0.05)
    assert parts["host"] == pytest.approx(0.1)


def test_a_long_answer_slows_by_the_bytes_of_its_cache() -> None:
    """Where KV reading dominates, a step grows by its new KV bytes over the achieved bandwidth."""
    step = StepModel(Device(), Engine(), QWEN3_14B)
    slope = np.diff(run(step, [30000] * 64, 100)).mean() / 1e9
    assert slope == pytest.approx(64 * step.plan.kv_bytes_per_token / 3.35e12, rel=0.2)


def test_tables_beyond_the_capture_sizes_follow_the_form() -> None:
    step = StepModel(Device(), Engine(), QWEN3_14B)
    for m in (513, 545, 576, 577, 1000, 2047, 2048, 2049, 5000, 8192):
        exact = sum(float(part.seconds[0]) for part in step.tokens.parts(np.array([float(m)])).values())
        assert step.tokens.seconds(m) == pytest.approx(exact, rel=2e-3)


def test_tables_do_not_depend_on_the_order_in_which_they_are_filled() -> None:
    up, down = StepModel(Device(), Engine(), SMALL), StepModel(Device(), Engine(), SMALL)
    counts = [1, 100, 600, 700, 4000, 8000]
    forwards = [up.tokens.seconds(m) for m in counts]
    backwards = [down.tokens.seconds(m) for m in reversed(counts)]
    assert forwards == backwards[::-1]


def test_token_counts_are_padded_to_capture_sizes_up_to_the_largest() -> None:
    step = MODELS["dense"]
    assert step.padded(np.array([1, 3, 9, 250, 512, 513])).tolist() == [1, 4, 16, 256, 512, 513]
    same = {step.step_ns(n, 9000, 1000, (), n) - step.step_ns(n, 9000, 1000, (), n) for n in range(9, 17)}
    assert same == {0}


def test_decodes_beside_a_long_chunk_cost_the_mixed_factor() -> None:
    plain, factor = (StepModel(Device(), Engine(mixed_decode_factor=f), SMALL) for f in (1.0, 1.5))
    args = (32, 32 * 2000, 2000)
    assert factor.step_ns(*args, [(128, 0)], 33) == plain.step_ns(*args, [(128, 0)], 33)
    extra = factor.step_ns(*args, [(129, 0)], 33) - plain.step_ns(*args, [(129, 0)], 33)
    body = plain.kinds[0].terms(32, plain.kinds[0].span(32, 32 * 2000, 2000))
    assert extra == pytest.approx(0.5 * 4 * (body.body(64000.0) + body.extra) * 1e9, abs=2)


@dataclass(frozen=True)
class InsideEngine(Lane):
    """A lane whose rows were timed within an engine's steps."""

    inside_engine: bool = True


class TimedInside(Device):
    """The same device, its lanes timed within an engine's steps, decodes beside chunks too."""

    def lane(self, family: str, lane: str = "vllm") -> Lane:
        if family == "mixed_attention":
            return OfSoftware({"td_us": 4.0, "tk": 0.7, "te_us": 0.4})
        if family == "elementwise":
            return InsideEngine({"t0_us": 3.0, "eb": 0.5})
        return InsideEngine(super().lane(family, lane).params)


@dataclass(frozen=True)
class OfSoftware(InsideEngine):
    """A lane that says whose it is."""

    lane: str = "vllm"


def test_lanes_timed_within_an_engines_steps_hold_what_it_loses_there() -> None:
    inside, alone = (StepModel(device, Engine(), QWEN3_14B) for device in (TimedInside(), Device()))
    lossless = StepModel(Device(), replace(Engine(), engine_gemm_efficiency=1.0), QWEN3_14B)
    tokens = np.array([2048.0])
    rates = {
        name: float(np.sum(step.tokens.parts(tokens)["gemm"].seconds))
        for name, step in (("inside", inside), ("alone", alone), ("lossless", lossless))
    }
    assert rates["inside"] == rates["lossless"] < rates["alone"]
    assert (inside.tokens.streaming.t0, inside.tokens.streaming.eb) == (3e-6, 0.5)
    assert (alone.tokens.streaming.t0, alone.tokens.streaming.eb) == (2e-6, 0.75)


def test_a_devices_own_lane_says_what_decodes_cost_beside_a_chunk_of_more_than_a_token() -> None:
    step, factor = (StepModel(device, Engine(), SMALL) for device in (TimedInside(), Device()))
    (kind,) = step.kinds
    assert kind.one_call_above == 1.0
    assert factor.kinds[0].one_call_above == float("inf")
    decodes = (64, 64 * 2000, 2000)
    apart = step.mixed_seconds(0, 0, 0, [(16, 0)], 1, None)
    assert step.mixed_seconds(*decodes, [(16, 0)], 65, None) > apart


@given(
    st.integers(1, 256), st.integers(1, 4000), st.integers(2, 4000), st.integers(0, 4000), st.integers(1, 3)
)
def test_decodes_in_one_call_with_chunks_cost_the_same_step_by_step_and_in_the_account(
    decodes: int, context: int, new: int, cached: int, chunks: int
) -> None:
    step = StepModel(TimedInside(), Engine(), SMALL)
    (kind,) = step.kinds
    prefill = [(new, cached)] * chunks
    arrays = [np.array(column, dtype=float) for column in zip(*prefill, strict=True)]
    many = Chunks.of(kind.prefill, arrays[0], arrays[1], np.zeros(1, dtype=np.int64))
    one = kind.beside_time(Chunks.one_call(kind.prefill, prefill), decodes, decodes * context, context)
    of_many = kind.beside_time(many, float(decodes), float(decodes * context), float(context))
    assert float(one.seconds) == pytest.approx(float(np.asarray(of_many.seconds)[0]), rel=1e-12)
    causes = (one.hbm_kv, one.compute, one.latency)
    assert min(map(float, causes)) >= 0.0
    more = kind.beside_time(
        Chunks.one_call(kind.prefill, prefill), decodes + 1, (decodes + 1) * context, context
    )
    assert more.seconds > one.seconds
    args = (decodes, decodes * context, context, prefill, decodes + chunks)
    phases = step.phases(*args)
    assert sum(phase.seconds for phase in phases) == pytest.approx(step.mixed_seconds(*args, None), rel=1e-9)


def test_chunks_of_one_step_share_one_fixed_time_and_the_device() -> None:
    step = MODELS["dense"]
    together = step.step_ns(0, 0, 0, [(1000, 0), (1000, 0)], 2)
    assert together < 2 * step.step_ns(0, 0, 0, [(1000, 0)], 1)


@settings(deadline=None)
@given(st.integers(2, 4000), st.integers(0, 4000), st.integers(1, 3000))
def test_a_chunk_over_a_longer_prefix_never_costs_less(new: int, cached: int, more: int) -> None:
    step = MODELS["dense"]
    assert step.step_ns(0, 0, 0, [(new, cached + more)], 1) >= step.step_ns(0, 0, 0, [(new, cached)], 1)


def test_windows_see_only_their_window() -> None:
    step = StepModel(Device(), Engine(), WINDOWS)
    assert step.needs_contexts
    assert not MODELS["dense"].needs_contexts
    mixed, even = [100] * 8 + [1900] * 8, [1000] * 16
    # Same sum, but the short half does not fill its window of 300.
    assert step.step_ns(*batch(mixed), (), 16, mixed) != step.step_ns(*batch(even), (), 16, even)
    sums, most = step.kinds[1].visible_run(16, 16000, 1900, 400, mixed)
    direct = [[min(c + i, 300) for c in mixed] for i in range(400)]
    assert sums.tolist() == [sum(row) for row in direct]
    assert most.tolist() == [max(row) for row in direct]


def test_naive_attention_pays_for_its_score_matrix() -> None:
    flash, naive = (StepModel(Device(), Engine(), SMALL, attention=a) for a in ("flash", "naive"))
    assert naive.step_ns(0, 0, 0, [(4096, 0)], 1) > 1.5 * flash.step_ns(0, 0, 0, [(4096, 0)], 1)
    assert naive.step_ns(8, 8000, 1000, (), 8) > flash.step_ns(8, 8000, 1000, (), 8)


def test_more_ranks_read_less_and_talk_more() -> None:
    one, four = (StepModel(Device(), Engine(), QWEN3_14B, Parallelism(tp)) for tp in (1, 4))
    names = {phase.name: phase.seconds for phase in four.phases(4, 4000, 1000, (), 4)}
    assert names["communication"] > 80 * 4e-6
    ratio = one.step_ns(4, 4000, 1000, (), 4) / four.step_ns(4, 4000, 1000, (), 4)
    assert 2.0 < ratio < 4.0


def test_narrow_weights_speed_up_a_small_batch() -> None:
    wide, narrow = (
        StepModel(Device(), Engine(), QWEN3_14B, quantization=Quantization(weights=w))
        for w in ("bf16", "w4a16")
    )
    assert wide.step_ns(1, 1000, 1000, (), 1) > 1.9 * narrow.step_ns(1, 1000, 1000, (), 1)


def test_top_p_sampling_costs_more_rows_and_vocabulary() -> None:
    greedy, nucleus = (StepModel(Device(), Engine(), SMALL, sampling=s) for s in ("greedy", "top_p_top_k"))
    extra = nucleus.step_ns(64, 6400, 100, (), 64) - greedy.step_ns(64, 6400, 100, (), 64)
    fixed = Engine().sampler_topk_t0_s - Engine().sampler_greedy_t0_s
    assert extra == pytest.approx(64 * 32000 * 190.0 / (0.75 * 3.35e12) * 1e9 + fixed * 1e9, rel=1e-3)


def test_a_sampler_that_does_not_sort_takes_one_wave_of_rows_at_a_time() -> None:
    searching = Engine(
        sampler_topk_bytes_per_entry=0.0, sampler_topk_t0_s=0.0, sampler_topk_serial_s_per_entry=4e-9
    )
    step = StepModel(Device(), searching, SMALL, sampling="top_p_top_k")
    bare = StepModel(
        Device(),
        Engine(sampler_topk_bytes_per_entry=0.0, sampler_topk_t0_s=0.0),
        SMALL,
        sampling="top_p_top_k",
    )
    for rows, waves in ((1, 1), (132, 1), (133, 2)):
        extra = step.step_ns(rows, 100 * rows, 100, (), rows) - bare.step_ns(rows, 100 * rows, 100, (), rows)
        assert extra == pytest.approx(waves * 32000 * 4.0, abs=2)


def test_recurrent_states_are_read_and_written_once_a_sequence() -> None:
    step = StepModel(Device(), Engine(), HYBRID)
    two, one = (step.step_ns(n, 100 * n, 100, (), n) for n in (24, 17))  # both padded to 24 tokens
    attention = tuple(step.kinds[0].terms(n, step.kinds[0].span(n, 100 * n, 100)) for n in (24, 17))
    seven = 7 * 2 * step.plan.state_bytes / (0.75 * 3.35e12) * 1e9
    others = (attention[0].seconds(2400.0) - attention[1].seconds(1700.0)) * 1e9
    sampler = 7 * 32000 * 10 / (0.75 * 3.35e12) * 1e9
    assert two - one == pytest.approx(seven + others + sampler, abs=2)


def test_experts_make_a_decode_step_slow_with_its_batch() -> None:
    step = StepModel(Device(), Engine(), EXPERTS)
    parts = [
        {phase.name: phase.seconds for phase in step.phases(n, 100 * n, 100, (), n)}["moe"]
        for n in (1, 8, 64)
    ]
    assert parts[0] < parts[1] < parts[2]


def test_a_device_with_three_parameters_is_timed_too() -> None:
    tpu = replace(Device(), form="roofline3", n_sm=1, peak_flops={"bf16": 918e12}, hbm_bandwidth=1.64e12)
    step = StepModel(tpu, Engine(), SMALL)
    floor = step.plan.dense_weight_bytes / 1.64e12 * 1e9
    assert floor < step.step_ns(1, 100, 100, (), 1) < 5 * floor + 1e6


@pytest.mark.parametrize(
    ("options", "text"),
    [({"sampling": "beam"}, "unknown sampler 'beam'"), ({"attention": "flsh"}, "nearest: 'flash'")],
)
def test_unknown_options_are_refused_in_one_line(options: dict[str, str], text: str) -> None:
    with pytest.raises(MemboundError, match=text):
        StepModel(Device(), Engine(), SMALL, **options)  # type: ignore[arg-type]


def test_an_engine_without_graph_capture_pads_nothing() -> None:
    step = StepModel(Device(), Engine(capture_sizes=()), SMALL)
    assert step.padded(np.array([3])).tolist() == [3]
    assert step.step_ns(3, 300, 100, (), 3) > 0


@pytest.mark.parametrize("name", list(MODELS))
@settings(deadline=None)
@given(contexts=st.lists(st.integers(1, 6000), max_size=40), chunks=CHUNKS)
def test_no_phase_of_a_step_holds_more_than_its_peak_loads(
    name: str, contexts: list[int], chunks: list[tuple[int, int]]
) -> None:
    if not contexts and not chunks:
        return
    step = MODELS[name]
    args = (*batch(contexts), chunks, len(contexts) + len(chunks), contexts)
    peaks = step.peak_loads(*args)
    for resource in ("hbm", "compute", "link"):
        held = [phase.demands.get(resource, 0.0) / phase.seconds for phase in step.phases(*args)]
        assert peaks.get(resource, 0.0) == max(held)
