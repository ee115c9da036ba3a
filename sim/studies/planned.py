"""What a plan found: its configurations with their figures, what each costs, and how they rank."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...hwmodels.notebook import data_frame, html, html_table
from .search import HEADROOM


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


def least_cost(option: Option, load: float) -> tuple[bool, float]:
    """Return the least that the load can cost, at a rate that nobody reaches; see ``cost_of``."""
    replicas = math.ceil(load / (HEADROOM * option.ceiling_per_s)) if option.ceiling_per_s else math.inf
    return price_of(option, max(replicas, 1) * option.gpus_per_replica)


def price_of(option: Option, gpus: float) -> tuple[bool, float]:
    """Return what so many GPUs cost [USD/h]; those without a price come last, by their number."""
    unpriced = option.usd_per_gpu_hour is None
    return unpriced, gpus * (option.usd_per_gpu_hour or (1.0 if unpriced else 0.0))


def cost_of(option: Option, load: float) -> tuple[bool, float]:
    return price_of(option, option.gpus) if option.gpus is not None else least_cost(option, load)


def outputs_per_s(option: Option, load: float) -> float | None:
    """Return how many output tokens a second a load makes on a configuration that serves it [tokens/s]."""
    if option.metrics is None:
        return None
    per_request = (option.metrics["throughput.output_tokens_per_s"] or 0.0) / (
        option.metrics["throughput.requests_per_s"] or 1.0
    )
    return load * per_request


def priced(option: Option, load: float, usd_per_gpu_hour: float | None) -> Option:
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
        priced(
            option, found.rate_per_s, prices.get(str(option.settings.get("device")), option.usd_per_gpu_hour)
        )
        for option in found.options
    ]
    ranked = sorted(moved, key=lambda option: rank_of(option, found.rate_per_s))
    return replace(found, options=tuple(ranked))


def rank_of(option: Option, load: float) -> tuple[int, tuple[bool, float], float]:
    order = 0 if option.serves else 1 if option.ceiling_per_s and option.rate_per_s is None else 2
    return order, cost_of(option, load), -(option.rate_per_s or 0.0) / option.gpus_per_replica


def with_front(options: Sequence[Option]) -> list[Option]:
    """Mark the options that no other beats in tokens a second both for a user and for a GPU."""
    known = [(o.tokens_per_s_per_user or 0.0, o.tokens_per_s_per_gpu or 0.0) for o in options]

    def beaten(at: int) -> bool:
        user, gpu = known[at]
        return any(u >= user and g >= gpu and (u, g) != (user, gpu) for u, g in known)

    return [replace(option, pareto=option.serves and not beaten(at)) for at, option in enumerate(options)]
