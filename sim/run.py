"""One run: from a scenario to its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .books.recording import make_record
from .building import make_allocator, make_scheduler, size_pool, step_model
from .cluster.cluster import Cluster
from .colocated import play_colocated
from .output.result import SimulationResult
from .scenario.resolve import ResolvedScenario, resolve
from .serving import serve
from .splitrun import play_split

if TYPE_CHECKING:
    from ..hwmodels.steptypes import StepDevice
    from .books.record import RunRecord
    from .scenario.schema import Scenario
    from .workload.workload import Workload

__all__ = ["make_allocator", "make_scheduler", "play", "simulate", "size_pool", "step_model"]


def simulate(
    scenario: Scenario | ResolvedScenario,
    *,
    keep_steps: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SimulationResult:
    """Run a scenario to its end.

    Parameters
    ----------
    scenario : the question, or the question with everything it names
    keep_steps : keep per-step columns for the result directory
    progress : called now and then with the requests that have ended, and all of them

    Raises
    ------
    MemboundError
        One line: the model does not fit, a policy is unknown, the trace cannot be read, ...
    """
    resolved = scenario if isinstance(scenario, ResolvedScenario) else resolve(scenario)
    assert resolved.workload is not None
    return SimulationResult(play(resolved, resolved.workload, keep_steps=keep_steps, progress=progress))


def play(
    resolved: ResolvedScenario,
    workload: Workload,
    *,
    vary: Callable[[ResolvedScenario], tuple[ResolvedScenario, StepDevice]] | None = None,
    levers: bool = True,
    keep_steps: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RunRecord:
    """Serve a workload with the replicas of a scenario, and return the record.

    Parameters
    ----------
    vary : makes another engine and device of those of a kind of replicas (draws)
    levers : work out what would have made the steps shorter
    """
    if resolved.colocated is not None:
        return play_colocated(resolved, workload, vary=vary, keep_steps=keep_steps, progress=progress)
    if resolved.scenario.compute_split is not None:
        return play_split(resolved, workload, vary=vary, keep_steps=keep_steps, progress=progress)
    cluster = Cluster(resolved, vary, keep_steps=keep_steps)
    serve(workload, cluster.replicas, cluster.fleet if cluster.routed else None, progress)
    return make_record(resolved, cluster.replicas, cluster, levers=levers)
