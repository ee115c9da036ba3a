"""One colour for each meaning, in every chart of membound, and how charts look on a light and on a dark ground.

The colours of ``CAUSES`` were searched for: HBM is blue, compute orange, waiting pale, and any two differ by at least
18 CIELAB units for a reader with normal vision or with protanopia, deuteranopia or tritanopia (a test measures it). The
same colours serve both grounds, so that a picture and its dark twin can be read side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import altair as alt

from .theme import config as config
from .theme import ink as ink

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
    drawn = scale(colours, present)
    shown: list[str] = list(drawn["domain"])
    if not legend:
        return alt.Color(f"{field}:N", scale=drawn, legend=None)
    said = names_of(shown, names or {})
    keys = alt.Legend(title=title, labelExpr=said, orient="top", columns=4, offset=4, symbolOpacity=1)
    return alt.Color(f"{field}:N", scale=drawn, legend=keys, sort=shown)


def scale(colours: Mapping[str, str], present: Iterable[str]) -> alt.Scale:
    """Return the scale of the values that occur, each in its colour."""
    occurring = set(present)
    shown = [key for key in colours if key in occurring]
    return alt.Scale(domain=shown, range=[colours[key] for key in shown])
