"""Prefix cache and tiers on a public trace, against an offline computation over the same sequence of blocks."""

from __future__ import annotations

import csv
import gzip
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
from membound.sim.output.result import SimulationResult
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario

TRACE = (
    Path(__file__).resolve().parents[2].parent
    / "shared" / "measured" / "traces" / "mooncake_conversation_first30min.csv.gz"
)  # fmt: skip
BLOCK = 512  # what one hash id of the trace covers [tokens]
BLOCK_BYTES = 128 * 1024 * BLOCK  # Llama-3.1-8B: 32 layers x 2 x 8 heads x 128 x 2 B a token
REQUESTS = 600
POOL, DRAM, NVME = 300, 4000, 9000  # blocks

pytestmark = pytest.mark.skipif(not TRACE.is_file(), reason="no traces beside the repository")


def served(tiers: list[dict[str, Any]], **changes: Any) -> SimulationResult:
    return simulate(
        parse_scenario(
            {
                "device": "h100_sxm", "model": "llama-3.1-8b", "engine": "vllm-0.24",
                "scheduler": {"max_num_batched_tokens": 131_072, "async_scheduling": False},
                "kv_cache": {"block_size": BLOCK, "num_gpu_blocks_override": POOL + 1, "tiers": tiers},
                "workload": {"trace": {"path": str(TRACE), "limit": REQUESTS}, **changes},
            }
        )
    )  # fmt: skip


def tier(kind: str, blocks: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "capacity": blocks * BLOCK_BYTES, **more}


class OfflineLRU:
    """Levels that each keep what was used last, one request after the other.

    The first level is the pool: a request takes what it needs, the oldest content goes, and in the end what it
    held becomes the latest, its first block last. The others are written through.
    """

    def __init__(self, pool: int, *below: int) -> None:
        self.room = pool
        self.pool: OrderedDict[object, None] = OrderedDict()
        self.below = [(size, OrderedDict[object, None]()) for size in below]
        self.hits = [0] * (1 + len(below))
        self.blocks = 0

    def serve(self, number: int, keys: list[object], usable: int, total: int, answered: int) -> None:
        """Serve a request that holds ``total`` blocks in the end.

        ``keys`` are all full blocks of its prompt, of which the first ``usable`` may be found; ``answered`` full
        blocks of its answer stay behind, which nobody asks for.
        """
        levels = self._find(keys, usable)
        for level in levels:
            self.hits[level] += 1
        in_pool = levels.count(0)
        for key in keys[:in_pool]:
            self.pool.pop(key)
        held = in_pool
        while held + len(self.pool) + (total - in_pool) > self.room:
            self.pool.popitem(last=False)
        self._restore(keys, levels)
        for index in range(len(keys) - 1, len(levels) - 1, -1):
            for size, content in self.below:
                self._use(content, size, keys[index])
        for key in reversed([(number, position) for position in range(answered)]):
            self.pool[key] = None
        for key in reversed(keys):
            self.pool.pop(key, None)
            self.pool[key] = None
        for size, content in self.below:
            for key in reversed(keys):
                if key in content:
                    self._use(content, size, key)

    def _find(self, keys: list[object], usable: int) -> list[int]:
        """Return the level that each leading block is found in: those of the pool first, then the others."""
        levels: list[int] = []
        for key in keys[:usable]:
            if key in self.pool and not any(levels):
                levels.append(0)
            elif found := [n for n, (_, content) in enumerate(self.below, 1) if key in content]:
                levels.append(found[0])
            else:
                break
        return levels

    def _restore(self, keys: list[object], levels: list[int]) -> None:
        for key, level in reversed(list(zip(keys, levels, strict=False))):
            for size, content in reversed(self.below[:level]):
                self._use(content, size, key)

    @staticmethod
    def _use(content: OrderedDict[object, None], size: int, key: object) -> None:
        content.pop(key, None)
        content[key] = None
        if len(content) > size:
            content.popitem(last=False)


def offline(*sizes: int) -> list[float]:
    """Return the share of all prompt tokens that each level has."""
    cache, tokens = OfflineLRU(*sizes), 0
    with gzip.open(TRACE, "rt", encoding="utf-8") as file:
        for number, row in zip(range(REQUESTS), csv.DictReader(file), strict=False):
            prompt, answer = int(row["input_tokens"]), int(row["output_tokens"])
            tokens += prompt
            ids = row["hash_ids"].strip("[]").replace(",", " ").split()
            keys: list[object] = [tuple(ids[: index + 1]) for index in range(prompt // BLOCK)]
            computed = prompt + answer - 1
            total = -(-computed // BLOCK)
            cache.serve(number, keys, (prompt - 1) // BLOCK, total, computed // BLOCK - len(keys))
    return [hits * BLOCK / tokens for hits in cache.hits]


ONE_AT_A_TIME = {"arrivals": {"kind": "closed_loop", "concurrency": 1}}


def rates(result: SimulationResult) -> list[float]:
    kv = result.summary()["kv"]
    if not kv["tiers"]:
        return [kv["prefix_hit_rate"]]
    found = [level["hit_rate"] for level in kv["tiers"].values()]
    assert sum(found) == pytest.approx(kv["prefix_hit_rate"], abs=1e-12), "every token is counted once"
    return found


@pytest.mark.parametrize(
    ("tiers", "sizes"),
    [
        ([], (POOL,)),
        ([tier("dram", DRAM)], (POOL, DRAM)),
        ([tier("dram", DRAM), tier("nvme", NVME)], (POOL, DRAM, NVME)),
    ],
)
def test_one_request_at_a_time_every_level_hits_as_computed_offline(
    tiers: list[dict[str, Any]], sizes: tuple[int, ...]
) -> None:
    assert rates(served(tiers, **ONE_AT_A_TIME)) == pytest.approx(offline(*sizes), abs=1e-12)


def test_where_requests_overlap_the_hit_rate_is_within_a_point() -> None:
    """Blocks in use are not evicted, and the order of last uses is that of the ends, not of the arrivals."""
    found = rates(served([tier("dram", DRAM)]))
    assert sum(found) == pytest.approx(sum(offline(POOL, DRAM)), abs=0.01)


def test_a_hit_in_a_tier_saves_prefill_and_costs_a_transfer() -> None:
    """Case F3: a reuse that is modelled changes the work and adds transfers."""
    plain, tiered = (served(tiers, **ONE_AT_A_TIME) for tiers in ([], [tier("dram", DRAM)]))
    assert rates(tiered)[1] > 0.02
    assert tiered.record.causes_ns["compute"] < 0.98 * plain.record.causes_ns["compute"]
    assert tiered.record.causes_ns["transfer"] > 0 == plain.record.causes_ns["transfer"]
    read = tiered.summary()["kv"]["tiers"]["dram"]
    assert read["read_bytes"] == read["hit_tokens"] * BLOCK_BYTES // BLOCK
    assert tiered.summary()["latency"]["ttft_s"]["mean"] < plain.summary()["latency"]["ttft_s"]["mean"]
