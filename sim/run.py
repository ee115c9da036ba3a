"""One run: from a scenario to its result."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .books.recording import make_record
from .building import make_allocator, make_router, make_scheduler, size_pool, step_model
from .cluster.admission import Gate
from .cluster.failures import outages_of
from .cluster.replica import Replica, ReplicaKind
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
    replicas: list[Replica] = []
    fails = resolved.scenario.cluster.failures is not None
    for group in resolved.kinds:
        varied = (group.resolved, None) if vary is None else vary(group.resolved)
        kind = ReplicaKind(*varied, name=group.name)
        # Each data-parallel copy composes its own steps: an engine with KV memory of its own, behind the router.
        engines = group.count * group.resolved.scenario.parallelism.data_parallel_size
        replicas += [Replica(kind, keep_steps=keep_steps, fails=fails) for _ in range(engines)]
    admission = resolved.scenario.cluster.admission
    gate = None if admission is None else Gate(admission)
    asked = resolved.scenario.cluster.failures
    outages = asked and outages_of(asked, resolved.scenario.simulation.seed, replicas)
    router = make_router(resolved) if len(replicas) > 1 or gate or outages else None
    serve(workload, replicas, router, progress, gate, outages)
    return make_record(resolved, replicas, levers=levers, outages=outages)
