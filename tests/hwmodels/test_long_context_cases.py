"""Reported cases of memory that did not suffice for long contexts."""

from __future__ import annotations

import pytest
from membound.hwmodels.capacity import kv_pool
from membound.hwmodels.device import load_device
from membound.hwmodels.engine import load_engine
from membound.hwmodels.model import load_model
from membound.hwmodels.pool import PoolSettings


@pytest.mark.parametrize("card", ["rtx_4090", "a10", "l4"])
def test_an_8b_model_on_24_gb_does_not_hold_its_default_length_and_the_safe_one_is_named(card: str) -> None:
    """LMCache/LMCache#3430: Qwen3-8B in BF16 runs out of memory on a 24 GB card with default settings."""
    device, engine, model = load_device(card), load_engine("vllm-0.15"), load_model("qwen3-8b")
    pool = kv_pool(device, engine, model)
    assert pool.max_model_len == 40960
    assert any(
        f"largest max_model_len that fits: {pool.largest_max_model_len:,}" in said for said in pool.warnings
    )
    safe = kv_pool(device, engine, model, settings=PoolSettings(max_model_len=pool.largest_max_model_len))
    assert 8192 < safe.max_model_len < 40960
    assert safe.request_blocks <= safe.usable_blocks
