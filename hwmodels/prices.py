"""List prices of devices, each with provider and date, from ``prices.yaml``."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, Field

from .catalog import read_yaml
from .validation import validate

PRICES = Path(__file__).parent / "prices.yaml"


class Price(BaseModel):
    """One offer.

    Attributes
    ----------
    usd_per_hour : on-demand price of one device [USD/h]
    spot_usd_per_hour : spot price of one device, where listed [USD/h]
    provider, instance, region : who offers it, as what, where
    dated : date of the snapshot, as far as it is known
    source : where the figure was read
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    usd_per_hour: float = Field(gt=0)
    spot_usd_per_hour: float | None = Field(default=None, gt=0)
    provider: str
    instance: str
    region: str
    dated: str
    source: str


class PriceList(BaseModel):
    """All offers, by device id."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    offers: dict[str, tuple[Price, ...]]


@lru_cache(maxsize=1)
def offers() -> dict[str, tuple[Price, ...]]:
    """Return every known offer by device id."""
    return validate(PriceList, read_yaml(PRICES, "price"), "price", str(PRICES)).offers


def list_price(device_id: str) -> Price | None:
    """Return the middle on-demand offer for a device (the cheaper of the two middle ones), or None.

    The middle one: offers for one device differ by up to a factor of two, and a mean is nobody's price.
    """
    known = sorted(offers().get(device_id, ()), key=lambda price: (price.usd_per_hour, price.provider))
    return known[(len(known) - 1) // 2] if known else None
