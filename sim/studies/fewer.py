"""A scenario with fewer of its requests, for studies of many runs."""

from __future__ import annotations

from ..scenario.schema import Scenario
from .study import StudyError


def with_requests(scenario: Scenario, most: int) -> Scenario:
    """Return a scenario with at most so many of its requests: the first of a trace, fewer drawn otherwise.

    Raises
    ------
    StudyError : no load, or a number below 1

    Examples
    --------
    >>> load = {"arrivals": {"kind": "poisson", "rate_per_s": 4}, "requests": 500}
    >>> load |= {"input_tokens": 64, "output_tokens": 8}
    >>> asked = Scenario.model_validate({"device": "h100_sxm", "model": "llama-3.1-8b", "workload": load})
    >>> with_requests(asked, 100).workload.requests
    100
    """
    workload = scenario.workload
    if workload is None:
        raise StudyError("workload: missing; membound scenario init prints a scenario with a load")
    if most < 1:
        raise StudyError(f"requests {most}; allowed: 1 or more")
    if workload.trace is not None:
        limit = min(workload.trace.limit or most, most)
        changed = {"trace": workload.trace.model_copy(update={"limit": limit})}
    else:
        changed = {"requests": min(workload.requests or most, most)}
    return scenario.model_copy(update={"workload": workload.model_copy(update=changed)})
