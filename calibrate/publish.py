"""Writing fits into a device's YAML: the ``fitted`` section alone, lane by lane, everything else untouched.

A lane that is known better than the fit stays, unless told otherwise: measured before with a smaller residual.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..hwmodels.device import DEVICES, DeviceProfile
from ..hwmodels.lanes import FittedLane, FittedParameter
from .errors import CalibrationError
from .fit.base import FitResult
from .run import CalibrationRun

_BETTER: Final = {"prior": 0, "bridged": 1, "measured": 2}
PINNED: Final = {"prefill_attention": ("eb", "q")}
"""Parameters that a family takes from another lane: not written, so that they stay that lane's."""
_SLACK: Final = 1.02
"""A measured lane is better only where its residual is smaller than the fit's by more than this."""


INSIDE_ENGINE: Final = ("casys-kaist/LLMServingSim",)
"""Sources that time kernels within an engine's steps: this one drives the model runner of vLLM and reads each layer of
whole forward passes (its ``profiler/README.md``)."""


@dataclass(frozen=True, slots=True)
class Published:
    """What became of one lane.

    Attributes
    ----------
    family, lane : of the fit
    done : ``written``, ``replaced`` or ``kept`` (the lane that is there is better)
    why : the reason, for ``kept``
    """

    family: str
    lane: str
    done: str
    why: str = ""


def fitted_lane(fit: FitResult, run: CalibrationRun) -> FittedLane:
    """Return a fit as a device file holds it."""
    skip = PINNED.get(fit.family, ())
    names = [name for name, value in fit.values.items() if not (name in skip and value.stderr == 0.0)]
    at = [list(fit.values).index(name) for name in names]
    return FittedLane(
        level=fit.level,
        source=source_line(fit, run),
        run=run.id,
        parameters={
            name: FittedParameter(value=_round(fit.params[name]), stderr=_round(fit.stderr[name]))
            for name in names
        },
        correlation=tuple(tuple(round(fit.correlation[i][j], 2) + 0.0 for j in at) for i in at),
        residual={name: _round(sd) for name, sd in fit.residual_sd.items()},
        local={name: round(each, 3) for name, each in fit.local.items()},
        hull=dict(fit.hull),
        table=fit.table,
        growth=None if fit.growth is None else _round(fit.growth),
        inside_engine=run.source.startswith(INSIDE_ENGINE),
    )


def source_line(fit: FitResult, run: CalibrationRun) -> str:
    """Return where a lane comes from: rows, source, errors, notes."""
    errors = f"fitted rows MAPE {100 * fit.train['mape']:.1f} %" if fit.train else ""
    return "; ".join(part for part in (f"fit of {fit.n} rows of {run.source}", errors, *fit.notes) if part)


def publish(
    run: CalibrationRun,
    path: str | os.PathLike[str],
    *,
    lanes: Iterable[tuple[str, str]] | None = None,
    force: bool = False,
) -> list[Published]:
    """Write the fits of a run into a device file.

    Parameters
    ----------
    run : the fits
    path : device YAML; only lanes under ``fitted`` change, comments and datasheet stay
    lanes : family and lane of the fits to write; default: all
    force : also replace lanes that are known better

    Raises
    ------
    CalibrationError : no such file, a file of another device, or one without a ``fitted`` section at its end
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise CalibrationError(f"device file {str(path)!r} cannot be read: {error.strerror}") from None
    profile = _profile(path, text, run)
    wanted = None if lanes is None else set(lanes)
    done: list[Published] = []
    for fit in run.fits:
        if wanted is not None and (fit.family, fit.lane) not in wanted:
            continue
        new = fitted_lane(fit, run)
        old = profile.fitted.get(fit.family, {}).get(fit.lane)
        why = "" if force or old is None else _better(old, new)
        if why:
            done.append(Published(fit.family, fit.lane, "kept", why))
            continue
        text = with_lane(text, fit.family, fit.lane, new)
        done.append(Published(fit.family, fit.lane, "replaced" if old else "written"))
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
    return done


def write_lanes(source: Path, lanes: Iterable[tuple[str, str, FittedLane]], target: Path) -> None:
    """Write a device file with some lanes added or replaced, everything else as it was."""
    text = source.read_text(encoding="utf-8")
    for family, lane, fitted in lanes:
        text = with_lane(text, family, lane, fitted)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    beside.write_text(text, encoding="utf-8")
    beside.replace(target)


def device_file(device: str) -> Path:
    """Return the bundled file of a device."""
    return DEVICES / f"{device}.yaml"


def _profile(path: Path, text: str, run: CalibrationRun) -> DeviceProfile:
    import yaml

    data: Any = yaml.safe_load(text)
    if not isinstance(data, dict) or "id" not in data:
        raise CalibrationError(f"{str(path)!r} is no device file: it has no 'id'")
    if data["id"] != run.device:
        raise CalibrationError(f"{str(path)!r} is device {data['id']!r}; run {run.id!r} is of {run.device!r}")
    return DeviceProfile.model_validate(data)


def _better(old: FittedLane, new: FittedLane) -> str:
    """Return why the lane that is there is better, or nothing."""
    if _BETTER[old.level] > _BETTER[new.level]:
        return f"it is {old.level}, the fit {new.level}"
    before, after = overall(old.residual), overall(new.residual)
    if old.level == "measured" and before and after > _SLACK * before:
        return f"its residual is {100 * before:.1f} %, the fit's {100 * after:.1f} %; --force replaces it"
    return ""


def overall(residual: Mapping[str, float]) -> float:
    """Return the root mean square of residual spreads by regime; 0 for none."""
    spreads = list(residual.values())
    return math.sqrt(sum(sd * sd for sd in spreads) / len(spreads)) if spreads else 0.0


def with_lane(text: str, family: str, lane: str, new: FittedLane) -> str:
    """Return a device file's text with one lane replaced or added; families and lanes keep their order."""
    lines = text.rstrip("\n").split("\n")
    start = _find(lines, 0, len(lines), "fitted:")
    if start is None:
        lines, start = [*lines, "fitted:"], len(lines)
    elif lines[start].startswith("fitted: {}"):
        lines[start] = "fitted:"
    end = _block_end(lines, start)
    at = _find(lines, start + 1, end, f"  {family}:")
    block = lane_lines(lane, new)
    if at is None:
        return _joined([*lines[:end], f"  {family}:", *block, *lines[end:]])
    family_end = _block_end(lines, at)
    own = _find(lines, at + 1, family_end, f"    {lane}:")
    if own is None:
        return _joined([*lines[:family_end], *block, *lines[family_end:]])
    return _joined([*lines[:own], *block, *lines[_block_end(lines, own) :]])


def lane_lines(lane: str, new: FittedLane) -> list[str]:
    """Return a lane as the lines of a device file."""
    lines = [
        f"    {lane}:",
        f"      level: {new.level}",
        f'      source: "{new.source}"',
        *([] if new.run is None else [f"      run: {new.run}"]),
        "      parameters:",
        *(
            f"        {name}: {{value: {each.value:g}, stderr: {each.stderr:g}}}"
            for name, each in new.parameters.items()
        ),
    ]
    if new.correlation is not None:
        lines += ["      correlation:", *(f"        - {_list(row)}" for row in new.correlation)]
    for name, spread in (("residual", new.residual), ("local", new.local)):
        if spread:
            items = _items((_key(each), f"{value:g}") for each, value in spread.items())
            lines.append(f"      {name}: {{{items}}}")
    if new.hull:
        lines.append(f"      hull: {{{_items((axis, _list(ends)) for axis, ends in new.hull.items())}}}")
    if new.growth is not None:
        lines.append(f"      growth: {new.growth:g}")
    if new.inside_engine:
        lines.append("      inside_engine: true")
    if new.table is not None:
        lines += [
            "      table:",
            f"        axis: {new.table.axis}",
            f"        sizes: {_list(new.table.sizes)}",
            "        latency_us:",
            *(f"          {group}: {_list(row)}" for group, row in new.table.latency_us.items()),
        ]
    return lines


def _find(lines: Sequence[str], start: int, end: int, key: str) -> int | None:
    return next((i for i in range(start, end) if lines[i] == key or lines[i].startswith(f"{key} ")), None)


def _block_end(lines: Sequence[str], start: int) -> int:
    """Return the line after a block: the next one that is not indented deeper than its head."""
    indent = len(lines[start]) - len(lines[start].lstrip())
    for i in range(start + 1, len(lines)):
        stripped = lines[i].strip()
        if stripped and len(lines[i]) - len(lines[i].lstrip()) <= indent:
            return i
    return len(lines)


def _joined(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"


def _items(pairs: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name}: {value}" for name, value in pairs)


def _list(values: Iterable[float | None]) -> str:
    return f"[{', '.join('null' if value is None else f'{value:.10g}' for value in values)}]"


def _key(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else f'"{name}"'


def _round(value: float) -> float:
    """Return a number to five significant digits."""
    return float(f"{value:.5g}")


def device_text(device: DeviceProfile) -> str:
    """Return a device that has no file yet as YAML, without lanes: ``publish`` adds those."""
    import yaml

    data = device.model_dump(mode="json", exclude_defaults=True, exclude={"fitted"})
    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=110) + "fitted: {}\n"
