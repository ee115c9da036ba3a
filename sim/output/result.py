"""A finished run and the questions one asks of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...hwmodels.notebook import FrameError, html, html_table, html_text, require_pandas
from ..books.record import CAUSES, LIMITERS, REQUEST_COLUMNS, RunRecord, Setup
from ..metrics.latency import STATISTICS
from ..metrics.stability import Stability, stability
from .output import summary, write_result
from .tables import all_tables, requests_table

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

    def to_pandas(self, table: str = "requests") -> Any:
        """Return one of the run's tables as a ``pandas.DataFrame``.

        Parameters
        ----------
        table : ``requests``, ``steps``, ``kv`` or ``itl_by_position``; those of steps need ``keep_steps=True``

        Raises
        ------
        FrameError : pandas is not installed, or there is no such table
        """
        require_pandas()
        found = {name.removesuffix(".parquet"): each for name, each in all_tables(self.record).items()}
        if table not in found:
            raise FrameError(
                f"table {table!r}; this run has: {', '.join(found)} (simulate(..., keep_steps=True))"
            )
        return found[table].to_pandas()

    def _repr_html_(self) -> str:
        """Show the answer, the latencies and where the time went."""
        found = self.summary()
        quoted = [
            key
            for key in STATISTICS
            if key != "mean" or found["verdict"].get("stability") in ("steady", None)
        ]
        rows = [[name, *(each[key] for key in quoted)] for name, each in found["latency"].items()]
        shares = {name: share for name, share in found["time_share"].items() if share}
        ordered = sorted(shares.items(), key=lambda each: -each[1])
        provenance = found["provenance"]
        return html(
            f"{provenance['model']} on {provenance['device']}",
            html_text(found["verdict"]["sentence"]),
            html_table(["latency [s]", *quoted], rows),
            html_text("time: " + ", ".join(f"{name} {100 * share:.1f} %" for name, share in ordered)),
            html_text(f"least known kernel: {found['confidence']['level']}"),
        )

    def write(self, folder: str | Path) -> list[Path]:
        """Write the result directory; see ``sim.output.write_result``."""
        return write_result(self.record, folder)
