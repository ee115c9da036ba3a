"""Where fits start, and how far priors reach: the starting values of the design by architecture.

Priors are log-normal, 10 % on what hardly differs between GPUs (q, k0, ts) and 30 % on the rest, unless a family
says otherwise. Values: fits of public kernel tables (ai-dynamo/aiconfigurator@095f58a5) without judged rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

GEMM: Final[Mapping[str, Mapping[str, float]]] = {
    "Ampere": {"t0_us": 2.5, "ec": 0.91, "eb": 0.76, "q": 2.9, "k0": 180, "ts_us": 2.2},
    "Hopper": {"t0_us": 2.5, "ec": 0.86, "eb": 0.89, "q": 3.0, "k0": 170, "ts_us": 2.5},
    "Blackwell": {"t0_us": 2.0, "ec": 0.76, "eb": 0.84, "q": 2.9, "k0": 147, "ts_us": 2.7},
}
GEMM_SHARED: Final = {"ct": 3.0, "sat": 1.5, "oe": 0.08, "cs": 0.5, "wq": 0.1}

DECODE: Final[Mapping[str, Mapping[str, float]]] = {
    "Hopper": {
        "t0_us": 9.6, "eb": 1.0, "q": 1.5, "occ": 0.50, "wq": 0.23, "oe": 0.05, "l2f": 0.54, "l2b": 1.0,
        "gp": 1.3, "ec": 0.44, "tb_us": 0.35, "ts_us": 1.5, "tcta_us": 1.4, "cr": 0.8,
    },
    "Ampere": {
        "t0_us": 13, "eb": 0.73, "q": 2.1, "occ": 0.60, "wq": 0.58, "oe": 0.34, "l2f": 0.10, "l2b": 1.0,
        "gp": 9, "ec": 0.30, "tb_us": 0.92, "ts_us": 5.5, "tcta_us": 1.6, "cr": 1.8,
    },
    "Blackwell": {
        "t0_us": 7.9, "eb": 0.95, "q": 2.8, "occ": 0.87, "wq": 1.0, "oe": 0.57, "l2f": 0.16, "l2b": 1.9,
        "gp": 17, "ec": 0.13, "tb_us": 0.36, "ts_us": 1.2, "tcta_us": 1.1, "cr": 5.5,
    },
    "Ada": {
        "t0_us": 8.5, "eb": 0.74, "q": 2.1, "occ": 0.45, "wq": 0.06, "oe": 0.10, "l2f": 0.54, "l2b": 4.2,
        "gp": 30, "ec": 0.51, "tb_us": 0.29, "ts_us": 3.7, "tcta_us": 1.7, "cr": 0.8,
    },
}  # fmt: skip

PREFILL: Final[Mapping[str, Mapping[str, float]]] = {
    "Hopper": {
        "t0_us": 10, "ec": 0.84, "sx": 6.5, "occ": 0.97, "wq": 0.36, "q2": 2.2, "tt_us": 1.1, "k0": 9,
    },
    "Ampere": {
        "t0_us": 5.9, "ec": 0.52, "sx": 3.6, "occ": 1.1, "wq": 0.93, "q2": 2.3, "tt_us": 0.15, "k0": 8,
    },
    "Blackwell": {
        "t0_us": 9.7, "ec": 0.86, "sx": 8.9, "occ": 1.3, "wq": 0.98, "q2": 2.7, "tt_us": 0.44, "k0": 21,
    },
}  # fmt: skip
_NEAREST: Final = {"Ada": "Ampere", "Blackwell Ultra": "Blackwell", "Blackwell RTX": "Ada"}


def start(values: Mapping[str, Mapping[str, float]], arch: str) -> Mapping[str, float]:
    """Return the starting values of an architecture, or of the nearest that has some.

    >>> start(GEMM, "Ada")["eb"]
    0.76
    """
    while arch not in values and arch in _NEAREST:
        arch = _NEAREST[arch]
    return values.get(arch, values["Hopper"])
