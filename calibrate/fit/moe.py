"""Fit of a mixture-of-experts layer: eighteen parameters over the routing that was timed.

What decides the accuracy is not the kernel but the routing: ``balanced`` rows of a table are a deterministic
stride, ``power_law_a`` rows time the busiest rank of drawn counts. Both are the objects that a simulation uses
(``hwmodels.routing``). Starts and priors are one set for all lanes, so that leaving a model out leaves it out
of the prior as well.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...hwmodels.precision import Precision
from ...hwmodels.routing import BalancedStride, GroupLimited, PowerLaw, Routing, RoutingStats
from ...hwmodels.timing.form import Chip
from ...hwmodels.timing.moe import MoEParams, MoEWork, moe_time
from ..dtypes import PRECISION
from ..errors import CalibrationError
from ..table import KernelTable, Mask
from .base import Array, FitResult, Parameter, hull_of, robust_fit
from .gemm import Values

ROWS: Final = 1800
_POWER_LAW: Final = "power_law_"
EXPERTS: Final[Mapping[str, Precision]] = {
    **PRECISION,
    "bfloat16": Precision("", 2.0, 2.0, 2.0, "bf16"),
    "w4a16_mxfp4": Precision("w4a16", 0.53, 2.0, 2.0, "bf16"),
    "w4a8_mxfp4_mxfp8": Precision("w4a8", 0.53, 1.03, 2.0, "fp8", quantises_inputs=True),
}
"""From a table's dtype to how experts of it are held and multiplied."""
UNGATED: Final = ((1024, 2688), (2048, 5120), (2688, 1856), (8192, 5120))
"""Hidden and intermediate widths of the tables' models whose experts have one input matrix (Nemotron)."""


HEAPED: Final = ("trtllm 1.0.0", "vllm 0.14.0")
"""Software whose tables an older collector drew: it took the fit of A100 TensorRT-LLM from 9.6 to 7.4 %, and that of
its one and two-token rows from 30 to 11 %."""


GROUPED: Final = (7168, 2048, 8, 256)
"""Hidden and intermediate width, top-k and experts of DeepSeek-V3, the tables' model whose router has groups."""
GROUPING: Final = ("vllm 0.24.0", "sglang 0.5.14")
"""Software whose tables were timed with its router: rows of that model err by 6-9 instead of 15-25 % (TensorRT-LLM's
were timed without)."""


def expert_precision(dtype: str) -> Precision:
    """Return how experts of a table's dtype are held and multiplied.

    Raises
    ------
    CalibrationError : a dtype without one
    """
    if dtype not in EXPERTS:
        raise CalibrationError(f"unknown dtype of experts {dtype!r}; allowed: {', '.join(EXPERTS)}")
    return EXPERTS[dtype]


def timed_routing(distribution: str, software: str = "", *, grouped: bool = False) -> Routing:
    """Return the routing behind a table's ``distribution``.

    Parameters
    ----------
    distribution : as the table names it
    software : framework and version, which say which collector drew it: ``trtllm 1.0.0``
    grouped : the model's router picks groups of experts first; counts where the software's kernels do so too

    Raises
    ------
    CalibrationError : a name that is neither ``balanced`` nor ``power_law_<exponent>``

    Examples
    --------
    >>> timed_routing("power_law_1.01")
    PowerLaw(a=1.01, heaped=False)
    """
    pattern = _pattern(distribution, heaped=software in HEAPED)
    if pattern is not None:
        return GroupLimited(pattern) if grouped and software in GROUPING else pattern
    raise CalibrationError(
        f"unknown distribution {distribution!r} of an expert layer; allowed: balanced, power_law_<exponent>"
    )


def _pattern(distribution: str, *, heaped: bool) -> BalancedStride | PowerLaw | None:
    if distribution == "balanced":
        return BalancedStride()
    if distribution.startswith(_POWER_LAW):
        try:
            return PowerLaw(float(distribution.removeprefix(_POWER_LAW)), heaped=heaped)
        except ValueError:
            pass
    return None


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """Rows of one dtype, ready to be timed under any parameters: the routing is worked out once.

    Attributes
    ----------
    work : widths of every row's layer
    tokens : tokens of every row [tokens]
    routing : busiest rank's statistics of every row
    """

    work: MoEWork
    tokens: Array
    routing: tuple[RoutingStats, ...]

    def predict_us(self, chip: Chip, params: Mapping[str, float], *, warm: bool = True) -> Array:
        """Return the time of every row [us]."""
        lane = MoEParams.from_lane(Values(params))
        time = moe_time(chip, lane, self.work, self.tokens, self.routing, warm=warm)
        return np.asarray(time.seconds, dtype=np.float64) * 1e6


def expert_rows(table: KernelTable) -> ExpertRows:
    """Return the rows of a table of one dtype with their routing.

    Raises
    ------
    CalibrationError : several dtypes, an unknown one, or an unknown distribution
    """
    dtypes = sorted(set(table["dtype"].tolist()))
    if len(dtypes) != 1:
        raise CalibrationError(
            f"expert rows of one dtype are fitted at a time; found: {', '.join(dtypes) or 'none'}"
        )
    precision = expert_precision(dtypes[0])
    tokens, hidden, inner, top_k, experts, tp = table.numbers(
        "num_tokens", "hidden", "inter", "topk", "n_experts", "tp"
    )
    ungated = np.zeros(len(table), dtype=np.bool_)
    for widths in UNGATED:
        ungated |= (hidden == widths[0]) & (inner == widths[1])
    grouped = [model == GROUPED for model in zip(hidden, inner, top_k, experts, strict=True)]
    names = ("num_tokens", "n_experts", "topk", "ep", "distribution", "framework", "framework_version")
    keys = zip(*(table[name].tolist() for name in names), grouped, strict=True)
    routing = tuple(
        timed_routing(drawn, f"{framework} {version}", grouped=limited).statistics(t, e, k, max(ep, 1))
        for t, e, k, ep, drawn, framework, version, limited in keys
    )
    work = MoEWork(
        hidden=hidden,
        intermediate=inner / np.maximum(tp, 1.0),
        n_experts=experts,
        top_k=top_k,
        gated=~ungated,
        weight_bytes=precision.weight_bytes,
        input_bytes=precision.input_bytes,
        dtype=precision.compute,
    )
    return ExpertRows(work, tokens, routing)


def moe_parameters(*, all_rows: bool) -> list[Parameter]:
    """Return starts and priors of an expert lane.

    Parameters
    ----------
    all_rows : the kernels write the rows of all ranks (Triton), not only the rank's own (CUTLASS, TRT-LLM)
    """
    return [
        Parameter("t0_us", 18.0, 0.5, 1.0, 80.0),
        Parameter("t1_us", 8.0, 1.0, 0.05, 80.0),
        Parameter("tc", 24.0, 0.7, 2.0, 256.0),
        Parameter("te_ns", 12.0, 0.7, 0.5, 80.0),
        Parameter("ec", 0.5, 0.4, 0.05, 1.2),
        Parameter("ct", 40.0, 1.0, 0.5, 600.0),
        Parameter("k0", 150.0, 0.8, 1.0, 2500.0),
        Parameter("eb", 0.9, 0.15, 0.1, 1.2),
        Parameter("q", 2.4, 0.3, 1.1, 8.0),
        Parameter("sat", 2.5, 0.7, 0.3, 10.0),
        Parameter("oe", 0.25, 0.7, 0.01, 1.5),
        Parameter("wq", 0.3, 0.7, 0.01, 1.0),
        Parameter("xl", 1.0, 0.8, 0.03, 20.0),
        Parameter("xg", 1.0, 0.7, 0.03, 6.0),
        Parameter("tr_ns", 0.1, 1.0, 0.005, 5.0),
        Parameter("al", 1.5, 0.5, 1.0, 4.0),
        Parameter("l2f", 0.4, 0.7, 0.05, 2.0),
        Parameter("l2b", 2.0, 0.5, 1.0, 8.0),
        Parameter("allrows", float(all_rows), vary=False),
    ]


def moe_regimes(table: KernelTable) -> NDArray[Any]:
    """Return the regime of each row by tokens: few experts touched, most of them, compute."""
    tokens = table["num_tokens"]
    return np.where(tokens <= 16, "tokens<=16", np.where(tokens <= 512, "16<tokens<=512", "tokens>512"))


def models_of(table: KernelTable) -> NDArray[Any]:
    """Return the model of each row, as ``hidden x inter, top-k of experts``: what one fold leaves out."""
    keys = zip(*(table[name].tolist() for name in ("hidden", "inter", "topk", "n_experts")), strict=True)
    return np.array([f"{hidden}x{inner} top {k} of {e}" for hidden, inner, k, e in keys], dtype=object)


def common_shapes(table: KernelTable) -> Mask:
    """Return the rows of ordinary deployments: at most 16 ranks, expert width at least 256 after the cut."""
    return (table["tp"] * table["ep"] <= 16) & (table["inter"] >= 256 * table["tp"])


def fit_moe_least_squares(
    table: KernelTable,
    chip: Chip,
    *,
    all_rows: bool,
    family: str = "moe",
    lane: str = "vllm",
    rows: int = ROWS,
    params: list[Parameter] | None = None,
    **options: Any,
) -> FitResult:
    """Fit an expert lane to rows of one dtype and one kernel.

    Parameters
    ----------
    table : rows that a fit may see, screened
    chip : the device's datasheet symbols
    all_rows : see ``moe_parameters``
    family, lane : names in the device file
    rows : rows to fit, drawn at random
    params : starts and priors; default: ``moe_parameters``
    options : further arguments of ``robust_fit``

    Raises
    ------
    CalibrationError : too few rows, several dtypes, an unknown distribution
    """
    chosen = table.sample(rows)
    ready = expert_rows(chosen)
    tokens, hidden, experts, top_k, tp, ep = table.numbers(
        "num_tokens", "hidden", "n_experts", "topk", "tp", "ep"
    )
    return robust_fit(
        lambda values: ready.predict_us(chip, values),
        params or moe_parameters(all_rows=all_rows),
        chosen.latency_us,
        family=family,
        lane=lane,
        regimes=moe_regimes(chosen),
        hull=hull_of(tokens=tokens, hidden=hidden, experts=experts, top_k=top_k, tp=tp, ep=ep),
        **{"rounds": 2, "evaluations": 15, **options},
    )
