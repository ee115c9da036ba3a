"""How far predictions of a kernel family may be off, by what the numbers rest on: the one table of widths.

All are standard deviations of log(time) that stay put for a whole simulation; a mean absolute error of p is one
of 1.25 p. ``REGIMES`` is what a kernel is held up by: each moves the parameters of its own (``uncertainty.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

Regime = Literal["memory", "compute", "latency", "link"]
REGIMES: Final[tuple[Regime, ...]] = ("memory", "compute", "latency", "link")


@dataclass(frozen=True, slots=True)
class Spread:
    """Standard deviation of log(time) by regime [-].

    Attributes
    ----------
    memory, compute, latency, link : share of HBM bandwidth, share of peak, fixed and serial times, share of the
        link between devices
    """

    memory: float = 0.0
    compute: float = 0.0
    latency: float = 0.0
    link: float = 0.0

    def of(self, regime: Regime) -> float:
        """Return the width of one regime [-]."""
        return float(getattr(self, regime))

    @classmethod
    def flat(cls, sd: float) -> Spread:
        """Return the same width for every regime."""
        return cls(sd, sd, sd, sd)


RESIDUAL: Final[Mapping[str, Spread]] = {
    "gemm": Spread(0.09, 0.12, 0.08),
    "linear": Spread(0.12, 0.14, 0.12),
    "decode_attention": Spread(0.10, 0.12, 0.12),
    "prefill_attention": Spread(0.15, 0.12, 0.12),
    "mla_decode": Spread.flat(0.12),
    "mla_prefill": Spread.flat(0.12),
    "mixed_attention": Spread.flat(0.28),
    "moe": Spread.flat(0.13),
    "allreduce": Spread.flat(0.08),
    "elementwise": Spread.flat(0.18),
}
"""Of a *measured* lane that states no residual of its own. Dense families: spread of the forms on the vLLM tables
of H100 (non-judged rows: GEMM 9.1 / 11.6 / 7.3 % memory / compute / latency, decode 9-10 %, prefill 11 / 11 / 7 %)
and the A100's decode (13-18 %) between; decodes beside chunks: spread over the rows of the RTX cards' tables of what
they take more than alone; the others 1.25 x the error their bar allows."""

PRIOR: Final[Mapping[str, Spread]] = {
    "gemm": Spread(0.13, 0.16, 0.14),
    "linear": Spread.flat(0.18),
    "decode_attention": Spread(0.15, 0.17, 0.17),
    "prefill_attention": Spread(0.35, 0.22, 0.25),
    "mla_decode": Spread.flat(0.20),
    "mla_prefill": Spread.flat(0.20),
    "moe": Spread.flat(0.20),
    "allreduce": Spread.flat(0.15),
    "elementwise": Spread.flat(0.25),
}
"""Of starting values, parameters included: root mean square of log(predicted/measured), bias and spread together,
of the starting lanes of H100, A100 and B200 on their own vLLM tables (GEMM 9 / 17 / 14 %, decode 11 / 18 / 14 %,
prefill 13 / 22 / 44 %); 1.5 x ``RESIDUAL`` where no such table was tried."""

UNVALIDATED: Final = Spread.flat(0.30)
"""Of families nothing was measured of: another model's or architecture's kernels have been 20-30 % off."""

STEP_SHARE: Final[Mapping[str, float]] = {"gemm": 0.5, "linear": 0.5}
"""Factor on the residual of families of which one step holds several shapes: the sum of four matrices strays half
as far as one (random sets of four at equal m <= 64: H100 4.5 of 9.1 %, A100 5.4 of 11.8, B200 5.5 of 10.2; at
m 65-2048 6-7 of 9-12 %). Attention has one shape a model, so its residual is met in full."""

SAME_CHIP: Final = Spread.flat(0.02)
"""Added where a lane comes from another board of the same architecture with as many units: clocks and power."""

PER_LOG_CHANGE: Final = 0.10
"""Added per unit of |ln(new/old)| of a datasheet figure, for boards of the same chip: a bandwidth
1.43 times as large (H100 to H200) is expected to be off by 3.5 % of a step, the sum over several matrices of the
5.5 % (1.25 x, halved) allowed for one, and 3 % for decode attention and whole steps."""

WHATIF_PER_LOG: Final = Spread(memory=0.30, compute=0.10, latency=0.10, link=0.10)
"""Added per unit of |ln(new/old)| of a datasheet figure that a what-if overrides. Measured by what-ifs that give one
calibrated device the figures of another (A100 to H100 to B200 and back, Llama-3.1-8B): decode steps at batch 1 to 128
are off by 0.29 per unit of ln of the bandwidth (root mean square; 1 to 54 % each way, most where the architecture
changes its attention kernels), prefills by 0.09 per unit of ln of the peak. A what-if that keeps the chip is better
known than that (``PER_LOG_CHANGE``), but nobody can say so of one that does not exist."""

SAME_ARCH: Final = Spread(0.15, 0.25, 0.20, 0.20)
"""Added where the lane comes from another chip of the architecture: shift of the mean log time of L40S lanes on an
RTX 4090 and back (GEMM 15 / 30 / 21 %, decode 16 % memory, 10 % latency, prefill 16 %). The share reached is a
property of the chip: the shift has one sign in every family, so all families share the draw."""

CROSS_ARCH: Final[Mapping[str, Spread]] = {
    "gemm": Spread(0.12, 0.15, 0.20, 0.25),
    "linear": Spread(0.15, 0.20, 0.25, 0.25),
    "decode_attention": Spread(0.25, 0.25, 0.40),
    "prefill_attention": Spread(0.35, 0.25, 0.45),
}
"""Added where the lane comes from another architecture: root mean square of the shifts between H100, A100 and B200
(GEMM 10 / 11 / 9 %, decode 22 / - / 42 %, prefill 38 / 21 / 29 %), with L40S counted in part. Kernels differ, so each
family has a draw of its own."""
CROSS_ARCH_OTHER: Final = Spread.flat(0.30)

BRIDGED: Final = Spread.flat(0.08)
"""Added where a lane was carried over from another software's by ratio."""

BEYOND_PER_LOG: Final[Mapping[str, float]] = {
    "gemm": 0.25, "linear": 0.25, "mla_decode": 0.5, "mla_prefill": 0.5,
}  # fmt: skip
BEYOND_PER_LOG_OTHER: Final = 0.35
"""Growth of the residual per unit of distance in ln outside the calibrated hull: up to four times the fitted tokens
GEMM may err 1.23 x as much as inside (8 over 6.5 %), up to ten to thirty times the fitted context decode attention
1.4-1.9 x (11 over 8, 22 over 14, 26 over 14 %). Latent attention: lanes fitted to contexts up to 512 hold nine tenths
of those up to 2048 (the median lane: 95 % of decode, 90 of prefill) so; what a single lane shows of itself there is
mostly chance, and lanes stated 0.17 to 1 by it."""


def kind_of(family: str) -> str:
    """Return the row of the tables that a kernel family belongs to.

    >>> kind_of("linear_fp8_block"), kind_of("moe_nvfp4"), kind_of("gemm")
    ('linear', 'moe', 'gemm')
    """
    for kind in ("linear", "moe"):
        if family == kind or family.startswith(f"{kind}_"):
            return kind
    return family


def residual_spread(family: str, level: str) -> Spread:
    """Return the residual of a family whose lane states none, by the lane's level where it was fitted."""
    table = PRIOR if level == "prior" else RESIDUAL
    return table.get(kind_of(family), UNVALIDATED)


def cross_arch_spread(family: str) -> Spread:
    """Return what is added to a family's lane that comes from another architecture."""
    return CROSS_ARCH.get(kind_of(family), CROSS_ARCH_OTHER)


def step_share(family: str) -> float:
    """Return the share of a family's residual that a whole step meets [-]."""
    return STEP_SHARE.get(kind_of(family), 1.0)


def beyond_per_log(family: str) -> float:
    """Return how fast a family's residual grows outside the calibrated hull [per unit of ln]."""
    return BEYOND_PER_LOG.get(kind_of(family), BEYOND_PER_LOG_OTHER)
