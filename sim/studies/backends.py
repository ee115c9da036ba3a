"""Where the runs of a study happen: the cores of this machine, or a Dask or Ray cluster.

Each backend takes a function and its tasks and yields (position, result) as results come. A worker that dies
loses nothing: its task is given to another one.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from typing import Any, TypeVar, cast

from ...hwmodels.errors import unknown
from .study import StudyError

Task = TypeVar("Task")
Result = TypeVar("Result")
Numbered = Iterator[tuple[int, Result]]
MOST_JOBS = 1024
"""Most workers of one study."""
RETRIES = 3
"""How often a task is given to another worker after one has died under it."""


def run_tasks(
    function: Callable[[Task], Result],
    tasks: Sequence[Task],
    *,
    backend: str = "joblib",
    address: str | None = None,
    jobs: int | None = None,
) -> Numbered[Result]:
    """Yield the position and the result of every task, in the order in which they are done.

    Parameters
    ----------
    function : takes one task; both must be picklable
    tasks : what to do
    backend : ``joblib`` (this machine), ``dask`` or ``ray``
    address : of a running cluster (``tcp://host:8786``, ``ray://host:10001``); without one, a local one is started
    jobs : workers; default: one for each core

    Raises
    ------
    StudyError : a backend that is not known or not installed, or an address without a cluster
    """
    run = BACKENDS.get(backend)
    if run is None:
        raise StudyError(unknown("backend", backend, BACKENDS))
    if address is not None and backend == "joblib":
        raise StudyError(f"address {address!r} is for a cluster; add --backend dask or --backend ray")
    check_jobs(jobs)
    return run(function, tasks, address, min(jobs or os.cpu_count() or 1, max(len(tasks), 1)))


def check_jobs(jobs: int | None) -> None:
    """Refuse a number of workers that cannot be.

    Raises
    ------
    StudyError : below 1, or above 1,024
    """
    if jobs is not None and not 1 <= jobs <= MOST_JOBS:
        raise StudyError(f"jobs {jobs}; allowed: 1 to {MOST_JOBS:,}")


def _joblib(
    function: Callable[[Task], Result], tasks: Sequence[Task], address: str | None, jobs: int
) -> Numbered[Result]:
    """Use processes of this machine; with one job, this process."""
    del address
    left = dict(enumerate(tasks))
    if jobs == 1:
        yield from ((at, function(task)) for at, task in left.items())
        return
    library = cast("Any", importlib.import_module("joblib"))
    loky = importlib.import_module("joblib.externals.loky").process_executor
    died: type[Exception] = loky.TerminatedWorkerError
    shut: type[Exception] = (
        loky.ShutdownExecutorError
    )  # another reader of the dashboard stopped work on the same workers
    for attempt in range(RETRIES + 1):
        work = (library.delayed(_numbered)(function, at, task) for at, task in list(left.items()))
        try:
            for at, result in library.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)(
                work
            ):
                del left[at]
                yield at, result
            return
        except (died, RuntimeError) as error:
            if not isinstance(error, (died, shut)) and not isinstance(error.__context__, shut):
                raise
            if attempt == RETRIES:
                raise StudyError(
                    f"workers died {RETRIES + 1} times over; {len(left)} runs are left (out of memory? try --jobs 1)"
                ) from None


def _numbered(function: Callable[[Task], Result], at: int, task: Task) -> tuple[int, Result]:
    return at, function(task)


def _dask(
    function: Callable[[Task], Result], tasks: Sequence[Task], address: str | None, jobs: int
) -> Numbered[Result]:
    """Use a Dask cluster."""
    distributed = _load("distributed", "dask")
    here = {"n_workers": jobs, "threads_per_worker": 1, "dashboard_address": None}
    try:
        client = distributed.Client(address, timeout="10s") if address else distributed.Client(**here)
    except (OSError, TimeoutError, ValueError) as error:
        raise StudyError(f"no Dask scheduler at {address!r} ({type(error).__name__})") from None
    with client:
        futures = client.map(function, tasks, pure=False, retries=RETRIES)
        numbers = {future.key: at for at, future in enumerate(futures)}
        for future in distributed.as_completed(futures):
            yield numbers[future.key], future.result()


def _ray(
    function: Callable[[Task], Result], tasks: Sequence[Task], address: str | None, jobs: int
) -> Numbered[Result]:
    """Use a Ray cluster."""
    ray = _load("ray", "ray")
    here: Mapping[str, Any] = {} if address else {"num_cpus": jobs, "include_dashboard": False}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="error", **here)
    except (OSError, ConnectionError, ValueError, RuntimeError) as error:
        raise StudyError(f"no Ray cluster at {address!r} ({type(error).__name__})") from None
    try:
        remote = ray.remote(max_retries=RETRIES)(function)
        numbers = {remote.remote(task): at for at, task in enumerate(tasks)}
        waiting = list(numbers)
        with redirect_stdout(
            sys.stderr
        ):  # Ray prints what happens to its workers; results alone go to stdout
            while waiting:
                done, waiting = ray.wait(waiting)
                yield from ((numbers[each], ray.get(each)) for each in done)
    finally:
        ray.shutdown()


def _load(module: str, backend: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError:
        raise StudyError(f"backend {backend} is not installed; pip install 'membound[cluster]'") from None


BACKENDS: Mapping[str, Callable[..., Numbered[Any]]] = {"joblib": _joblib, "dask": _dask, "ray": _ray}
