"""Experts: routing patterns counted by hand, and the laws of a mixture-of-experts layer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.routing import (
    BalancedStride,
    GroupLimited,
    PowerLaw,
    RoutingError,
    Zipf,
    busiest,
    routing_of,
)
from membound.hwmodels.timing.form import CAUSES, Chip
from membound.hwmodels.timing.moe import MoEParams, MoEWork, moe_time

H100 = Chip({"bf16": 989e12}, 3.35e12, 132, 50e6)
LANE = MoEParams(
    18e-6, 14e-6, 16, 24e-9, 0.63, 226, 186, 0.91, 2.7, 3.4, 0.29, 0.40, 2.5, 1.5, 0.0, 2.8, True, 0.36, 2.3
)
MIXTRAL = MoEWork(4096, 14336, 8, 2, gated=True)
SMALL = MoEWork(2048, 768, 128, 8, gated=True)


def seconds(
    work: MoEWork, tokens: int, routing: object = None, ranks: int = 1, lane: MoEParams = LANE
) -> float:
    stats = (routing or Zipf(0.8)).statistics(tokens, work.n_experts, work.top_k, ranks)  # type: ignore[attr-defined]
    return float(np.asarray(moe_time(H100, lane, work, np.array([float(tokens)]), [stats]).seconds)[0])


def test_a_balanced_stride_touches_as_many_experts_as_there_are_choices() -> None:
    routing = BalancedStride()
    assert routing.statistics(4, 128, 8, 1).active == 32  # 4 x 8 distinct experts
    assert routing.statistics(4, 128, 8, 4).active == 8  # a quarter of them on rank 0
    full = routing.statistics(1024, 128, 8, 1)
    assert (full.active, full.rows, full.tiles) == (128, 8192, (512.0, 256.0, 128.0, 128.0))


def test_the_busiest_rank_is_the_one_with_most_rows() -> None:
    stats = busiest(np.array([1.0, 0.0, 30.0, 3.0]), 2)
    assert (stats.active, stats.rows, stats.tiles) == (2, 33, (3.0, 2.0, 2.0, 2.0))


@settings(deadline=None)
@given(st.integers(1, 3000), st.sampled_from([(8, 2), (128, 8), (256, 8)]), st.sampled_from([1, 4, 8]))
def test_every_choice_is_counted_once(tokens: int, layer: tuple[int, int], ranks: int) -> None:
    n_experts, top_k = layer
    for routing in (Zipf(0.0), Zipf(0.8), PowerLaw(1.2), BalancedStride()):
        alone = routing.statistics(tokens, n_experts, top_k, 1)
        assert alone.rows == pytest.approx(tokens * top_k, rel=0.02, abs=1.0)
        assert alone.active <= min(n_experts, tokens * top_k)
        shared = routing.statistics(tokens, n_experts, top_k, ranks)
        assert shared.rows <= alone.rows
        assert shared.tiles[-1] <= alone.tiles[-1]


@settings(deadline=None)
@given(st.integers(1, 1500), st.integers(1, 500))
def test_more_tokens_never_touch_fewer_experts(tokens: int, more: int) -> None:
    small, large = (Zipf(0.8).statistics(t, 128, 8, 1) for t in (tokens, tokens + more))
    assert large.active >= small.active
    assert large.rows > small.rows


def test_a_repeated_question_gets_the_same_answer() -> None:
    assert Zipf(0.8).statistics(77, 256, 8, 8) == Zipf(0.8).statistics(77, 256, 8, 8)


def test_skew_touches_fewer_experts_and_loads_the_busiest_rank_more() -> None:
    even, skewed = (Zipf(s).statistics(64, 256, 8, 8) for s in (0.0, 1.2))
    assert skewed.active < even.active
    assert skewed.rows > 1.3 * even.rows


def test_real_traffic_touches_experts_as_measured_batches_do() -> None:
    # MiniMax (256 experts, top 8) with s = 0.8: 28 experts at 4 tokens, 80 at 16, 178 at 64.
    for tokens, touched in ((4, 28), (16, 80), (64, 178)):
        assert Zipf(0.8).statistics(tokens, 256, 8, 1).active == pytest.approx(touched, rel=0.06)


def test_unknown_routings_are_refused_in_one_line() -> None:
    assert routing_of("uniform") == Zipf(0.0)
    assert routing_of("power_law", a=1.01) == PowerLaw(1.01)
    with pytest.raises(RoutingError, match="nearest: 'zipf'"):
        routing_of("zipff")
    with pytest.raises(RoutingError, match="not built"):
        routing_of("trace")


@settings(deadline=None)
@given(st.integers(1, 8192), st.sampled_from([MIXTRAL, SMALL]))
def test_causes_add_up_and_weights_bound_from_below(tokens: int, work: MoEWork) -> None:
    stats = Zipf(0.8).statistics(tokens, work.n_experts, work.top_k, 1)
    time = moe_time(H100, LANE, work, np.array([float(tokens)]), [stats])
    total = float(np.asarray(time.seconds)[0])
    assert sum(float(np.sum(getattr(time, cause))) for cause in CAUSES) == pytest.approx(total, rel=1e-9)
    assert total > stats.active * 3 * work.hidden * work.intermediate * 2 / 3.35e12
    assert float(np.sum(time.hbm_demand)) <= total


def test_a_decode_step_slows_with_the_batch_as_more_experts_are_touched() -> None:
    assert seconds(SMALL, 16) > 1.3 * seconds(SMALL, 2)


def test_expert_parallel_ranks_read_fewer_weights() -> None:
    assert seconds(SMALL, 64, ranks=4) < 0.6 * seconds(SMALL, 64)


def test_a_cut_width_off_the_grid_of_16_pays_the_alignment_factor() -> None:
    on, off = (seconds(MoEWork(2048, width, 128, 8, gated=True), 64) for width in (96, 97))
    assert off > 1.5 * on


def test_arrays_of_token_counts_agree_with_one_by_one() -> None:
    counts = [1, 17, 300, 5000]
    stats = [Zipf(0.8).statistics(t, 128, 8, 1) for t in counts]
    together = np.asarray(moe_time(H100, LANE, SMALL, np.array(counts, dtype=float), stats).seconds)
    assert together.tolist() == [seconds(SMALL, t) for t in counts]


def collected(draw: int, a: float, tokens: int, n_experts: int, top_k: int, ranks: int) -> np.ndarray:
    """The collector's procedure, one row at a time: counts of every expert, (ranks, held)."""
    total = tokens * top_k
    low, high = (1.0, 0.8 * tokens) if total > n_experts else (0.01, 2.0)
    u = np.random.Generator(np.random.Philox(key=draw)).random(n_experts)
    weights = (low ** (1 - a) + u * (high ** (1 - a) - low ** (1 - a))) ** (1 / (1 - a))
    counts = np.minimum(np.rint(weights / weights.sum() * total), tokens).reshape(ranks, -1)
    rest = int(total - counts.sum())
    while rest:
        for rank in counts:
            least = int(np.argmin(rank)) if rest > 0 else int(np.argmax(rank))
            if rest and (rank[least] < tokens if rest > 0 else rank[least] > 0):
                rank[least] += np.sign(rest)
                rest -= int(np.sign(rest))
    return counts


@settings(deadline=None, max_examples=20)
@given(
    st.integers(1, 300),
    st.sampled_from([(8, 2, 2), (128, 8, 4), (128, 1, 8), (64, 6, 1), (16, 1, 16)]),
    st.sampled_from([1.01, 1.2]),
)
def test_a_power_law_is_the_one_the_tables_were_timed_with(
    tokens: int, layer: tuple[int, int, int], a: float
) -> None:
    n_experts, top_k, ranks = layer
    draws = [collected(draw, a, tokens, n_experts, top_k, ranks) for draw in range(16)]
    expected = [busiest(draw.ravel(), ranks) for draw in draws]
    found = PowerLaw(a).statistics(tokens, n_experts, top_k, ranks)
    assert found.rows == pytest.approx(np.mean([stats.rows for stats in expected]))
    assert found.active == pytest.approx(np.mean([stats.active for stats in expected]), rel=0.03)
    assert found.tiles == pytest.approx(np.mean([stats.tiles for stats in expected], axis=0), rel=0.03)


@settings(deadline=None, max_examples=20)
@given(
    st.integers(1, 300), st.sampled_from([(8, 2), (128, 8), (128, 1), (64, 6)]), st.sampled_from([1.01, 1.2])
)
def test_a_heaped_power_law_deals_out_every_row_but_on_fewer_ranks(
    tokens: int, layer: tuple[int, int], a: float
) -> None:
    heaped = PowerLaw(a, heaped=True)
    assert heaped.statistics(tokens, *layer, 1).rows == pytest.approx(tokens * layer[1])
    alone, even = (law.statistics(1, 256, 8, 8) for law in (heaped, PowerLaw(a)))
    assert (alone.active, alone.rows) == (8.0, 8.0)
    assert even.rows == 1.0


def test_a_router_with_groups_skews_an_even_pattern_onto_the_first_groups() -> None:
    # One expert of each of eight groups is asked for; the first four are kept and give one each, and the four that
    # are missing are the first experts of all, visited by every token.
    even, limited = (
        routing.statistics(4096, 256, 8, 2) for routing in (BalancedStride(), GroupLimited(BalancedStride()))
    )
    assert even.rows == 4 * 4096
    assert limited.rows == 8 * 4096  # the first four groups are the first of two ranks
    fourth = GroupLimited(BalancedStride()).statistics(4096, 256, 8, 64)
    assert (fourth.active, fourth.rows) == (4.0, pytest.approx(4 * 4096, rel=0.05))


@pytest.mark.parametrize("pattern", [BalancedStride(), PowerLaw(1.01), PowerLaw(1.2)])
@pytest.mark.parametrize("tokens", [1, 7, 300, 5000])
def test_a_router_with_groups_loses_no_row(pattern: BalancedStride | PowerLaw, tokens: int) -> None:
    stats = GroupLimited(pattern).statistics(tokens, 256, 8, 1)
    assert stats.rows == pytest.approx(8 * tokens, rel=0.02)
    assert GroupLimited(pattern, groups=8, kept=8).statistics(tokens, 256, 8, 1).rows == pytest.approx(
        8 * tokens, rel=0.02
    )


def test_all_groups_kept_is_no_limit() -> None:
    free = GroupLimited(BalancedStride(), groups=8, kept=8)
    assert free.statistics(512, 256, 8, 4) == BalancedStride().statistics(512, 256, 8, 4)


def test_layers_of_many_shapes_agree_with_one_by_one() -> None:
    stats = [Zipf(0.8).statistics(64, work.n_experts, work.top_k, 1) for work in (MIXTRAL, SMALL)]
    both = MoEWork(*(np.array([getattr(work, name) for work in (MIXTRAL, SMALL)])
                     for name in ("hidden", "intermediate", "n_experts", "top_k", "gated")))  # fmt: skip
    together = np.asarray(moe_time(H100, LANE, both, np.array([64.0, 64.0]), stats).seconds)
    assert together.tolist() == [seconds(MIXTRAL, 64), seconds(SMALL, 64)]
