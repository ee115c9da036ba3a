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
class Section:
    """A heading with what stands below it: paragraphs, then tables, then charts beside each other.

    Attributes
    ----------
    title : heading
    text : paragraphs
    tables, charts : in their order
    """

    title: str
    text: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    charts: tuple[HasSpec, ...] = ()


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
    head = f"<h1>{escape(title)}</h1>\n<p class='sub'>{escape(subtitle)}</p>\n"
    script = _script(specs) if specs else ""
    return (
        f"<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n<title>{escape(title)}</title>\n"
        f"<meta name='viewport' content='width=device-width'>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"{head}{body}\n{script}</body>\n</html>\n"
    )


def _section(section: Section, numbers: Sequence[int]) -> str:
    lines = [f"<h2>{escape(section.title)}</h2>", *(f"<p>{escape(each)}</p>" for each in section.text)]
    lines += [_table(each) for each in section.tables]
    if numbers:
        charts = "".join(f"<div id='chart{i}'></div>" for i in numbers)
        lines.append(f"<div class='charts'>{charts}</div>")
    return "<section>\n" + "\n".join(lines) + "\n</section>"


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
    bare = [{**spec, "datasets": list(spec.get("datasets", {})), "config": _config(spec)} for spec in specs]
    return (
        f"<script>{library}</script>\n<script>\nconst rows = {_json(rows)};\nconst specs = {_json(bare)};\n"
        "specs.forEach((spec, i) => {\n"
        "  spec.datasets = Object.fromEntries(spec.datasets.map((name) => [name, rows[name]]));\n"
        "  vegaEmbed('#chart' + i, spec, {actions: false, renderer: 'svg'}).catch(console.error);\n"
        "});\n</script>\n"
    )


def _json(value: object) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("</", r"<\/")


def _config(spec: dict[str, Any]) -> dict[str, Any]:
    return {**spec.get("config", {}), **_CONFIG}


_FONT: Final = "system-ui, 'Segoe UI', 'DejaVu Sans', Helvetica, Arial, sans-serif"
_CONFIG: Final[dict[str, Any]] = {
    "font": _FONT,
    "view": {"stroke": "#cccccc"},
    "title": {"fontSize": 12, "fontWeight": 600, "anchor": "start", "offset": 8},
    "axis": {"labelFontSize": 11, "titleFontSize": 11, "titleFontWeight": 400, "gridColor": "#dddddd"},
}
_STYLE: Final = f"""
body {{ font: 14px/1.45 {_FONT}; color: #1c2733; margin: 24px auto; max-width: 1240px; padding: 0 20px; }}
h1 {{ font-size: 22px; margin: 0; }}
h2 {{ font-size: 17px; margin: 34px 0 6px; border-top: 1px solid #d5dae1; padding-top: 16px; }}
p {{ margin: 4px 0 8px; }} .sub {{ color: #5b6875; }}
table {{ border-collapse: collapse; margin: 8px 0 14px; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 3px 12px 3px 0; text-align: left; vertical-align: top; border-bottom: 1px solid #e6e9ee; }}
th {{ font-weight: 600; color: #44515e; }} .r {{ text-align: right; }}
.wide {{ overflow-x: auto; }}
.charts {{ display: flex; flex-wrap: wrap; gap: 18px; margin: 10px 0; }}
@media print {{ section {{ break-inside: avoid; }} }}
"""
