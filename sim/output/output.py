"""What a run prints and writes: the ``summary.json`` object and the result directory."""

from __future__ import annotations

import glob
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...hwmodels.errors import MemboundError
from .. import litter
from ..books.record import RunRecord
from ..metrics import metrics
from ..metrics.figures import Figures, Unknown
from ..metrics.latency import latency
from ..metrics.slo import slo
from ..metrics.stability import Stability, stability
from ..metrics.steady import steady_state
from ..metrics.verdict import verdict
from ..metrics.windows import windows
from . import tables
from .chrometrace import write_trace
from .openmetrics import openmetrics
from .vllm_bench import vllm_bench

if TYPE_CHECKING:
    from ...hwmodels.pool import KVPool

SCHEMA_VERSION = 1
MEMORY_KEYS: tuple[str, ...] = (
    "weights_bytes", "activation_bytes", "reserve_bytes", "kv_pool_bytes", "kv_bytes_per_token",
    "num_gpu_blocks", "kv_capacity_tokens", "max_concurrency_at_max_model_len", "fits",
)  # fmt: skip
PROVENANCE_KEYS: tuple[str, ...] = ("version", "device", "device_hash", "model", "engine", "seed")
RESULT_FILES: tuple[str, ...] = (
    "scenario.yaml", "provenance.json", "requests.parquet", "steps.parquet", "kv.parquet",
    "itl_by_position.parquet", "trace.json.gz", "metrics.prom", "vllm_bench.json", "summary.json",
)  # fmt: skip
"""Every file ``write_result`` may write; ``summary.json`` comes last, so where it is, the rest is."""


class OutputError(MemboundError):
    """A result directory that cannot be written."""


def summary(record: RunRecord) -> dict[str, Any]:
    """Return a run's figures under the keys of ``summary.json``.

    Every key is there. A figure that is not known is None, and ``confidence.warnings`` says why.
    """
    state = stability(record)
    tree: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "scenario": _scenario(record),
        "provenance": _provenance(record),
        "requests": metrics.request_counts(record),
        "latency": latency(record),
        "steady_state": steady_state(record, state),
        "throughput": metrics.throughput(record),
        "slo": slo(record),
        **_windows(record),
        "time_share": metrics.time_share(record),
        "limiter": metrics.limiter_share(record),
        "utilization": metrics.utilization(record),
        "memory": _memory(record),
        "kv": {**metrics.kv(record), "tiers": {}, "swap": {}, **_behind(record)},
        **({} if record.speculative is None else {"speculative": dict(record.speculative)}),
        **({} if record.contention is None else {"contention": dict(record.contention)}),
        **record.beside,
        **({} if record.replicas is None else {"replicas": [dict(each) for each in record.replicas]}),
        "cost": metrics.cost(record),
        "energy": metrics.energy(record),
        **_classes(record),
        "verdict": verdict(record, state),
        "confidence": {
            "level": record.provenance.get("level", Unknown("the fitted lanes state no level")),
            "interval": _interval(record),
            **({"lanes": record.provenance["lanes"]} if "lanes" in record.provenance else {}),
            **({"draws": record.draws} if record.draws else {}),
        },
        "simulation": metrics.simulation(record),
    }
    reasons = [f"{', '.join(paths)} is null: {why}" for why, paths in _unknowns(tree).items()]
    known: dict[str, Any] = _without_unknowns(tree)
    known["confidence"]["warnings"] = [*_warnings(record, state), *reasons]
    return known


def to_json(value: object, indent: int | None = 2) -> str:
    """Return ``value`` as JSON text that is the same for the same value, with a final newline.

    Without ``indent`` it is one line, which is written many times faster.

    Raises
    ------
    ValueError
        A figure is not finite: an unknown one must be None.
    """
    return json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False, default=_plain) + "\n"


def _plain(value: Any) -> Any:
    """Return numpy scalars and arrays, paths and mappings as what JSON knows."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return str(value)


def _warnings(record: RunRecord, state: Stability) -> list[str]:
    """Return what a reader should know before believing the figures."""
    found = list(record.warnings)
    if not state.steady:
        found.append(f"latency is of this run, not of a steady state ({state.state}): {state.reason}")
    counts = metrics.request_counts(record)
    left = counts["submitted"] - counts["completed"] - counts["rejected"] - counts["aborted"]
    if left:
        found.append(f"{left} of {counts['submitted']} requests were unfinished when the run ended")
    return found


def _classes(record: RunRecord) -> dict[str, Any]:
    """Return what each SLO class got and cost, where there are several."""
    found = metrics.classes(record)
    return {"classes": found} if found else {}


def _windows(record: RunRecord) -> dict[str, Any]:
    """Return the run by windows of arrival time, where the scenario asks for them."""
    length = getattr(getattr(record.scenario, "simulation", None), "window", None)
    return {} if length is None else {"windows": windows(record, length)}


def _behind(record: RunRecord) -> dict[str, Any]:
    """Return what the memory behind the device's held and moved, where there was any."""
    return {name: record.kv[name] for name in ("tiers", "swap") if name in record.kv}


def _interval(record: RunRecord) -> Any:
    """Return metric -> [low, high], by the metrics' dotted names here."""
    if record.intervals is None:
        return Unknown("no draws were asked for")
    return {name: list(ends) for name, ends in record.intervals.items()}


def _scenario(record: RunRecord) -> Any:
    if record.scenario is None:
        return Unknown("the run was not made from a scenario")
    if hasattr(record.scenario, "model_dump"):
        return record.scenario.model_dump(mode="json")
    return record.scenario


def _provenance(record: RunRecord) -> Figures:
    return {key: record.provenance.get(key, Unknown("not recorded")) for key in PROVENANCE_KEYS}


def _memory(record: RunRecord) -> dict[str, Any]:
    """Return how the KV pool was sized, under the names that ``size`` prints."""
    if record.memory is None:
        why = "the KV pool was not sized" if record.replicas is None else "it differs from replica to replica"
        return dict.fromkeys(MEMORY_KEYS, Unknown(why))
    sized = record.memory if isinstance(record.memory, Mapping) else _sized(record.memory)
    missing = Unknown("not stated by the sizing of the KV pool")
    return dict.fromkeys(MEMORY_KEYS, missing) | {
        key: value for key, value in sized.items() if value is not None
    }


def _sized(pool: KVPool) -> dict[str, Any]:
    from ...hwmodels.sizing import (
        SizeReport,  # what sizes pools need not be loaded to print a run without one
    )

    return SizeReport(pool).memory


def _unknowns(tree: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return reason -> paths of the unknown figures; a branch that is unknown throughout is named once."""
    found: dict[str, list[str]] = {}
    for path, why in _unknown_paths(tree, ""):
        found.setdefault(why, []).append(path)
    return found


def _unknown_paths(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, str]]:
    for key, value in tree.items():
        path = prefix + key
        why = _common_reason(value)
        if why is not None:
            yield path, why
        elif isinstance(value, Mapping):
            yield from _unknown_paths(value, path + ".")  # pyright: ignore[reportUnknownArgumentType]


def _common_reason(value: Any) -> str | None:
    """Return the one reason why a figure or a whole branch is unknown; None if some of it is known."""
    if isinstance(value, Unknown):
        return value.reason
    if not isinstance(value, Mapping) or not value:
        return None
    reasons: set[str | None] = {_common_reason(part) for part in value.values()}  # pyright: ignore[reportUnknownVariableType]
    return reasons.pop() if len(reasons) == 1 else None


def _without_unknowns(value: Any) -> Any:
    if isinstance(value, Unknown):
        return None
    if isinstance(value, Mapping):
        return {key: _without_unknowns(part) for key, part in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_without_unknowns(part) for part in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def check_folder(folder: str | Path) -> None:
    """Refuse a result directory that cannot be written, before the run that would fill it.

    Raises
    ------
    OutputError
        ``folder``, or what it would be made in, is a file or not writable.
    """
    target = Path(os.path.abspath(folder))
    if target.exists() and not target.is_dir():
        raise OutputError(f"output folder {str(folder)!r} is a file; allowed: a new or an existing folder")
    there = next(parent for parent in (target, *target.parents) if parent.exists())
    if not there.is_dir():
        raise OutputError(f"output folder {str(folder)!r} cannot be made: {str(there)!r} is a file")
    if not os.access(there, os.W_OK | os.X_OK):
        raise OutputError(f"output folder {str(folder)!r} cannot be written: {str(there)!r} is protected")


def write_result(record: RunRecord, folder: str | Path) -> list[Path]:
    """Write the result directory and return its files.

    All files are first written under a temporary name, then renamed: a run that is interrupted leaves an
    earlier result as it was. Files of an earlier result that this run lacks go.

    Raises
    ------
    OutputError
        ``folder`` is a file, or cannot be written.
    """
    check_folder(folder)
    target = Path(os.path.abspath(folder))
    place = target if target.exists() else target.parent  # the parent of a folder may be write-protected
    for each in {target, target.parent}:
        litter.clear(each, glob.escape(target.name))
    staging = litter.beside(target, place)
    try:
        staging.mkdir(parents=True)
        _write_files(record, staging, target)
        _publish(staging, target)
    except OSError as error:
        raise OutputError(f"output folder {str(folder)!r} cannot be written: {error.strerror}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return [Path(folder) / name for name in RESULT_FILES if (target / name).exists()]


def _write_files(record: RunRecord, folder: Path, target: Path) -> None:
    """Write the files of a result into an empty folder; paths in them start from ``target``."""
    if hasattr(record.scenario, "to_yaml"):
        (folder / "scenario.yaml").write_text(record.scenario.to_yaml(target), encoding="utf-8")
    (folder / "provenance.json").write_text(to_json(provenance(record)), encoding="utf-8")
    for name, table in tables.all_tables(record).items():
        tables.write_parquet(table, folder / name)
    if record.steps is not None:
        write_trace(record, folder / "trace.json.gz")
    (folder / "metrics.prom").write_text(openmetrics(record), encoding="utf-8")
    (folder / "vllm_bench.json").write_text(to_json(vllm_bench(record), indent=None), encoding="utf-8")
    (folder / "summary.json").write_text(to_json(summary(record)), encoding="utf-8")


def provenance(record: RunRecord) -> dict[str, Any]:
    """Return everything known about what made the run, for ``provenance.json``."""
    setup = record.setup
    return {
        **record.provenance,
        "gpus": setup.gpus,
        "replicas": setup.replicas,
        "usd_per_gpu_hour": setup.usd_per_gpu_hour,
        "price_source": setup.price_source,
        "warnings": list(record.warnings),
    }


def _publish(staging: Path, target: Path) -> None:
    """Move the files of ``staging`` into ``target``: in one rename where it is new, else file by file."""
    if not target.exists():
        staging.rename(target)
        return
    (target / "summary.json").unlink(missing_ok=True)
    for name in RESULT_FILES:
        if (staging / name).exists():
            (staging / name).replace(target / name)
        else:
            (target / name).unlink(missing_ok=True)
