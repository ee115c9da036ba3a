"""Why a long answer slows down: time between tokens by position in the answer, and the KV bytes behind it.

    python benchmarks/long_answer.py [SCENARIO]

Every decode step reads the keys and values of all tokens before it, of every sequence in the batch. So the
time between tokens grows by the bytes added to the cache over the bandwidth that attention achieves.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from membound.hwmodels.stepmodel import StepModel
from membound.sim.metrics.latency import itl_by_position
from membound.sim.run import simulate, step_model
from membound.sim.scenario import Scenario, load_scenario
from membound.sim.scenario.resolve import resolve

EXAMPLE = Path(__file__).parents[1] / "examples" / "long-answers.yaml"
POSITIONS = (128, 1024, 2048, 4096, 8192, 12_288, 16_000)
"""Not the first ones, whose steps hold other prompts, nor the last, when other answers have ended."""


@dataclass(frozen=True, slots=True)
class LongAnswers:
    """Equal answers in lockstep: what lies between two of their tokens.

    Attributes
    ----------
    model : what a step takes
    sequences : answers written at a time
    positions : tokens of the answer before the gap, shape (n,)
    contexts : tokens that a sequence then has, prompt included, shape (n,)
    mean_s : mean gap over all answers, shape (n,) [s]
    kv_bytes : keys and values that the step in between reads, of all sequences, shape (n,) [B]
    """

    model: StepModel
    sequences: int
    positions: Sequence[int]
    contexts: np.ndarray
    mean_s: np.ndarray
    kv_bytes: np.ndarray

    def achieved_bandwidth(self) -> float:
        """Return what attention reads more at the last context than at the first, per second more [B/s].

        Of the kernel alone, without serving; its fixed times cancel.
        """
        first, last = (self._attention_s(int(context)) for context in self.contexts[[0, -1]])
        return float(self.kv_bytes[-1] - self.kv_bytes[0]) / (last - first)

    def _attention_s(self, context: int) -> float:
        batch = self.sequences
        phases = self.model.phases(batch, batch * context, context, (), batch)
        return next(phase.seconds for phase in phases if phase.name == "attention")


def long_answers(scenario: Scenario, positions: Sequence[int] = POSITIONS) -> LongAnswers:
    """Simulate a closed loop of equal prompts and answers, all of which fit the KV pool."""
    resolved = resolve(scenario)
    workload = resolved.workload
    assert workload is not None
    assert workload.closed_loop is not None
    record = simulate(resolved).record
    found = itl_by_position(record)
    assert found is not None
    reached, mean_s = found
    model, sequences = step_model(resolved), workload.closed_loop.concurrency
    contexts = int(workload.input_tokens[0]) + np.array(positions)
    return LongAnswers(
        model=model,
        sequences=sequences,
        positions=positions,
        contexts=contexts,
        mean_s=mean_s[np.searchsorted(reached, positions)],
        kv_bytes=sequences * model.plan.kv_bytes_per_token * contexts,
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("scenario", nargs="?", type=Path, default=EXAMPLE)
    scenario = load_scenario(parser.parse_args().scenario)
    found = long_answers(scenario)
    achieved, datasheet = found.achieved_bandwidth(), found.model.chip.bandwidth
    print(f"{scenario.model} on {scenario.device}, {found.sequences} answers at a time")
    print(f"attention achieves {achieved / 1e12:.2f} of the datasheet's {datasheet / 1e12:.2f} TB/s\n")
    print("tokens written   mean ITL   KV read a step   ITL grown by   KV grown / achieved")
    for position, mean_s, kv_bytes in zip(found.positions, found.mean_s, found.kv_bytes, strict=True):
        grown, expected = mean_s - found.mean_s[0], (kv_bytes - found.kv_bytes[0]) / achieved
        print(
            f"{position:14,}{1e3 * mean_s:8.2f} ms{kv_bytes / 1e9:14.2f} GB{1e3 * grown:12.2f} ms"
            f"{1e3 * expected:19.2f} ms"
        )


if __name__ == "__main__":
    main()
