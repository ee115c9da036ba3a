"""A run by windows of arrival time: how a load that changes through the day was served, hour by hour."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..books.record import RunRecord
from .figures import NO_COMPLETED, NS_PER_S, Figure, Figures, Unknown
from .latency import completed, percentile, tpot_ns
from .slo import met_slo

MAX_WINDOWS = 10_000


def windows(record: RunRecord, window_s: float) -> list[Figures]:
    """Return one row a window of arrivals, empty ones included.

    Parameters
    ----------
    window_s : length of a window [s], lengthened where the run would have more than 10,000 of them

    Returns
    -------
    rows : ``start_s`` and ``end_s`` from the first arrival [s]; ``requests`` that arrived, and ``requests_per_s``;
        of those that completed the median and 99th percentile of ``ttft_s``, the median of ``tpot_s`` [s];
        ``attainment``: the share of the arrived that met their SLO
    """
    arrival: npt.NDArray[np.int64] = record.requests["arrival_ns"]
    if arrival.size == 0:
        return []
    start, stop = int(arrival.min()), int(arrival.max())
    length = max(round(window_s * NS_PER_S), -(-(stop + 1 - start) // MAX_WINDOWS))
    order = np.argsort(arrival, kind="stable")
    done = completed(record)
    tpot = np.full(arrival.size, np.nan)
    tpot[done & (record.requests["output_tokens"] > 1)] = tpot_ns(record, done)
    ttft = np.where(done, record.requests["first_token_ns"] - arrival, -1)[order]
    tpot, met = tpot[order], met_slo(record)
    count = (stop - start) // length + 1
    edges = np.searchsorted(arrival[order], start + length * np.arange(count + 1))
    rows: list[Figures] = []
    for k, (low, high) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        since, until = (
            k * length,
            min((k + 1) * length, max(stop - start, 1)),
        )  # the last ends with the arrivals
        attained: Figure | Unknown = Unknown("no request arrived")
        if isinstance(met, Unknown):
            attained = met
        elif high > low:
            attained = int(met[order[low:high]].sum()) / (high - low)
        rows.append(
            {
                "start_s": since / NS_PER_S,
                "end_s": until / NS_PER_S,
                "requests": high - low,
                "requests_per_s": (high - low) * NS_PER_S / max(until - since, 1),
                **_latencies(ttft[low:high], tpot[low:high]),
                "attainment": attained,
            }
        )
    return rows


def _latencies(ttft_ns: npt.NDArray[np.int64], tpot: npt.NDArray[np.float64]) -> Figures:
    """Return the latencies [s] of a window's requests; a TTFT of -1 and a TPOT of NaN are none [ns]."""
    served = np.sort(ttft_ns[ttft_ns >= 0])
    gaps = tpot[np.isfinite(tpot)]
    if not served.size:
        return dict.fromkeys(("ttft_s_p50", "ttft_s_p99", "tpot_s_p50"), Unknown(NO_COMPLETED))
    no_tpot = Unknown("answers of one token have no TPOT")
    return {
        "ttft_s_p50": float(percentile(served, 50) / NS_PER_S),
        "ttft_s_p99": float(percentile(served, 99) / NS_PER_S),
        "tpot_s_p50": float(np.median(gaps)) / NS_PER_S if gaps.size else no_tpot,
    }
