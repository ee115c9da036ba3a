"""What a GPU costs: a list price, a table of one's own, or what a GPU costs that one owns."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Le
from pydantic import model_validator

from ..fields import Section

HOURS_PER_YEAR = 8766.0


class Owned(Section):
    """A GPU of one's own: what it costs an hour, bought and fed.

    Attributes
    ----------
    usd_per_gpu : what was paid for one GPU, with its share of server, network and installation [USD]
    years : over which it is written off [years]
    usd_per_kwh : what electricity costs; the board draws its power limit at most, and is charged for that [USD/kWh]
    overhead : electricity of the building over that of the boards (PUE) [-]
    usd_per_gpu_year : staff, space and maintenance [USD/year]
    """

    usd_per_gpu: Annotated[float, Gt(0), Le(1e7)]
    years: Annotated[float, Gt(0), Le(50)]
    usd_per_kwh: Annotated[float, Ge(0), Le(100)] = 0.0
    overhead: Annotated[float, Ge(1), Le(10)] = 1.0
    usd_per_gpu_year: Annotated[float, Ge(0), Le(1e7)] = 0.0

    def usd_per_hour(self, power_limit_w: float | None) -> float:
        """Return what an hour of one GPU costs, used or not [USD/h]; an unknown power limit draws nothing."""
        drawn_kw = (power_limit_w or 0.0) / 1e3 * self.overhead
        return (
            self.usd_per_gpu / self.years + self.usd_per_gpu_year
        ) / HOURS_PER_YEAR + drawn_kw * self.usd_per_kwh


class Price(Section):
    """What a GPU costs.

    Attributes
    ----------
    usd_per_gpu_hour : null takes the price of the plan [USD/h]
    plan : the middle list price on demand, the middle spot price, or what an ``owned`` GPU costs
    table : prices of one's own in the form of ``hwmodels/prices.yaml``, such as a reservation's, in place of the list's
    owned : of the plan ``owned``
    """

    usd_per_gpu_hour: Annotated[float, Ge(0), Le(1e6)] | None = None
    plan: Literal["on_demand", "spot", "owned"] = "on_demand"
    table: str | None = None
    owned: Owned | None = None

    @model_validator(mode="after")
    def _one_price(self) -> Price:
        if (self.plan == "owned") != (self.owned is not None):
            raise ValueError("plan 'owned' and the section owned: {usd_per_gpu: ..., years: ...} go together")
        if self.usd_per_gpu_hour is not None and (self.plan != "on_demand" or self.table is not None):
            raise ValueError("usd_per_gpu_hour is a price already; leave out plan and table")
        return self
