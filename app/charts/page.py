"""One HTML file that needs nothing else: text, tables and charts, with the library that draws them inside.

The library is in the page once, however many charts there are, and so are rows that several charts show; nothing is
fetched when the page is opened.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib.util import find_spec
from typing import Any, Final, Protocol

from ...hwmodels.errors import MemboundError
from .theme import FONT, THEMES, config, ink

INSTALL: Final = "pip install 'membound[app]'"


class ChartError(MemboundError):
    """Charts that cannot be drawn here."""


class HasSpec(Protocol):
    """An altair chart, as far as a page is concerned."""

    def to_dict(self, validate: bool = True) -> dict[str, Any]:
        """Return the Vega-Lite specification, held against its schema or not."""
        ...


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text.

    Attributes
    ----------
    header : heads of the columns
    rows : cells; a row of fewer cells is filled up
    right : columns whose cells stand to the right
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Card:
    """One figure that stands large.

    Attributes
    ----------
    label : above it
    value : with its unit
    note : below it, such as its interval
    """

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A heading with what stands below it: paragraphs, figures, tables, then charts beside each other.

    Attributes
    ----------
    title : heading; none where it is empty
    text : paragraphs
    cards, tables, charts : in their order
    lead : a sentence that stands large above the rest
    folded : text as printed, shown when it is asked for, and what it is called
    """

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[HasSpec, ...] = ()
    cards: tuple[Card, ...] = ()
    lead: str = ""
    folded: tuple[str, str] | None = None


def require_charts() -> None:
    """Refuse where the packages that draw are missing, naming the command that installs them.

    Raises
    ------
    ChartError : altair or vl-convert-python is not installed
    """
    missing = [name for name in ("altair", "vl_convert") if find_spec(name) is None]
    if missing:
        raise ChartError(
            f"charts need {' and '.join(missing)}, which is not installed; install with: {INSTALL}"
        )


def page(title: str, subtitle: str, sections: Iterable[Section]) -> str:
    """Return a page as HTML.

    Parameters
    ----------
    title, subtitle : at its head
    sections : in their order
    """
    parts = list(sections)
    specs = [chart.to_dict(validate=False) for section in parts for chart in section.charts]
    numbers = iter(range(len(specs)))
    body = "\n".join(_section(section, [next(numbers) for _ in section.charts]) for section in parts)
    head = f"<header><h1>{escape(title)}</h1>\n<p class='sub'>{escape(subtitle)}</p></header>\n"
    script = _script(specs) if specs else f"<script>{_TURN}</script>\n"
    button = "<button id='turn' title='light or dark' aria-label='light or dark'>◐</button>\n"
    return (
        f"<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n<title>{escape(title)}</title>\n"
        f"<meta name='viewport' content='width=device-width'>\n<style>{_style()}</style>\n</head>\n<body>\n"
        f"{button}{head}{body}\n{script}</body>\n</html>\n"
    )


def _section(section: Section, numbers: Sequence[int]) -> str:
    lines = [f"<h2>{escape(section.title)}</h2>"] if section.title else []
    lines += [f"<p class='lead'>{escape(section.lead)}</p>"] if section.lead else []
    lines += [f"<p>{escape(each)}</p>" for each in section.text]
    if section.cards:
        lines.append(f"<div class='cards'>{''.join(map(_card, section.cards))}</div>")
    lines += [_table(each) for each in section.tables]
    if numbers:
        charts = "".join(f"<div class='chart' id='chart{i}'></div>" for i in numbers)
        lines.append(f"<div class='charts'>{charts}</div>")
    if section.folded is not None:
        name, text = section.folded
        lines.append(f"<details><summary>{escape(name)}</summary><pre>{escape(text)}</pre></details>")
    return "<section>\n" + "\n".join(lines) + "\n</section>"


def _card(card: Card) -> str:
    note = f"<span class='note'>{escape(card.note)}</span>" if card.note else ""
    return f"<div class='card'><span>{escape(card.label)}</span><b>{escape(card.value)}</b>{note}</div>"


def _table(table: Table) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        filled = [*cells, *[""] * (len(table.header) - len(cells))]
        marks = (" class='r'" if i in table.right else "" for i in range(len(filled)))
        return "".join(f"<{tag}{m}>{escape(cell)}</{tag}>" for m, cell in zip(marks, filled, strict=True))

    body = "\n".join(f"<tr>{row(cells, 'td')}</tr>" for cells in table.rows)
    head = row(table.header, "th")
    return (
        f"<div class='wide'><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{body}\n</tbody></table></div>"
    )


def _script(specs: Sequence[dict[str, Any]]) -> str:
    """Return the library, and the calls that draw each chart in its place."""
    import altair as alt
    import vl_convert as vlc

    version = ".".join(alt.SCHEMA_VERSION.lstrip("v").split(".")[:2])
    library = vlc.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=version).replace(
        "</script", r"<\/script"
    )
    rows: dict[str, Any] = {}
    for spec in specs:
        rows |= spec.get("datasets", {})
    bare = [
        {
            **{key: value for key, value in spec.items() if key != "config"},
            "datasets": list(spec.get("datasets", {})),
        }
        for spec in specs
    ]
    looks = {theme: config(theme) for theme in THEMES}
    return (
        f"<script>{library}</script>\n<script>\nconst rows = {_json(rows)};\nconst specs = {_json(bare)};\n"
        f"const looks = {_json(looks)};\n{_DRAW}{_TURN}</script>\n"
    )


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("</", r"<\/")


_TURN: Final = """
const dark = matchMedia('(prefers-color-scheme: dark)');
function turn(theme) {
  document.documentElement.dataset.theme = theme;
  if (window.draw) window.draw(theme);
}
document.getElementById('turn').onclick = () =>
  turn(document.documentElement.dataset.theme === 'dark' ? 'light' : 'dark');
dark.addEventListener('change', () => turn(dark.matches ? 'dark' : 'light'));
turn(dark.matches ? 'dark' : 'light');
"""
_DRAW: Final = """
window.draw = (theme) => specs.forEach((spec, i) => {
  const named = Object.fromEntries(spec.datasets.map((name) => [name, rows[name]]));
  const whole = {...spec, datasets: named, config: looks[theme]};
  vegaEmbed('#chart' + i, whole, {actions: false, renderer: 'svg'}).catch(console.error);
});
"""


def _style() -> str:
    """Return the style sheet: one set of rules, and the colours of both grounds as variables."""
    grounds = {
        theme: "; ".join(f"--{name}: {colour}" for name, colour in ink(theme).items()) for theme in THEMES
    }
    return (
        f"\n:root {{ color-scheme: light dark; {grounds['light']}; }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {grounds['dark']}; }} }}\n"
        + "".join(
            f":root[data-theme={theme}] {{ color-scheme: {theme}; {grounds[theme]}; }}\n" for theme in THEMES
        )
        + f"body {{ font: 14px/1.45 {FONT};{_RULES}"
    )


_RULES: Final = """
  color: var(--text); background: var(--ground); margin: 28px auto; max-width: 1240px; padding: 0 24px; }
h1 { font-size: 23px; margin: 0; letter-spacing: -0.01em; }
h2 { font-size: 17px; margin: 34px 0 6px; border-top: 1px solid var(--grid); padding-top: 16px; }
p { margin: 4px 0 8px; } .sub, .note { color: var(--soft); }
.lead { font-size: 16px; max-width: 76em; margin: 14px 0 18px; padding-left: 14px; border-left: 4px solid #366dc9; }
table { border-collapse: collapse; margin: 8px 0 14px; font-variant-numeric: tabular-nums; }
th, td { padding: 3px 14px 3px 0; text-align: left; vertical-align: top; border-bottom: 1px solid var(--grid); }
th { font-weight: 600; color: var(--soft); } .r { text-align: right; }
.wide { overflow-x: auto; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(178px, 1fr)); gap: 10px; margin: 12px 0 16px; }
.card { border: 1px solid var(--grid); border-radius: 8px; padding: 9px 13px; display: flex; flex-direction: column; }
.card span { color: var(--soft); font-size: 12px; }
.card b { font-size: 18px; white-space: nowrap; font-variant-numeric: tabular-nums; }
.charts { display: flex; flex-wrap: wrap; gap: 22px 26px; margin: 10px 0; } .chart { min-width: 0; overflow-x: auto; }
details { margin: 12px 0; } summary { cursor: pointer; color: var(--soft); }
pre { font: 12px/1.4 ui-monospace, 'DejaVu Sans Mono', monospace; overflow-x: auto; }
#turn { float: right; font-size: 17px; background: none; border: 1px solid var(--grid); border-radius: 6px;
  color: var(--soft); cursor: pointer; padding: 1px 9px 3px; }
@media print { section { break-inside: avoid; } #turn { display: none; } }
"""
