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

    def of_plan(self, *, spot: bool) -> float | None:
        """Return the price on demand, or the spot price, None where none is listed [USD/h]."""
        return self.spot_usd_per_hour if spot else self.usd_per_hour


class PriceList(BaseModel):
    """All offers, by device id."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    offers: dict[str, tuple[Price, ...]]


@lru_cache(maxsize=8)
def offers(table: str | None = None) -> dict[str, tuple[Price, ...]]:
    """Return every offer by device id, of the bundled list or of a file in its form.

    Raises
    ------
    CatalogError
        The file is not there, or not of that form.
    """
    path = PRICES if table is None else Path(table)
    return validate(PriceList, read_yaml(path, "price"), "price", str(path)).offers


def list_price(device_id: str, table: str | None = None, *, spot: bool = False) -> Price | None:
    """Return the middle offer for a device (the cheaper of the two middle ones), or None.

    The middle one: offers for one device differ by up to a factor of two, and a mean is nobody's price.

    Parameters
    ----------
    table : file of offers in place of the bundled list
    spot : by spot prices, of the offers that have one
    """
    listed = ((offer.of_plan(spot=spot), offer) for offer in offers(table).get(device_id, ()))
    known = sorted(
        ((usd, offer) for usd, offer in listed if usd is not None),
        key=lambda each: (each[0], each[1].provider),
    )
    return known[(len(known) - 1) // 2][1] if known else None
