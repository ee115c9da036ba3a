"""Prompts before answers: what that does to steps and to users who come together."""

from __future__ import annotations

import pytest
from membound.sim.run import simulate
from membound.sim.scenario.schema import Scenario

USERS, PROMPT, ANSWER = 32, 4096, 64


def served(scheduler: str, *, asynchronous: bool):
    return simulate(
        Scenario.model_validate(
            {
                "device": "h100_sxm",
                "model": "llama-3.1-8b",
                "scheduler": {"name": scheduler, "async_scheduling": asynchronous},
                "workload": {
                    "arrivals": {"kind": "closed_loop", "concurrency": USERS},
                    "requests": 4 * USERS,
                    "input_tokens": PROMPT,
                    "output_tokens": ANSWER,
                },
            }
        ),
        keep_steps=True,
    ).record


@pytest.mark.parametrize("asynchronous", [False, True])
def test_no_step_computes_prompts_beside_answers(asynchronous):
    record = served("prefill_first", asynchronous=asynchronous)
    prompts, answers = record.steps["n_prefill"], record.steps["n_decode"]
    assert not ((prompts > 0) & (answers > 0)).any()
    assert (record.requests["num_preemptions"] == 0).all()


def test_users_who_come_together_wait_for_each_other_s_prompts_and_then_answer_undisturbed():
    together, mixed = (served(name, asynchronous=True).requests for name in ("prefill_first", "vllm_v1"))

    def mean_s(requests, first, last):
        return float((requests[last] - requests[first]).mean()) / 1e9

    assert mean_s(together, "arrival_ns", "first_token_ns") > 1.5 * mean_s(
        mixed, "arrival_ns", "first_token_ns"
    )
    assert mean_s(together, "first_token_ns", "last_token_ns") < mean_s(
        mixed, "first_token_ns", "last_token_ns"
    )
    stays = [mean_s(requests, "arrival_ns", "last_token_ns") for requests in (together, mixed)]
    assert stays[0] == pytest.approx(stays[1], rel=0.15)
