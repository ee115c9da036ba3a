"""What levers do: effects of changed values, what they mean, and which one to move first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from .levers import Group

if TYPE_CHECKING:
    from .point import Span

SMALLER_IS_BETTER = ("latency.", "cost.", "energy.", "requests.rejected", "requests.preemptions", "kv.waste")
LARGER_IS_BETTER = ("throughput.", "slo.", "requests.completed")
FREE: tuple[Group, ...] = ("setting", "precision")
"""Groups of levers that cost nothing to move."""
SMALL = 0.01
"""A lever that moves the metric by less than this share is not worth a sentence."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What one changed value of a lever does.

    Attributes
    ----------
    text : the value, as shown
    ratio : new value over old; None where the lever is no number
    value : the metric looked at; None where it is not known
    change : its share of change against the base; None where it is not known
    interval : 90 % interval of that change, from runs paired by their seeds; None of a single one
    changes : the same of other metrics, by dotted name
    time_share : cause -> change of its share of the time [-]
    stability : ``steady``, or why mean latencies say nothing
    notes : what is said of this run and not of the base
    error : why it cannot be; empty where it can
    hash : of everything the figures depend on
    """

    text: str
    ratio: float | None
    value: float | None = None
    change: float | None = None
    interval: Span | None = None
    changes: Mapping[str, float] | None = None
    time_share: Mapping[str, float] | None = None
    stability: str | None = None
    notes: tuple[str, ...] = ()
    error: str = ""
    hash: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """One lever and what moving it does.

    Attributes
    ----------
    leaf : dotted name
    group : ``device``, ``setting``, ``precision`` or ``gpus``; see ``Lever``
    value : what it is
    effects : less and more of it; of what is no number, its other values
    elasticity : share by which the metric changes for each share that the lever grows by; None if it is no number
    swing : the largest change of the metric that it brings, either way [-]
    gain : the largest change for the better that its interval is sure of [-]; 0 where there is none, None where better
        is not defined
    best : the value that brings it
    """

    leaf: str
    group: Group
    value: Any
    effects: tuple[Effect, ...]
    elasticity: float | None
    swing: float
    gain: float | None
    best: str


@dataclass(frozen=True, slots=True)
class Explanation:
    """The levers of a scenario, the one with the largest swing first.

    Attributes
    ----------
    name : the scenario's
    metric : what is looked at, dotted name in ``summary.json``
    base : its value with nothing changed
    levers : by swing; those that change nothing last
    percent : by how much numbers were made less and more
    requests : served in every run, the same
    seed : of all runs, or of the first of ``repeat``
    repeat : runs of each lever, with seeds of their own; figures are means
    level : how well the least known kernel of the base is known
    device, model, whatif : ids, and datasheet values of the base that were overridden
    bound, sentence, stability : verdict of the base
    advice : what to change first
    ran, found : runs done now, and runs that were kept from before
    """

    name: str
    metric: str
    base: float
    levers: tuple[Explained, ...]
    percent: float
    requests: int
    seed: int
    repeat: int
    level: str | None
    device: str
    model: str
    whatif: Mapping[str, Any]
    bound: str
    sentence: str
    stability: str | None
    advice: str
    ran: int
    found: int

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain data (``explain --format json``); what it took is left out."""
        data = asdict(self)
        del data["ran"], data["found"]
        return data


def better(metric: str, change: float) -> float | None:
    """Return a change as a gain: above 0 is better; None where better is not defined.

    >>> better("latency.tpot_s.mean", -0.2), better("throughput.requests_per_s", 0.1)
    (0.2, 0.1)
    """
    if metric.startswith(SMALLER_IS_BETTER):
        return -change
    return change if metric.startswith(LARGER_IS_BETTER) else None


def metric_word(metric: str) -> str:
    """Return a metric's name for people.

    >>> metric_word("latency.e2e_s.mean"), metric_word("latency.ttft_s.p99")
    ('E2E', 'TTFT p99')
    """
    section, _, name = metric.partition(".")
    if section != "latency":
        return name.replace("_", " ")
    short, _, which = name.partition("_s.")
    word = short.upper() if short != "queue" else short
    return word if which == "mean" else f"{word} {which}"


def advice(levers: Sequence[Explained], metric: str, percent: float) -> str:
    """Return the sentence that says what to change first.

    Settings and number formats come first, since they cost nothing; then the device's numbers, for whoever chooses the
    next one.
    """
    if better(metric, 0.0) is None:
        first = levers[0]
        return f"{first.leaf} moves {metric_word(metric)} most, by {100 * first.swing:.1f} %"
    free, device, gpus = (
        next((each for each in _by_gain(levers, groups) if _gain(each) >= SMALL), None)
        for groups in (FREE, ("device",), ("gpus",))
    )
    said: list[str] = []
    if free:
        quality = " (its effect on answers is not simulated)" if free.group == "precision" else ""
        said.append(f"change {free.leaf} to {free.best} first: {_outcome(free, metric)}{quality}")
    else:
        said.append(f"no setting and no number format is worth {100 * SMALL:.0f} %")
    if device:
        others = [e for e in _by_gain(levers, ("device",)) if e is not device and _gain(e) >= SMALL]
        then = ", ".join(f"{_plain(e.leaf)} {100 * _gain(e):.1f} %" for e in others[:2])
        said.append(
            f"of the device's numbers {_plain(device.leaf)} {device.best} brings most: {_outcome(device, metric)}"
            + (f" ({then} next)" if then else "")
        )
    else:
        said.append(f"{percent:g} % of no device number is worth {100 * SMALL:.0f} %")
    if gpus:
        said.append(f"with other numbers of GPUs, {gpus.leaf} {gpus.best}: {_outcome(gpus, metric)}")
    return "; ".join(said)


def _by_gain(levers: Sequence[Explained], groups: Sequence[str]) -> list[Explained]:
    return sorted((each for each in levers if each.group in groups), key=_gain, reverse=True)


def _gain(lever: Explained) -> float:
    return lever.gain or 0.0


def _plain(leaf: str) -> str:
    return leaf.removeprefix("device.")


def _outcome(lever: Explained, metric: str) -> str:
    sign = "-" if metric.startswith(SMALLER_IS_BETTER) else "+"
    return f"{metric_word(metric)} {sign}{100 * _gain(lever):.1f} %"
