"""Rows on their way into a chart: as a table, and no more of them than a picture can show."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import altair as alt
import pyarrow as pa

from ...hwmodels.errors import MemboundError

Row = Mapping[str, Any]
Rows = Sequence[Row]

Layered = alt.LayerChart | alt.FacetChart
"""Layers of marks, as altair types them."""

MAX_MARKS: Final = 5_000
"""Most marks of one chart."""
WIDTH: Final = 520
HEIGHT: Final = 230


class EmptyChartError(MemboundError):
    """A chart that was asked for without a row to show."""


def table(rows: Rows) -> pa.Table:
    """Return rows as a table: altair would check a list of them against its schema, one by one."""
    return pa.Table.from_pylist([dict(row) for row in rows])


def chart(rows: Rows) -> alt.Chart:
    """Return a chart of rows, with nothing drawn yet."""
    return alt.Chart(table(rows))


def some(rows: Rows, what: str) -> Rows:
    """Return rows, refusing none at all.

    Raises
    ------
    EmptyChartError : there is no row
    """
    if not rows:
        raise EmptyChartError(f"nothing to draw: {what} has no row; allowed: one or more")
    return rows


def thinned(rows: Rows, along: str, value: str, by: str | None = None, most: int = MAX_MARKS) -> list[Row]:
    """Return at most ``most`` rows: of each bucket along an axis, those with the least and the largest value.

    Parameters
    ----------
    rows : any number
    along : field that is cut into buckets of equal width
    value : field whose extremes are kept
    by : field that tells series apart; each has buckets of its own
    most : rows to return at most

    Examples
    --------
    >>> rows = [{"t": t, "y": 100 if t == 517 else t % 7} for t in range(1000)]
    >>> few = thinned(rows, "t", "y", most=20)
    >>> len(few) <= 20, max(row["y"] for row in few)
    (True, 100)
    """
    if len(rows) <= most:
        return list(rows)
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(row[by] if by else None, []).append(row)
    buckets = max(most // (2 * len(groups)), 1)
    kept: list[Row] = []
    for group in groups.values():
        low, high = min(row[along] for row in group), max(row[along] for row in group)
        width = (high - low) / buckets or 1.0
        ends: dict[int, list[Row]] = {}
        for row in group:
            place = min(int((row[along] - low) / width), buckets - 1)
            least_most = ends.setdefault(place, [row, row])
            if row[value] < least_most[0][value]:
                least_most[0] = row
            if row[value] > least_most[1][value]:
                least_most[1] = row
        for _, (least, largest) in sorted(ends.items()):
            pair = [least] if least is largest else sorted((least, largest), key=lambda row: row[along])
            kept.extend(pair)
    return kept


def percent_axis(**more: Any) -> alt.Axis:
    """Return an axis of shares, labelled in percent."""
    return alt.Axis(format=".0%", **more)


def seconds_axis(title: str = "time since the first arrival [s]", **more: Any) -> alt.X:
    """Return a time axis [s] over the field ``t_s``."""
    return alt.X("t_s:Q", title=title, scale=alt.Scale(nice=False, zero=False), **more)
