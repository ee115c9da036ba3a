"""The reference engine with a real model: what it answers does not depend on how steps were composed."""

from __future__ import annotations

import numpy as np
import pytest
from membound.calibrate.realclock import RealClock
from membound.calibrate.reference_engine import ReferenceEngine
from membound.hwmodels.hf_config import read_config
from membound.kernels.decoder import Decoder
from membound.kernels.scheduled import Scheduled
from membound.sim.kvcache.paged import PagedAllocator
from membound.sim.scheduler.vllm_v1 import VllmV1
from membound.sim.workload.workload import ClosedLoopLoad, LoadReport, Workload

VOCAB, LONGEST = 128, 128
CONFIG = {
    "model_type": "qwen3", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "intermediate_size": 96, "vocab_size": VOCAB, "max_position_embeddings": LONGEST,
    "torch_dtype": "float32",
}  # fmt: skip


def decoder(blocks: int) -> Decoder:
    return Decoder(read_config(CONFIG, "tiny"), blocks=blocks, longest=LONGEST, seed=2)


def alone(prompt: list[int], answers: int) -> list[int]:
    """Return prompt and greedy answer, the prompt in one piece and nobody else in the batch."""
    model, blocks, ids = decoder(8), list(range(8)), list(prompt)
    new = prompt
    for _ in range(answers):
        token = model.step([Scheduled(new, len(ids) - len(new), blocks)])[0]
        ids.append(token)
        new = [token]
    return ids


@pytest.mark.parametrize("num_blocks", [40, 12])
def test_every_answer_is_the_one_that_a_request_alone_gets(num_blocks: int) -> None:
    rng = np.random.default_rng(num_blocks)
    workload = Workload(
        arrival_ns=np.zeros(10, dtype=np.int64),
        input_tokens=rng.integers(3, 60, 10),
        output_tokens=rng.integers(2, 40, 10),
        report=LoadReport("test", "generated"),
        closed_loop=ClosedLoopLoad(concurrency=5),
    )
    engine = ReferenceEngine(
        VllmV1(max_num_seqs=4, max_num_batched_tokens=24, max_model_len=LONGEST),
        PagedAllocator(num_blocks, 16, enable_prefix_caching=False),
        decoder(num_blocks),
        RealClock(cpu=True),
        vocab=VOCAB,
    )
    served = engine.serve(workload)
    assert engine.free_blocks == num_blocks
    assert (sum(request.num_preemptions for request in served) > 0) == (num_blocks == 12)
    for request in served:
        ids = engine.sequences[request.index]
        assert ids == alone(ids[: request.input_tokens], request.output_tokens)
        assert request.arrival_ns < request.first_token_ns <= request.last_token_ns
    ends = [step.end_ns for step in engine.steps]
    assert ends == sorted(ends)
