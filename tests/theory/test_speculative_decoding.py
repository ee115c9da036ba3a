"""Speculation against its closed form, and the sign and size of published cases.

At batch 1 a round brings (1 - a^(k+1)) / (1 - a) tokens for k draft steps of c and a verification of v, both in units
of a plain step (Leviathan et al., ICML 2023; there v = 1).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from membound.hwmodels.speculation import SpeculativeStepModel
from membound.sim.run import simulate, step_model
from membound.sim.scenario import parse_scenario, resolve

INPUT, OUTPUT = 200, 2000
CASES = Path(__file__).resolve().parents[2].parent / "shared" / "cases" / "cases.jsonl"
TESTED = {"SP1", "SP3", "SP5", "SP7", "SP9"}


@pytest.mark.skipif(not CASES.is_file(), reason="no public cases beside the repository")
def test_every_case_of_speculative_decoding_has_its_test() -> None:
    cases = [json.loads(line) for line in CASES.read_text(encoding="utf-8").splitlines()]
    assert {case["id"] for case in cases if case["theme"] == "spec_decode"} == TESTED


def scenario(
    speculative: dict[str, Any] | None,
    concurrency: int = 1,
    requests: int = 4,
    output: int = OUTPUT,
    **changes: Any,
) -> Any:
    return parse_scenario(
        {
            "device": "h100_sxm",
            "model": "llama-3.1-8b",
            "kv_cache": {"max_model_len": 8192},
            "speculative": speculative,
            "workload": {
                "arrivals": {"kind": "closed_loop", "concurrency": concurrency},
                "input_tokens": INPUT,
                "output_tokens": output,
                "requests": requests,
            },
            **changes,
        }
    )


def tpot_s(speculative: dict[str, Any] | None, **changes: Any) -> float:
    return simulate(scenario(speculative, **changes)).summary()["latency"]["tpot_s"]["p50"]


def drafting(method: str, k: int, acceptance: object, **more: Any) -> dict[str, Any]:
    found = {"method": method, "num_speculative_tokens": k, "acceptance": acceptance, **more}
    return found | ({"draft_model": "llama-3.2-1b"} if method == "draft" else {})


def closed_form(speculative: dict[str, Any], a: float) -> float:
    """Speed-up by the step times at the mean context of the answer."""
    model = step_model(resolve(scenario(speculative)))
    assert isinstance(model, SpeculativeStepModel)
    k, context = model.passes, INPUT + OUTPUT // 2
    plain = model.plain.step_ns(1, context, context, [], 1)
    whole = model.step_ns(1, context + k, context + k, [], 1 + k)
    v = model.verify.step_ns(1, context + k, context + k, [], 1 + k) / plain
    c = (whole / plain - v) / k
    return (1 - a ** (k + 1)) / (1 - a) / (c * k + v)


@pytest.mark.parametrize(
    ("method", "k", "a"),
    [("draft", 4, 0.8), ("draft", 1, 0.6), ("eagle", 3, 0.7), ("eagle", 6, 0.9), ("ngram", 5, 0.4)],
)
@pytest.mark.parametrize(("mode", "requests"), [("expected", 2), ("sampled", 16)])
def test_speed_up_at_batch_1_is_the_closed_form(
    method: str, k: int, a: float, mode: str, requests: int
) -> None:
    asked = drafting(method, k, a, acceptance_mode=mode)
    result = simulate(scenario(asked, requests=requests)).record.requests
    tokens = (result["output_tokens"] - 1).sum()
    spent_s = (result["last_token_ns"] - result["first_token_ns"]).sum() / 1e9
    assert tpot_s(None) / (spent_s / tokens) == pytest.approx(closed_form(asked, a), rel=0.02)


def test_speculation_helps_at_batch_1_and_hurts_when_compute_bound() -> None:
    """Case SP7: a 0.5B draft for a 32B doubles the speed at low concurrency and costs a tenth at high.

    The case states no acceptance; 0.7 is assumed.
    """
    served = {"model": "qwen3-32b", "device": "h200_sxm"}
    asked = {**drafting("draft", 4, 0.7), "draft_model": "qwen3-0.6b"}
    assert tpot_s(None, output=400, **served) / tpot_s(asked, output=400, **served) == pytest.approx(
        2.0, abs=0.3
    )
    many = {"concurrency": 384, "requests": 384, "output": 64, **served}
    assert tpot_s(None, **many) / tpot_s(asked, **many) < 1.0
    kept = {**asked, "disable_by_batch_size": 64}
    assert tpot_s(None, **many) / tpot_s(kept, **many) == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(("k", "acceptance", "gain"), [(1, 0.82, 1.63), (1, 0.9, 1.76)])
def test_multi_token_prediction_of_deepseek_at_low_load(k: int, acceptance: float, gain: float) -> None:
    """Cases SP1 and SP5: 1.63 at 82 % accepted, 1.76 at 1.9 tokens a round; the ceiling is 1 + acceptance."""
    served = {"model": "deepseek-r1", "device": "h200_sxm", "parallelism": {"tensor_parallel_size": 8}}
    load = {"output": 300, "requests": 8, **served}
    found = tpot_s(None, **load) / tpot_s(drafting("mtp", k, acceptance), **load)
    assert found < 1 + acceptance
    assert found == pytest.approx(gain, rel=0.15)


def test_the_gain_shrinks_with_the_batch_at_equal_acceptance() -> None:
    """Case SP3: with one drafted token at 88 %, 1.6 at batch 4 falls to 1.0 at 256; the ceiling is 1.88 (SP1)."""
    gains: list[float] = []
    for batch in (4, 32, 256):
        load = {"concurrency": batch, "requests": batch, "output": 128}
        gains.append(tpot_s(None, **load) / tpot_s(drafting("eagle", 1, 0.88), **load))
    assert 1.88 > gains[0] > gains[1] > gains[2]
    assert gains[0] == pytest.approx(1.6, abs=0.2)
    assert gains[2] == pytest.approx(1.0, abs=0.35)


@pytest.mark.parametrize("concurrency", [1, 4, 8])
def test_acceptance_depends_on_text_and_position_not_on_load(concurrency: int) -> None:
    """Case SP9: positions accepted 77 % and 38 % of the time are 57.5 % overall, whatever the concurrency."""
    asked = drafting("eagle", 2, [0.769, 0.381])
    found = simulate(scenario(asked, concurrency=concurrency, requests=16, output=400)).summary()[
        "speculative"
    ]
    assert found["num_accepted_tokens"] / found["num_draft_tokens"] == pytest.approx(0.575, abs=0.02)
    assert found["mean_acceptance_length"] == pytest.approx(1 + 0.769 + 0.381, abs=0.04)


def test_several_tokens_of_a_step_are_one_emission() -> None:
    """All drafted tokens accepted: gaps between emissions are steps, of k + 1 tokens each."""
    summary = simulate(scenario(drafting("eagle", 3, 1.0), requests=2)).summary()
    assert summary["latency"]["itl_s"]["mean"] == pytest.approx(
        4 * summary["latency"]["tpot_s"]["p50"], rel=0.01
    )


def test_rejected_tokens_do_work_that_is_not_counted() -> None:
    useful = [
        simulate(scenario(drafting("eagle", 4, a), requests=2)).record.work["useful_flop_seconds"]
        for a in (0.1, 0.9)
    ]
    plain = simulate(scenario(None, requests=2)).record.work["useful_flop_seconds"]
    assert useful[0] == pytest.approx(plain, rel=0.01)
    assert useful[1] == pytest.approx(plain, rel=0.01)


def test_the_draft_takes_memory_from_the_kv_pool() -> None:
    plain = simulate(scenario(None, requests=1, output=8)).summary()["memory"]
    drafted = simulate(scenario(drafting("draft", 4, 0.8), requests=1, output=8)).summary()["memory"]
    # 16 layers of 8 heads of 64, keys and values in two bytes, beside 131,072 B of the target
    assert drafted["kv_bytes_per_token"] == plain["kv_bytes_per_token"] + 32768
    freed = plain["kv_pool_bytes"] - drafted["kv_pool_bytes"]
    assert freed == drafted["draft_weights_bytes"] == pytest.approx(2 * 1.236e9, rel=0.01)


def test_time_of_drafting_is_told_apart_and_no_time_is_lost() -> None:
    result = simulate(scenario(drafting("draft", 4, 0.8), requests=2), keep_steps=True)
    summary, steps = result.summary(), result.record.steps
    assert steps is not None
    assert sum(summary["time_share"].values()) == pytest.approx(1.0)
    share = summary["speculative"]["draft_time_share"]
    assert share == pytest.approx(steps["draft_ns"].sum() / result.record.busy_ns)
    assert 0.2 < share < 0.6
    assert any("unvalidated" in warning for warning in summary["confidence"]["warnings"])
