"""Levers as a tornado, and what lies between two scenarios as a waterfall, in text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..sim.output.output import to_json
from ..sim.studies.effects import metric_word
from ..sim.studies.waterfall import named
from .render import SHARE_WORDS
from .render_devices import WRITE
from .render_roofline import known
from .text import csv_of, labelled, milliseconds, number, percent, table, text_of

if TYPE_CHECKING:
    from ..sim.studies.effects import Effect, Explained, Explanation
    from ..sim.studies.waterfall import Difference, Waterfall

NOTHING = 0.0005
"""A change below this rounds to nothing."""
BAR = 16
"""Length of the longest bar of a tornado, both ways together."""
SHARES = 3
"""Time shares that a step of a waterfall names."""


def render_explanation(found: Explanation, form: str) -> str:
    """Return levers as ``table``, ``json`` or ``csv``."""
    if form == "json":
        return to_json(found.to_dict())
    if form == "csv":
        return csv_of(list(_lever_rows(found)))
    return text_of(_lever_lines(found))


def render_waterfall(found: Waterfall, form: str) -> str:
    """Return a waterfall as ``table``, ``json`` or ``csv``."""
    if form == "json":
        return to_json(found.to_dict())
    if form == "csv":
        return csv_of([_step_row(step, found.metric) for step in found.steps])
    return text_of(_step_lines(found))


def _lever_rows(found: Explanation) -> Iterator[dict[str, Any]]:
    for lever in found.levers:
        for effect in lever.effects:
            shares = {f"time_share.{name}": share for name, share in (effect.time_share or {}).items()}
            yield {
                "lever": lever.leaf,
                "group": lever.group,
                "value": lever.value,
                "to": effect.text,
                "elasticity": lever.elasticity,
                found.metric: effect.value,
                "change": effect.change,
                "change.low": effect.interval[0] if effect.interval else None,
                "change.high": effect.interval[1] if effect.interval else None,
                **{f"change.{name}": change for name, change in (effect.changes or {}).items()},
                **{f"change.{name}": share for name, share in shares.items()},
                "stability": effect.stability,
                "hash": effect.hash,
                "error": effect.error or None,
            }


def _lever_lines(found: Explanation) -> Iterator[str]:
    changed = ", ".join(f"{key} {value}" for key, value in found.whatif.items())
    title = [f"{found.device} with {changed}" if changed else found.device, found.model]
    seeds = (
        f"seed {found.seed}"
        if found.repeat == 1
        else f"seeds {found.seed} to {found.seed + found.repeat - 1}"
    )
    title.append(f"{found.requests:,} requests in every run ({seeds})")
    yield from labelled("", " · ".join(title))
    yield ""
    moving = [lever for lever in found.levers if lever.swing >= NOTHING]
    widest = max((lever.swing for lever in moving), default=1.0)
    word = f"{metric_word(found.metric)} {write(found.metric, found.base)}"
    rows = [[*_lever_cells(lever), _bar(lever, widest)] for lever in moving]
    yield from table(["lever", "is", word, "", "elasticity", ""], rows, right=[4])
    yield ""
    still = [lever.leaf for lever in found.levers if lever.swing < NOTHING and _ran(lever)]
    yield from labelled("no effect", still)
    for text, about in _by_text((effect.error, lever, effect) for lever, effect in _pairs(found)).items():
        yield from labelled("cannot be", f"{about}: {text}")
    yield from labelled("answer", found.advice)
    yield from labelled("base", found.sentence)
    others = ((lever, effect) for lever, effect in _pairs(found) if lever.group != "device")
    notes = ((note, lever, effect) for lever, effect in others for note in effect.notes)
    for text, about in _by_text(notes).items():
        yield from labelled("note", f"{about}: {text}")
    if found.level:
        paired = "; ± is half of a 90 % interval, from runs paired by seed" if found.repeat > 1 else ""
        yield from labelled("prediction", known(found.level, found.whatif) + paired)
    yield from labelled(
        "levers", "what-if devices keep what was fitted to the base; none of them was measured"
    )


def _pairs(found: Explanation) -> Iterator[tuple[Explained, Effect]]:
    for lever in found.levers:
        yield from ((lever, effect) for effect in lever.effects)


def _by_text(said: Iterator[tuple[str, Explained, Effect]]) -> dict[str, str]:
    """Return each text that is said, with what it is said of."""
    about: dict[str, list[str]] = {}
    for text, lever, effect in said:
        if text:
            about.setdefault(text, []).append(f"{lever.leaf} {effect.text}")
    return {text: ", ".join(each) for text, each in about.items()}


def _ran(lever: Explained) -> bool:
    return any(not effect.error for effect in lever.effects)


def _lever_cells(lever: Explained) -> list[str | None]:
    effects = [f"{effect.text}: {_change(effect)}" for effect in lever.effects if not effect.error]
    ends = [*effects, "", ""][:2]
    slope = None if lever.elasticity is None else f"{lever.elasticity:+.2f}"
    return [lever.leaf, value_of(lever), *ends, slope]


def _change(effect: Effect) -> str:
    if effect.change is None:
        return "-"
    if effect.interval is None:
        return f"{100 * effect.change:+.1f} %"
    return f"{100 * effect.change:+.1f} ±{50 * (effect.interval[1] - effect.interval[0]):.1f} %"


def _bar(lever: Explained, widest: float) -> str:
    """Return a bar about a middle line: to the left what falls, to the right what grows."""
    changes = [effect.change for effect in lever.effects if effect.change is not None]
    left, right = (round(max([0.0, *(sign * c for c in changes)]) / widest * BAR / 2) for sign in (-1, 1))
    return f"{'█' * left:>{BAR // 2}}│{'█' * right}"


def value_of(lever: Explained) -> str:
    """Return the value of a lever as text, device numbers in their units."""
    if lever.group == "device":
        name = lever.leaf.removeprefix("device.")
        writer = WRITE.get(name) or WRITE.get(name.partition(".")[0])
        if writer is not None:
            return writer(lever.value)
    return f"{lever.value:,}" if isinstance(lever.value, int) else str(lever.value)


WRITERS: Mapping[str, Callable[[float], str]] = {
    "latency.": lambda seconds: f"{milliseconds(seconds)} ms",
    "cost.": lambda usd: f"{number(usd)} USD",
    "slo.attainment": percent,
    "utilization.": percent,
    "time_share.": percent,
}


def write(metric: str, value: float) -> str:
    """Return a metric's value with its unit."""
    writer = next((each for start, each in WRITERS.items() if metric.startswith(start)), number)
    return writer(value)


def _step_row(step: Difference, metric: str) -> dict[str, Any]:
    row = {"settings": named(step.settings), metric: step.value, "change": step.change, "alone": step.alone}
    return row | {f"change.time_share.{name}": share for name, share in step.time_share.items()}


def _step_lines(found: Waterfall) -> Iterator[str]:
    names = f"{found.base_name or 'baseline'} to {found.candidate_name or 'candidate'}"
    yield from labelled("", f"{names} · {found.requests:,} requests in every run (seed {found.seed})")
    yield ""
    rows: list[Sequence[str | None]] = [["baseline", write(found.metric, found.base), None, None, ""]]
    rows += [
        [
            named(step.settings),
            write(found.metric, step.value),
            f"{100 * step.change:+.1f} %",
            None if step.alone is None else f"{100 * step.alone:+.1f} %",
            _moved(step.time_share),
        ]
        for step in found.steps
    ]
    header = ["one after the other", metric_word(found.metric), "change", "alone", "time shares, points"]
    yield from table(header, rows, right=[1, 2, 3], wrap=True)
    whole = found.candidate / found.base - 1
    yield from labelled("in all", f"{100 * whole:+.1f} %, the steps multiplied")
    yield ""
    yield from labelled("answer", found.advice)
    yield from labelled(
        "order", "that of a scenario's settings; another one shares out joint effects otherwise"
    )
    levels = dict.fromkeys(level for level in found.levels if level)
    yield from labelled("prediction", "; ".join(known(level, {}) for level in levels))


def _moved(shares: Mapping[str, float]) -> str:
    """Return the time shares that change most."""
    most = sorted(shares, key=lambda name: -abs(shares[name]))[:SHARES]
    return ", ".join(
        f"{SHARE_WORDS.get(name, name)} {100 * shares[name]:+.1f}"
        for name in most
        if abs(shares[name]) >= NOTHING
    )
