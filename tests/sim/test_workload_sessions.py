"""Prompts that begin alike or come again: what of them a prefix cache finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from membound.sim.fields import ScenarioError
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario
from membound.sim.workload.build import build_workload
from membound.sim.workload.spec import WorkloadSpec

LOAD: dict[str, Any] = {
    "arrivals": {"kind": "constant", "rate_per_s": 1},
    "input_tokens": 200,
    "output_tokens": 16,
    "requests": 12,
}
SERVED: dict[str, Any] = {"device": "h100_sxm", "model": "llama-3.1-8b", "kv_cache": {"max_model_len": 8192}}


def hashes(block_size: int = 16, **load: Any) -> list[list[int]]:
    workload = build_workload(WorkloadSpec.model_validate(LOAD | load))
    return [list(request.block_hashes) for request in workload.iter_requests(block_size)]


def hit_tokens(**load: Any) -> int:
    result = simulate(parse_scenario(SERVED | {"workload": LOAD | load}))
    return int(result.record.kv["prefix_hit_tokens"])


def test_a_prompt_that_comes_again_is_the_same_in_every_block() -> None:
    found = hashes(sessions={"groups": 2, "prompts_per_group": 2, "system_prompt_tokens": 64})
    assert found[0] == found[4] == found[8]
    assert len({tuple(each) for each in found}) == 4


def test_prompts_of_one_group_share_the_whole_blocks_of_their_system_prompt() -> None:
    found = hashes(sessions={"groups": 2, "prompts_per_group": 2, "system_prompt_tokens": 70})
    same = [a == b for a, b in zip(found[0], found[2], strict=True)]
    assert same == [True] * 4 + [False] * 12  # 70 tokens hold four blocks of 16; 270 tokens hold 16
    assert found[0][0] != found[1][0]


def test_all_but_the_last_block_of_a_repeated_prompt_is_found_and_its_first_sight_computed() -> None:
    # 12 requests, 3 prompts of 256 tokens: 9 repeats, each of which finds 15 of 16 blocks (the last token is
    # always computed); the second and third prompt find the 64 tokens of their system prompt.
    sessions = {"prompts_per_group": 3, "system_prompt_tokens": 64}
    assert hit_tokens(sessions=sessions, input_tokens=192) == 9 * 240 + 2 * 64


def test_a_later_turn_finds_the_whole_conversation_so_far() -> None:
    # One conversation of 4 turns: prompts of 200, 416, 632, 848 tokens. A turn computes a token of its answer
    # last that the cache has not: 215 of the first 216 are there, so 13 blocks of 16.
    load = {"requests": 4, "sessions": {"turns": 4}}
    workload = build_workload(WorkloadSpec.model_validate(LOAD | load))
    assert workload.input_tokens.tolist() == [200, 416, 632, 848]
    assert hit_tokens(**load) == sum((216 * turn - 1) // 16 * 16 for turn in (1, 2, 3))


def test_a_conversation_ends_and_the_next_shares_only_the_system_prompt() -> None:
    load = {"sessions": {"turns": 2, "system_prompt_tokens": 32}, "requests": 4}
    workload = build_workload(WorkloadSpec.model_validate(LOAD | load))
    assert workload.input_tokens.tolist() == [232, 448, 232, 448]
    first, second, third, _ = hashes(**load)
    assert first == second[: len(first)]
    assert third[:2] == first[:2]
    assert third[2] != first[2]


def test_a_random_order_asks_every_prompt_about_as_often() -> None:
    load = {"requests": 4000, "sessions": {"prompts_per_group": 4, "order": "random"}}
    workload = build_workload(WorkloadSpec.model_validate(LOAD | load))
    assert workload.session is not None
    counts = np.bincount(workload.session)
    assert counts.min() > 900
    assert not np.array_equal(workload.session[:8], np.arange(8) % 4)


@pytest.mark.parametrize("sessions", ["{turns: 0}", "{users: 3}", "{order: sorted}"])
def test_sessions_that_cannot_be_are_refused_in_one_line(sessions: str) -> None:
    with pytest.raises(ScenarioError, match=r"workload\.sessions") as caught:
        parse_scenario(SERVED | {"workload": LOAD}, [f"workload.sessions={sessions}"])
    assert "\n" not in str(caught.value)


def test_a_cap_on_requests_in_flight_sends_late_what_does_not_fit() -> None:
    # A request a millisecond, far more than one at a time can be served: the cap makes them one after another.
    fast = {"arrivals": {"kind": "constant", "rate_per_s": 1000}, "max_concurrency": 1}
    record = simulate(parse_scenario(SERVED | {"workload": LOAD | fast})).record
    arrivals, ends = record.requests["arrival_ns"], record.requests["last_token_ns"]
    assert (arrivals[1:] >= ends[:-1]).all()
    assert (record.requests["first_scheduled_ns"] == arrivals).all()


def test_a_cap_that_is_never_reached_changes_nothing() -> None:
    free, capped = (
        simulate(parse_scenario(SERVED | {"workload": LOAD | extra})).summary()["latency"]
        for extra in ({}, {"max_concurrency": 12})
    )
    assert free == capped


def test_a_closed_loop_has_no_cap_beside_its_concurrency() -> None:
    load = LOAD | {"arrivals": {"kind": "closed_loop", "concurrency": 2}, "max_concurrency": 2}
    with pytest.raises(ScenarioError, match="closed loop has its concurrency"):
        parse_scenario(SERVED | {"workload": load})
