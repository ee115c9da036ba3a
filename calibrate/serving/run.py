"""A served run as validation needs it: the scenario that plays it, and what was measured of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ...hwmodels.device import load_device
from ...hwmodels.errors import MemboundError
from ...hwmodels.model import load_model
from ...hwmodels.weightformat import FORMATS, SYNONYMS
from ...sim.scenario.schema import Scenario
from .table import RowError

LATENCIES: tuple[str, ...] = ("ttft", "tpot", "e2e")
STATISTICS: tuple[str, ...] = ("mean", "p50", "p99")
_LONGEST = 80
"""Characters of a name that a reason repeats."""
PLAIN = frozenset(("bf16", "fp16"))


@dataclass(frozen=True, slots=True)
class Label:
    """What a run is called and grouped by.

    Attributes
    ----------
    run_id : its id in the table
    gpu, model, engine : as the table says them
    part : fit, judge, replicate, exclude; empty where there is no split
    kind : ``runs``, ``points`` or ``export``
    """

    run_id: str
    gpu: str
    model: str
    engine: str
    part: str = ""
    kind: str = "runs"


@dataclass(frozen=True, slots=True)
class ServedRun:
    """One run that was measured.

    Attributes
    ----------
    label : what it is called
    scenario : what plays it
    measured : ``ttft_mean``, ``tpot_p99``, ``e2e_p50``, … [s], ``requests_per_s``, ``output_tokens_per_s``,
        ``kv_peak`` [-], ``preemptions``; only what is known
    tpot_derived : whether the mean TPOT is (mean E2E - mean TTFT) / (answer - 1)
    client_overhead_s : the client's own time on TTFT and E2E; None takes the engine profile's [s]
    skip_first : requests at the start that the measured figures do not hold (caches were warm by then)
    saturated : why more came than was served; empty below saturation
    concurrency : requests that a closed loop kept in flight; None in an open loop
    intended : whether the file of requests tells when each was to be sent; the cap on those in flight then
        decides when it was
    taken_up : whether arrivals, and latencies from them, are of the moment at which the engine took a request up
    unstated_spread : ``ttft``, ``tpot`` -> standard deviation of log(simulated / measured) for what is not stated of
        the run [-]
    notes : what was assumed, one line each
    """

    label: Label
    scenario: Scenario
    measured: Mapping[str, float]
    tpot_derived: bool = False
    client_overhead_s: float | None = None
    skip_first: int = 0
    saturated: str = ""
    concurrency: int | None = None
    intended: bool = False
    taken_up: bool = False
    unstated_spread: Mapping[str, float] = field(default_factory=dict[str, float])
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True, slots=True)
class Skipped:
    """A run that is not answered, and why in one line."""

    label: Label
    reason: str


def scenario_of(data: Mapping[str, Any]) -> Scenario:
    """Return a scenario from plain data.

    Raises
    ------
    RowError : impossible values, in one line
    """
    try:
        return Scenario.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise RowError(f"{where}: {first['msg']}".replace("\n", " ")) from None


def device_of(gpu: str) -> str:
    """Return the id of a GPU.

    Raises
    ------
    RowError : none of that name
    """
    return _known("GPU", gpu, lambda: load_device(gpu).id)


def model_of(model: str) -> str:
    """Return the id of a model.

    Raises
    ------
    RowError : none of that name
    """
    return _known("model", model, lambda: load_model(model).id)


def _known(what: str, name: str, find: Any) -> str:
    if not name:
        raise RowError(f"no {what} stated")
    short = name if len(name) <= _LONGEST else f"{name[:_LONGEST]}…"
    try:
        return str(find())
    except MemboundError as error:
        near = str(error).partition("nearest: ")[2].partition(";")[0]
        raise RowError(f"unknown {what} {short!r}" + (f"; nearest: {near}" if near else "")) from None
    except (OSError, ValueError):  # no file can have such a name
        raise RowError(f"unknown {what} {short!r}") from None


def weights_of(stated: str, model: str) -> str:
    """Return the weight format of a scenario: auto where the checkpoint is what the row states.

    >>> weights_of("fp16/bf16", "llama-3.1-8b"), weights_of("fp8", "llama-3.1-8b")
    ('auto', 'fp8')

    Raises
    ------
    RowError : a format that is not known
    """
    name = stated.lower().split("/")[0].strip().removesuffix("_wo").removesuffix("_block")
    name = SYNONYMS.get(name, name)
    if not name:
        return "auto"
    if name not in FORMATS:
        raise RowError(f"weights in {stated!r}; known: {', '.join(FORMATS)}")
    own = load_model(model).quantization
    stored = SYNONYMS.get(own.weights, own.weights) if own else "bf16"
    if name == stored or (name in PLAIN and not own):
        return "auto"
    if name == "nvfp4" and stored == "mxfp4":
        return "auto"
    return name


def groups(tp: int, pp: int = 1, dp: int = 1, ep: int = 1) -> dict[str, Any]:
    """Return the ``parallelism`` section."""
    return {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "data_parallel_size": dp,
        "expert_parallel": ep > 1,
    }


def beside(table: Path, file: str) -> Path:
    """Return a file that a row names, relative to its table.

    Raises
    ------
    RowError : it is not there
    """
    path = table.parent / file
    if not path.is_file():
        raise RowError(f"its file of requests {file} is not there")
    return path
