"""Aligned text for people: tables, labelled lines that wrap between figures, and short numbers.

Nothing here looks at the terminal, the clock or the locale.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDTH = 110
LABEL = 15
DASH = "-"
MIN_WRAPPED = 30
"""Least width of a column that wraps."""
NARROW = "\u00a0"
"""Holds the words of one figure together while lines are wrapped."""


def table(
    header: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    right: Iterable[int] = (),
    widths: Sequence[int] = (),
    wrap: bool = False,
) -> list[str]:
    r"""Return aligned lines: a header, a rule, the rows; None is a dash.

    Parameters
    ----------
    right : columns whose cells are aligned to the right
    widths : least widths of the columns
    wrap : let the last column wrap at the page's width

    Examples
    --------
    >>> print(*table(["id", "GiB"], [["a", 1], ["bc", 10]], right=[1]), sep="\n")
    id  GiB
    ───────
    a     1
    bc   10
    """
    cells = [[DASH if cell is None else str(cell) for cell in row] for row in rows]
    least = [*widths, *[0] * (len(header) - len(widths))]
    widths = [max(least[at], len(name), *(len(row[at]) for row in cells)) for at, name in enumerate(header)]
    to_right = set(right)
    if wrap:
        widths[-1] = max(min(widths[-1], WIDTH - sum(widths[:-1]) - 2 * len(widths[:-1])), MIN_WRAPPED)

    def line(row: Sequence[str]) -> list[str]:
        padded = [
            cell.rjust(width) if at in to_right else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        if not wrap:
            return ["  ".join(padded).rstrip()]
        first = "  ".join([*padded[:-1], ""])
        parts = textwrap.wrap(row[-1], widths[-1], break_long_words=False, break_on_hyphens=False) or [""]
        return [(first if at == 0 else " " * len(first)) + part for at, part in enumerate(parts)]

    rule = "─" * (sum(widths) + 2 * (len(widths) - 1))
    return [*line(header), rule, *(each for row in cells for each in line(row))]


def labelled(label: str, text: str | Iterable[str], *, strong: bool = False) -> list[str]:
    """Return ``text`` in lines under a label; nothing where there is nothing to say.

    Parameters
    ----------
    text : a sentence, or figures, which are kept whole
    strong : in bold (ANSI)
    """
    if not isinstance(text, str):
        text = "   ".join(part.replace(" ", NARROW) for part in text)
    if not text:
        return []
    indent = " " * LABEL if label else ""
    lines = textwrap.wrap(
        text, WIDTH, initial_indent=label.ljust(len(indent)), subsequent_indent=indent,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    lines = [line.replace(NARROW, " ").rstrip() for line in lines]
    return [f"\x1b[1m{line}\x1b[0m" if strong else line for line in lines]


def text_of(lines: Iterable[str]) -> str:
    """Join lines to a text with a final newline and no trailing blanks."""
    return "\n".join(line.rstrip() for line in lines) + "\n"


def csv_of(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV, the columns in order of first appearance; None is empty."""
    text = io.StringIO()
    columns = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def number(value: float) -> str:
    """Return four significant digits without an exponent.

    >>> number(0.012345), number(12.345), number(123456.7)
    ('0.01235', '12.35', '123,457')
    """
    if value == 0:
        return "0"
    magnitude = len(str(int(abs(value)))) if abs(value) >= 1 else -_leading_zeros(abs(value))
    return f"{value:,.{max(0, 4 - magnitude)}f}"


def _leading_zeros(value: float) -> int:
    """Return how many zeros follow the point of a number below 1 (at most 8)."""
    return next((i for i in range(8) if value >= 10.0 ** -(i + 1)), 8)


def percent(share: float) -> str:
    """Return a share in percent.

    >>> percent(0.1234)
    '12.3 %'
    """
    return f"{share * 100:.1f} %"


def milliseconds(seconds: float) -> str:
    """Return a time in ms with four significant digits, the unit left to the header.

    >>> milliseconds(0.012345)
    '12.35'
    """
    return number(seconds * 1000)


def gib(size: float) -> str:
    """Return a size in GiB with two decimals, the unit left to the header.

    >>> gib(3 * 2**30)
    '3.00'
    """
    return f"{size / 2**30:,.2f}"


def short(count: float) -> str:
    """Return a number of parameters in the usual short form.

    >>> short(8_030_261_248), short(494_032_768), short(671e9)
    ('8.03 B', '494 M', '671 B')
    """
    for unit, scale in (("T", 1e12), ("B", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= scale:
            value = count / scale
            return f"{value:.{max(0, 3 - len(str(int(value))))}f} {unit}"
    return f"{count:.0f}"


def dtype(name: str) -> str:
    """Return the usual short name of a number format.

    >>> dtype("bfloat16"), dtype("fp8")
    ('bf16', 'fp8')
    """
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(name, name)
