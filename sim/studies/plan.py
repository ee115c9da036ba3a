"""Which configuration serves a load within its SLO at the lowest cost, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...hwmodels.errors import CapacityError, MemboundError
from ...hwmodels.notebook import data_frame, html, html_table
from ..run import size_pool, step_model
from ..scenario.resolve import ResolvedScenario
from ..scenario.schema import Scenario
from .backends import run_tasks
from .capacity_plan import CapacityPlan
from .point import digest, metrics_of
from .search import FASTEST, HEADROOM, Capacity, at_rate, highest_rate, probe

Progress = Callable[[int, int], None]
TOP = 5
"""Configurations whose cost is worked out however little they promise beyond the best."""
AT_ONCE = 4
"""Configurations that are searched side by side, whatever the number of workers: it decides what is searched."""
SURE_FOR = 3
"""Best configurations for which the chance to meet the SLO is drawn."""


@dataclass(frozen=True, slots=True)
class Option:
    """One configuration of a plan.

    Attributes
    ----------
    settings : leaf to value
    gpus_per_replica : GPUs of one replica
    usd_per_gpu_hour : what one costs [USD/h]; None where it has no price
    ceiling_per_s : requests that a replica completes a second with all at once, the drain included [requests/s]
    rate_per_s : highest rate of one replica within the SLO [requests/s]; None where it was not searched
    rate_span : between which rates that lies [requests/s]
    replicas : needed for the load; None where not known
    usd_per_million_output_tokens, usd_per_hour : cost at the load [USD]
    tokens_per_s_per_user : reciprocal of the mean TPOT at the load of one replica [tokens/s]
    tokens_per_s_per_gpu : output at the load of one replica [tokens/s]
    meets_slo_probability : that the SLO holds at that load, over what is not known of hardware and requests
    level : how well the least known kernel is known
    metrics : dotted name in ``summary.json`` -> value, of a replica at the highest rate
    pareto : nobody else has both more tokens a second for a user and more for a GPU
    reason : why it cannot serve, or was not searched; empty where it was
    hash : of everything the figures depend on
    """

    settings: Mapping[str, Any]
    gpus_per_replica: int = 1
    usd_per_gpu_hour: float | None = None
    ceiling_per_s: float | None = None
    rate_per_s: float | None = None
    rate_span: tuple[float, float] | None = None
    replicas: int | None = None
    usd_per_million_output_tokens: float | None = None
    usd_per_hour: float | None = None
    tokens_per_s_per_user: float | None = None
    tokens_per_s_per_gpu: float | None = None
    meets_slo_probability: float | None = None
    level: str | None = None
    metrics: Mapping[str, float | None] | None = None
    pareto: bool = False
    reason: str = ""
    hash: str = ""

    @property
    def gpus(self) -> int | None:
        """GPUs needed for the load; None where not known."""
        return None if self.replicas is None else self.replicas * self.gpus_per_replica

    @property
    def joule_per_output_token(self) -> float | None:
        """Energy of all boards by output token of a replica at its highest rate [J]; None where not known."""
        return (self.metrics or {}).get("energy.joule_per_output_token")

    @property
    def serves(self) -> bool:
        """Whether it was found to serve the load within the SLO."""
        return self.replicas is not None


@dataclass(frozen=True, slots=True)
class PlanResult:
    """The configurations of a plan, the cheapest that serves first.

    Attributes
    ----------
    name : the plan's
    rate_per_s : the load [requests/s]
    options : those that serve, by cost; then those that were not searched; then those that cannot
    runs : how many simulations it took
    draws : draws behind each probability
    """

    name: str
    rate_per_s: float
    options: tuple[Option, ...]
    runs: int
    draws: int

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as plain data (``plan --format json``)."""
        return {
            "name": self.name,
            "rate_per_s": self.rate_per_s,
            "runs": self.runs,
            "draws": self.draws,
            "points": [_plain(rank, option) for rank, option in enumerate(self.options, 1)],
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a configuration: its settings and figures, without the metrics of its run."""
        return [
            {
                **point["settings"],
                **{key: value for key, value in point.items() if not isinstance(value, dict)},
            }
            for point in self.to_dict()["points"]
        ]

    def to_pandas(self) -> Any:
        """Return ``rows()`` as a ``pandas.DataFrame``."""
        return data_frame(self.rows())

    def _repr_html_(self) -> str:
        """Show the configurations that serve, the cheapest first."""
        rows = [
            [
                ", ".join(map(str, each.settings.values())),
                each.gpus,
                each.usd_per_hour,
                each.usd_per_million_output_tokens,
                each.tokens_per_s_per_user,
                each.meets_slo_probability,
            ]
            for each in self.options
            if each.serves
        ]
        header = ["", "GPUs", "USD/h", "USD/M output tok", "output tok/s/user", "sure"]
        return html(f"{self.name}: {self.rate_per_s:g} requests/s", html_table(header, rows))


def _plain(rank: int, option: Option) -> dict[str, Any]:
    return {
        "rank": rank if option.serves else None,
        "settings": dict(option.settings),
        "metrics": dict(option.metrics or {}),
        "interval": {"rate_per_s": list(option.rate_span)} if option.rate_span else {},
        "level": option.level,
        "hash": option.hash,
        "meets_slo_probability": option.meets_slo_probability,
        "gpus": option.gpus,
        "replicas": option.replicas,
        "gpus_per_replica": option.gpus_per_replica,
        "rate_per_s_per_replica": option.rate_per_s,
        "ceiling_per_s_per_replica": option.ceiling_per_s,
        "usd_per_million_output_tokens": option.usd_per_million_output_tokens,
        "usd_per_hour": option.usd_per_hour,
        "joule_per_output_token": option.joule_per_output_token,
        "tokens_per_s_per_user": option.tokens_per_s_per_user,
        "tokens_per_s_per_gpu": option.tokens_per_s_per_gpu,
        "pareto": option.pareto,
        "reason": option.reason or None,
    }


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
    MemboundError : a device, model or engine that cannot be read, a fault in the workload
    """
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
    order = sorted(
        (at for at in range(count) if looked[at].ceiling_per_s),
        key=lambda at: (_least_cost(looked[at], asked.rate_per_s), at),
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
    ranked = sorted(range(count), key=lambda at: _rank(looked[at], asked.rate_per_s))
    best = [at for at in ranked if looked[at].serves][:SURE_FOR] if draws else []
    for at, sure in zip(best, _chances(best, looked, asked, draws, where), strict=True):
        looked[at] = replace(looked[at], meets_slo_probability=sure)
    if progress is not None:
        progress(2 * count, 2 * count)
    options = _with_front([looked[at] for at in ranked])
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
        return Option({}, reason=f"cannot be run: {error}")
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


def _least_cost(option: Option, load: float) -> tuple[bool, float]:
    """Return the least that the load can cost, at a rate that nobody reaches; see ``_cost``."""
    replicas = math.ceil(load / (HEADROOM * option.ceiling_per_s)) if option.ceiling_per_s else math.inf
    return _price(option, max(replicas, 1) * option.gpus_per_replica)


def _price(option: Option, gpus: float) -> tuple[bool, float]:
    """Return what so many GPUs cost [USD/h]; those without a price come last, by their number."""
    unpriced = option.usd_per_gpu_hour is None
    return unpriced, gpus * (option.usd_per_gpu_hour or (1.0 if unpriced else 0.0))


def _beaten_by(options: Sequence[Option], load: float) -> tuple[bool, float] | None:
    """Return the cost that the next configuration must not exceed to be among the best few; None: any."""
    costs = sorted(_cost(option, load) for option in options if option.serves)
    return costs[TOP - 1] if len(costs) >= TOP else None


def _worth(option: Option, cost: tuple[bool, float] | None, load: float) -> float:
    """Return the rate at which a replica makes a configuration as cheap as ``cost`` [requests/s]; 0: any."""
    if cost is None:
        return 0.0
    (unpriced, most), (mine, one) = cost, _price(option, option.gpus_per_replica)
    if mine != unpriced:
        return math.inf if mine else 0.0
    replicas = math.floor(most / one + 1e-9) if one else math.inf
    return load / replicas if replicas else math.inf


def _cost(option: Option, load: float) -> tuple[bool, float]:
    return _price(option, option.gpus) if option.gpus is not None else _least_cost(option, load)


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
    return _priced(served, asked.rate_per_s, option.usd_per_gpu_hour)


def outputs_per_s(option: Option, load: float) -> float | None:
    """Return how many output tokens a second a load makes on a configuration that serves it [tokens/s]."""
    if option.metrics is None:
        return None
    per_request = (option.metrics["throughput.output_tokens_per_s"] or 0.0) / (
        option.metrics["throughput.requests_per_s"] or 1.0
    )
    return load * per_request


def _priced(option: Option, load: float, usd_per_gpu_hour: float | None) -> Option:
    """Return a configuration at a price [USD/h]."""
    outputs = outputs_per_s(option, load)
    usd = None if usd_per_gpu_hour is None or option.gpus is None else usd_per_gpu_hour * option.gpus
    return replace(
        option,
        usd_per_gpu_hour=usd_per_gpu_hour,
        usd_per_hour=usd,
        usd_per_million_output_tokens=None if usd is None or not outputs else usd / outputs / 3600 * 1e6,
    )


def repriced(found: PlanResult, prices: Mapping[str, float]) -> PlanResult:
    """Return a plan at other prices, ranked anew; of an exhaustive plan, for others were searched by the old ones.

    Parameters
    ----------
    found : the plan
    prices : device to price of a GPU hour; others keep theirs [USD/h]
    """
    moved = [
        _priced(
            option, found.rate_per_s, prices.get(str(option.settings.get("device")), option.usd_per_gpu_hour)
        )
        for option in found.options
    ]
    ranked = sorted(moved, key=lambda option: _rank(option, found.rate_per_s))
    return replace(found, options=tuple(ranked))


def _rank(option: Option, load: float) -> tuple[int, tuple[bool, float], float]:
    order = 0 if option.serves else 1 if option.ceiling_per_s and option.rate_per_s is None else 2
    return order, _cost(option, load), -(option.rate_per_s or 0.0) / option.gpus_per_replica


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


def _with_front(options: Sequence[Option]) -> list[Option]:
    """Mark the options that no other beats in tokens a second both for a user and for a GPU."""
    known = [(o.tokens_per_s_per_user or 0.0, o.tokens_per_s_per_gpu or 0.0) for o in options]

    def beaten(at: int) -> bool:
        user, gpu = known[at]
        return any(u >= user and g >= gpu and (u, g) != (user, gpu) for u, g in known)

    return [replace(option, pareto=option.serves and not beaten(at)) for at, option in enumerate(options)]
