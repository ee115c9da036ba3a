"""A calibration run: the fits that one table gave, what was left out, and where the timings come from."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..hwmodels.errors import unknown
from ..hwmodels.notebook import data_frame, html, html_table, html_text
from ..hwmodels.plainjson import plain_json
from .errors import CalibrationError
from .fit.base import FitResult

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """All fits of one device from one table.

    Attributes
    ----------
    id : name of the run, written beside every parameter that it publishes
    device : id of the device
    source : where the timings come from (repository and commit, or the machine)
    fits : one result a family and lane
    screened : one line for each reason for which rows were left out
    skipped : lanes that were not fitted, each with the reason
    environment : versions and clocks, where we timed ourselves
    """

    id: str
    device: str
    source: str
    fits: tuple[FitResult, ...]
    screened: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    environment: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def has(self, family: str, lane: str) -> bool:
        """Tell whether a family and lane were fitted."""
        return any((each.family, each.lane) == (family, lane) for each in self.fits)

    def fit(self, family: str, lane: str) -> FitResult:
        """Return the fit of one family and lane.

        Raises
        ------
        CalibrationError : the run has none
        """
        for each in self.fits:
            if (each.family, each.lane) == (family, lane):
                return each
        names = [f"{each.family}/{each.lane}" for each in self.fits]
        raise CalibrationError(unknown("fit", f"{family}/{lane}", names, f"run {self.id}"))

    def report(self) -> str:
        """Return the run as text: every fit, what was excluded, what was skipped."""
        head = f"run {self.id}: {self.device}, {len(self.fits)} lanes\nsource: {self.source}\n"
        parts = [head, *(each.report() for each in self.fits)]
        notes = [*self.screened, *(f"not fitted: {line}" for line in self.skipped)]
        return "\n".join(parts) + "".join(f"\n{line}" for line in notes) + ("\n" if notes else "")

    def rows(self) -> list[dict[str, Any]]:
        """Return one row a parameter: family, lane, parameter, estimate, stderr, start, whether data narrowed it."""
        return [
            {
                "family": fit.family,
                "lane": fit.lane,
                "parameter": name,
                "estimate": value.estimate,
                "stderr": value.stderr,
                "start": value.start,
                "identified": value.identified,
            }
            for fit in self.fits
            for name, value in fit.values.items()
        ]

    def to_pandas(self) -> Any:
        """Return ``rows()`` as a ``pandas.DataFrame``."""
        return data_frame(self.rows())

    def _repr_html_(self) -> str:
        """Show every lane with its errors on the fitted rows."""
        rows = [
            [
                f"{fit.family} / {fit.lane}",
                fit.n,
                *(100 * fit.train[key] if key in fit.train else None for key in _SHOWN),
            ]
            for fit in self.fits
        ]
        table = html_table(["lane", "rows", *(f"{key} %" for key in _SHOWN)], rows)
        return html(f"Calibration {self.id} of {self.device}", table, html_text(self.source))

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return {
            "schema_version": SCHEMA_VERSION,
            "id": self.id,
            "device": self.device,
            "source": self.source,
            "fits": [each.to_dict() for each in self.fits],
            "screened": list(self.screened),
            "skipped": list(self.skipped),
            "environment": dict(self.environment),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> CalibrationRun:
        """Read what ``to_dict`` wrote.

        Raises
        ------
        CalibrationError : not a run, or one of a later version
        """
        version = data.get("schema_version")
        if version != SCHEMA_VERSION:
            raise CalibrationError(
                f"calibration run has schema_version {version!r}; allowed: {SCHEMA_VERSION}"
            )
        try:
            return cls(
                id=data["id"],
                device=data["device"],
                source=data["source"],
                fits=tuple(FitResult.from_dict(each) for each in data["fits"]),
                screened=tuple(data["screened"]),
                skipped=tuple(data["skipped"]),
                environment=data["environment"],
            )
        except (KeyError, TypeError) as error:
            raise CalibrationError(f"not a calibration run: {type(error).__name__}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the run as JSON: beside its place first, then renamed."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.write_text(json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n", encoding="utf-8")
        beside.replace(path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> CalibrationRun:
        """Read a saved run; a folder stands for ``fit.json`` in it.

        Raises
        ------
        CalibrationError : no such file, or not a run
        """
        path = Path(path)
        path = path / FIT if path.is_dir() else path
        try:
            data = plain_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise CalibrationError(
                f"no such calibration run: {str(path)!r}; `membound calibrate fit` makes one"
            ) from None
        except (OSError, ValueError) as error:
            raise CalibrationError(
                f"{str(path)!r} is not a calibration run: {' '.join(str(error).split())}"
            ) from None
        if not isinstance(data, dict):
            raise CalibrationError(f"{str(path)!r} is not a calibration run: it holds no object")
        return cls.from_dict(data)


_SHOWN = ("mape", "median_ape", "p90_ape", "bias")

FIT = "fit.json"
"""Name of the saved run inside the folder of a measuring run."""
