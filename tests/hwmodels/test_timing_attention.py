"""Attention: corners worked by hand, and the laws of decode and prefill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.hwmodels.timing.decode_attention import (
    DecodeParams,
    decode_shape,
    decode_terms,
    mla_decode_shape,
    one_wave,
    warm_share,
    with_scores,
)
from membound.hwmodels.timing.form import CAUSES, Chip, KernelTime
from membound.hwmodels.timing.prefill_attention import (
    PrefillForm,
    PrefillParams,
    mla_prefill_shape,
    prefill_form,
    prefill_shape,
)
from membound.hwmodels.timing.splits import GOOD_ENOUGH, flash2_splits

H100 = Chip({"bf16": 989e12}, 3.35e12, 132, 50e6, 233472, 450e9)
DECODE = DecodeParams(
    9.6e-6, 1.0, 1.5, 0.5, 0.23, 0.05, 1.3, 0.44, 0.35e-6, 1.5e-6, 1.4e-6, 0.8, l2f=0.54, l2b=2.0
)
PREFILL = PrefillParams(10e-6, 0.84, 6.5e-9, 0.97, 0.36, 2.2, 1.1e-6, 9.0, eb=0.89)
GQA = decode_shape(DECODE, 40, 8, 128)

CHUNK = st.tuples(st.integers(1, 8192), st.integers(0, 20000))


class Lane:
    """A literal lane."""

    def __init__(self, **params: float) -> None:
        self.params = params


def whole(time: KernelTime) -> float:
    return float(np.sum(time.seconds))


def test_decode_reads_its_cache_at_the_bandwidth_when_nothing_else_binds() -> None:
    ideal = DecodeParams(0.0, 1.0, 16.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0)
    terms = decode_terms(H100, ideal, decode_shape(ideal, 40, 8, 128), 64, 8192)
    # 64 x 8192 tokens x 8 heads x 128 x 2 (K and V) x 2 B = 2.147 GB, 1.3 MB of queries and outputs: 641.4 us
    assert terms.seconds(64.0 * 8192) == pytest.approx(641.4e-6, rel=1e-3)


@settings(deadline=None)
@given(st.integers(1, 256), st.integers(1, 40000))
def test_decode_is_never_faster_than_its_bytes(batch: int, longest: int) -> None:
    terms = decode_terms(H100, DECODE, GQA, batch, longest)
    x = float(batch * longest)
    assert terms.seconds(x) > GQA.kv_bytes_per_key * x / 3.35e12


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(1, 200), st.integers(1, 128))
def test_decode_grows_with_the_context_inside_a_key_block(batch: int, blocks: int, step: int) -> None:
    terms = decode_terms(H100, DECODE, GQA, batch, 128 * blocks)
    x = float(batch * 128 * (blocks - 1) + batch)
    assert terms.body(x + step) > terms.body(x)


@settings(deadline=None)
@given(st.integers(1, 256), st.integers(1, 30000))
def test_folding_compute_into_the_memory_slope_changes_less_than_a_ten_thousandth(
    batch: int, longest: int
) -> None:
    terms = decode_terms(H100, DECODE, GQA, batch, longest)
    x = float(batch * longest)
    parts = (terms.memory_slope * x + terms.memory_fixed, terms.compute_slope * x, terms.serial)
    unfolded = sum(part**terms.q for part in parts) ** (1 / terms.q)
    assert terms.body(x) == pytest.approx(unfolded, rel=3e-4)
    if longest >= 512:
        assert terms.body(x) == pytest.approx(unfolded, rel=1e-4)


def test_decode_terms_depend_on_the_longest_only_through_its_key_blocks() -> None:
    assert decode_terms(H100, DECODE, GQA, 7, 1025) == decode_terms(H100, DECODE, GQA, 7, 1152)
    assert decode_terms(H100, DECODE, GQA, 7, 1152) != decode_terms(H100, DECODE, GQA, 7, 1153)


def test_beyond_one_wave_one_long_sequence_costs_its_own_chain_and_not_that_of_everybody() -> None:
    batch, mean, longest = 256, 1024, 8192
    alike = decode_terms(H100, DECODE, GQA, batch, mean)
    mixed = decode_terms(H100, DECODE, GQA, batch, longest, mean)
    one = decode_terms(H100, replace(DECODE, split=False), GQA, 1, longest)
    assert mixed.serial - alike.serial < one.serial
    assert alike.serial < mixed.serial < decode_terms(H100, DECODE, GQA, batch, longest).serial
    assert decode_terms(H100, DECODE, GQA, batch, mean, mean) == alike


def test_one_sequence_is_split_over_units_and_a_large_batch_is_not() -> None:
    assert decode_terms(H100, DECODE, GQA, 1, 4096).split_latency == DECODE.ts
    assert decode_terms(H100, DECODE, GQA, 64, 4096).split_latency == 0.0
    unsplit = replace(DECODE, split=False)
    slow = decode_terms(H100, unsplit, GQA, 1, 4096).seconds(4096.0)
    assert slow > 1.3 * decode_terms(H100, DECODE, GQA, 1, 4096).seconds(4096.0)


@given(st.integers(1, 400), st.integers(1, 60_000), st.integers(1, 60_000))
def test_within_one_wave_the_mean_sequence_plays_no_part(batch: int, longest: int, mean: int) -> None:
    last = one_wave(H100, DECODE, GQA)
    assert 0 < last < 400
    unlike = decode_terms(H100, DECODE, GQA, batch, longest, 0)
    if batch <= last:
        assert decode_terms(H100, DECODE, GQA, batch, longest, min(mean, longest)) == unlike
    else:
        assert decode_terms(H100, DECODE, GQA, batch, longest, longest) != unlike


def test_flash_attention_2_splits_as_the_comment_in_its_code_says() -> None:
    # "if we have batch * n_heads = 48 and we have 108 SMs, it's better to use 2 splits (efficiency = 0.89) than 3
    # splits (efficiency = 0.67)"; a unit counts for two blocks
    assert flash2_splits(48, 64, 54) == 2
    assert flash2_splits(87, 64, 54) == 1  # above 0.8 x 108: almost full


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(1, 1100), st.integers(1, 200))
def test_flash_attention_2_takes_the_fewest_parts_that_fill_its_waves_well(
    blocks: int, keys: int, units: int
) -> None:
    def filled(parts: int) -> float:
        return blocks * parts / (2 * units) / -(-blocks * parts // (2 * units))

    parts = int(flash2_splits(blocks, keys, units))
    assert 1 <= parts <= min(128, keys)
    assert blocks * parts < 1.6 * units or parts == 1 or blocks < 1.6 * units
    if blocks < 1.6 * units:
        able = [
            n
            for n in range(1, min(128, 2 * units, keys) + 1)
            if n == 1 or -(-keys // n) < -(-keys // (n - 1))
        ]
        good = [n for n in able if filled(n) >= GOOD_ENOUGH * max(map(filled, able)) - 1e-12]
        assert parts == good[0]
    else:
        assert parts == 1
    many = flash2_splits(np.array([blocks, blocks, 1]), np.array([keys, 1, keys]), units)
    assert many.tolist() == [parts, 1, flash2_splits(1, keys, units)]


def test_a_lane_of_flash_attention_2_splits_by_its_rule_and_counts_the_mean_sequence() -> None:
    lane = DecodeParams.from_lane(Lane(t0_us=5.0, eb=0.8, ec=0.3, occ=0.5, split=2.0, ts_us=3.0, tb_us=1.0))
    terms = decode_terms(H100, lane, GQA, 1, 64 * 128)
    # 8 blocks, 264 slots, 64 key blocks: 8 x 32 of 264 is filled to 0.97; 22 parts to 0.67, less than 0.85 of it
    assert flash2_splits(8, 64, 132) == 32
    assert terms.serial == pytest.approx((2 + (8 * 32 / 66 - 1) * 2) * 1e-6)
    assert one_wave(H100, lane, GQA) == 0


@settings(deadline=None)
@given(st.integers(1, 128), st.integers(1, 20000))
def test_decode_causes_add_up(batch: int, longest: int) -> None:
    terms = decode_terms(H100, DECODE, GQA, batch, longest)
    x = float(batch * longest)
    time = terms.time(x)
    assert sum(float(getattr(time, cause)) for cause in CAUSES) == pytest.approx(terms.seconds(x), rel=1e-9)
    assert float(time.hbm_demand) <= terms.seconds(x)
    demands = terms.demands(x)
    assert terms.t0 + demands.seconds == pytest.approx(terms.seconds(x), rel=1e-12)
    assert demands.hbm == pytest.approx(time.hbm_demand, rel=1e-12)
    assert demands.compute == pytest.approx(time.compute_demand, rel=1e-12)


def test_a_warm_cache_answers_faster_while_it_fits() -> None:
    assert warm_share(H100, DECODE, GQA, 1, 100) > 0.99
    assert warm_share(H100, DECODE, GQA, 64, 64 * 8192) < 0.01
    small, cold = (
        decode_terms(H100, DECODE, GQA, 8, 512, resident=share).seconds(4096.0)
        for share in (warm_share(H100, DECODE, GQA, 8, 4096), 0.0)
    )
    assert small < cold


def test_naive_decode_also_moves_its_scores() -> None:
    terms, naive = (decode_terms(H100, DECODE, s, 16, 4096) for s in (GQA, with_scores(GQA, 40)))
    extra = naive.memory_slope - terms.memory_slope
    assert extra / terms.memory_slope == pytest.approx(12.0 * 40 / GQA.kv_bytes_per_key)


def test_latent_decode_is_flat_up_to_the_heads_that_share_a_pass() -> None:
    lane = Lane(hm=64, rr=0.0)
    params = DecodeParams(8.5e-6, 1.14, 1.5, 0.85, 0.23, 0.05, 104, 1.19, 0.67e-6, 1.5e-6, 4.3e-6, 0.8, x=1.4)
    params = replace(params, key_block=64)
    times = [
        decode_terms(H100, params, mla_decode_shape(params, lane, h, 576, 512, 1152.0), 128, 8192).seconds(
            128.0 * 8192
        )
        for h in (8, 64, 128)
    ]
    assert times[1] < 1.05 * times[0]
    assert 1.1 * times[1] < times[2] < 2.0 * times[1]


def test_long_prefill_runs_at_its_share_of_peak() -> None:
    form = prefill_form(H100, replace(PREFILL, sx=0.0), prefill_shape(32, 8, 128))
    # causal matrix work of 32k tokens: 2 x 32768^2 x 128 x 32 FLOP (both products, half the square)
    ideal = 2 * 32768**2 * 128 * 32 / (0.84 * 989e12)
    assert form.body([(32768, 0)]) == pytest.approx(ideal, rel=0.10)


@settings(deadline=None)
@given(st.lists(CHUNK, min_size=1, max_size=6), st.sampled_from([0, 512, 4096]), st.booleans())
def test_prefill_numbers_are_the_same_one_by_one_and_as_arrays(
    chunks: list[tuple[int, int]], window: int, flash2: bool
) -> None:
    lane = replace(PREFILL, packed=False, single=True, tile=64, tq=8e-6) if flash2 else PREFILL
    form = prefill_form(H100, lane, prefill_shape(40, 8, 128, window=window))
    new, cached = np.array(chunks, dtype=np.float64).T
    time = form.time_many(new, cached, np.zeros(1, dtype=np.int64))
    demands = form.demands(chunks)
    assert whole(time) == pytest.approx(PREFILL.t0 + form.body(chunks), rel=1e-12)
    assert demands.seconds == pytest.approx(whole(time), rel=1e-12)
    assert demands.hbm == pytest.approx(float(np.sum(time.hbm_demand)), rel=1e-9)
    assert demands.compute == pytest.approx(float(np.sum(time.compute_demand)), rel=1e-12)
    assert sum(float(np.sum(getattr(time, cause))) for cause in CAUSES) == pytest.approx(
        whole(time), rel=1e-9
    )
    assert float(np.sum(time.hbm_demand)) <= whole(time)


@settings(deadline=None)
@given(st.integers(1, 4096), st.integers(0, 8000), st.integers(1, 4000))
def test_a_longer_cached_prefix_costs_more(new: int, cached: int, more: int) -> None:
    form = prefill_form(H100, PREFILL, prefill_shape(40, 8, 128))
    assert form.body([(new, cached + more)]) > form.body([(new, cached)])


@settings(deadline=None)
@given(st.integers(256, 4096), st.integers(0, 4096))
def test_chunks_cost_at_least_as_much_as_the_whole_prompt(half: int, cached: int) -> None:
    form = prefill_form(H100, PREFILL, prefill_shape(32, 8, 128))
    whole_prompt = form.body([(2 * half, cached)])
    assert form.body([(half, cached)]) + form.body([(half, cached + half)]) > 0.93 * whole_prompt


def test_flash_attention_2_packs_the_queries_of_a_group_only_where_each_sequence_has_one() -> None:
    lane = replace(PREFILL, packed=False, single=True, tq=8e-6, wq=0.0)
    form, packed = (prefill_form(H100, each, prefill_shape(32, 4, 128)) for each in (lane, PREFILL))
    many = [form.body([(new, 0)] * 128) for new in (1, 2)]
    assert many[1] > 4.0 * (many[0] - lane.tq)  # 32 tiles a sequence instead of 4
    alone = form.body([(1, 0)])
    assert form.body([(1, 0)] * 2) - alone == pytest.approx(lane.tq, rel=0.01)  # queries are copied first
    assert form.body([(16, 0)] * 128) > 2.0 * packed.body([(16, 0)] * 128)


def test_groups_that_are_no_power_of_two_take_longer_by_the_lanes_share() -> None:
    lane = replace(PREFILL, odd=0.1, eb=1e6, packed=False)
    for heads, slower in ((24, 1.1), (32, 1.0), (8, 1.0), (56, 1.1)):
        plain, found = (prefill_form(H100, each, prefill_shape(heads, 8, 128)) for each in (PREFILL, lane))
        plain = prefill_form(H100, replace(lane, odd=0.0), plain.shape)
        ratio = (found.params.t0 + found.body([(2048, 0)])) / (plain.params.t0 + plain.body([(2048, 0)]))
        assert ratio == pytest.approx(slower, rel=1e-3)


def test_a_window_caps_what_a_tile_walks_over() -> None:
    wide, narrow = (prefill_form(H100, PREFILL, prefill_shape(40, 8, 128, window=w)) for w in (0, 1024))
    assert narrow.body([(512, 0)]) == wide.body([(512, 0)])
    assert narrow.body([(8192, 0)]) < 0.4 * wide.body([(8192, 0)])


def test_query_heads_of_a_group_share_tiles() -> None:
    def tiles_of(form: PrefillForm) -> float:
        return form.body([(1, 0)] * 200)

    grouped = prefill_form(H100, PREFILL, prefill_shape(32, 8, 128))
    alone = prefill_form(H100, PREFILL, prefill_shape(32, 32, 128))
    assert tiles_of(grouped) < 0.5 * tiles_of(alone)


def test_the_tile_shrinks_until_it_fits_on_chip() -> None:
    assert prefill_form(H100, PREFILL, prefill_shape(32, 8, 128)).tile == 128
    assert prefill_form(H100, PREFILL, prefill_shape(32, 8, 512)).tile == 64
    small = replace(H100, onchip_bytes=65536)
    assert prefill_form(small, PREFILL, prefill_shape(32, 8, 128)).tile == 128
    assert prefill_form(small, PREFILL, prefill_shape(32, 8, 256)).tile < 128


def test_absorbed_latent_prefill_does_several_times_the_work() -> None:
    expanded, absorbed = (
        prefill_form(H100, PREFILL, mla_prefill_shape(Lane(d=d), 16, 320, 1088, 1152.0)).body([(8192, 0)])
        for d in (320, 1088)
    )
    assert 2.5 < absorbed / expanded < 3.6


def test_a_table_of_unlike_decode_calls_takes_what_each_takes_alone():
    rows = [(1, 4096, 32, 8, 128), (64, 100, 40, 8, 128), (256, 3000, 8, 1, 64), (7, 1, 16, 16, 256)]
    batch, length, heads, kv_heads, dim = np.array(rows, dtype=float).T
    shape = decode_shape(DECODE, heads, kv_heads, dim)
    warm = warm_share(H100, DECODE, shape, batch, batch * length)
    together = decode_terms(H100, DECODE, shape, batch, length, resident=warm).seconds(batch * length)
    for each, (b, keys, h, kv, d) in zip(np.asarray(together), rows, strict=True):
        one = decode_shape(DECODE, h, kv, d)
        share = warm_share(H100, DECODE, one, b, b * keys)
        alone = decode_terms(H100, DECODE, one, b, keys, resident=share).seconds(float(b * keys))
        assert each == pytest.approx(float(alone), rel=1e-12)
