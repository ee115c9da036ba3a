"""A speculative section that cannot be is refused in one line, by what is wrong with it."""

from __future__ import annotations

import numpy as np
import pytest
from membound.hwmodels.errors import MemboundError
from membound.sim.engine.speculative import Speculation
from membound.sim.run import simulate
from membound.sim.scenario import parse_scenario, resolve

from .test_nothing_is_ignored import SCENARIO


@pytest.mark.parametrize(
    ("section", "says"),
    [
        ("{method: draft, num_speculative_tokens: 4, acceptance: 0.8}", "needs draft_model"),
        (
            "{method: eagle, draft_model: llama-3.2-1b, num_speculative_tokens: 4, acceptance: 0.8}",
            "no draft_model",
        ),
        (
            "{method: draft, draft_model: lama-3.2-1b, num_speculative_tokens: 4, acceptance: 0.8}",
            "llama-3.2-1b",
        ),
        ("{method: mtp, num_speculative_tokens: 1, acceptance: 0.8}", "multi-token-prediction"),
        ("{method: medusa, num_speculative_tokens: 1, acceptance: 0.8}", "allowed: draft, ngram, eagle, mtp"),
        ("{method: eagle, num_speculative_tokens: 3, acceptance: [0.8, 0.6]}", "2 positions"),
        ("{method: eagle, num_speculative_tokens: 2, acceptance: [0.6, 0.8]}", "rises"),
        ("{method: eagle, num_speculative_tokens: 2, acceptance: 1.2}", "1.2"),
        ("{method: ngram, num_speculative_tokens: 2, width: 2, acceptance: 0.8}", "width 1"),
        ("{method: eagle, num_speculative_tokens: 2, acceptance: 0.8, depth: 3}", "depth"),
    ],
)
def test_a_section_that_cannot_be_is_refused(section: str, says: str) -> None:
    with pytest.raises(MemboundError) as caught:
        resolve(parse_scenario(SCENARIO, [f"speculative={section}"]))
    text = str(caught.value)
    assert "\n" not in text
    assert says in text, text


@pytest.mark.parametrize(
    ("sets", "says"),
    [
        (["scheduler.name=orca"], "allowed with speculative: vllm_v1"),
        (["kv_cache.allocator=contiguous"], "allowed with speculative: paged"),
        (["scheduler.max_num_batched_tokens=4"], "scheduler.max_num_batched_tokens, 4"),
        (["scheduler.async_scheduling=true"], "looked up on the host"),
    ],
)
def test_what_cannot_go_with_speculation_is_refused(sets: list[str], says: str) -> None:
    asked = "speculative={method: ngram, num_speculative_tokens: 4, acceptance: 0.8}"
    with pytest.raises(MemboundError, match=says):
        resolve(parse_scenario(SCENARIO, [asked, *sets]))


def test_n_grams_compose_synchronously_and_heads_ahead_as_in_vllm() -> None:
    """VLLM's asynchronous scheduling knows EAGLE, MTP and draft models; n-grams are looked up between two steps."""

    def ahead(method: str) -> bool:
        section = f"speculative={{method: {method}, num_speculative_tokens: 4, acceptance: 0.8}}"
        return resolve(parse_scenario(SCENARIO, [section])).scheduler.async_scheduling

    assert ahead("eagle")
    assert not ahead("ngram")


def test_fast_forward_of_real_steps_is_exact() -> None:
    for method in ("ngram", "eagle"):
        section = f"speculative={{method: {method}, num_speculative_tokens: 4, acceptance: 0.7}}"
        runs = [
            simulate(parse_scenario(SCENARIO, [section, f"simulation.fast_forward={on}"])).summary()
            for on in ("true", "false")
        ]
        for key in ("latency", "throughput", "time_share", "utilization", "kv", "speculative"):
            assert runs[0][key] == runs[1][key], (method, key)


def test_draws_belong_to_a_request_and_a_round() -> None:
    """Whoever asks, in whatever pieces, gets the same; the mean is what was asked for."""
    rules, again = Speculation((0.8, 0.5)), Speculation((0.8, 0.5))
    whole = rules.accepted(7, 0, 200)
    parts = np.concatenate([again.accepted(7, 130, 70), again.accepted(7, 0, 130)])
    assert np.array_equal(np.roll(parts, 130), whole)
    everyone = np.concatenate([rules.accepted(index, 0, 200) for index in range(200)])
    assert (everyone >= 1).mean() == pytest.approx(0.8, abs=0.01)
    assert (everyone >= 2).mean() == pytest.approx(0.5, abs=0.01)


def test_the_expected_mode_gives_the_mean_exactly() -> None:
    rules = Speculation((0.8, 0.64, 0.512), mode="expected")
    assert rules.accepted(3, 0, 1000).sum() == 1952
    tokens, cut = rules.emitted(3, 0, 100)
    assert (tokens[0], tokens[-1]) == (0, 100)
    assert 0 <= cut <= 3
