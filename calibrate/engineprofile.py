"""Engine profiles with other step parameters, and as files that ``engine: path`` takes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from ..hwmodels.engine import EngineProfile
from ..hwmodels.enginesections import StepParameter


def with_step(
    engine: EngineProfile,
    values: Mapping[str, float],
    source: str,
    stderr: Mapping[str, float] | None = None,
    run: str | None = None,
) -> EngineProfile:
    """Return an engine with other step parameters.

    Parameters
    ----------
    engine : the profile
    values : parameter of ``StepSection`` -> value, in that parameter's unit
    source : where they come from
    stderr : standard errors; 0 where none is given
    run : the calibration run that gave them
    """
    errors = stderr or {}
    fields = {
        name: StepParameter(
            value=value,
            stderr=errors.get(name, 0.0),
            unit=getattr(engine.step, name).unit,
            source=source,
            run=run,
        )
        for name, value in values.items()
    }
    return engine.model_copy(update={"step": engine.step.model_copy(update=fields)})


def engine_text(engine: EngineProfile) -> str:
    """Return an engine as YAML."""
    import yaml

    dumped = engine.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(dumped, sort_keys=False, allow_unicode=True, width=110)


def write_engine(engine: EngineProfile, path: Path) -> None:
    """Write an engine's file in one go."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(engine_text(engine), encoding="utf-8")
    beside.replace(path)
