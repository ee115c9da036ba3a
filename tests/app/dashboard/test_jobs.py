"""Jobs: they end with what they found, tell how far they are, and end early when nobody wants them."""

from __future__ import annotations

import threading

import pytest
from membound.app.dashboard.jobs import Job, Kept, Progress, Stopped


def test_a_job_returns_what_its_work_returns_and_tells_how_far_it_is():
    gate = threading.Event()

    def work(progress: Progress) -> str:
        progress(1, 4)
        gate.wait(10)
        return "done"

    job = Job(work)
    while not job.total:
        assert not job.wait(0.01)
    assert job.share == 0.25
    gate.set()
    assert job.wait(10)
    assert job.result() == "done"


def test_a_stopped_job_ends_where_it_next_tells_its_progress():
    steps: list[int] = []
    gate = threading.Event()

    def work(progress: Progress) -> None:
        for step in range(1000):
            steps.append(step)
            progress(step, 1000)
            gate.wait(10)

    job = Job(work)
    while not job.total:
        job.wait(0.01)
    job.stop()
    gate.set()
    assert job.wait(10)
    assert len(steps) <= 2
    with pytest.raises(Stopped):
        job.result()


def test_what_the_work_raises_reaches_whoever_asks_for_its_result():
    def work(progress: Progress) -> None:
        raise ValueError("no such thing")

    job = Job(work)
    assert job.wait(10)
    with pytest.raises(ValueError, match="no such thing"):
        job.result()


def test_what_was_not_asked_for_longest_is_forgotten_first():
    kept: Kept[int] = Kept(2)
    kept.keep("a", 1)
    kept.keep("b", 2)
    assert kept.get("a") == 1
    kept.keep("c", 3)
    assert (kept.get("a"), kept.get("b"), kept.get("c")) == (1, None, 3)
