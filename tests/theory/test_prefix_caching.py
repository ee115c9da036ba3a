"""What prefix caching does to waiting, against the sum of the batches."""

from __future__ import annotations

import numpy as np
import pytest

from ..invariants.harness import Case, Host, run

PROMPT, BLOCK = 400, 4


def mean_ttft(batches: int, size: int, ratio: float, caching: bool, host: Host | None = None) -> float:
    """Mean TTFT of ``batches`` times ``size`` equal prompts that arrive at once and share their beginning [ns]."""
    shared = list(range(round(ratio * PROMPT / BLOCK)))
    requests = tuple(
        {"arrival_ns": 0, "input_tokens": PROMPT, "output_tokens": 1, "block_hashes": shared}
        for _ in range(batches * size)
    )
    case = Case(
        requests, cost=(0, 1000), num_blocks=4000, block_size=BLOCK, max_model_len=1000, prefix_caching=caching,
        settings={"max_num_seqs": size, "max_num_batched_tokens": 100_000}, host=host or Host(),
    )  # fmt: skip
    found, _ = run(case)
    return float(np.mean(found["requests"]["first_token_ns"]))


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.9])
@pytest.mark.parametrize("batches", [1, 2, 5, 20])
@pytest.mark.parametrize("size", [1, 2, 8])
def test_mean_ttft_falls_by_what_the_batches_no_longer_compute(batches: int, size: int, ratio: float) -> None:
    """The first prompt alone is computed in full: batches of b take T (1 - r (b - 1) / b) and then T (1 - r) each.

    So the mean over k batches falls by r (k - 1 + 2 (b - 1) / b) / (k + 1), for pairs r k / (k + 1).
    """
    fall = 1 - mean_ttft(batches, size, ratio, True) / mean_ttft(batches, size, ratio, False)
    law = ratio * (batches - 1 + 2 * (size - 1) / size) / (batches + 1)
    assert fall == pytest.approx(law, rel=0.02)
    if size == 2:
        assert law == pytest.approx(ratio * batches / (batches + 1))


def test_a_tier_that_nobody_needs_costs_no_more_than_the_hbm_its_writes_take() -> None:
    """The one prompt and the rests are written once: 300 blocks of 0.7 us that hold a third of HBM meanwhile."""
    plain, hosted = (mean_ttft(5, 2, 0.5, True, host) for host in (None, Host(tiers=(("lru", 1000, True),))))
    assert plain <= hosted <= plain + 600 * 700 / 3
