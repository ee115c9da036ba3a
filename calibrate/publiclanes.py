"""Lanes of the public kernel tables beyond dense 16-bit kernels: which rows are one kernel, and how it works.

What is known of a kernel by its name stands in ``facts``. Each lane is fitted with what a fit may see and scored on
the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..hwmodels.device import load_device
from ..hwmodels.errors import CatalogError
from ..hwmodels.steptypes import chip_of
from ..hwmodels.timing.form import Chip
from .facts import kernel_facts
from .fit.base import FitResult
from .fit.linear import fit_linear_least_squares, predict_linear_us
from .fit.mla import (
    fit_mla_decode_least_squares,
    fit_mla_prefill_least_squares,
    predict_mla_decode_us,
    predict_mla_prefill_us,
    without_spikes,
)
from .fit.moe import expert_precision, expert_rows, fit_moe_least_squares
from .screen import screen
from .splits import part
from .table import KernelTable, read_table

DEVICES: Final = {
    "h100_sxm": "h100_sxm", "b200_sxm": "b200_sxm", "a100_sxm": "a100_sxm_80gb", "l40s": "l40s",
}  # fmt: skip
"""From a table's GPU to the device whose lanes it gives."""
SCORED_ROWS: Final = 4000
FOLD_ROWS: Final = 1200
FOLD_SCORED: Final = 250
"""Rows fitted, and rows of the model left out that are scored, in each fold of an expert lane."""


@dataclass(frozen=True, slots=True)
class PublicLane:
    """One kernel of one software on one GPU.

    Attributes
    ----------
    gpu, framework, op, dtype, kv_dtype : rows of the table; an empty KV dtype takes all
    family, lane : names in the device file
    kernel : part of ``kernel_source`` that the rows must have
    facts : keyword arguments of its fit beyond those that ``kernel_facts`` knows by the kernel's name
    bars : upper limits by part, as (MAPE, median, p90) in %, None where there is none
    """

    gpu: str
    framework: str
    op: str
    dtype: str
    family: str
    lane: str
    kernel: str = ""
    kv_dtype: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    bars: Mapping[str, tuple[float | None, float | None, float | None]] = field(
        default_factory=dict[str, tuple[float | None, float | None, float | None]]
    )

    @property
    def name(self) -> str:
        """Device, family and lane in one word."""
        return f"{self.gpu}/{self.family}/{self.lane}"

    @property
    def chip(self) -> Chip:
        """The GPU's datasheet symbols."""
        return chip_of(load_device(DEVICES[self.gpu]))

    def read(self, folder: Path) -> tuple[KernelTable, list[str]]:
        """Return the lane's rows, screened, and a line for each reason for which some were left out."""
        equal = {"op": self.op, "framework": self.framework, "dtype": self.dtype}
        if self.kv_dtype:
            equal["kv_dtype"] = self.kv_dtype
        table = read_table(folder / f"kernels_aic_{self.gpu}.parquet", **equal)
        table = table.where(
            np.array([self.kernel in source for source in table["kernel_source"]], dtype=bool)
        )
        screened = screen(table, load_device(DEVICES[self.gpu]))
        kept = without_spikes(screened.table) if self.op.startswith("mla") else screened.table
        spikes = len(screened.table) - len(kept)
        return kept, screened.lines() + (
            [f"excluded {spikes} rows: spikes beside their neighbours"] if spikes else []
        )

    def parts(self, table: KernelTable) -> Mapping[str, KernelTable]:
        """Return ``train`` and the parts that a fit never sees; expert rows are all train (folds judge them)."""
        if self.op == "moe":
            return {"train": table}
        return {name: table.where(mask) for name, mask in part(table).items()}

    def fit(self, train: KernelTable, **options: Any) -> FitResult:
        """Fit the lane to rows that a fit may see."""
        device, kernel = load_device(DEVICES[self.gpu]), str(train["kernel_source"][0]) if len(train) else ""
        known = kernel_facts(self.family, self.lane, kernel, device.arch)
        chip, facts = chip_of(device), {**known, **self.facts, **options}
        if self.op == "moe":
            return fit_moe_least_squares(train, chip, family=self.family, lane=self.lane, **facts)
        if self.op == "mla_decode":
            return fit_mla_decode_least_squares(train, chip, lane=self.lane, **facts)
        if self.op == "mla_prefill":
            return fit_mla_prefill_least_squares(train, chip, self.hbm_share, lane=self.lane, **facts)
        return fit_linear_least_squares(train, chip, family=self.family, lane=self.lane, **facts)

    def predict_us(self, params: Mapping[str, float], table: KernelTable) -> Any:
        """Return the times of the lane's rows under given parameters [us]."""
        if self.op == "moe":
            return expert_rows(table).predict_us(self.chip, params)
        if self.op == "mla_decode":
            return predict_mla_decode_us(self.chip, params, table)
        if self.op == "mla_prefill":
            return predict_mla_prefill_us(self.chip, params, table)
        return predict_linear_us(self.chip, params, table)

    @property
    def hbm_share(self) -> float:
        """Share of HBM bandwidth that prefill takes over from the GEMM lane of its software [-]."""
        return load_device(DEVICES[self.gpu]).lane("gemm", self.framework).params["eb"]


_Bar = tuple[float | None, float | None, float | None]
_TRITON: Final = {"all_rows": True}
_OWN: Final = {"all_rows": False}
UNTUNED: Final = "vllm_untuned"
"""FlashInfer's CUTLASS experts in fp8 on H100, timed without the tuning that vLLM does at start: 4.3 times as long as
TensorRT-LLM with the same kernels (median of 16 to 256 tokens), as long where that was not tuned either, and 2.4 times
as long as vLLM's own experts in 16 bits. It stands for its table; a simulation takes ``STAND_INS``."""
STAND_INS: Final = {("h100_sxm", "moe_fp8", "vllm"): "trtllm"}
"""Lanes that no table has as they are served -> the software whose lane stands in, labelled ``bridged``."""
_MOE_A: Final[_Bar] = (8.5, 5.5, 18.0)
_MOE_B: Final[_Bar] = (10.5, 7.5, 23.0)


def _moe(
    gpu: str,
    framework: str,
    dtype: str,
    lane: str,
    bar: _Bar = (None, None, None),
    *,
    kernel: str = "",
    triton: bool = False,
) -> PublicLane:
    held = expert_precision(dtype).name
    facts, bars = _TRITON if triton else _OWN, {"left-out model": bar}
    family = f"moe_{held}" if held else "moe"
    return PublicLane(gpu, framework, "moe", dtype, family, lane, kernel, facts=facts, bars=bars)


EXPERT_LANES: Final = (
    _moe("h100_sxm", "vllm", "bfloat16", "vllm", _MOE_A, kernel="triton", triton=True),
    _moe("h100_sxm", "trtllm", "bfloat16", "trtllm", (None, 8.0, None), kernel="cutlass"),
    _moe("h100_sxm", "sglang", "bfloat16", "sglang", (None, 12.0, None), kernel="triton", triton=True),
    _moe("h100_sxm", "vllm", "fp8_block", "vllm", _MOE_A, kernel="triton", triton=True),
    _moe("h100_sxm", "vllm", "fp8_block", "vllm_ep", _MOE_A, kernel="flashinfer"),
    _moe("h100_sxm", "sglang", "fp8_block", "sglang", _MOE_A, kernel="triton", triton=True),
    _moe("h100_sxm", "trtllm", "fp8_block", "trtllm", _MOE_B, kernel="cutlass"),
    _moe("h100_sxm", "vllm", "fp8", UNTUNED),
    _moe("h100_sxm", "trtllm", "fp8", "trtllm", (None, 8.0, None), kernel="cutlass"),
    _moe("b200_sxm", "vllm", "bfloat16", "vllm", _MOE_B, kernel="trtllm"),
    _moe("b200_sxm", "sglang", "bfloat16", "sglang", _MOE_B, kernel="flashinfer"),
    _moe("b200_sxm", "sglang", "bfloat16", "sglang_triton", (None, 12.0, None), kernel="triton", triton=True),
    _moe("b200_sxm", "vllm", "fp8", "vllm", _MOE_B, kernel="trtllm"),
    _moe("b200_sxm", "vllm", "fp8_block", "vllm", _MOE_B, kernel="monolithic"),
    _moe("b200_sxm", "sglang", "fp8_block", "sglang", _MOE_B, kernel="flashinfer"),
    _moe("b200_sxm", "vllm", "nvfp4", "vllm", _MOE_B, kernel="monolithic"),
    _moe("b200_sxm", "sglang", "nvfp4", "sglang", _MOE_B),
    _moe("l40s", "vllm", "bfloat16", "vllm", (12.0, 6.5, 27.0), triton=True),
    _moe("l40s", "vllm", "fp8_block", "vllm", (12.0, 6.5, 27.0), triton=True),
    _moe("l40s", "vllm", "fp8", "vllm", (12.0, 6.5, 27.0), triton=True),
    _moe("a100_sxm", "trtllm", "bfloat16", "trtllm", (10.0, 7.0, 21.0)),
    _moe("h100_sxm", "vllm", "w4a16_mxfp4", "vllm", kernel="oaitriton", triton=True),
    _moe("b200_sxm", "vllm", "w4a16_mxfp4", "vllm", kernel="trtllm"),
    _moe("b200_sxm", "vllm", "fp8_block", "vllm_modular", kernel="modular"),
    _moe("b200_sxm", "sglang", "fp8_block", "sglang_triton", kernel="triton", triton=True),
    _moe("b200_sxm", "vllm", "bfloat16", "vllm_cutlass", kernel="cutlass"),
    _moe("h100_sxm", "sglang", "bfloat16", "sglang_cutlass", kernel="cutlass"),
    _moe("h100_sxm", "trtllm", "bfloat16", "trtllm_nongated", kernel="nongated"),
    _moe("h100_sxm", "trtllm", "fp8", "trtllm_nongated", kernel="nongated"),
    _moe("l40s", "vllm", "w4a16_mxfp4", "vllm", kernel="marlin"),
)
"""One kernel each. Lanes without bars are of two to six models, or of a kernel that no engine would serve with."""
ONE_MODEL_LANES: Final = (
    _moe("b200_sxm", "vllm", "fp8", "vllm_cutlass", kernel="cutlass"),
    _moe("b200_sxm", "vllm", "nvfp4", "vllm_cutlass", kernel="cutlass"),
    _moe("b200_sxm", "vllm", "nvfp4", "vllm_modular", kernel="modular"),
)
"""Expert kernels that were timed on one model: no other says how far they would be off on it."""


def expert_lane(gpu: str, software: str, dtype: str, kernel: str, dealt: bool = False) -> str:
    """Return the name of the lane of an expert kernel.

    Parameters
    ----------
    gpu : of the tables, or any device: one of the same architecture stands for it
    software, dtype, kernel : framework, dtype and ``kernel_source`` of a row
    dealt : its experts are dealt out over ranks; decides where the kernel is in no lane

    Examples
    --------
    >>> expert_lane("h100_sxm", "vllm", "fp8_block", "vllm_fp8moe_flashinfer_cutlass_flashinferexperts")
    'vllm_ep'
    >>> expert_lane("h200_sxm", "vllm", "fp8_block", "vllm_fp8moe_triton_tritonexperts")
    'vllm'
    >>> expert_lane("b200_sxm", "sglang", "bfloat16", "sglang_fused_moe_triton")
    'sglang_triton'
    """
    arch = _arch(gpu)
    for lane in (*EXPERT_LANES, *ONE_MODEL_LANES):
        same = lane.gpu == gpu or (arch and _arch(lane.gpu) == arch)
        if same and (lane.framework, lane.dtype) == (software, dtype) and lane.kernel in kernel:
            return lane.lane
    return f"{software}_ep" if dealt else software


@cache
def _arch(gpu: str) -> str:
    """Return a GPU's architecture, empty where it is unknown."""
    try:
        return load_device(DEVICES.get(gpu, gpu)).arch if gpu else ""
    except CatalogError:
        return ""


def _latent(gpu: str, framework: str, kv: str, *, decode: tuple[_Bar, float | None] = ((None, None, None), None),
            prefill: tuple[_Bar, float | None] | None = None) -> Iterator[PublicLane]:  # fmt: skip
    """Yield the decode lane and, unless ``prefill`` is None, the prefill lane, with bars (unseen, beyond)."""
    lane = f"{framework}_kv8" if kv == "fp8" else framework
    yield PublicLane(
        gpu, framework, "mla_decode", "bfloat16", "mla_decode", lane, kv_dtype=kv,
        bars={"unseen": decode[0], "beyond": (decode[1], None, None)},
    )  # fmt: skip
    if prefill is not None:
        yield PublicLane(
            gpu, framework, "mla_prefill", "bfloat16", "mla_prefill", lane, kv_dtype=kv,
            bars={"unseen": prefill[0], "beyond": (prefill[1], None, None)},
        )  # fmt: skip


_HOPPER: Final[tuple[_Bar, float | None]] = ((7.5, 5.5, 17.0), 14.0)
_BLACKWELL: Final[tuple[_Bar, float | None]] = ((10.0, 8.0, 22.0), 20.0)
_PREFILL: Final[tuple[_Bar, float | None]] = ((6.0, 4.5, 14.0), 14.0)
_PREFILL_SGLANG: Final[tuple[_Bar, float | None]] = ((6.0, 4.5, 14.0), 17.0)
LATENT_LANES: Final = (
    *_latent("h100_sxm", "trtllm", "bfloat16", decode=_HOPPER, prefill=_PREFILL),
    *_latent("h100_sxm", "trtllm", "fp8", decode=_HOPPER, prefill=_PREFILL),
    *_latent("h100_sxm", "sglang", "bfloat16", decode=_HOPPER, prefill=_PREFILL),
    *_latent("h100_sxm", "sglang", "fp8", decode=_HOPPER, prefill=_PREFILL),
    *_latent("b200_sxm", "trtllm", "bfloat16", decode=_BLACKWELL, prefill=_PREFILL),
    *_latent("b200_sxm", "trtllm", "fp8", decode=_BLACKWELL, prefill=_PREFILL),
    *_latent("b200_sxm", "sglang", "bfloat16", decode=_BLACKWELL, prefill=_PREFILL_SGLANG),
    *_latent("b200_sxm", "sglang", "fp8", decode=_BLACKWELL, prefill=_PREFILL_SGLANG),
    *_latent("a100_sxm", "trtllm", "bfloat16", decode=((7.0, None, None), None),
             prefill=((None, None, None), None)),
    *_latent("l40s", "trtllm", "bfloat16", decode=((8.0, None, None), None)),
)  # fmt: skip


def _linear(gpu: str, framework: str, dtype: str, bar: float) -> PublicLane:
    family = {"int4_wo": "linear_w4a16", "int8_wo": "linear_w8a16", "sq": "linear_int8"}.get(
        dtype, f"linear_{dtype}"
    )
    return PublicLane(gpu, framework, "gemm", dtype, family, framework, bars={"unseen": (bar, None, None)})


LINEAR_LANES: Final = (
    _linear("h100_sxm", "trtllm", "fp8", 3.5),
    _linear("h100_sxm", "vllm", "fp8", 8.5),
    _linear("h100_sxm", "sglang", "fp8", 8.5),
    _linear("h100_sxm", "sglang", "fp8_block", 11.5),
    _linear("h100_sxm", "trtllm", "fp8_block", 11.5),
    _linear("b200_sxm", "vllm", "fp8", 12.0),
    _linear("b200_sxm", "trtllm", "fp8", 5.0),
    _linear("b200_sxm", "trtllm", "fp8_block", 6.5),
    _linear("b200_sxm", "sglang", "fp8_block", 11.5),
    _linear("b200_sxm", "vllm", "nvfp4", 10.5),
    _linear("b200_sxm", "sglang", "nvfp4", 10.5),
    _linear("b200_sxm", "trtllm", "nvfp4", 10.5),
    _linear("l40s", "vllm", "fp8", 18.0),
    _linear("a100_sxm", "trtllm", "int4_wo", 17.0),
    _linear("a100_sxm", "trtllm", "int8_wo", 14.0),
    _linear("a100_sxm", "trtllm", "sq", 14.0),
)
PUBLIC_LANES: Final = (*EXPERT_LANES, *LATENT_LANES, *LINEAR_LANES)
