"""The study file: a base scenario, and which of its leaves are varied over what."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from annotated_types import Ge, Le
from pydantic import Field, ValidationError

from ...hwmodels.errors import MemboundError
from ...hwmodels.units import Unbounded
from ..fields import Section
from ..scenario.errors import Where, one_line
from ..scenario.load import Assignment, parse_scenario, read_scenario, read_sections
from ..scenario.schema import PATH_LEAVES, Scenario

Settings = dict[str, Any]
ZIP = "zip"
MAX_POINTS = 1_000_000


class StudyError(MemboundError):
    """A study that asks for what cannot be."""


class Range(Section):
    """Numbers from one to another.

    Attributes
    ----------
    from_ : the first
    to : the last
    steps : how many of them a grid takes
    scale : evenly spaced as they are (linear), or by their logarithms (log)
    """

    from_: Annotated[float, Field(alias="from")]
    to: float
    steps: Annotated[int, Ge(2), Le(MAX_POINTS)] = 2
    scale: Literal["linear", "log"] = "linear"

    def values(self) -> list[float | int]:
        """Return the numbers a grid takes."""
        return [self.at(step / (self.steps - 1)) for step in range(self.steps)]

    def at(self, share: float) -> float | int:
        """Return the number that so much of the way lies at; whole where both ends are, and it is close to one."""
        if self.scale == "log":
            value = math.exp(math.log(self.from_) + share * (math.log(self.to) - math.log(self.from_)))
        else:
            value = self.from_ + share * (self.to - self.from_)
        low, high = sorted((self.from_, self.to))
        value = self.from_ if share == 0 else self.to if share == 1 else min(max(value, low), high)
        ends_whole = self.from_.is_integer() and self.to.is_integer()
        return round(value) if ends_whole and math.isclose(value, round(value), rel_tol=1e-9) else value


class Study(Section):
    """Many runs of one scenario, with some leaves varied.

    Attributes
    ----------
    name : shown above results
    base : the scenario file that is varied
    over : leaf to its values: a list, or ``{from, to, steps, scale}``; under ``zip`` stand leaves that change together
    points : further points, each with the leaves it sets
    random : so many points drawn from ``over`` (a Latin hypercube) instead of its grid
    repeat : runs of each point, the seed one higher each time
    """

    name: str = ""
    base: str
    over: dict[str, Any] = Field(default_factory=dict)
    points: tuple[dict[str, Any], ...] = ()
    random: Annotated[Unbounded, Le(MAX_POINTS)] | None = None
    repeat: Annotated[int, Ge(1), Le(10_000)] = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What a study comes down to.

    Attributes
    ----------
    name : the study's, or its file's
    settings : leaf to value, of each point
    scenarios : the scenario of each point, with the base's seed
    repeat : runs of each
    """

    name: str
    settings: tuple[Settings, ...]
    scenarios: tuple[Scenario, ...]
    repeat: int

    def runs(self) -> Iterator[tuple[int, Scenario]]:
        """Yield the point and the scenario of every run, seed by seed."""
        for again in range(self.repeat):
            for at, scenario in enumerate(self.scenarios):
                seed = scenario.simulation.seed + again
                simulation = scenario.simulation.model_copy(update={"seed": seed})
                yield at, scenario.model_copy(update={"simulation": simulation}) if again else scenario


def load_study(path: str | os.PathLike[str], sets: Sequence[str] = ()) -> Plan:
    """Read a study file and make every scenario it asks for.

    Parameters
    ----------
    path : the YAML file; paths in it are relative to its folder
    sets : assignments ``a.b=value`` that change the base; what the study varies wins over them

    Raises
    ------
    StudyError, ScenarioError : one line: what is wrong, what is allowed, the nearest match, and where
    """
    data, where = read_sections(path, "study", "base, over, …")
    try:
        study = Study.model_validate(data)
    except ValidationError as error:
        raise one_line(error, data, Study, where) from None
    folder = Path(path).parent
    base, base_where = read_scenario(folder / study.base)
    settings = [moved(each, folder) for each in _points(study, str(path))]
    scenarios = [varied(base, base_where, sets, each, str(path)) for each in settings]
    return Plan(study.name or Path(path).stem, tuple(settings), tuple(scenarios), study.repeat)


def study(
    scenario: Scenario,
    over: Mapping[str, Any],
    *,
    name: str = "",
    random: int | None = None,
    repeat: int = 1,
) -> Plan:
    """Return the study that varies leaves of a scenario at hand; a file says the same to ``load_study``.

    Parameters
    ----------
    scenario : the base
    over : leaf to its values: a list, or ``{"from", "to", "steps", "scale"}``; leaves under ``zip`` change together
    name : shown above results
    random : so many points drawn from ``over`` instead of its grid
    repeat : runs of each point, the seed one higher each time

    Raises
    ------
    StudyError, ScenarioError : one line: what is wrong, what is allowed, the nearest match

    Examples
    --------
    >>> chat = Scenario(device="h100_sxm", model="llama-3.1-8b")
    >>> [each.device for each in study(chat, {"device": ["h100_sxm", "l40s"]}).scenarios]
    ['h100_sxm', 'l40s']
    """
    data = {"name": name, "base": scenario.name, "over": dict(over), "random": random, "repeat": repeat}
    try:
        asked = Study.model_validate(data)
    except ValidationError as error:
        raise one_line(error, data, Study, Where("study")) from None
    settings = _points(asked, "study")
    base, where = scenario.to_dict(), Where("study")
    scenarios = [varied(base, where, (), each, "study") for each in settings]
    return Plan(name or scenario.name or "study", tuple(settings), tuple(scenarios), repeat)


def varied(
    base: Mapping[str, Any], where: Where, sets: Sequence[str], settings: Settings, told: str
) -> Scenario:
    """Return a base scenario with some leaves set.

    Parameters
    ----------
    base, where : the base as plain data, and where its keys are
    sets : assignments ``a.b=value`` that change the base; ``settings`` win over them
    settings : leaf to value
    told : where the settings are from, for errors

    Raises
    ------
    ScenarioError : one line: what is wrong, what is allowed, the nearest match, and where
    """
    assignments = [Assignment(key, value, f"{told}: {key}: {value}") for key, value in settings.items()]
    return parse_scenario(base, [*sets, *assignments], Where(where.file, where.lines))


def _points(study: Study, where: str) -> list[Settings]:
    axes = [_axis(key, values, where) for key, values in study.over.items()]
    if study.random:
        drawn = _draw(study, axes, where)
    else:
        count = math.prod(len(axis) for axis in axes)
        if count > MAX_POINTS:
            raise StudyError(f"{where}: over has {count:,} points; allowed: {MAX_POINTS:,}")
        drawn = [_merged(parts) for parts in itertools.product(*axes)] if axes else []
    found = drawn + [dict(point) for point in study.points]
    if not found:
        raise StudyError(f"{where}: nothing is varied; give over: {{leaf: [values]}}, or points")
    return found


def _merged(parts: Sequence[Settings]) -> Settings:
    return {key: value for part in parts for key, value in part.items()}


def _axis(key: str, values: object, where: str) -> list[Settings]:
    """Return the settings along one axis of the grid."""
    if key != ZIP:
        return [{key: value} for value in _values(key, values, where)]
    if not isinstance(values, Mapping) or not values:
        raise StudyError(f"{where}: over.zip: allowed: leaves with lists of one length")
    columns = {
        str(name): _values(f"zip.{name}", column, where)
        for name, column in cast("Mapping[Any, Any]", values).items()
    }
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        told = ", ".join(f"{name} {count}" for name, count in lengths.items())
        raise StudyError(f"{where}: over.zip: lists of different lengths ({told})")
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _values(key: str, values: object, where: str) -> list[Any]:
    if isinstance(values, Mapping):
        return list(_range(key, cast("Mapping[str, Any]", values), where).values())
    if not isinstance(values, list) or not values:
        raise StudyError(f"{where}: over.{key}: {values!r}; allowed: a list, or {{from, to, steps}}")
    return cast("list[Any]", values)


def _range(key: str, values: Mapping[str, Any], where: str) -> Range:
    data = dict(values)
    try:
        found = Range.model_validate(data)
    except ValidationError as error:
        raise one_line(error, data, Range, Where(f"{where}: over.{key}")) from None
    if found.scale == "log" and not (found.from_ > 0 and found.to > 0):
        raise StudyError(
            f"{where}: over.{key}: from {found.from_:g} to {found.to:g} has no logarithms; allowed: numbers above 0"
        )
    return found


def _draw(study: Study, axes: Sequence[Sequence[Settings]], where: str) -> list[Settings]:
    """Return points of a Latin hypercube over the axes: every range and every list is covered evenly."""
    from scipy.stats import qmc  # pyright: ignore[reportMissingTypeStubs]

    assert study.random is not None
    if not axes:
        raise StudyError(f"{where}: random {study.random} needs over: {{leaf: [values]}}")
    sampler: Any = cast("Any", qmc).LatinHypercube(len(axes), rng=0)
    points: list[Settings] = []
    for row in sampler.random(study.random).tolist():
        parts: list[Settings] = []
        for share, (key, values), axis in zip(row, study.over.items(), axes, strict=True):
            if isinstance(values, Mapping) and key != ZIP:
                parts.append({key: _range(key, cast("Mapping[str, Any]", values), where).at(share)})
            else:
                parts.append(axis[min(int(share * len(axis)), len(axis) - 1)])
        points.append(_merged(parts))
    return points


def moved(settings: Settings, folder: Path) -> Settings:
    """Return settings whose files are named from the working folder."""
    return {
        key: str(folder / value)
        if key in PATH_LEAVES and isinstance(value, str) and (folder / value).exists()
        else value
        for key, value in settings.items()
    }
