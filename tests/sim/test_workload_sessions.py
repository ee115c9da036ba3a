"""Prompts that begin alike or come again: what of them a prefix cache finds."""

from __future__ import annotations

import json
from pathlib import Path
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


def served(**load: Any) -> dict[str, Any]:
    return simulate(parse_scenario(SERVED | {"workload": LOAD | load})).record.requests


def test_a_turn_comes_so_long_after_the_answer_to_the_one_before() -> None:
    sessions = {"turns": 3, "think_time_s": 2.5}
    requests = served(sessions=sessions, requests=12)
    arrival, last = requests["arrival_ns"].reshape(4, 3), requests["last_token_ns"].reshape(4, 3)
    turnaround = arrival[:, 1:] - last[:, :-1] - 2_500_000_000
    assert (turnaround == turnaround[0, 0]).all()
    assert 0 <= turnaround[0, 0] < 20_000_000  # the engine's client
    assert arrival[:, 0].tolist() == [0, 10**9, 2 * 10**9, 3 * 10**9]
    assert requests["input_tokens"].reshape(4, 3).tolist() == [[200, 416, 632]] * 4
    found = [216 * turn // 16 * 16 for turn in (0, 1, 2)]
    assert np.abs(requests["num_cached_tokens"].reshape(4, 3) - found).max() <= 16


def test_a_tool_s_result_comes_back_after_its_delay_and_holds_all_that_was_said() -> None:
    sessions = {
        "think_time_s": 0,
        "tool_calls": 2,
        "tool_delay_s": 1.5,
        "tool_tokens": 50,
        "system_prompt_tokens": 32,
    }
    requests = served(sessions=sessions, requests=6)
    assert requests["input_tokens"].tolist() == [232, 298, 364] * 2
    gaps = requests["arrival_ns"].reshape(2, 3)[:, 1:] - requests["last_token_ns"].reshape(2, 3)[:, :-1]
    assert (gaps >= 1_500_000_000).all()
    assert (gaps < 1_520_000_000).all()
    assert requests["session"].tolist() == [0, 0, 0, 1, 1, 1]


def test_pauses_are_drawn_alike_whatever_the_engine_does() -> None:
    sessions = {"turns": 30, "think_time_s": 1.0, "pauses": "exponential"}
    load = build_workload(WorkloadSpec.model_validate(LOAD | {"sessions": sessions, "requests": 3000}))
    assert load.follows is not None
    later = load.follows.after >= 0
    assert later.sum() == 2900
    assert load.follows.pause_ns[later].mean() == pytest.approx(1e9, rel=0.05)
    assert (load.follows.after[later] == np.flatnonzero(later) - 1).all()


def test_users_of_a_closed_loop_end_a_conversation_before_they_begin_the_next() -> None:
    sessions = {"turns": 4, "think_time_s": 0.25}
    requests = served(arrivals={"kind": "closed_loop", "concurrency": 2}, sessions=sessions, requests=24)
    first, last = requests["arrival_ns"][::4], requests["last_token_ns"][3::4]
    at_once = [int(((first <= begin) & (begin < last)).sum()) for begin in first.tolist()]
    assert max(at_once) == 2
    assert (np.sort(first)[2:] >= np.sort(last)[:-2]).all()


def test_sets_of_examples_are_shared_behind_the_system_prompt_they_belong_to() -> None:
    sessions = {
        "groups": 2, "prompts_per_group": 6, "system_prompt_tokens": 32, "few_shot_sets": 3, "few_shot_tokens": 64,
    }  # fmt: skip
    found = hashes(sessions=sessions, input_tokens=64)
    shared = [[sum(a == b for a, b in zip(one, two, strict=True)) for two in found] for one in found]
    assert shared[0][:8] == [10, 0, 2, 0, 2, 0, 6, 0]


def test_a_rejected_turn_is_followed_by_the_next_all_the_same() -> None:
    requests = served(input_tokens=5000, sessions={"turns": 4, "think_time_s": 0}, requests=4)
    assert len(requests["index"]) == 4
    assert (np.diff(requests["arrival_ns"]) >= 0).all()


@pytest.mark.parametrize("kind", ["csv", "mooncake"])
def test_turns_of_a_trace_that_states_pauses_follow_the_answers(kind: str, tmp_path: Path) -> None:
    """Session a: turns at 0 s, then 2 s after each answer; a row that states no pause arrives when it says."""
    path = tmp_path / "trace"
    rows = [
        ("a", 0, 0.0, None),
        ("b", 0, 0.5, None),
        ("a", 1, 1.0, 2.0),
        ("b", 1, 9.0, None),
        ("a", 2, 2.0, 2.0),
    ]
    if kind == "csv":
        lines = [
            f"{at},100,5,{name},{turn},{'' if pause is None else pause}" for name, turn, at, pause in rows
        ]
        header = "arrival_s,input_tokens,output_tokens,session_id,turn,think_time_s"
    else:
        header, *lines = [
            json.dumps({"timestamp": 1000 * at, "input_length": 100, "output_length": 5, "session_id": name}
                       | ({} if pause is None else {"delay": 1000 * pause}))
            for name, _, at, pause in rows
        ]  # fmt: skip
    path.write_text("\n".join([header, *lines]) + "\n")
    found = simulate(parse_scenario(SERVED | {"workload": {"trace": {"path": str(path)}}})).record.requests
    order = [0, 2, 3]  # sorted by what the file says of arrivals
    pauses = found["arrival_ns"][order][1:] - found["last_token_ns"][order][:-1]
    assert pauses.tolist() == [2 * 10**9] * 2
    assert found["arrival_ns"][[1, 4]].tolist() == [500_000_000, 9 * 10**9]


def test_what_does_not_wait_for_answers_calls_no_tools() -> None:
    with pytest.raises(ScenarioError, match="tool_calls follow answers"):
        parse_scenario(SERVED | {"workload": LOAD}, ["workload.sessions={tool_calls: 2}"])
    with pytest.raises(ScenarioError, match="the arrivals begin conversations"):
        parse_scenario(
            SERVED | {"workload": LOAD}, ["workload.sessions={think_time_s: 1, prompts_per_group: 2}"]
        )


def test_conversations_that_pause_run_the_same_with_jumps_as_without() -> None:
    sessions = {
        "turns": 3,
        "think_time_s": 0.02,
        "tool_calls": 1,
        "tool_delay_s": 0.01,
        "pauses": "exponential",
    }
    load = {"arrivals": {"kind": "poisson", "rate_per_s": 30}, "sessions": sessions, "requests": 90}
    fast, plain = (
        simulate(
            parse_scenario(SERVED | {"workload": LOAD | load}, [f"simulation.fast_forward={value}"])
        ).record
        for value in ("true", "false")
    )
    for name, column in plain.requests.items():
        np.testing.assert_array_equal(fast.requests[name], column, err_msg=name)
