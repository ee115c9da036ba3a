"""Decode attention of batches of which a few sequences are four times as long, on two cards: its mean length decides.

The measured kernel reads each query head's keys anew there (it packs no groups), so all of it takes longer by one
factor a card, which is not what is asked here.
"""

from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from membound.hwmodels.device import load_device
from membound.hwmodels.engine import load_engine
from membound.hwmodels.model import load_model
from membound.hwmodels.stepmodel import StepModel

TABLE = Path(__file__).parents[3] / "shared/measured/kernels/attention_mixed_llmservingsim.parquet"
CARDS = {"RTX4090": "rtx_4090", "RTXPRO6000": "rtx_pro_6000"}
SEQUENCES = (64, 128, 256)

pytestmark = pytest.mark.skipif(not TABLE.is_file(), reason="the measured kernels (../shared) are not here")


def skewed(card):
    """Return decoding sequences, summed and longest keys, and the measured time of every skewed batch [us]."""
    table = pq.read_table(TABLE)
    chosen = pc.and_(pc.equal(table["gpu"].cast("string"), card), pc.equal(table["tp"], 1))
    chosen = pc.and_(chosen, pc.equal(table["regime"].cast("string"), "skew:pure"))
    chosen = pc.and_(
        chosen, pc.is_in(table["n_decode"], value_set=pc.cast(SEQUENCES, table["n_decode"].type))
    )
    rows = table.filter(chosen).to_pylist()
    columns = ("n_decode", "kv_big", "n_big", "kv_small", "latency_us")
    n, big, count, small, latency = (np.array([row[name] for row in rows]) for name in columns)
    return n, count * big + (n - count) * small, big, latency


@pytest.mark.parametrize("card", CARDS)
def test_a_batch_of_mixed_lengths_takes_the_time_of_its_mean_length_and_not_of_its_longest(card):
    step = StepModel(load_device(CARDS[card]), load_engine("vllm-0.24"), load_model("llama-3.1-8b"))
    (kind,) = step.kinds
    n, sums, longest, latency = skewed(card)
    assert len(n) > 100

    def error_but_for_one_factor(sums):
        found = [
            kind.terms(int(b), kind.span(int(b), int(s), int(m))).seconds(float(s))
            for b, s, m in zip(n, sums, longest, strict=True)
        ]
        ratio = latency / np.array(found)
        return float(np.median(np.abs(ratio / np.median(ratio) - 1.0)))

    assert error_but_for_one_factor(sums) <= 0.10
    assert error_but_for_one_factor(n * longest) >= 0.25
