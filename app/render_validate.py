"""Errors of served runs as text: a line a run, medians by group, the worst, and what was left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..sim.output.output import to_json
from .text import csv_of, labelled, percent, table, text_of

if TYPE_CHECKING:
    from ..calibrate.monitoring import Beside
    from ..calibrate.serving.compare import RunErrors
    from ..calibrate.serving.run import Skipped

COLUMNS: Mapping[str, str] = {
    "ttft_mean": "TTFT", "ttft_p99": "p99", "tpot_mean": "TPOT", "e2e_mean": "E2E", "e2e_p99": "p99",
    "throughput": "rate", "kv_peak": "KV peak",
}  # fmt: skip
SHOWN_RUNS = 40
"""Most runs that a table shows one by one; the worst of more."""


def render_validation(runs: Sequence[RunErrors], skipped: Sequence[Skipped], form: str) -> str:
    """Return a validation as ``table``, ``json`` or ``csv``."""
    from ..calibrate.serving.summary import payload

    if form == "json":
        return to_json(payload(runs, skipped))
    if form == "csv":
        return csv_of([*_csv_rows(payload(runs, skipped))])
    return text_of(_lines(runs, skipped))


def render_monitoring(found: Beside, form: str) -> str:
    """Return measured and simulated counters as ``table``, ``json`` or ``csv``."""
    plain = found.to_dict()
    if form == "json":
        return to_json(plain)
    if form == "csv":
        return csv_of([{"counter": name} | both for name, both in plain["counters"].items()])
    gpus = found.measured.gpus if len(found.measured.gpus) > 1 else {}
    rows = [
        [name, _share(both["measured"]), *(_share(gpu.get(name)) for gpu in gpus.values()),
         _share(both["simulated"]), _points(both["measured"], both["simulated"])]
        for name, both in plain["counters"].items()
    ]  # fmt: skip
    head = ["share of time", "measured", *(f"GPU {gpu}" for gpu in gpus), "simulated", "points"]
    lines = [f"measured with {found.measured.source}", ""]
    lines += table(head, rows, right=range(1, len(head)))
    lines += ["", *labelled("answer", found.sentence)] if found.sentence else []
    lines += [line for note in found.measured.warnings for line in labelled("warning", note)]
    return text_of(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.1f} %"


def _points(measured: float | None, simulated: float | None) -> str:
    return "-" if measured is None or simulated is None else f"{100 * (simulated - measured):+.1f}"


def _csv_rows(found: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    plain = ("run_id", "gpu", "model", "engine", "part", "saturated", "level")
    for row in found["runs"]:
        yield (
            {key: row[key] for key in plain}
            | {f"error.{name}": value for name, value in row["error"].items()}
            | {f"per_request.{name}": value for name, value in row["per_request"].items()}
            | {f"covered.{name}": value for name, value in row["covered"].items()}
            | {f"half_width.{name}": value for name, value in row["half_width"].items()}
            | {"cause": row["cause"], "skipped": ""}
        )
    for row in found["skipped"]:
        yield {key: row[key] for key in plain if key in row} | {"skipped": row["reason"]}


def _lines(runs: Sequence[RunErrors], skipped: Sequence[Skipped]) -> Iterator[str]:
    from ..calibrate.serving.summary import GROUPS, grouped, totals, worst

    if runs:
        shown = runs if len(runs) <= SHOWN_RUNS else worst(runs, SHOWN_RUNS)
        if len(shown) < len(runs):
            yield f"the {len(shown)} of {len(runs)} runs that are off the most"
        yield from _runs(shown)
        yield ""
        yield "median / 90th percentile of absolute errors; latencies of unsaturated runs"
        rows = [("all", totals(runs))]
        for by in GROUPS:
            found = grouped(runs, by)
            rows += [(f"{by} {name}", group) for name, group in found.items() if len(found) > 1]
        yield from _groups(rows)
        yield ""
        yield from _covered(totals(runs))
        for each in worst(runs):
            if each.cause:
                yield from labelled("worst", f"{each.run.label.run_id}: {each.cause}")
        notes = Counter(note for each in runs for note in each.run.notes)
        for note, count in notes.most_common():
            yield from labelled("taken", f"{note} ({count} runs)")
    reasons = Counter(each.reason for each in skipped)
    yield from labelled(
        "in all", f"{len(runs)} runs answered, {len(skipped)} skipped" + (":" if skipped else "")
    )
    for reason, count in reasons.most_common():
        yield from labelled("skipped", f"{count}: {reason}")


def _runs(runs: Sequence[RunErrors]) -> list[str]:
    rows = [
        [
            each.run.label.run_id[-52:],
            *(_signed(each.error.get(name)) for name in COLUMNS),
            "saturated" if each.run.saturated else each.run.label.part or None,
        ]
        for each in runs
    ]
    return table(["simulated / measured - 1 [%]", *COLUMNS.values(), ""], rows, right=range(1, 8))


def _groups(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    names = [name for name in COLUMNS if name != "kv_peak"]
    cells = [
        [
            label[-52:],
            str(found["n"]),
            *(_pair(found["median_abs_error"][name], found["p90_abs_error"][name]) for name in names),
        ]
        for label, found in rows
    ]
    return table(["[%]", "runs", *(COLUMNS[name] for name in names)], cells, right=range(1, 8))


def _covered(found: Mapping[str, Any]) -> Iterator[str]:
    for name, share in found["coverage_90"].items():
        width = found["median_half_width"][name]
        yield from labelled(
            "interval", f"{name}: holds {percent(share)} of the measured (nominal 90 %), +-{percent(width)}"
        )


def _signed(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:+.1f}"


def _pair(middle: float | None, high: float | None) -> str | None:
    return None if middle is None or high is None else f"{100 * middle:.1f} / {100 * high:.1f}"
