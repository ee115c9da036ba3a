"""Why a long answer slows down: gaps between tokens grow by the KV bytes read over the bandwidth achieved."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from membound.benchmarks.long_answer import EXAMPLE, LongAnswers, long_answers
from membound.hwmodels.device import load_device
from membound.sim.metrics.latency import itl_by_position
from membound.sim.output.result import SimulationResult
from membound.sim.run import simulate, step_model
from membound.sim.scenario import Scenario, load_scenario
from membound.sim.scenario.resolve import resolve

EVERY_KIB = tuple(range(1024, 16_384, 1024))


@cache
def example(device: str = "h100_sxm", model: str = "llama-3.1-8b") -> LongAnswers:
    return long_answers(load_scenario(EXAMPLE).replace(device=device, model=model), EVERY_KIB)


def lockstep(batch: int, prompt: int, answer: int, **changes: object) -> Scenario:
    """Return one batch of equal requests whose prompts fit one step: they decode side by side to the end."""
    return load_scenario(EXAMPLE).replace(
        workload__arrivals__concurrency=batch,
        workload__requests=batch,
        workload__input_tokens=prompt,
        workload__output_tokens=answer,
        **changes,
    )


@cache
def run(batch: int, prompt: int, answer: int) -> SimulationResult:
    return simulate(lockstep(batch, prompt, answer))


@pytest.mark.parametrize(("batch", "prompt", "answer"), [(1, 100, 3000), (8, 512, 2000), (16, 500, 5000)])
def test_each_gap_is_the_step_that_reads_the_context_up_to_it(batch: int, prompt: int, answer: int) -> None:
    # Token p + 1 comes out of the step whose p-th answer token is its newest key: to the nanosecond.
    total_ns, count = run(batch, prompt, answer).record.itl_by_position  # type: ignore[misc]
    steps = step_model(resolve(lockstep(batch, prompt, answer)))
    context = prompt + 1
    expected = steps.decode_run_ns(batch, batch * context, context, answer - 1)
    assert (count[1:answer] == batch).all()
    assert (total_ns[1:answer] == batch * expected).all()


def test_the_gap_grows_by_cache_bytes_over_achieved_bandwidth() -> None:
    # Over every KiB of answer, and from the first to any other, to 0.5 %: the serial part of a thread block
    # grows by whole blocks of 128 keys, and half of the sequences are one token behind the others.
    found = example()
    grown_s, added_bytes = found.mean_s - found.mean_s[0], found.kv_bytes - found.kv_bytes[0]
    assert grown_s[1:] == pytest.approx(added_bytes[1:] / found.achieved_bandwidth(), rel=0.005)


def parts_ns(bandwidth: float = 3.35e12) -> tuple[float, float, float, float]:
    """Return reading, 128-key loops, matrix work [ns per key and layer] and the sharpness of their maximum.

    A key of 24 sequences is 24 x 4,096 B (8 KV heads x 128 x 2 x 2 B) and 24 x 16,384 FLOP (32 heads). 24 x 8 blocks
    share occ x 132 slots.
    """
    p = load_device("h100_sxm").lane("decode_attention").params
    waves = 24 * 8 / (p["occ"] * 132)
    rounds = (1 - p["wq"]) * waves + p["wq"] * np.ceil(waves)
    lost = rounds / waves
    reading = 24 * 4096 * lost / (p["eb"] * bandwidth)
    work = 24 * 16_384 * lost / (p["ec"] * 989.4e12)
    return reading * 1e9, rounds * p["tb_us"] * 1e3 / 128, work * 1e9, p["q"]


def together(reading: float, loops: float, work: float, q: float) -> float:
    return float((reading**q + loops**q + work**q) ** (1 / q))


def test_the_achieved_bandwidth_of_24_sequences_on_h100_by_hand() -> None:
    # A token adds 32 layers x 8 KV heads x 128 x 2 (K, V) x 2 B = 131,072 B, 98,304 B a layer of 24 sequences.
    found = example()
    assert found.model.plan.kv_bytes_per_token == 131_072
    by_hand = 98_304 / (together(*parts_ns()) * 1e-9)
    assert found.achieved_bandwidth() == pytest.approx(by_hand, rel=0.002)
    assert 0.85 < by_hand / 3.35e12 < 0.95
    slope_s = (found.mean_s[-1] - found.mean_s[0]) / (EVERY_KIB[-1] - EVERY_KIB[0])
    assert slope_s == pytest.approx(24 * 131_072 / by_hand, rel=0.005)


@pytest.mark.parametrize(("device", "share"), [("tpu_v5p", 0.70), ("tpu_v6e", 0.70)])
def test_without_serial_work_the_gap_grows_at_the_lane_s_share_of_the_datasheet(
    device: str, share: float
) -> None:
    # Three-parameter devices: t0 + bytes / (eb B), far from the ridge, so the growth is b / (eb B) to 0.1 %.
    found = long_answers(
        lockstep(8, 512, 4096, device=device, scheduler__max_num_batched_tokens=8192), (512, 1024, 2048, 4000)
    )
    eb = found.model.device.lane("decode_attention").params["eb"]
    assert eb == share
    expected = (found.kv_bytes - found.kv_bytes[0]) / (eb * found.model.device.hbm_bandwidth)
    assert (found.mean_s - found.mean_s[0])[1:] == pytest.approx(expected[1:], rel=1e-3)


@pytest.mark.parametrize("factor", [1.5, 2.0])
def test_more_bandwidth_flattens_the_growth_as_far_as_it_is_memory(factor: float) -> None:
    # Of the time of a key and layer (see above) only reading shrinks with bandwidth.
    plain = example()
    wide = long_answers(
        load_scenario(EXAMPLE).replace(device={"base": "h100_sxm", "hbm_bandwidth": f"x{factor}"}), EVERY_KIB
    )
    by_hand = together(*parts_ns(factor * 3.35e12)) / together(*parts_ns())
    growth = (wide.mean_s[-1] - wide.mean_s[0]) / (plain.mean_s[-1] - plain.mean_s[0])
    assert growth == pytest.approx(by_hand, rel=0.005)


def test_the_growth_follows_the_cache_of_a_model_not_its_size() -> None:
    # Qwen3-4B has half the weights of Llama-3.1-8B and 36 instead of 32 layers, all of 8 KV heads of 128:
    # 147,456 B a token against 131,072, so its gaps are shorter but grow faster.
    llama, qwen = example(), example(model="qwen3-4b")
    growth = (qwen.mean_s[-1] - qwen.mean_s[0]) / (llama.mean_s[-1] - llama.mean_s[0])
    assert growth == pytest.approx(147_456 / 131_072, rel=0.005)
    assert qwen.mean_s[0] < llama.mean_s[0]


def test_a_sliding_window_stops_the_growth() -> None:
    # Mistral-7B v0.1 sees 4,096 tokens: beyond them every step reads the same bytes.
    sizes = (1000, 3000, 5000, 7000)
    found = long_answers(lockstep(8, 512, 8000, model="mistral-7b-v0.1"), sizes)
    assert found.mean_s[1] > 1.05 * found.mean_s[0]
    assert found.mean_s[3] == pytest.approx(found.mean_s[2], rel=1e-6)


def test_positions_count_every_gap_once() -> None:
    record = run(8, 512, 2000).record
    found = itl_by_position(record)
    assert found is not None
    positions, mean_s = found
    assert np.array_equal(positions, np.arange(1, 2000))
    waited_s = float((record.requests["last_token_ns"] - record.requests["first_token_ns"]).sum()) / 1e9
    assert 8 * float(mean_s.sum()) == pytest.approx(waited_s, rel=1e-12)
