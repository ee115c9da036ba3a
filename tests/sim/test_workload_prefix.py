"""Laws of shared prefixes: equal keys where, and only where, whole blocks of the prefix are equal."""

from __future__ import annotations

from itertools import pairwise, takewhile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from membound.sim.workload.prefix import PrefixIds
from membound.sim.workload.trace.formats import Wanted
from membound.sim.workload.trace.read import read_trace

PROMPTS = st.lists(
    st.tuples(st.lists(st.integers(0, 3), max_size=6), st.integers(1, 80)), min_size=1, max_size=8
)


def ids_of(prompts: list[tuple[list[int], int]], block_tokens: int) -> PrefixIds:
    offsets = np.concatenate([[0], np.cumsum([len(ids) for ids, _ in prompts])])
    flat = np.array([one for ids, _ in prompts for one in ids], dtype=np.uint64)
    return PrefixIds(offsets, flat, block_tokens)


def keys_of(prompts: list[tuple[list[int], int]], block_tokens: int, block_size: int) -> list[list[int]]:
    lengths = np.array([length for _, length in prompts])
    keys, ends = ids_of(prompts, block_tokens).block_keys(0, len(prompts), lengths, block_size)
    return [keys[a:b].tolist() for a, b in pairwise(ends)]


def common(a: list[int], b: list[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(a, b, strict=False)))


@given(prompts=PROMPTS, ratio=st.integers(1, 4), block_size=st.integers(1, 5))
@settings(deadline=None, max_examples=150)
def test_two_prompts_share_exactly_the_full_blocks_of_their_common_ids(
    prompts: list[tuple[list[int], int]], ratio: int, block_size: int
) -> None:
    block_tokens = ratio * block_size
    keys = keys_of(prompts, block_tokens, block_size)
    for (ids, length), mine in zip(prompts, keys, strict=True):
        assert len(mine) == min(length, len(ids) * block_tokens) // block_size
        assert len(set(mine)) == len(mine)
    for a in range(len(prompts)):
        for b in range(a):
            shared_tokens = common(prompts[a][0], prompts[b][0]) * block_tokens
            full = min(shared_tokens // block_size, len(keys[a]), len(keys[b]))
            assert common(keys[a], keys[b]) == full
            assert not set(keys[a][full:]) & set(keys[b])


@given(prompts=PROMPTS, block_size=st.integers(1, 9))
@settings(deadline=None, max_examples=60)
def test_keys_do_not_depend_on_which_requests_are_looked_at_together(
    prompts: list[tuple[list[int], int]], block_size: int
) -> None:
    lengths = np.array([length for _, length in prompts])
    prefix = ids_of(prompts, 8)
    together = keys_of(prompts, 8, block_size)
    for row in range(len(prompts)):
        alone, _ = prefix.block_keys(row, row + 1, lengths[row : row + 1], block_size)
        assert alone.tolist() == together[row]


def test_the_same_ids_after_another_beginning_are_another_prefix() -> None:
    (first, second) = keys_of([([1, 7, 8], 24), ([2, 7, 8], 24)], 8, 8)
    assert not set(first) & set(second)


def test_a_block_over_two_ids_is_shared_where_both_agree() -> None:
    (a, b, c) = keys_of([([1, 2], 16), ([1, 3], 16), ([1, 2], 16)], 8, 6)
    assert a == c
    assert common(a, b) == 1


def test_requests_that_agree_in_the_named_columns_repeat_one_whole_prompt(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrival_s,input_tokens,output_tokens,tenant\n0,100,5,a\n1,100,5,b\n2,100,5,a\n3,101,5,a\n"
    )
    requests = list(read_trace(Wanted(str(path), extra=("tenant", "input_tokens"))).iter_requests(16))
    hashes = [request.block_hashes for request in requests]
    assert [len(one) for one in hashes] == [6, 6, 6, 6]
    assert hashes[0] == hashes[2]
    assert len({*hashes[0], *hashes[1], *hashes[3]}) == 18
    with pytest.raises(ValueError, match=r"line 1: unknown column 'tenants'; nearest: 'tenant'"):
        read_trace(Wanted(str(path), extra=("tenants",)))


def test_without_ids_or_without_a_block_size_nothing_is_shared(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,hash_ids\n0,600,5,1 2\n")
    load = read_trace(Wanted(str(path)))
    assert [len(request.block_hashes) for request in load.iter_requests()] == [0]
    assert [len(request.block_hashes) for request in load.iter_requests(16)] == [37]


def test_sorting_and_limiting_keep_ids_with_their_requests(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "arrival_s,input_tokens,output_tokens,hash_ids\n2,1024,5,8 9\n0,512,5,1\n1,1536,5,8 9 10\n3,512,5,8\n"
    )
    hashes = [request.block_hashes for request in read_trace(Wanted(str(path)), limit=3).iter_requests(512)]
    assert [len(one) for one in hashes] == [1, 3, 2]
    assert hashes[1][:2] == hashes[2]
    assert hashes[0][0] not in hashes[1]


def test_the_repeated_share_is_that_of_full_blocks_seen_before(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrival_s,input_tokens,output_tokens,hash_ids\n0,1024,5,8 9\n1,1024,5,8 10\n2,512,5,\n")
    assert read_trace(Wanted(str(path))).summary()["repeated_prefix_share"] == pytest.approx(32 / 160)
