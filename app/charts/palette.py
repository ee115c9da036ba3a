"""One colour for each meaning, in every chart of membound, and how charts look on a light and on a dark ground.

The colours of ``CAUSES`` were searched for: HBM is blue, compute orange, waiting pale, and any two differ by at least
18 CIELAB units for a reader with normal vision or with protanopia, deuteranopia or tritanopia (a test measures it). The
same colours serve both grounds, so that a picture and its dark twin can be read side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal

import altair as alt

Theme = Literal["light", "dark"]

CAUSES: Final[Mapping[str, str]] = {
    "hbm_weights": "#366dc9",
    "hbm_kv": "#1dabf1",
    "hbm_activations": "#aacef0",
    "compute": "#cb620f",
    "communication": "#c06997",
    "transfer": "#962c56",
    "latency": "#e1a309",
    "launch": "#877642",
    "host": "#6aa27a",
    "bubble": "#645190",
    "idle": "#bfbabb",
}
"""Cause of wall time -> colour, in the order in which they are stacked."""
CAUSE_NAMES: Final[Mapping[str, str]] = {
    "hbm_weights": "HBM weights",
    "hbm_kv": "HBM KV",
    "hbm_activations": "HBM activations",
    "compute": "compute",
    "communication": "communication",
    "transfer": "KV transfer",
    "latency": "in-kernel latency",
    "launch": "launch",
    "host": "host",
    "bubble": "bubble",
    "idle": "idle",
}
"""Cause -> what a reader is shown; the same words as in the tables."""
LIMITERS: Final[Mapping[str, str]] = {
    "kv_blocks": CAUSES["hbm_kv"],
    "max_num_seqs": CAUSES["bubble"],
    "token_budget": CAUSES["compute"],
    "arrivals": CAUSES["idle"],
}
LIMITER_NAMES: Final[Mapping[str, str]] = {
    "kv_blocks": "KV blocks",
    "max_num_seqs": "max_num_seqs",
    "token_budget": "token budget",
    "arrivals": "arrivals",
}
PHASES: Final[Mapping[str, str]] = {
    "queue": CAUSES["idle"],
    "prefill": CAUSES["compute"],
    "decode": CAUSES["hbm_kv"],
    "stalled by prefill": CAUSES["transfer"],
}
"""What a request goes through; also prefill and decode steps wherever they are told apart."""
KINDS: Final[Mapping[str, str]] = {
    "prefill": CAUSES["compute"],
    "decode": CAUSES["hbm_kv"],
    "mixed": CAUSES["bubble"],
    "all": CAUSES["hbm_weights"],
    "training": CAUSES["transfer"],
}
"""Kind of step -> colour, on the roofline."""
MONITORS: Final[Mapping[str, str]] = {
    "gpu_util": CAUSES["host"],
    "sm_active": CAUSES["latency"],
    "tensor_active": CAUSES["compute"],
    "dram_active": CAUSES["hbm_weights"],
}
LATENCIES: Final[Mapping[str, str]] = {
    "TTFT": CAUSES["compute"],
    "TPOT": CAUSES["hbm_weights"],
    "ITL": CAUSES["hbm_kv"],
    "E2E": CAUSES["bubble"],
}
FITTED: Final = "#5b84b1"
HELD_OUT: Final = "#d9541e"
ACCENT: Final = "#366dc9"
"""Of a single series that stands for nothing in particular."""
MUTED: Final = "#8a929c"
"""Of what is left out, or only compared with; seen on both grounds."""
BAD: Final = "#c0392b"
"""Of a limit that should not be crossed: the SLO, the end of the KV pool."""
GOOD: Final = "#2e8b57"
SCENARIOS: Final[tuple[str, ...]] = ("#5b84b1", "#d9541e", "#6aa27a", "#a07cc5", "#b39b3c", "#7d8894")
"""Scenarios beside each other, the base first: A, B, ..."""

_INK: Final[Mapping[Theme, Mapping[str, str]]] = {
    "light": {
        "text": "#1c2733",
        "soft": "#5b6875",
        "grid": "#e3e7ec",
        "line": "#c5ccd4",
        "ground": "#ffffff",
    },
    "dark": {"text": "#e6e9ee", "soft": "#a3adb8", "grid": "#2b333d", "line": "#46505c", "ground": "#12171d"},
}
FONT: Final = "system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"


def ink(theme: Theme) -> Mapping[str, str]:
    """Return the colours of text, soft text, grid, axis lines and ground.

    >>> ink("light")["ground"], ink("dark")["text"]
    ('#ffffff', '#e6e9ee')
    """
    return _INK[theme]


def config(theme: Theme) -> dict[str, Any]:
    """Return the Vega-Lite ``config`` that puts any chart of membound on a light or a dark ground."""
    shade = _INK[theme]
    words = {"labelColor": shade["soft"], "titleColor": shade["text"]}
    return {
        "background": shade["ground"],
        "font": FONT,
        "view": {"stroke": None},
        "title": {
            "fontSize": 13,
            "fontWeight": 600,
            "anchor": "start",
            "offset": 10,
            "color": shade["text"],
            "subtitleColor": shade["soft"],
            "subtitleFontSize": 11,
            "subtitlePadding": 4,
        },
        "axis": {
            **words,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": 400,
            "gridColor": shade["grid"],
            "domainColor": shade["line"],
            "tickColor": shade["line"],
            "tickSize": 4,
        },
        "legend": {
            **words,
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": 400,
            "symbolSize": 90,
        },
        "header": words,
        "rule": {"color": shade["soft"]},
        "text": {"color": shade["text"]},
    }


def names_of(keys: Iterable[str], names: Mapping[str, str]) -> str:
    """Return a Vega expression that shows keys by the names a reader knows."""
    pairs = ", ".join(f"'{key}': '{names[key]}'" for key in keys if key in names)
    return f"({{{pairs}}})[datum.label] || datum.label"


def colour(
    field: str,
    colours: Mapping[str, str],
    present: Iterable[str],
    *,
    names: Mapping[str, str] | None = None,
    legend: bool = True,
    title: str | None = None,
) -> alt.Color:
    """Return the colour channel of a field whose values have meanings.

    Parameters
    ----------
    field : of the rows
    colours : value -> colour
    present : values that occur; the legend shows no others, and every value keeps its colour
    names : value -> what the legend says
    legend, title : whether there is one, and what stands above it
    """
    occurring = set(present)
    shown = [key for key in colours if key in occurring]
    scale = alt.Scale(domain=shown, range=[colours[key] for key in shown])
    if not legend:
        return alt.Color(f"{field}:N", scale=scale, legend=None)
    drawn = alt.Legend(title=title, labelExpr=names_of(shown, names or {}), orient="top", columns=6, offset=4)
    return alt.Color(f"{field}:N", scale=scale, legend=drawn, sort=shown)
