"""How results show themselves in notebooks: small HTML without scripts, and rows as pandas frames."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from .errors import MemboundError

INSTALL = "pip install 'membound[notebook]'"
_CELL = "text-align: right; font-variant-numeric: tabular-nums"


class FrameError(MemboundError):
    """Frames that cannot be made here."""


def html(title: str, *parts: str) -> str:
    """Return a titled block; parts are HTML already."""
    return f"<div><b>{escape(title)}</b>{''.join(parts)}</div>"


def html_text(text: str) -> str:
    """Return a paragraph; nothing where there is nothing to say."""
    return f"<p>{escape(text)}</p>" if text else ""


def html_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table: the first column to the left, the others to the right; None is a dash.

    >>> html_table(["", "ms"], [["TTFT", 1.23456]]).count("<td")
    2
    """
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = "".join(f"<tr>{''.join(map(_cell, enumerate(row)))}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(numbered: tuple[int, object]) -> str:
    at, value = numbered
    look = f' style="{_CELL}"' if at else ' style="text-align: left"'
    return f"<td{look}>{escape(shown(value))}</td>"


def shown(value: object) -> str:
    """Return a value as short text: four significant digits, thousands apart, None as a dash.

    >>> shown(0.00123456), shown(1234567.0), shown(12), shown(None)
    ('0.001235', '1,234,567', '12', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return str(value)


def data_frame(rows: Sequence[Mapping[str, Any]]) -> Any:
    """Return rows as a ``pandas.DataFrame``.

    Raises
    ------
    FrameError : pandas is not installed
    """
    return require_pandas().DataFrame.from_records([dict(row) for row in rows])


def require_pandas() -> Any:
    """Import pandas when a frame is asked for.

    Raises
    ------
    FrameError : pandas is not installed
    """
    try:
        return importlib.import_module("pandas")
    except ImportError:
        raise FrameError(f"frames need pandas, which is not installed; install with: {INSTALL}") from None
