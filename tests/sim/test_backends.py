"""Work in processes: what one caller stops, another does not lose."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest
from membound.sim.studies.backends import run_tasks


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)  # joblib says that it was stopped
@pytest.mark.filterwarnings("ignore::UserWarning:joblib")
def test_work_that_another_caller_stops_is_done_all_the_same():
    found: list[tuple[int, None]] = []
    stopped = run_tasks(partial(time.sleep), [0.2] * 8, jobs=2)
    next(stopped)
    kept = threading.Thread(target=lambda: found.extend(run_tasks(partial(time.sleep), [0.2] * 8, jobs=2)))
    kept.start()
    time.sleep(0.5)
    stopped.close()  # type: ignore[attr-defined]
    kept.join()
    assert sorted(at for at, _ in found) == list(range(8))
