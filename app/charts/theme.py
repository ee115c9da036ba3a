"""How charts and pages look on a light and on a dark ground, whatever they show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal

Theme = Literal["light", "dark"]
THEMES: Final[tuple[Theme, ...]] = ("light", "dark")

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
