"""Charts on a page: on its ground, light or dark, as wide as there is room."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import streamlit as st

from ..charts import palette
from ..charts.data import EmptyChartError

AROUND = 84
"""Height of title, legend and axis, which a page counts to a chart's own [px]."""


def dark() -> bool:
    """Tell whether the reader sees the pages on a dark ground."""
    return getattr(st.context.theme, "type", None) == "dark"


def chart(key: str, make: Callable[[], Any], told: str, *, empty: str = "Nothing to show here.") -> None:
    """Draw a chart.

    Parameters
    ----------
    key : its name on the page
    make : returns the chart
    told : what it shows, for readers who cannot see it
    empty : said instead where it has nothing to show
    """
    try:
        made = make()
    except EmptyChartError:
        st.caption(empty)
        return
    st.altair_chart(_on_ground(made), theme=None, width="stretch", key=key, alt=told)


def selected(key: str, make: Callable[[], Any], told: str) -> tuple[float, float] | None:
    """Draw a chart with a selection named ``window`` along ``t_s``, and return the ends of what was chosen [s]."""
    state = st.altair_chart(
        _on_ground(make()),
        theme=None,
        width="stretch",
        key=key,
        alt=told,
        on_select="rerun",
        selection_mode="window",
    )
    ends = (state.get("selection", {}).get("window") or {}).get("t_s") if isinstance(state, dict) else None
    return (min(ends), max(ends)) if ends and max(ends) > min(ends) else None


def _on_ground(made: Any) -> Any:
    config = palette.config("dark" if dark() else "light") | {"background": "transparent"}
    room: dict[str, Any] = {"height": made.height + AROUND} if isinstance(made.height, int) else {}
    spec = made.properties(padding={"left": 4, "right": 10, "top": 4, "bottom": 4}, **room)
    return spec.configure(**config)
