"""Which configuration serves a load within its SLO at the lowest cost, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...hwmodels.errors import CapacityError, MemboundError
from ..draws import MAX_DRAWS
from ..run import size_pool, step_model
from ..scenario.resolve import ResolvedScenario
from ..scenario.schema import Scenario
from .backends import run_tasks
from .capacity_plan import CapacityPlan
from .planned import Option, PlanResult, cost_of, least_cost, price_of, priced, rank_of, with_front
from .point import digest, metrics_of
from .search import FASTEST, HEADROOM, Capacity, at_rate, highest_rate, probe
from .study import StudyError

Progress = Callable[[int, int], None]
TOP = 5
"""Configurations whose cost is worked out however little they promise beyond the best."""
AT_ONCE = 4
"""Configurations that are searched side by side, whatever the number of workers: it decides what is searched."""
SURE_FOR = 3
"""Best configurations for which the chance to meet the SLO is drawn."""
_CANNOT = "cannot be run: "


@dataclass(frozen=True, slots=True)
class _Task:
    """One configuration to look at: its scenario, what it costs, and how."""

    scenario: Scenario
    requests: int
    draw: int = -1
    rate_per_s: float = 0.0
    ceiling_per_s: float = 0.0


def plan(
    asked: CapacityPlan,
    *,
    exhaustive: bool = False,
    draws: int = 16,
    jobs: int | None = None,
    backend: str = "joblib",
    address: str | None = None,
    progress: Progress | None = None,
) -> PlanResult:
    """Rank the configurations of a plan by what the load costs on them.

    What does not fit, or cannot meet the SLO even for a request alone, is left out by arithmetic. Of the rest one
    run with all requests at once tells what twice of nobody reaches, and so the least that the load can cost
    there; in that order the highest sustainable rates are searched, until nothing left can be cheaper than the
    best few.

    Parameters
    ----------
    asked : see ``load_plan``
    exhaustive : search every configuration that is not ruled out by arithmetic
    draws : draws of what is not known of the hardware, for the chance that the best ones meet the SLO; 0: none
    jobs, backend, address : where runs happen; see ``run_tasks``. They change no figure
    progress : called with the configurations that are done, and all of them

    Raises
    ------
    MemboundError : a device, model or engine that cannot be read, a fault in the workload, a number of draws or
        workers that cannot be
    """
    if not 0 <= draws <= MAX_DRAWS:
        raise StudyError(f"draws {draws}; allowed: 0 to {MAX_DRAWS:,}")
    where: dict[str, Any] = {"jobs": jobs, "backend": backend, "address": address}
    count = len(asked.settings)
    tasks = [_Task(scenario, asked.requests) for scenario in asked.scenarios]
    looked: list[Option] = [Option({})] * count
    runs = 0
    for done, (at, option) in enumerate(run_tasks(look, tasks, **where), 1):
        looked[at] = replace(option, settings=asked.settings[at])
        runs += option.ceiling_per_s is not None
        if progress is not None:
            progress(done, 2 * count)
    faults = {option.reason for option in looked}
    if len(faults) == 1 and (fault := faults.pop()).startswith(_CANNOT):
        raise StudyError(f"no configuration can be run: {fault.removeprefix(_CANNOT)}")
    order = sorted(
        (at for at in range(count) if looked[at].ceiling_per_s),
        key=lambda at: (least_cost(looked[at], asked.rate_per_s), at),
    )
    while order:
        batch, order = order[:AT_ONCE], order[AT_ONCE:]
        cost = None if exhaustive else _beaten_by(looked, asked.rate_per_s)
        worth = {at: _worth(looked[at], cost, asked.rate_per_s) for at in batch}
        asked_for = [at for at in batch if worth[at] < HEADROOM * (looked[at].ceiling_per_s or 0.0)]
        work = [
            replace(tasks[at], rate_per_s=worth[at], ceiling_per_s=looked[at].ceiling_per_s or 0.0)
            for at in asked_for
        ]
        for position, found in run_tasks(search, work, **where) if work else ():
            at = asked_for[position]
            looked[at] = _costed(looked[at], found, asked, worth[at])
            runs += found.runs
        for at in set(batch) - set(asked_for):
            looked[at] = replace(looked[at], reason="not searched: it cannot be cheaper than the best")
        if progress is not None:
            progress(count + count - len(order), 2 * count)
    ranked = sorted(range(count), key=lambda at: rank_of(looked[at], asked.rate_per_s))
    best = [at for at in ranked if looked[at].serves][:SURE_FOR] if draws else []
    for at, sure in zip(best, _chances(best, looked, asked, draws, where), strict=True):
        looked[at] = replace(looked[at], meets_slo_probability=sure)
    if progress is not None:
        progress(2 * count, 2 * count)
    options = with_front([looked[at] for at in ranked])
    return PlanResult(asked.name, asked.rate_per_s, tuple(options), runs + len(best) * draws, draws)


def look(task: _Task) -> Option:
    """Return what arithmetic and one run with all requests at once say of a configuration."""
    from ..setup import setup_of

    try:
        resolved = at_rate(task.scenario, FASTEST, task.requests)
        setup = setup_of(resolved)
        known = Option(
            {},
            gpus_per_replica=setup.gpus_per_replica,
            usd_per_gpu_hour=setup.usd_per_gpu_hour,
            hash=digest(resolved, "plan"),
        )
        size_pool(resolved)
        if reason := too_slow(resolved):
            return replace(known, reason=reason)
    except CapacityError as error:
        return Option({}, reason=str(error))
    except MemboundError as error:
        return Option({}, reason=f"{_CANNOT}{error}")
    burst = probe(task.scenario, FASTEST, task.requests).summary
    return replace(
        known,
        ceiling_per_s=burst["throughput"]["requests_per_s"] or 0.0,
        level=burst["confidence"]["level"],
        reason="" if burst["throughput"]["requests_per_s"] else "no request completed",
    )


def too_slow(resolved: ResolvedScenario) -> str:
    """Say why a request alone on the machine would miss the SLO too often; nothing where it would not.

    TPOT: one decode step of the shortest context there is. TTFT: the prompt that as many requests exceed as may
    miss the SLO, computed in one step; not judged where prefixes may be cached.
    """
    scenario, workload = resolved.scenario, resolved.workload
    assert scenario.slo is not None
    assert workload is not None
    model = step_model(resolved)
    shortest = int(workload.input_tokens.min())
    step_s = model.step_ns(1, shortest, shortest, [], 1) / 1e9
    allowed = float(np.quantile(workload.input_tokens, scenario.slo.attainment, method="lower"))
    prompt_s = model.step_ns(0, 0, 0, [(max(int(allowed), 2), 0)], 1) / 1e9
    for name, limits in resolved.slo_classes.items():
        if "tpot_s" in limits and step_s > limits["tpot_s"] and int(workload.output_tokens.max()) > 1:
            limit = f"{limits['tpot_s'] * 1e3:,g} ms of {name}"
            return f"a decode step alone takes {step_s * 1e3:,.1f} ms, over the {limit}"
        one_class = len(resolved.slo_classes) == 1 and workload.prefix is None
        if one_class and "ttft_s" in limits and prompt_s > limits["ttft_s"]:
            return (
                f"a prompt of {int(allowed):,} tokens alone takes {prompt_s * 1e3:,.0f} ms, over the "
                f"{limits['ttft_s'] * 1e3:,g} ms of {name}"
            )
    return ""


def search(task: _Task) -> Capacity:
    """Return the highest sustainable rate of a configuration, if it is at least the task's."""
    return highest_rate(task.scenario, task.requests, worth=task.rate_per_s, ceiling_per_s=task.ceiling_per_s)


def chance(task: _Task) -> float:
    """Return the chance that the SLO is met at a rate, with one draw of the hardware.

    The requests of the run are a sample: with g of n within their thresholds the true share has the
    distribution Beta(g + 1/2, n - g + 1/2) (Jeffreys).
    """
    from scipy.special import betaincc  # pyright: ignore[reportMissingTypeStubs]

    from ..draws import one_draw

    assert task.scenario.slo is not None
    resolved = at_rate(task.scenario, task.rate_per_s, task.requests)
    assert resolved.workload is not None
    n = len(resolved.workload)
    good = one_draw(resolved, task.draw)["slo.attainment"] * n
    return float(betaincc(good + 0.5, n - good + 0.5, task.scenario.slo.attainment))


def _beaten_by(options: Sequence[Option], load: float) -> tuple[bool, float] | None:
    """Return the cost that the next configuration must not exceed to be among the best few; None: any."""
    costs = sorted(cost_of(option, load) for option in options if option.serves)
    return costs[TOP - 1] if len(costs) >= TOP else None


def _worth(option: Option, cost: tuple[bool, float] | None, load: float) -> float:
    """Return the rate at which a replica makes a configuration as cheap as ``cost`` [requests/s]; 0: any."""
    if cost is None:
        return 0.0
    (unpriced, most), (mine, one) = cost, price_of(option, option.gpus_per_replica)
    if mine != unpriced:
        return math.inf if mine else 0.0
    replicas = math.floor(most / one + 1e-9) if one else math.inf
    return load / replicas if replicas else math.inf


def _costed(option: Option, found: Capacity, asked: CapacityPlan, worth: float) -> Option:
    """Return an option with what its highest rate means for the load."""
    if found.best is None and worth:
        return replace(
            option, reason="dearer than the best: misses the SLO at the rate that would make it as cheap"
        )
    if found.best is None:
        return replace(option, rate_per_s=0.0, reason="misses the SLO at every rate")
    metrics = metrics_of(found.best.summary)
    replicas = math.ceil(asked.rate_per_s / found.rate_per_s - 1e-9)
    tpot = metrics["latency.tpot_s.mean"]
    served = replace(
        option,
        rate_per_s=found.rate_per_s,
        rate_span=found.span,
        replicas=replicas,
        tokens_per_s_per_user=1 / tpot if tpot else None,
        tokens_per_s_per_gpu=metrics["throughput.output_tokens_per_s_per_gpu"],
        level=found.best.summary["confidence"]["level"],
        metrics=metrics,
    )
    return priced(served, asked.rate_per_s, option.usd_per_gpu_hour)


def _chances(
    best: Sequence[int],
    options: Sequence[Option],
    asked: CapacityPlan,
    draws: int,
    where: Mapping[str, Any],
) -> list[float]:
    """Return the chance that each of some configurations meets the SLO at its share of the load."""
    tasks = [
        _Task(
            asked.scenarios[at],
            asked.requests,
            draw=draw,
            rate_per_s=asked.rate_per_s / (options[at].replicas or 1),
        )
        for at in best
        for draw in range(draws)
    ]
    found = dict(run_tasks(chance, tasks, **where)) if tasks else {}
    return [
        sum(found[position * draws + draw] for draw in range(draws)) / draws for position in range(len(best))
    ]
