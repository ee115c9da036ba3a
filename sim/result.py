"""A finished run and the questions one asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .output import summary, write_result
from .record import CAUSES, LIMITERS, REQUEST_COLUMNS, RunRecord, Setup
from .stability import Stability, stability
from .tables import requests_table

__all__ = ["CAUSES", "LIMITERS", "REQUEST_COLUMNS", "RunRecord", "Setup", "SimulationResult"]


@dataclass(frozen=True, slots=True)
class SimulationResult:
    """A finished run. Every answer is a pure function of its record.

    Examples
    --------
    >>> result = SimulationResult(record)                                       # doctest: +SKIP
    >>> result.summary()["latency"]["ttft_s"]["p99"]                            # doctest: +SKIP
    """

    record: RunRecord

    def summary(self) -> dict[str, Any]:
        """Return the run's figures under the keys of ``summary.json``."""
        return summary(self.record)

    def requests(self) -> Any:
        """Return one row a request as a ``pyarrow.Table``, units in the fields' metadata."""
        return requests_table(self.record)

    def stability(self) -> Stability:
        """Return whether the run reached a steady state, and why not."""
        return stability(self.record)

    def bottleneck(self) -> str:
        """Return the verdict sentence."""
        return str(self.summary()["verdict"]["sentence"])

    def write(self, folder: str | Path) -> list[Path]:
        """Write the result directory; see ``sim.output.write_result``."""
        return write_result(self.record, folder)
