"""A run against what its trace measured: means and percentiles of the same requests, and their errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..hwmodels.errors import MemboundError
from .figures import NS_PER_S
from .latency import completed
from .record import RunRecord

Seconds = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Compared:
    """One latency of the same requests, measured and simulated.

    Attributes
    ----------
    measured, simulated : the same requests in the same order, shape (n,) [s]
    """

    measured: Seconds
    simulated: Seconds

    @property
    def mean_error(self) -> float:
        """Error of the mean, simulated / measured - 1 [-]."""
        return float(self.simulated.mean() / self.measured.mean()) - 1.0

    def percentile_error(self, percent: float) -> float:
        """Return the error of a percentile, simulated / measured - 1 [-]."""
        return float(np.percentile(self.simulated, percent) / np.percentile(self.measured, percent)) - 1.0

    @property
    def mape(self) -> float:
        """Mean of the absolute errors of single requests [-]."""
        return float(np.mean(np.abs(self.simulated / self.measured - 1.0)))


def compare_with_measured(record: RunRecord, measured: Mapping[str, Seconds]) -> dict[str, Compared]:
    """Compare a run with the latencies its trace holds, as the client saw both.

    The client's time is on TTFT and on E2E alike, so it cancels in TPOT. Only requests that completed, and
    whose latency is known, are compared.

    Parameters
    ----------
    record : the run; its requests are those of the trace, in order of arrival
    measured : ``Workload.measured``: ``ttft_s``, ``e2e_s``, ``tpot_s``, each of shape (n,) [s]

    Raises
    ------
    MemboundError
        The trace measured nothing, or nothing of what it measured was completed.
    """
    simulated = client_latencies(record)
    done = completed(record)
    found: dict[str, Compared] = {}
    for name, values in measured.items():
        if name not in simulated:
            continue
        kept = done & np.isfinite(values) & np.isfinite(simulated[name])
        if kept.any():
            found[name] = Compared(values[kept], simulated[name][kept])
    if not found:
        raise MemboundError("nothing to compare: the trace has no measured latency of a completed request")
    return found


def client_latencies(record: RunRecord) -> dict[str, Seconds]:
    """Return each request's TTFT, E2E and TPOT as its client sees them, shape (n,); NaN if undefined [s]."""
    requests = record.requests
    overhead_s = record.setup.client_overhead_s or 0.0
    first = (requests["first_token_ns"] - requests["arrival_ns"]) / NS_PER_S + overhead_s
    last = (requests["last_token_ns"] - requests["arrival_ns"]) / NS_PER_S + overhead_s
    gaps = requests["output_tokens"] - 1.0
    with np.errstate(divide="ignore", invalid="ignore"):
        tpot = np.where(gaps > 0, (last - first) / gaps, np.nan)
    return {"ttft_s": first, "e2e_s": last, "tpot_s": tpot}
