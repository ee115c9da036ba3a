"""A capacity plan as text: the cheapest configuration that serves first, and why others cannot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..sim.output.output import to_json
from .render_sweep import short_names, value_text
from .text import csv_of, labelled, number, percent, table, text_of

if TYPE_CHECKING:
    from ..sim.studies.planned import Option, PlanResult

SHOWN = 25
"""Most configurations that serve which a table shows, and most reasons."""
HEADER = ("GPUs", "USD/h", "USD/M out", "J/out", "req/s each", "tok/s/user", "tok/s/GPU", "sure", "")


def render_plan(found: PlanResult, form: str) -> str:
    """Return a plan as ``table``, ``json`` or ``csv``."""
    if form == "json":
        return to_json(found.to_dict())
    if form == "csv":
        return csv_of([_csv_row(row) for row in found.to_dict()["points"]])
    return text_of(_lines(found))


def _csv_row(row: dict[str, object]) -> dict[str, object]:
    plain = {key: value for key, value in row.items() if not isinstance(value, dict)}
    settings = row["settings"]
    return {**(settings if isinstance(settings, dict) else {}), **plain}


def _lines(found: PlanResult) -> Iterator[str]:
    names = short_names([option.settings for option in found.options])
    serving = [option for option in found.options if option.serves]
    if serving:
        rows = [
            [str(rank), *(value_text(option.settings.get(key)) for key in names), *_cells(option)]
            for rank, option in enumerate(serving[:SHOWN], 1)
        ]
        first = len(names) + 1
        yield from table(
            ["", *names.values(), *HEADER], rows, right=[0, *range(first, first + len(HEADER) - 1)]
        )
        if len(serving) > SHOWN:
            yield f"… and {len(serving) - SHOWN:,} more that serve; --format json has all"
        yield "*  nobody else has both more tokens/s for a user and more for a GPU"
        yield from labelled("answer", answer_of(found, serving[0]))
    else:
        yield from labelled(
            "answer", f"none of the {len(found.options)} configurations serves the load within the SLO"
        )
    others = [option for option in found.options if not option.serves]
    for line, count in reasons(others)[:SHOWN]:
        yield from labelled("left out", line if count == 1 else f"{line} ({count} configurations)")
    left = len(reasons(others)) - SHOWN
    if left > 0:
        yield f"… and {left} more reasons; --format json has all"
    levels = sorted({option.level for option in serving if option.level})
    yield from labelled("prediction", f"{'; '.join(levels)}; {found.runs:,} simulations" if levels else "")


def _cells(option: Option) -> list[str | None]:
    low, high = option.rate_span or (0.0, 0.0)
    chance = option.meets_slo_probability
    return [
        f"{option.gpus:,}",
        None if option.usd_per_hour is None else number(option.usd_per_hour),
        None
        if option.usd_per_million_output_tokens is None
        else number(option.usd_per_million_output_tokens),
        None if option.joule_per_output_token is None else number(option.joule_per_output_token),
        f"{number(low)} +{percent(high / low - 1)}" if low else None,
        None if option.tokens_per_s_per_user is None else number(option.tokens_per_s_per_user),
        None if option.tokens_per_s_per_gpu is None else number(option.tokens_per_s_per_gpu),
        None if chance is None else percent(chance),
        "*" if option.pareto else "",
    ]


def answer_of(found: PlanResult, best: Option) -> str:
    """Say what the best configuration of a plan is, in one sentence."""
    settings = ", ".join(f"{key} {value_text(value)}" for key, value in best.settings.items())
    gpus = f"{best.gpus:,} GPU{'s' * (best.gpus != 1)}"
    gpus += f" in {best.replicas:,} replicas" if best.gpus != best.replicas else ""
    cost = "" if best.usd_per_hour is None else f" for {number(best.usd_per_hour)} USD an hour"
    chance = best.meets_slo_probability
    sure = "" if chance is None else f"; meets SLO: {100 * chance:.0f} % sure ({found.draws} draws)"
    return f"{number(found.rate_per_s)} requests/s within the SLO take {gpus}{cost}: {settings}{sure}"


def reasons(options: list[Option]) -> list[tuple[str, int]]:
    """Return each reason with how many configurations have it, those of many first."""
    counts: dict[str, int] = {}
    for option in options:
        reason = option.reason.partition(":")[0] if "does not fit" in option.reason else option.reason
        counts[reason] = counts.get(reason, 0) + 1
    return sorted(counts.items(), key=lambda item: -item[1])
