"""One point of a study: a scenario, its figures, and how well they are known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ...hwmodels.notebook import html_table
from ..scenario.schema import PATH_LEAVES, Scenario, leaf

if TYPE_CHECKING:
    from ..scenario.resolve import ResolvedScenario

Span = tuple[float, float]
SECTIONS: tuple[str, ...] = (
    "requests", "latency", "throughput", "slo", "time_share", "limiter", "utilization", "memory", "kv",
    "cost", "energy", "simulation",
)  # fmt: skip
"""Sections of ``summary.json`` whose numbers are the metrics of a point."""
SHARES: tuple[str, ...] = (
    "time_share.", "limiter.", "utilization.", "slo.attainment", "kv.peak_usage", "kv.mean_usage",
    "kv.internal_fragmentation", "kv.external_fragmentation", "kv.waste", "kv.prefix_hit_rate",
)  # fmt: skip
"""Metrics that are shares of a whole: they are compared by difference, all others by ratio."""
MAIN: Mapping[str, str] = {
    "latency.ttft_s.p50": "TTFT p50 [s]",
    "latency.tpot_s.p50": "TPOT p50 [s]",
    "throughput.output_tokens_per_s_per_gpu": "output tok/s/GPU",
    "cost.usd_per_million_output_tokens": "USD/M output tok",
}
"""Metrics that a notebook shows of each point."""
NAMES_ONLY: tuple[str, ...] = ("name", "schema_version")


@dataclass(frozen=True, slots=True)
class Point:
    """What a study says of one scenario.

    Attributes
    ----------
    label : what the study calls it
    settings : leaves that differ from the study's base, dotted
    metrics : dotted name in ``summary.json`` -> value; None where it is not known
    interval : metric -> [low, high] at 90 %; empty where nothing was repeated or drawn
    level : how well the least known kernel is known
    hash : of everything the figures depend on
    summary : the whole summary of the run with the scenario's own seed; empty where it could not run
    change : metric -> change against the base of the study (ratio - 1; of a share, the difference)
    change_interval : metric -> [low, high] of that change, from runs paired by their random numbers
    error : why it could not run; empty where it could
    """

    label: str
    settings: Mapping[str, Any]
    metrics: Mapping[str, float | None]
    level: str | None
    hash: str
    interval: Mapping[str, Span] = field(default_factory=dict[str, Span])
    change: Mapping[str, float] = field(default_factory=dict[str, float])
    change_interval: Mapping[str, Span] = field(default_factory=dict[str, Span])
    summary: Mapping[str, Any] = field(default_factory=dict[str, Any])
    error: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the point as plain data, without the whole summary."""
        return {
            "label": self.label,
            "settings": dict(self.settings),
            "metrics": dict(self.metrics),
            "interval": {name: list(span) for name, span in self.interval.items()},
            "change": dict(self.change),
            "change_interval": {name: list(span) for name, span in self.change_interval.items()},
            "level": self.level,
            "hash": self.hash,
            "error": self.error or None,
        }


def points_table(points: Sequence[Point]) -> str:
    """Return points side by side as HTML: what each is, its main figures, and why it could not run."""
    return html_table(
        ["", *MAIN.values(), "level", "error"],
        [
            [each.label, *(each.metrics.get(name) for name in MAIN), each.level, each.error or None]
            for each in points
        ],
    )


def metrics_of(summary: Mapping[str, Any]) -> dict[str, float | None]:
    """Return the numbers of a summary by their dotted names; what is not known is None."""
    return {
        name: value
        for section in SECTIONS
        for name, value in _flat(summary.get(section) or {}, f"{section}.")
        if value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    }


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            yield prefix + key, value


def is_share(metric: str) -> bool:
    """Tell whether a metric is compared by difference.

    >>> is_share("time_share.hbm_kv"), is_share("latency.ttft_s.mean")
    (True, False)
    """
    return metric.startswith(SHARES)


def is_mean_latency(metric: str) -> bool:
    """Tell whether a metric is quoted only of a run in a steady state.

    >>> is_mean_latency("latency.ttft_s.mean"), is_mean_latency("latency.ttft_s.p99")
    (True, False)
    """
    return metric.startswith("latency.") and metric.endswith(".mean")


def settings_between(base: Scenario, other: Scenario) -> dict[str, Any]:
    """Return the leaves of ``other`` that ``base`` has not, or has otherwise; names aside.

    >>> a = Scenario(device="h100_sxm", model="llama-3.1-8b")
    >>> settings_between(a, a.replace(scheduler__max_num_seqs=64))
    {'scheduler.max_num_seqs': 64}
    """
    mine, theirs = _leaves(base.to_dict()), _leaves(other.to_dict())
    gone = {key: None for key in mine if key not in theirs and not _opened(key, theirs)}
    return gone | {key: value for key, value in theirs.items() if key not in mine or mine[key] != value}


def _opened(key: str, leaves: Mapping[str, Any]) -> bool:
    """Tell whether a leaf has become a section, whose own leaves say what it is now."""
    return any(other.startswith(f"{key}.") for other in leaves)


def _leaves(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in data.items():
        if not prefix and key in NAMES_ONLY:
            continue
        if isinstance(value, Mapping) and value:
            found |= _leaves(cast("Mapping[str, Any]", value), f"{prefix}{key}.")
        else:
            found[prefix + key] = value
    return found


def digest(resolved: ResolvedScenario, *extra: object) -> str:
    """Return a hash of everything that the figures of a run depend on, whatever files and runs are called.

    Parameters
    ----------
    resolved : the scenario with everything it names
    extra : what else the figures depend on (repetitions, draws)
    """
    data = resolved.scenario.to_dict()
    for key in NAMES_ONLY:
        data.pop(key, None)
    for dotted in PATH_LEAVES:
        path = leaf(data, dotted)
        if isinstance(path, str) and Path(path).is_file():
            data[dotted] = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            *parents, last = dotted.split(".")
            (leaf(data, ".".join(parents)) if parents else data).pop(last)
    parts = [
        json.dumps(data, sort_keys=True, default=str),
        resolved.device.digest,
        resolved.engine.model_dump_json(),
        repr(resolved.model),
        code_digest(),
        repr((resolved.usd_per_gpu_hour, *extra)),
    ]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


@lru_cache(maxsize=1)
def code_digest() -> str:
    """Return a hash of the code that makes the figures, so that nothing is taken over from another version."""
    root = Path(__file__).parents[2]
    found = hashlib.sha256()
    for folder in ("hwmodels", "sim"):
        for path in sorted((root / folder).rglob("*.py")):
            found.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes())
    return found.hexdigest()[:16]
