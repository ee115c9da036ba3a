"""How many tokens prompts and answers have: distributions to draw from, each with bounds."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray
from pydantic import BeforeValidator, Field, model_validator

from ...hwmodels.units import Count, PositiveCount, parse_count
from ..fields import Section
from ..random import standard_normal, uniform

LONGEST = 2**31 - 1
"""Longest prompt or answer that is believed [tokens]."""
Tokens = Annotated[PositiveCount, Le(LONGEST)]
Lengths = NDArray[np.int64]
_Z99 = 2.3263478740408408  # 99th percentile of the standard normal


class _Distribution(Section):
    """Base: draws real numbers, then rounds them and keeps them within ``min`` and ``max``."""

    min: Tokens = 1
    max: Tokens | None = None

    @model_validator(mode="after")
    def _bounds_in_order(self) -> _Distribution:
        if self.max is not None and self.max < self.min:
            raise ValueError(f"max {self.max} is below min {self.min}")
        return self

    def draw(self, seed: int, source: str, indices: range) -> Lengths:
        """Draw the length of each request index from the stream ``source``, shape (n,) [tokens]."""
        values = np.rint(self.raw(seed, source, indices))
        return np.clip(values, self.min, self.max).astype(np.int64)

    def raw(self, seed: int, source: str, indices: range) -> NDArray[np.float64]:
        """Draw the lengths before rounding and bounds, shape (n,) [tokens]."""
        raise NotImplementedError


class Fixed(_Distribution):
    """Every request has ``value`` tokens; ``input_tokens: 1024`` says the same.

    Attributes
    ----------
    kind : ``fixed``
    value : the length [tokens]
    min, max : bounds; what is drawn beyond them becomes the bound [tokens]
    """

    kind: Literal["fixed"] = "fixed"
    value: Tokens

    def raw(self, seed: int, source: str, indices: range) -> NDArray[np.float64]:
        """Return the value for each index [tokens]."""
        del seed, source
        return np.full(len(indices), float(self.value))


class Lognormal(_Distribution):
    """Lognormal by its median and one other figure, the usual shape of published lengths.

    Attributes
    ----------
    kind : ``lognormal``
    p50 : median [tokens]
    p99 : 99th percentile; give this or ``sigma`` [tokens]
    sigma : standard deviation of the logarithm [-]
    min, max : bounds; what is drawn beyond them becomes the bound [tokens]
    """

    kind: Literal["lognormal"] = "lognormal"
    p50: Tokens
    p99: Tokens | None = None
    sigma: Annotated[float, Ge(0), Le(20)] | None = None

    @model_validator(mode="after")
    def _one_spread(self) -> Lognormal:
        if (self.p99 is None) == (self.sigma is None):
            raise ValueError("needs exactly one of p99 and sigma")
        if self.p99 is not None and self.p99 < self.p50:
            raise ValueError(f"p99 {self.p99} is below p50 {self.p50}")
        return self

    def raw(self, seed: int, source: str, indices: range) -> NDArray[np.float64]:
        """Draw exp(normal) [tokens]."""
        sigma = math.log(self.p99 / self.p50) / _Z99 if self.p99 is not None else self.sigma or 0.0
        return self.p50 * np.exp(sigma * standard_normal(seed, source, indices))


class Uniform(_Distribution):
    """Every whole number from ``low`` to ``high``, both included, equally likely.

    Attributes
    ----------
    kind : ``uniform``
    low, high : shortest and longest [tokens]
    min, max : bounds; what is drawn beyond them becomes the bound [tokens]
    """

    kind: Literal["uniform"] = "uniform"
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _low_first(self) -> Uniform:
        if self.high < self.low:
            raise ValueError(f"high {self.high} is below low {self.low}")
        return self

    def raw(self, seed: int, source: str, indices: range) -> NDArray[np.float64]:
        """Draw whole numbers [tokens]."""
        return self.low + np.floor(uniform(seed, source, indices) * (self.high - self.low + 1))


class Quantiles(_Distribution):
    """Published quantiles, geometrically interpolated between them.

    Attributes
    ----------
    kind : ``quantiles``
    points : share of the requests to the length they do not exceed: ``{0: 16, 0.5: 1020, 1: 8000}`` [tokens]
    min, max : bounds; what is drawn beyond them becomes the bound [tokens]
    """

    kind: Literal["quantiles"] = "quantiles"
    points: dict[Annotated[float, Ge(0)], Tokens]

    @model_validator(mode="after")
    def _from_0_to_1(self) -> Quantiles:
        shares = sorted(self.points)
        if len(shares) < 2 or shares[0] != 0.0 or shares[-1] != 1.0:
            raise ValueError("points need the quantiles 0 and 1 (the smallest and the largest length)")
        if any(self.points[a] > self.points[b] for a, b in pairwise(shares)):
            raise ValueError("points must not fall as the quantile rises")
        return self

    def raw(self, seed: int, source: str, indices: range) -> NDArray[np.float64]:
        """Draw by inverting the interpolated distribution [tokens]."""
        shares = sorted(self.points)
        logs = np.log([self.points[share] for share in shares])
        return np.exp(np.interp(uniform(seed, source, indices), shares, logs))


class Empirical(_Distribution):
    """Lengths resampled from a trace file, with replacement.

    Prompts and answers that name the same file are drawn from the same row, so their correlation is kept.

    Attributes
    ----------
    kind : ``empirical``
    path : any trace file that can be read (relative to the scenario's file)
    column : ``input_tokens`` or ``output_tokens``; by default what the distribution is used for
    min, max : bounds; what is drawn beyond them becomes the bound [tokens]
    """

    kind: Literal["empirical"] = "empirical"
    path: str
    column: Literal["auto", "input_tokens", "output_tokens"] = "auto"

    def raw(self, seed: int, source: str, indices: range) -> NDArray[np.float64]:
        """Draw rows of the file [tokens]."""
        from .trace.read import read_lengths

        pool = read_lengths(self.path, source if self.column == "auto" else self.column)
        rows = np.floor(uniform(seed, f"rows of {Path(self.path).name}", indices) * len(pool)).astype(
            np.int64
        )
        return pool[rows].astype(np.float64)


def _as_section(value: object) -> object:
    """Read a bare number as ``{kind: fixed, value: …}``."""
    if isinstance(value, int | float | str) and not isinstance(value, bool):
        return {"kind": "fixed", "value": parse_count(value)}
    return value


_Any = Annotated[Fixed | Lognormal | Uniform | Quantiles | Empirical, Field(discriminator="kind")]
LengthDistribution = Annotated[_Any, BeforeValidator(_as_section, json_schema_input_type=_Any | Count | str)]
