"""Fixtures that several folders of tests share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from membound.sim.books.record import CAUSES, LIMITERS, RunRecord, Setup
from membound.sim.engine.request import Status

# A check gives the same verdict twice; `make test-long` draws afresh.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("fresh", deadline=None)
settings.load_profile("fresh" if "MEMBOUND_EXAMPLES" in os.environ else "repeatable")

MS = 1_000_000
S = 1_000_000_000


@dataclass(frozen=True)
class Row:
    """One request of a record written by hand; times in ms, None where the event never came."""

    arrival: float = 0
    scheduled: float | None = 0
    first: float | None = 10
    last: float | None = 110
    inputs: int = 100
    outputs: int = 11
    status: Status = Status.COMPLETED
    preemptions: int = 0
    slo_class: int = 0
    reject_reason: int = -1


@pytest.fixture(scope="session")
def row() -> type[Row]:
    return Row


@pytest.fixture(scope="session")
def make_record() -> Callable[..., RunRecord]:
    """Return a function that builds a record from rows and whatever else a test states."""
    return build


def build(rows: list[Row], *, setup: dict[str, Any] | None = None, **fields: Any) -> RunRecord:
    requests = _columns(rows)
    start, end = int(min(requests["arrival_ns"], default=0)), int(max(requests["last_token_ns"], default=0))
    wall = max(end - start, 0)
    shares = fields.pop("shares", {"hbm_weights": 50, "compute": 30, "idle": 20})
    whole = sum(shares.values())
    causes = dict.fromkeys(CAUSES, 0) | {cause: wall * share // whole for cause, share in shares.items()}
    causes[next(iter(shares))] += wall - sum(causes.values())
    busy = wall - causes["idle"]
    given = {
        "causes_ns": causes,
        "limiter_ns": dict.fromkeys(LIMITERS, 0) | {"arrivals": busy},
        "wall_ns": wall,
        "busy_ns": busy,
        "start_ns": start,
        "end_ns": end,
        "setup": Setup(**(setup or {})),
    }
    return RunRecord(requests=requests, **(given | fields))


def _columns(rows: list[Row]) -> dict[str, np.ndarray]:
    def times(name: str) -> np.ndarray:
        values = [getattr(row, name) for row in rows]
        return np.array([-1 if value is None else round(value * MS) for value in values], dtype=np.int64)

    def ints(name: str, kind: type = np.int32) -> np.ndarray:
        return np.array([int(getattr(row, name)) for row in rows], dtype=kind)

    n = len(rows)
    return {
        "index": np.arange(n),
        "arrival_ns": times("arrival"),
        "first_scheduled_ns": times("scheduled"),
        "first_token_ns": times("first"),
        "last_token_ns": times("last"),
        "input_tokens": ints("inputs", np.int64),
        "output_tokens": ints("outputs", np.int64),
        "num_cached_tokens": np.zeros(n, np.int32),
        "num_preemptions": ints("preemptions"),
        "priority": np.zeros(n, np.int32),
        "status": ints("status"),
        "slo_class": ints("slo_class"),
        "session": np.full(n, -1),
        "tenant": np.full(n, -1),
        "reject_reason": ints("reject_reason"),
    }
