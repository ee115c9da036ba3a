"""Waiting for a job on a page: progress while it runs, a button that stops it, and an end when nobody waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import streamlit as st
from streamlit.runtime.scriptrunner import RerunException

from ...hwmodels.errors import CapacityError
from .jobs import Job, Progress, Stopped
from .runs import Answer, answer, hash_of, known

if TYPE_CHECKING:
    from ...sim.scenario import Scenario

T = TypeVar("T")
JOBS, STOPPED = "_jobs", "_stopped"
AT_ONCE_S = 0.4
"""What takes no longer shows no progress [s]."""
TELL_S = 0.6
"""How often the page is told how far the work is: a client that is told all the time draws nothing else [s]."""
LOOK_S = 0.1
"""How often the page looks whether the work has ended, or the reader wants something else [s]."""


def wait_for(name: str, label: str, work: Callable[[Progress], T], again: str = "Run it") -> T | None:
    """Return what some work returns; None where the reader has stopped it.

    The work goes on while the page is drawn again, as long as the page asks for it again.

    Parameters
    ----------
    name : what the work answers; the same name is the same work
    label : said beside its progress
    work : called with what takes its progress
    again : on the button that starts stopped work again
    """
    place = st.empty()
    if name in st.session_state.setdefault(STOPPED, set()):
        with place.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"{label}: stopped.")
            st.button(again, key=f"again {name}", on_click=_forget, args=(name,), width="content")
        return None
    jobs: dict[str, Job[Any]] = st.session_state.setdefault(JOBS, {})
    job = jobs.get(name)
    if job is None:
        job = jobs[name] = Job(work)
    try:
        _look(job, name, label, place)
    except RerunException:
        raise  # the page is drawn again: if it asks for the same, it finds the job
    except BaseException:
        jobs.pop(name, None)
        job.stop()
        raise
    place.empty()
    jobs.pop(name, None)
    try:
        return job.result()
    except Stopped:
        return None


def run(scenario: Scenario, name: str = "run") -> Answer | None:
    """Return the run of a scenario, with progress while it runs; None where it was stopped, or cannot be run."""
    found = known(scenario)
    if found is not None:
        return found
    stop_others()
    count = scenario.workload.requests if scenario.workload else None
    label = f"Simulating {name}, {count:,} requests" if count else f"Simulating {name}"
    try:
        return wait_for(f"run {hash_of(scenario)}", label, lambda progress: answer(scenario, progress))
    except CapacityError as error:
        st.error(f"{name}: {error}", icon=":material/memory:")
        return None


def stop_others(*kept: str) -> None:
    """Stop every job of this reader but those named: what they answer is not asked any more."""
    jobs: dict[str, Job[Any]] = st.session_state.get(JOBS, {})
    for name in [name for name in jobs if name not in kept]:
        jobs.pop(name).stop()


def _look(job: Job[Any], name: str, label: str, place: Any) -> None:
    """Show progress until the work has ended; a reader who wants something else ends this with an exception."""
    bar: Any = None
    told, at = -1, time.monotonic()
    while not job.wait(LOOK_S):
        _ = JOBS in st.session_state  # where a reader's wish to see something else is heard
        now = time.monotonic()
        if now - job.begun < AT_ONCE_S or (bar is not None and (job.done == told or now - at < TELL_S)):
            continue
        told, at = job.done, now
        text = f"{label}: {job.done:,} of {job.total:,}" if job.total else f"{label} …"
        if bar is None:
            with place.container(horizontal=True, vertical_alignment="center"):
                bar = st.progress(job.share, text=text)
                st.button("Stop", key=f"stop {name}", on_click=_stop, args=(name,), width="content")
        else:
            bar.progress(job.share, text=text)


def _stop(name: str) -> None:
    st.session_state.setdefault(STOPPED, set()).add(name)
    job = st.session_state.get(JOBS, {}).pop(name, None)
    if job is not None:
        job.stop()


def _forget(name: str) -> None:
    st.session_state[STOPPED].discard(name)
