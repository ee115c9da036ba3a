"""What-if: scenario A of the sidebar against B, which is A with a few levers moved."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import streamlit as st

from ...sim.output.view import view_of
from ...sim.output.views import cause_rows, latency_rows, limiter_rows, position_rows
from ..charts.requests import itl_by_position, latencies
from ..charts.shares import limiter_bars, share_bars
from ..render import notes as notes_of
from .asked import OTHER, SUGGESTED, moved, moves_in, scenario_of
from .drawn import chart
from .figures import CARDS, change_of, span_of, sure, table_of, value_of
from .levers import shown
from .runs import DRAWS, Answer, beside, comparison, hash_of
from .sidebar import Asked, control
from .work import run, wait_for

if TYPE_CHECKING:
    from ...sim.scenario import Scenario
    from ...sim.studies.compare import Comparison
    from ...sim.studies.point import Point

NUMBERS: Mapping[str, int] = {"none": 0, f"{DRAWS} draws": DRAWS, f"{2 * DRAWS} draws": 2 * DRAWS}
MOVES = "_moves"
CARD = 164
"""Width of a card [px]: five side by side on a laptop."""


def page(asked: Asked) -> None:
    """Draw the page."""
    other = _other(asked)
    cards, intervals, verdicts = st.container(), st.container(), st.container()
    a = run(asked.scenario, "A")
    b = run(other, "B")
    if a is None or b is None:
        return
    found = beside(a, b)
    with cards:
        place = st.empty()
        _cards(place, found)
    with verdicts:
        _verdicts(a, b)
    _charts(a, b)
    details = st.empty()
    _details(details, found)
    if a.hash == b.hash:
        return
    with intervals:
        drawn = _drawn(asked.scenario, other)
    if drawn is not None:
        _cards(place, drawn)
        _details(details, drawn)


def _other(asked: Asked) -> Scenario:
    """Show which levers B moves, and return its scenario."""
    base = asked.base
    names = {each.key: each.label for each in base.levers}
    with st.container(border=True):
        st.markdown("**A** is the scenario of the sidebar. **B** is A with these levers moved:")
        st.session_state.setdefault(MOVES, moves_in(base, st.query_params.get_all("b")))
        chosen = st.multiselect(
            "B moves", list(names), format_func=lambda key: names[key], key=MOVES, persist_state="session",
            label_visibility="collapsed", placeholder="Nothing yet: choose a lever",
        )  # fmt: skip
        st.query_params["b"] = ",".join(chosen)
        values = dict(asked.values)
        columns = st.columns(min(max(len(chosen), 1), 4))
        for at, key in enumerate(chosen):
            lever = base.lever(key)
            with columns[at % len(columns)]:
                values[key] = control(lever, prefix=OTHER, default=SUGGESTED.get(key))
                st.caption(f"A: {shown(lever, asked.values[key])}")
        idle = base.idle(values) & set(chosen)
        if idle:
            st.caption(
                f"{', '.join(names[key] for key in sorted(idle))}: changes nothing as the others stand."
            )
        if not moved(base, values) and not moved(base, asked.values):
            st.caption("B is A.")
    return scenario_of(base, values)


def _cards(place: Any, found: Comparison) -> None:
    """Fill the place of the cards."""
    a, b = found.points
    with place.container(horizontal=True):
        for card in CARDS:
            value, change = value_of(b, card.metric, card.write), change_of(b, a, card.metric)
            good = b.change.get(card.metric, 0.0) * (-1 if card.less_is_good else 1)
            color = "off" if not change else "green" if good > 0 else "red"
            st.metric(
                card.label, value, change or "as A", delta_color=color, border=True, help=card.help, width=CARD,
                delta_description=_beside(a, b, card), delta_arrow="off" if not change else "auto",
            )  # fmt: skip


def _beside(a: Point, b: Point, card: Any) -> str:
    """Return the line under a card: the figure of A, and the intervals where they were drawn."""
    spans = [span_of(point.interval.get(card.metric), card.write) for point in (a, b)]
    text = f"A {value_of(a, card.metric, card.write)}"
    return f"{text} ({spans[0]}) · B {spans[1]}" if spans[0] and spans[1] else text


def _verdicts(a: Answer, b: Answer) -> None:
    for column, name, each in zip(st.columns(2), "AB", (a, b), strict=True):
        with column, st.container(border=True):
            st.markdown(f"**{name}** · {each.summary['verdict']['sentence']}")
            st.caption(f"Known: {sure(each.summary)}")
            for note in notes_of(each.summary):
                st.caption(f"Note: {note}")


def _charts(a: Answer, b: Answer) -> None:
    summaries = {"A": a.summary, "B": b.summary}
    left, right = st.columns(2)
    with left:
        chart("causes", lambda: share_bars(cause_rows(summaries), bar=38), "What each run waited for")
    with right:
        chart("limiters", lambda: limiter_bars(limiter_rows(summaries), bar=38), "What kept each batch small",
              empty="No step ran.")  # fmt: skip
    with left:
        rows = [{**row, "scenario": name} for name, each in zip("AB", (a, b), strict=True)
                for row in position_rows(view_of(each.result))]  # fmt: skip
        chart("positions", lambda: itl_by_position(rows), "Mean gap before an output token by its position",
              empty="No answer has two tokens.")  # fmt: skip
    with right:
        chart("latencies", lambda: latencies(latency_rows(view_of(b.result))), "Latencies of the requests of B",
              empty="No request was completed.")  # fmt: skip


def _details(place: Any, found: Comparison) -> None:
    with place.container():
        st.subheader("Every figure", anchor=False)
        st.dataframe(table_of(found), hide_index=True, width="stretch", height="content")


def _drawn(a: Scenario, b: Scenario) -> Comparison | None:
    """Return both with intervals, or None where the reader wants none."""
    chosen = st.segmented_control(
        "90 % intervals", list(NUMBERS), default=f"{DRAWS} draws", required=True, key="draws", bind="query-params",
        help="Runs of both with what is not known of the hardware drawn; A and B meet the same draws.",
    )  # fmt: skip
    draws = NUMBERS[str(chosen)]
    if not draws:
        return None
    name = f"compare {hash_of(a)} {hash_of(b)} {draws}"
    return wait_for(
        name,
        f"90 % intervals from {draws} draws",
        lambda progress: comparison(a, b, draws, progress),
        "Draw them",
    )
