"""The script that Streamlit runs: navigation, the sidebar, and the page that was chosen."""

# Streamlit runs this file as a script, so its imports are absolute; an editable install hides them from a type checker.
# pyright: reportMissingImports=false

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

import streamlit as st
from membound.app.dashboard import bottleneck, calibration, capacity, load, timeline, whatif
from membound.app.dashboard.asked import base_of
from membound.app.dashboard.opening import SCENARIO_VARIABLE
from membound.app.dashboard.serve import PAGE
from membound.app.dashboard.sidebar import Asked, note_of_address, notes, share, sidebar
from membound.app.dashboard.work import stop_others
from membound.hwmodels.errors import MemboundError

PAGES: Mapping[str, tuple[str, Callable[[Asked], None]]] = {
    "what-if": ("What-if", whatif.page),
    "bottleneck": ("Bottleneck", bottleneck.page),
    "load": ("Load and SLO", load.page),
    "timeline": ("Timeline", timeline.page),
    "capacity": ("Capacity and cost", capacity.page),
    "calibration": ("Calibration", calibration.page),
}
"""Name in the address -> title and content. No icons: the browser would fetch the one of the tab from elsewhere."""


STYLE = """<style>
.stMainBlockContainer {padding: 3rem clamp(1rem, 3vw, 3rem) 4rem;}
[data-testid=stMetricValue] {font-size: 1.7rem; font-variant-numeric: tabular-nums;}
h1 {font-size: 2rem !important;}
</style>"""
"""More room for charts, and figures that stand under each other."""


def run(only: str | None = None) -> None:
    """Draw the dashboard.

    Parameters
    ----------
    only : draw this page whatever the address says
    """
    st.set_page_config("membound", layout="wide")
    base = base_of(os.environ.get(SCENARIO_VARIABLE))
    note_of_address(base)
    chosen: list[str] = []
    pages = {
        name: st.Page(lambda name=name: chosen.append(name), title=title, url_path=name, default=not at)
        for at, (name, (title, _)) in enumerate(PAGES.items())
    }
    page = st.navigation(list(pages.values()))
    meant = st.query_params.get(PAGE)
    if meant in pages:
        st.switch_page(
            pages[meant], query_params={k: st.query_params.get_all(k) for k in st.query_params if k != PAGE}
        )
    page.run()
    title, content = PAGES[only or chosen[0]]
    st.html(STYLE)
    st.title(title, anchor=False)
    notes()
    try:
        with st.sidebar:
            asked = sidebar(base)
            share(asked)
        content(asked)
    except MemboundError as error:
        st.error(str(error), icon=":material/error:")
    stop_others()


if __name__ == "__main__":
    run()
