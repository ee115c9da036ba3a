"""Serves loads with vLLM on the CPU, told by the time that the process computes; ``against_vllm_cpu.py`` starts it.

Runs in an environment of its own that has vLLM and nothing of membound. Arguments: a JSON file with the keyword
arguments of vLLM's ``EngineArgs``. Every line of stdin is a load, every line of stdout what came of it:

    {"seed": 1, "arrival_s": [0.0, 0.5], "users": null, "input_tokens": [12, 40], "output_tokens": [8, 8]}
    {"arrival_s": [...], "first_s": [...], "last_s": [...], "steps": [{"seconds": 0.01, "scheduled": [[12, 0]]}],
     "preemptions": 0}

With ``users`` so many requests are kept in flight and arrivals do not count. Idle time is skipped, not waited for.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from typing import Any

SETTINGS = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # one process, whose CPU time is the engine's
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",  # threads that wait for each other on a busy machine wait for its other work too
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}


class Clock:
    """CPU time of this process, idle time added as if it had passed [s]."""

    def __init__(self) -> None:
        self._zero = time.process_time()

    def now(self) -> float:
        """Return the time since the beginning [s]."""
        return time.process_time() - self._zero

    def skip_to(self, when: float) -> None:
        """Let idle time pass."""
        self._zero -= max(when - self.now(), 0.0)


class Recorded:
    """A scheduler whose batches are written down; it decides as it always did."""

    def __init__(self, scheduler: Any) -> None:
        self.scheduler, self.schedule = scheduler, scheduler.schedule
        self.scheduled: list[list[int]] = []
        self.preempted = 0
        scheduler.schedule = self

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        batch = self.schedule(*arguments, **named)
        requests = self.scheduler.requests
        # num_computed_tokens has been moved on by now
        self.scheduled = [
            [count, requests[name].num_computed_tokens - count]
            for name, count in batch.num_scheduled_tokens.items()
        ]
        self.preempted += len(batch.preempted_req_ids or ())
        return batch


def serve(engine: Any, recorded: Recorded, load: dict[str, Any]) -> dict[str, Any]:
    """Serve a load to its end."""
    from vllm import SamplingParams

    draw = random.Random(load["seed"])
    vocab = engine.vllm_config.model_config.hf_config.vocab_size
    inputs, outputs, users = load["input_tokens"], load["output_tokens"], load.get("users")
    prompts = [{"prompt_token_ids": [draw.randrange(vocab) for _ in range(n)]} for n in inputs]
    sampling = [
        SamplingParams(temperature=0.0, max_tokens=n, ignore_eos=True, detokenize=False) for n in outputs
    ]
    count, sent, done = len(prompts), 0, 0
    arrival, first, last = ([-1.0] * count for _ in range(3))
    steps: list[dict[str, Any]] = []
    recorded.preempted = 0
    clock = Clock()
    while done < count:
        now = clock.now()
        while sent < count and (sent - done < users if users else load["arrival_s"][sent] <= now):
            arrival[sent] = now if users else load["arrival_s"][sent]
            engine.add_request(str(sent), prompts[sent], sampling[sent])
            sent += 1
        if done == sent:
            clock.skip_to(load["arrival_s"][sent])
            continue
        answers = engine.step()
        ended = clock.now()
        steps.append({"seconds": ended - now, "scheduled": recorded.scheduled})
        for answer in answers:
            at = int(answer.request_id)
            if first[at] < 0:
                first[at] = ended
            if answer.finished:
                last[at] = ended
                done += 1
    return {
        "arrival_s": arrival,
        "first_s": first,
        "last_s": last,
        "steps": steps,
        "preemptions": recorded.preempted,
    }


def main() -> None:
    """Serve what stdin asks for."""
    os.environ.update(SETTINGS)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a library prints is no answer
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    with open(sys.argv[1], encoding="utf-8") as file:
        engine = LLMEngine.from_engine_args(EngineArgs(**json.load(file)))
    recorded = Recorded(engine.engine_core.engine_core.scheduler)
    for line in sys.stdin:
        print(json.dumps(serve(engine, recorded, json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
