"""Replay step logs of the real vLLM V1 scheduler on membound's own scheduler, allocator and engine, field by field.

    python tests/oracle/replay.py FILE...        NAME exact | NAME MISMATCH step N field ...

A file is one case in JSON lines: the configuration with an integer cost of a step, every step as the real engine took
it, and a summary. Exit code 1 if any case differs.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import simpy
from membound.sim.books.recorder import Recorder
from membound.sim.engine.engine import Engine
from membound.sim.engine.flight import Flight
from membound.sim.engine.request import Request, Status
from membound.sim.engine.source import Source
from membound.sim.kvcache.paged import PagedAllocator
from membound.sim.scheduler.base import ScheduledBatch
from membound.sim.scheduler.vllm_v1 import VllmV1

US = 1000


class DeclaredCost:
    """The integer cost of a step that a case declares, in place of a model of the device."""

    needs_contexts = False

    def __init__(self, base: int, per_token: int, per_1000_context_tokens: int) -> None:
        self.base, self.per_token, self.per_context = base, per_token, per_1000_context_tokens

    def step_ns(
        self, n_decode: int, context_sum: int, longest: int, prefill: Sequence[tuple[int, int]], sampled: int,
        contexts: Sequence[int] | None = None,
    ) -> int:  # fmt: skip
        tokens = n_decode + sum(new for new, _ in prefill)
        context = context_sum + sum(new + cached for new, cached in prefill)
        return US * (self.base + self.per_token * tokens + self.per_context * context // 1000)

    def decode_run_ns(
        self, n_decode: int, context_sum: int, longest: int, steps: int, contexts: Sequence[int] | None = None
    ) -> np.ndarray:
        context = context_sum + n_decode * np.arange(steps, dtype=np.int64)
        return US * (self.base + self.per_token * n_decode + self.per_context * context // 1000)


def content_keys(
    prompt: Sequence[Sequence[Any]], request_id: str, output_tokens: int, block_size: int
) -> list[int]:
    """Return chained keys of all full blocks a request can ever fill, its answer included."""
    tokens = [(segment, offset) for segment, length in prompt for offset in range(length)]
    tokens += [(f"out:{request_id}", offset) for offset in range(output_tokens)]
    keys: list[int] = []
    key: object = None
    for start in range(0, len(tokens) - block_size + 1, block_size):
        key = (key, tuple(tokens[start : start + block_size]))
        keys.append(_CHAIN.setdefault(key, len(_CHAIN)))
        key = keys[-1]
    return keys


_CHAIN: dict[object, int] = {}


class Log:
    """Writes the steps of an engine down in the schema of the logs."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Any]] = []
        self._started: set[Request] = set()
        self._unapplied: list[dict[str, Any]] = []
        self._emitters: list[list[Request]] = []

    def composed(self, engine: Engine, flight: Flight, batch: ScheduledBatch) -> None:
        rows: list[list[Any]] = []
        size = engine.allocator.block_size
        emitters: list[Request] = []
        leaving = [request for request in flight.last if request not in batch.tokens]
        for request in [*engine.running]:
            if request in batch.tokens:
                tokens, after = batch.tokens[request], request.num_computed_tokens
                if request in engine.decoding:
                    after = engine.decoding.computed(request)
                if request in flight.emitting:
                    emitters.append(request)
            elif batch.decoding and (request in engine.decoding or request in leaving):
                tokens = 1
                after = (
                    engine.decoding.computed(request)
                    if request in engine.decoding
                    else request.num_computed_tokens
                )
                emitters.append(request)
            else:
                continue
            rows.append([request.request_id, tokens, after - tokens, -(-after // size)])
        fresh = [request for request in batch.admitted if request not in self._started]
        self._started.update(fresh)
        self._enter(
            {
                "t_compose_us": flight.composed_ns // US,
                "t_start_us": flight.start_ns // US,
                "t_end_us": flight.end_ns // US,
                "scheduled": rows,
                "new": [request.request_id for request in fresh],
                "resumed": [request.request_id for request in batch.admitted if request not in fresh],
                "hits": {
                    request.request_id: cached
                    for request in batch.admitted
                    if (
                        cached := request.num_computed_tokens - batch.tokens[request]
                        if request not in engine.decoding
                        else engine.decoding.computed(request) - batch.tokens[request]
                    )
                },
                "preempted": sorted(request.request_id for request in batch.preempted),
                "running": [request.request_id for request in engine.running],
                "waiting": [request.request_id for request in engine.waiting],
                "free_after_schedule": engine.allocator.free_blocks,
            },
            emitters,
        )

    def _enter(self, step: dict[str, Any], emitters: list[Request]) -> None:
        step["step"] = len(self.steps)
        self.steps.append(step)
        self._unapplied.append(step)
        self._emitters.append(emitters)

    def repeated(self, engine: Engine, flight: Flight, starts_ns: np.ndarray, ends_ns: np.ndarray) -> None:
        """Expand the repetitions of the step composed last; what the waiting line did meanwhile is filled in."""
        first, emitters = self.steps[-1], self._emitters[-1]
        first["t_end_us"] = int(ends_ns[0]) // US
        first["waiting"] = None
        size = engine.allocator.block_size
        # The allocator is at the end of the run by now; requests may have ended with the step before it.
        after = len(starts_ns) - 1
        free = engine.allocator.free_blocks + sum(
            -(-(before + 1 + after) // size) - -(-(before + 1) // size)
            for _, _, before, _ in first["scheduled"]
        )
        running = [request.request_id for request in engine.running]
        for number in range(1, len(starts_ns)):
            rows = [
                [name, 1, before + number, -(-(before + number + 1) // size)]
                for name, _, before, _ in first["scheduled"]
            ]
            previous = self.steps[-1]["scheduled"]
            free -= sum(row[3] for row in rows) - sum(row[3] for row in previous)
            lag = engine.depth - 1
            composed = starts_ns[number] if not lag else starts_ns[number - 1]
            self._enter(
                {
                    "t_compose_us": int(composed) // US,
                    "t_start_us": int(starts_ns[number]) // US,
                    "t_end_us": int(ends_ns[number]) // US,
                    "scheduled": rows,
                    "new": [],
                    "resumed": [],
                    "hits": {},
                    "preempted": [],
                    "running": running,
                    "waiting": None,
                    "free_after_schedule": free,
                },
                emitters,
            )

    def applied(self, engine: Engine, flight: Flight, finished: list[Request]) -> None:
        late = [request.request_id for request in flight.late]
        for number in range(max(flight.steps, 1)):
            step, emitters = self._unapplied.pop(0), self._emitters.pop(0)
            ends = number == max(flight.steps, 1) - 1
            done = [request for request in emitters if request in finished] if ends else []
            done += [request for request in finished if request not in done] if ends else []
            wasted = [
                request.request_id for request in emitters
                if request.status is Status.COMPLETED and request not in finished
            ]  # fmt: skip
            order = [row[0] for row in step["scheduled"]]
            emitted = [request.request_id for request in emitters if request.request_id not in wasted]
            step["emitted"] = [name for name in order if name in emitted]
            step["finished"] = [name for name in order if name in {request.request_id for request in done}]
            step["late"] = [name for name in order if name in late]
            step["wasted"] = [name for name in order if name in wasted]
            if ends:
                step["free_after_step"] = engine.allocator.free_blocks
            else:
                # Composed ahead, the step after this one has taken its blocks already.
                latest = self._unapplied[0] if engine.depth > 1 else step
                step["free_after_step"] = latest["free_after_schedule"]


def enter_arrivals(steps: list[dict[str, Any]], requests: Sequence[Request]) -> None:
    """Enter in every step who arrived since the composition before it."""
    position = 0
    for step in steps:
        first = position
        while position < len(requests) and requests[position].arrival_ns // US <= step["t_compose_us"]:
            position += 1
        step["arrived"] = [request.request_id for request in requests[first:position]]


def run_case(
    case: dict[str, Any], *, fast_forward: bool = True, cohort: bool = True, private: bool = False
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run one case; return its steps and its summary.

    ``private`` names only the blocks whose content some other request asks for, as a workload does; the others are
    known to the allocator by number alone.
    """
    config, cost = case["config"], case["step_cost_us"]
    size = config["block_size"]
    env = simpy.Environment(0)
    keys: list[list[int]] = [[] for _ in case["requests"]]
    if config["enable_prefix_caching"]:
        keys = [content_keys(row["prompt"], row["id"], row["output_len"], size) for row in case["requests"]]
    if private:
        holders = Counter(chain.from_iterable(keys))
        keys = [[key for key in own if holders[key] > 1] for own in keys]
    requests = [
        Request(
            index,
            row["arrival_us"] * US,
            sum(length for _, length in row["prompt"]),
            row["output_len"],
            max_tokens=row.get("max_tokens"),
            priority=row.get("priority", 0),
            block_hashes=keys[index],
            request_id=row["id"],
        )
        for index, row in enumerate(case["requests"])
    ]
    queue = sorted(requests, key=lambda request: (request.arrival_ns, request.index))
    recorder = Recorder()
    log = Log()
    scheduler = VllmV1(
        max_num_seqs=config["max_num_seqs"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        max_model_len=config["max_model_len"],
        enable_chunked_prefill=config["enable_chunked_prefill"],
        long_prefill_token_threshold=config["long_prefill_token_threshold"],
        scheduler_reserve_full_isl=config["scheduler_reserve_full_isl"],
        watermark=config["watermark"],
        scheduling_policy=config["policy"],
    )
    allocator = PagedAllocator(
        config["num_gpu_blocks"] - 1, size, enable_prefix_caching=config["enable_prefix_caching"]
    )
    engine = Engine(
        env, scheduler, allocator, DeclaredCost(**cost), recorder,
        max_model_len=config["max_model_len"], async_scheduling=config["async_scheduling"],
        fast_forward=fast_forward, cohort=cohort, observer=log,
    )  # fmt: skip
    engine.connect(Source(env, iter(queue), engine.submit))
    env.run()
    recorder.close_books()
    enter_arrivals(log.steps, queue)
    summary = {
        "steps": len(log.steps),
        "preemptions": recorder.preemptions,
        "jumps": recorder.jumps,
        "requests": {
            str(request.request_id): [request.first_token_ns // US, request.last_token_ns // US]
            for request in requests
        },
    }
    return log.steps, summary


def first_difference(path: Path, *, fast_forward: bool = True, cohort: bool = True) -> tuple[str | None, int]:
    """Compare a case with the log; return the first difference (None if exact) and how many runs were taken at once."""
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return difference(rows[0], rows[1:-1], rows[-1], fast_forward=fast_forward, cohort=cohort)


def difference(
    case: dict[str, Any], expected: list[dict[str, Any]], end: dict[str, Any], *, fast_forward: bool = True,
    cohort: bool = True, private: bool = False,
) -> tuple[str | None, int]:  # fmt: skip
    """Run a case and compare it with the expected steps and summary; ``private`` as in ``run_case``."""
    steps, summary = run_case(case, fast_forward=fast_forward, cohort=cohort, private=private)
    jumps = summary["jumps"]
    for want, got in zip(expected, steps, strict=False):
        times = {"t_compose_us": want.get("t_compose_us", want["t_us"]), "t_start_us": want["t_us"],
                 "t_end_us": want["t_us"] + want["dt_us"]}  # fmt: skip
        for field in (*times, "scheduled", "new", "resumed", "hits", "preempted", "emitted", "finished", "running",
                      "waiting", "free_after_schedule", "free_after_step", "arrived", "late", "wasted"):  # fmt: skip
            value = times.get(field, want.get(field))
            if got[field] is None or (field in ("late", "wasted") and field not in want):
                continue
            if got[field] != value:
                return f"step {want['step']} field {field}: expected {value}, got {got[field]}", jumps
    if len(steps) != len(expected):
        return (
            f"step {min(len(steps), len(expected))} field steps: expected {len(expected)}, got {len(steps)}",
            jumps,
        )
    for name, times in end["requests"].items():
        want = [times["first_token_us"], times["last_token_us"]]
        if summary["requests"][name] != want:
            return f"request {name} field tokens: expected {want}, got {summary['requests'][name]}", jumps
    if summary["preemptions"] != end["preemptions"]:
        return (
            f"summary field preemptions: expected {end['preemptions']}, got {summary['preemptions']}",
            jumps,
        )
    return None, jumps


def main(paths: Sequence[str]) -> int:
    """Replay the named files and print a line for each."""
    if not paths:
        print(__doc__, file=sys.stderr)
        return 2
    failed = False
    for name in paths:
        path = Path(name)
        difference, _ = first_difference(path)
        label = f"{path.parent.name}/{path.name.removesuffix('.jsonl.gz')}"
        print(f"{label} {'exact' if difference is None else 'MISMATCH ' + difference}")
        failed = failed or difference is not None
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
