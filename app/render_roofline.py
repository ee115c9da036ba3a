"""A roofline as text: ridge points, where the steps of a run lie, and decode by batch size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ..sim.output.output import to_json
from .render import LEVELS
from .text import csv_of, gib, labelled, milliseconds, number, percent, table, text_of

if TYPE_CHECKING:
    from ..sim.studies.batchcurve import BatchCurve
    from ..sim.studies.roofline import OperatingPoint, Roofline

TIERS: Mapping[str, str] = {"hbm": "HBM", "link": "link", "host": "host"}
GIGA, TERA = 1e9, 1e12


def render_roofline(found: Roofline, form: str) -> str:
    """Return a roofline as ``table``, ``json`` or ``csv``, with a final newline."""
    if form == "json":
        return to_json(found.to_dict())
    if form == "csv":
        return csv_of(list(_rows(found)))
    return text_of(_lines(found))


def _rows(found: Roofline) -> Iterator[dict[str, Any]]:
    for name, rows in (("ridge", found.ridges), ("point", found.points), ("batch", found.curve.points)):
        yield from ({"table": name, **asdict(row)} for row in rows)


def _lines(found: Roofline) -> Iterator[str]:
    changed = ", ".join(f"{key} {value}" for key, value in found.whatif.items())
    device = found.device + (f" with {changed}" if changed else "")
    yield from labelled("", f"{device} · {found.model} · {found.requests:,} requests (seed {found.seed})")
    yield ""
    yield from _ridges(found)
    yield ""
    yield from _points(found)
    yield ""
    yield from _curve(found.curve)
    yield ""
    yield from labelled("answer", answer(found))
    yield from labelled("training", _training(found))
    yield from labelled("prediction", known(found.level, found.whatif))


def known(level: str, whatif: Mapping[str, Any]) -> str:
    """Say how well a prediction is known, what-ifs by name."""
    said = f"{level}: {LEVELS.get(level, level)}"
    return f"{said}; what-if: no such device was measured" if whatif else said


def _ridges(found: Roofline) -> list[str]:
    tiers = list(dict.fromkeys(ridge.tier for ridge in found.ridges))
    bandwidths = {ridge.tier: ridge.bytes_per_s for ridge in found.ridges}
    header = [
        "ridge [FLOP/B]",
        "TFLOP/s",
        *(f"{TIERS[t]} {number(bandwidths[t] / GIGA)} GB/s" for t in tiers),
    ]
    rows: dict[str, list[str]] = {}
    for ridge in found.ridges:
        rows.setdefault(ridge.dtype, [ridge.dtype, number(ridge.flops_per_s / TERA)]).append(
            number(ridge.intensity)
        )
    return table(header, list(rows.values()), right=range(1, len(header)))


def _points(found: Roofline) -> list[str]:
    linked = any(point.link_bytes for point in found.points)
    header = ["steps", "busy", "tokens", "ms", "GFLOP", "GB", *(["link MB"] if linked else []), "FLOP/B"]
    header += ["MFU", "attainable", "MBU", "attainable", "of roofline"]
    rows = [
        [
            point.kind,
            percent(point.busy_share) if point.steps else None,
            number(point.tokens),
            milliseconds(point.seconds),
            number(point.flop / GIGA),
            number(point.hbm_bytes / GIGA),
            *([number(point.link_bytes / 1e6)] if linked else []),
            number(point.intensity),
            *_shares(point),
        ]
        for point in found.points
    ]
    return table(header, rows, right=range(1, len(header)))


def _shares(point: OperatingPoint) -> list[str]:
    pairs = ((point.mfu, point.attainable_mfu), (point.mbu, point.attainable_mbu))
    return [*(percent(share) for pair in pairs for share in pair), percent(point.of_roofline)]


def _curve(curve: BatchCurve) -> list[str]:
    header = ["batch", "TPOT ms", "tok/s", "MB/token", "KV MB/token", "FLOP/B", "MFU", "MBU", ""]
    rows = [
        [
            f"{point.batch:,}",
            milliseconds(point.tpot_s),
            number(point.tokens_per_s),
            number(point.bytes_per_token / 1e6),
            number(point.kv_bytes_per_token / 1e6),
            number(point.intensity),
            percent(point.mfu),
            percent(point.mbu),
            _mark(curve, point.batch),
        ]
        for point in curve.points
    ]
    return table(header, rows, right=range(8))


def _mark(curve: BatchCurve, batch: int) -> str:
    marks = {
        "KV memory ends": curve.kv_batch,
        "max_num_seqs": curve.max_num_seqs,
        "beyond the ridge": curve.ridge_batch,
    }
    return ", ".join(word for word, at in marks.items() if at == batch)


def answer(found: Roofline) -> str:
    """Say in a sentence what bounds the run, and where a larger batch of decodes would end."""
    whole = next(point for point in found.points if point.kind == "all")
    curve, context = found.curve, f"{found.curve.context_tokens:,} tokens of context"
    said = [
        f"steps do {number(whole.intensity)} FLOP a byte of HBM: {whole.bound}-bound by the roofline, and at "
        f"{percent(whole.of_roofline)} of what it allows",
        f"with {context} the KV pool ends at {curve.kv_batch:,} sequences"
        + (f", max_num_seqs at {curve.max_num_seqs:,}" if curve.max_num_seqs < curve.kv_batch else ""),
    ]
    if curve.ridge_batch is not None:
        said.append(f"decode crosses the ridge at {curve.ridge_batch:,}")
    else:
        reach = f"no batch of decodes crosses the ridge, {number(curve.limit_intensity)} FLOP/B at most"
        short = (
            f": contexts up to {curve.ridge_context:,} tokens could"
            if curve.ridge_context is not None
            else ""
        )
        said.append(reach + short)
    return "; ".join(said)


def _training(found: Roofline) -> str:
    point = next(point for point in found.points if point.kind == "training")
    return (
        f"{number(point.tokens)} tokens forward and backward: three forward passes of FLOP and kernel time, 34 bytes a "
        f"parameter moved (16-bit weights, Adam), nothing recomputed; it keeps {gib(found.training_bytes)} GiB a GPU, "
        f"which has {gib(found.usable_bytes)}; never measured, for contrast only"
    )
