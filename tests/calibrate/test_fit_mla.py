"""Latent attention: a fit recovers what made the times; decode is flat in heads, prefill pays for its cache."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from membound.calibrate.errors import CalibrationError
from membound.calibrate.fit.mla import (
    fit_mla_decode_least_squares,
    fit_mla_prefill_least_squares,
    predict_mla_decode_us,
    predict_mla_prefill_us,
    without_spikes,
)
from membound.calibrate.splits import part
from membound.calibrate.table import KernelTable
from membound.hwmodels.device import load_device
from membound.hwmodels.steptypes import chip_of

H100 = chip_of(load_device("h100_sxm"))
DECODE = {
    "t0_us": 7.0, "eb": 0.95, "q": 2.4, "occ": 0.9, "wq": 0.2, "oe": 0.3, "gp": 80.0, "ec": 0.8, "tb_us": 1.1,
    "ts_us": 1.5, "tcta_us": 4.0, "cr": 1.2, "x": 1.2, "rr": 0.15, "l2f": 0.3, "l2b": 1.5, "hm": 64.0, "split": 1.0,
}  # fmt: skip
PREFILL = {
    "t0_us": 12.0, "ec": 0.6, "sx": 3.0, "occ": 1.1, "wq": 0.8, "q2": 2.5, "tt_us": 0.7, "k0": 30.0, "x": 1.3,
    "q": 1.6, "xc": 1.4, "eb": 0.88, "d": 320.0,
}  # fmt: skip


def rows(op: str, batches: list[int], lengths: list[int], heads: list[int]) -> KernelTable:
    """Return every combination, without times."""
    grid = np.array(list(product(batches, lengths, heads)))
    new = np.ones(len(grid)) if op == "mla_decode" else grid[:, 1]
    return KernelTable.of(
        {
            "op": [op] * len(grid), "dtype": ["bfloat16"] * len(grid), "kv_dtype": ["bfloat16"] * len(grid),
            "batch": grid[:, 0], "kv_len": grid[:, 1], "n_heads": grid[:, 2], "q_len": new,
            "latency_us": np.ones(len(grid)),
        }
    )  # fmt: skip


def with_times(table: KernelTable, us: np.ndarray, noise: float = 0.02) -> KernelTable:
    spread = np.exp(np.random.default_rng(3).normal(0.0, noise, len(us)))
    return KernelTable.of({**table.columns, "latency_us": us * spread})


def test_decode_is_recovered_on_heads_and_contexts_that_were_held_out() -> None:
    shapes = rows(
        "mla_decode", [1, 4, 16, 64, 256], [16, 128, 512, 1024, 2048, 8192], [2, 8, 16, 32, 64, 128]
    )
    data = with_times(shapes, predict_mla_decode_us(H100, DECODE, shapes))
    parts = {name: data.where(mask) for name, mask in part(data).items()}
    assert set(parts["unseen"]["n_heads"].tolist()) == {16, 64}
    assert set(parts["beyond"]["kv_len"].tolist()) == {8192}
    fit = fit_mla_decode_least_squares(parts["train"], H100)
    for name in ("unseen", "beyond"):
        truth = predict_mla_decode_us(H100, DECODE, parts[name])
        error = np.abs(predict_mla_decode_us(H100, fit.params, parts[name]) / truth - 1.0)
        assert float(error.mean()) < 0.04
    assert fit.params["t0_us"] == pytest.approx(DECODE["t0_us"], rel=0.15)


def test_decode_is_flat_up_to_the_heads_of_one_tile() -> None:
    long = rows("mla_decode", [128], [8192], [1, 4, 64, 128])
    one, four, tile, two = predict_mla_decode_us(H100, DECODE, long).tolist()
    assert four == pytest.approx(one, rel=0.02)
    assert tile < 1.1 * one
    assert two > 1.1 * tile


def test_prefill_is_recovered_with_its_cache_entries() -> None:
    shapes = rows("mla_prefill", [1, 4, 16, 64], [16, 128, 512, 1536, 4096], [1, 8, 16, 32, 128])
    data = with_times(shapes, predict_mla_prefill_us(H100, PREFILL, shapes))
    parts = {name: data.where(mask) for name, mask in part(data).items()}
    fit = fit_mla_prefill_least_squares(parts["train"], H100, PREFILL["eb"])
    assert fit.params["eb"] == PREFILL["eb"]
    for name in ("unseen", "beyond"):
        truth = predict_mla_prefill_us(H100, PREFILL, parts[name])
        error = np.abs(predict_mla_prefill_us(H100, fit.params, parts[name]) / truth - 1.0)
        assert float(error.mean()) < 0.05
    few_heads = rows("mla_prefill", [64], [1536], [1])
    without = predict_mla_prefill_us(H100, {**PREFILL, "xc": 1e-6}, few_heads)
    assert predict_mla_prefill_us(H100, PREFILL, few_heads)[0] > 1.2 * without[0]


def test_spikes_go_by_their_neighbours_in_heads() -> None:
    table = rows("mla_decode", [1], [128], [1, 2, 4, 8])
    spiked = KernelTable.of({**table.columns, "latency_us": [14.0, 1500.0, 14.5, 15.0]})
    assert without_spikes(spiked)["n_heads"].tolist() == [1, 4, 8]


def test_an_empty_table_is_refused() -> None:
    none = rows("mla_decode", [1], [128], [1]).where(np.zeros(1, dtype=bool))
    with pytest.raises(CalibrationError, match="no rows"):
        predict_mla_decode_us(H100, DECODE, none)


def test_few_heads_on_blackwell_take_a_narrower_tile_and_read_the_cache_again() -> None:
    heads = rows("mla_decode", [256], [2048], [16, 32, 64, 128])
    wide, narrow = ({**DECODE, "hm": 128.0, "hs": hs, "gp": 1.0} for hs in (0.0, 16.0))
    of_wide, of_narrow = (predict_mla_decode_us(H100, lane, heads) for lane in (wide, narrow))
    assert of_narrow[[0, 2, 3]] == pytest.approx(of_wide[[0, 2, 3]])
    assert of_narrow[1] > 1.05 * of_wide[1]
