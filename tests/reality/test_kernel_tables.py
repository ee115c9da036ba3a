"""Kernel times against public tables: what the starting values of the lanes promise.

Only rows that no calibration is judged on are read: shapes and lengths held out for judging are left alone.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from membound.hwmodels.device import load_device
from membound.hwmodels.steptypes import chip_of
from membound.hwmodels.timing.decode_attention import DecodeParams, decode_shape, decode_terms, warm_share
from membound.hwmodels.timing.decodes_beside import BesideParams, Chunks, beside_time
from membound.hwmodels.timing.gemm import GemmParams, gemm_time
from membound.hwmodels.timing.prefill_attention import PrefillParams, prefill_form, prefill_shape
from numpy.typing import NDArray

TABLES = Path(__file__).parents[2] / ".." / "shared" / "measured" / "kernels"
pytestmark = pytest.mark.skipif(not TABLES.is_dir(), reason="the measured tables (../shared) are not here")

Array = NDArray[np.float64]
DEVICE = {"h100_sxm": "h100_sxm", "a100_sxm": "a100_sxm_80gb", "b200_sxm": "b200_sxm", "l40s": "l40s"}
JUDGED_WIDTHS, JUDGED_HEADS = [2560, 3584, 5120, 10240], [5, 10, 12, 20, 24, 40]


def table(gpu: str, op: str, columns: list[str], **equal: str) -> dict[str, Array]:
    """Read columns of the vLLM rows of one operator."""
    import pyarrow.parquet as pq

    filters = [
        ("framework", "=", "vllm"),
        ("op", "=", op),
        *((key, "=", value) for key, value in equal.items()),
    ]
    read = pq.read_table(  # pyright: ignore[reportUnknownMemberType]
        TABLES / f"kernels_aic_{gpu}.parquet", columns=[*columns, "latency_us"], filters=filters
    )
    return {name: np.array(read[name].to_pylist(), dtype=object) for name in read.column_names}


def numbers(read: dict[str, Array], *names: str) -> list[Array]:
    return [read[name].astype(float) for name in names]


def mape(predicted_s: Array, measured_us: Array) -> float:
    return 100.0 * float(np.mean(np.abs(predicted_s * 1e6 / measured_us - 1.0)))


@pytest.mark.parametrize(
    ("gpu", "bar"), [("h100_sxm", 6.5), ("a100_sxm", 9.0), ("b200_sxm", 8.0), ("l40s", 13.0)]
)
def test_bf16_gemm(gpu: str, bar: float) -> None:
    device = load_device(DEVICE[gpu])
    m, n, k, measured = numbers(
        table(gpu, "gemm", ["m", "n", "k"], dtype="bfloat16"), "m", "n", "k", "latency_us"
    )
    kept = ~np.isin(n, JUDGED_WIDTHS) & ~np.isin(k, JUDGED_WIDTHS) & (m <= 2048)
    lane = GemmParams.from_lane(device.lane("gemm"))
    predicted = np.asarray(gemm_time(chip_of(device), lane, m[kept], n[kept], k[kept], warm=True).seconds)
    assert mape(predicted, measured[kept]) < bar


ATTENTION = ["batch", "q_len", "kv_len", "n_heads", "n_kv_heads", "head_dim", "window"]


def attention_rows(gpu: str, op: str) -> tuple[list[tuple[int, ...]], Array]:
    """Return the kept rows of grouped-query attention with heads of 128, and their latencies [us]."""
    read = table(gpu, op, ATTENTION, kv_dtype="bfloat16")
    batch, kv_len, heads, kv_heads, dim = numbers(
        read, "batch", "kv_len", "n_heads", "n_kv_heads", "head_dim"
    )
    full = np.array([not window for window in read["window"]]) & ((kv_len > 1) | (op == "attn_decode"))
    kept = full & ~np.isin(heads, JUDGED_HEADS) & (kv_len <= 2048) & (dim == 128) & (heads > kv_heads)
    rows = zip(
        *(column[kept].astype(int).tolist() for column in (batch, kv_len, heads, kv_heads, dim)), strict=True
    )
    return list(rows), read["latency_us"][kept].astype(float)


@pytest.mark.parametrize(
    ("gpu", "bar"), [("h100_sxm", 6.5), ("a100_sxm", 6.5), ("b200_sxm", 7.5), ("l40s", 6.0)]
)
def test_decode_attention(gpu: str, bar: float) -> None:
    device = load_device(DEVICE[gpu])
    chip, lane = chip_of(device), DecodeParams.from_lane(device.lane("decode_attention"))
    rows, measured = attention_rows(gpu, "attn_decode")
    predicted: list[float] = []
    for batch, length, heads, kv_heads, dim in rows:
        shape = decode_shape(lane, heads, kv_heads, dim)
        warm = warm_share(chip, lane, shape, batch, batch * length)
        terms = decode_terms(chip, lane, shape, batch, length, resident=warm)
        predicted.append(float(terms.seconds(float(batch * length))))
    assert mape(np.array(predicted), measured) < bar


@pytest.mark.parametrize(
    ("gpu", "bar"), [("h100_sxm", 7.5), ("a100_sxm", 13.5), ("b200_sxm", 9.5), ("l40s", 17.0)]
)
def test_prefill_attention(gpu: str, bar: float) -> None:
    device = load_device(DEVICE[gpu])
    chip = chip_of(device)
    lane = PrefillParams.from_lane(device.lane("prefill_attention"), device.lane("gemm"))
    rows, measured = attention_rows(gpu, "attn_prefill")
    predicted = [
        lane.t0 + prefill_form(chip, lane, prefill_shape(heads, kv_heads, dim)).body([(length, 0)] * batch)
        for batch, length, heads, kv_heads, dim in rows
    ]
    assert mape(np.array(predicted), measured) < bar


def test_single_prompts_on_h100_within_the_bar_of_their_class_from_512_tokens_on() -> None:
    device = load_device("h100_sxm")
    chip = chip_of(device)
    lane = PrefillParams.from_lane(device.lane("prefill_attention"), device.lane("gemm"))
    form = prefill_form(chip, lane, prefill_shape(32, 8, 128))
    rows, measured = attention_rows("h100_sxm", "attn_prefill")
    off = [
        (lane.t0 + form.body([(length, 0)])) * 1e6 / us - 1.0
        for (batch, length, heads, kv_heads, _), us in zip(rows, measured, strict=True)
        if batch == 1 and (heads, kv_heads) == (32, 8) and length >= 512
    ]
    assert len(off) >= 4
    assert np.max(np.abs(off)) < 0.08


STREAMED = {"layernorm": 4 * 4096 * 2, "act_fn": 3 * 14336 * 2, "rotary_emb": 2 * (32 + 8) * 128 * 2}
"""What the kernels of a Llama-3.1-8B layer move per token [B]."""


@pytest.mark.parametrize(
    ("gpu", "device", "bar"), [("RTX4090", "rtx_4090", 10.0), ("RTXPRO6000", "rtx_pro_6000", 28.0)]
)
def test_decodes_in_one_call_with_a_chunk_are_tiles_of_a_row_beside_full_ones(
    gpu: str, device: str, bar: float
) -> None:
    # Alone, FlashAttention-2 packs the queries of a group into a tile and splits the keys; beside a chunk it does not.
    import pyarrow.parquet as pq

    names = ["q_len_prefill", "kv_prefill", "n_decode", "kv_decode"]
    read = pq.read_table(  # pyright: ignore[reportUnknownMemberType]
        TABLES / "attention_mixed_llmservingsim.parquet",
        columns=[*names, "latency_us"],
        filters=[("gpu", "=", gpu), ("tp", "=", 1), ("regime", "=", "uniform"), ("q_len_prefill", ">", 0),
                 ("n_decode", ">", 0), ("kv_prefill", "<=", 2048), ("kv_decode", "<=", 2048)],
    )  # fmt: skip
    columns = [np.array(read[name].to_pylist(), dtype=float) for name in (*names, "latency_us")]
    one_pool = columns[2] * columns[3] <= 128 * 1024  # beyond, the RTX 4090's take 1.7 times as long
    new, cached, batch, context, measured = (column[one_pool] for column in columns)
    profile = load_device(device)
    chip = chip_of(profile)
    chunk = PrefillParams.from_lane(profile.lane("prefill_attention"), profile.lane("gemm"))
    form, starts = prefill_form(chip, chunk, prefill_shape(32, 8, 128)), np.arange(len(new))
    beside = BesideParams.from_lane(profile.lane("mixed_attention"))
    chunks = form.time_many(new, cached, starts).seconds
    added = beside_time(form, beside, Chunks.of(form, new, cached, starts), batch, batch * context, context)
    assert mape(np.asarray(chunks + added.seconds), measured) < bar

    decode = DecodeParams.from_lane(profile.lane("decode_attention"))
    alone = decode_shape(decode, 32, 8, 128)
    some = slice(None, None, 17)
    apart = np.array([
        decode_terms(chip, decode, alone, int(b), int(c)).seconds(b * c)
        for b, c in zip(batch[some].tolist(), context[some].tolist(), strict=True)
    ])  # fmt: skip
    best = min(mape(np.asarray(chunks[some] + f * apart), measured[some]) for f in np.arange(1.0, 4.0, 0.1))
    assert best > 1.4 * mape(np.asarray((chunks + added.seconds)[some]), measured[some])
