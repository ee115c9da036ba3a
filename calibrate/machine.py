"""What a design must know of a device: how fast it roughly is, how large its memories are, what it can run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ..hwmodels.device import load_device
from ..hwmodels.errors import MemboundError
from ..hwmodels.kernelcall import OpCost
from .errors import CalibrationError

Lane = tuple[str, str, str]
"""Operation, kernel and dtype."""

_CPU_LANES: tuple[Lane, ...] = (
    ("gemm", "torch_mm", "bfloat16"),
    ("gemm", "torch_mm", "float32"),
    ("gemm", "torch_int_mm", "int8"),
    ("gemm", "torch_dequantise_mm", "int8_wo"),
    ("gemm", "torch_dequantise_mm", "int4_wo"),
    ("attn_prefill", "torch_sdpa", "bfloat16"),
    ("attn_prefill", "torch_naive", "bfloat16"),
    ("attn_decode", "torch_paged", "bfloat16"),
    ("attn_mixed", "torch_sdpa+torch_paged", "bfloat16"),
    ("rmsnorm", "torch_rmsnorm", "bfloat16"),
    ("rotary", "torch_rotary", "bfloat16"),
    ("swiglu", "torch_swiglu", "bfloat16"),
    ("embedding", "torch_embedding", "bfloat16"),
    ("sample_greedy", "torch_argmax", "float32"),
    ("sample_topp", "torch_topk", "float32"),
    ("moe", "torch_grouped_mm", "bfloat16"),
    ("decoder_step", "torch_eager", "bfloat16"),
    ("copy_d2d", "torch_copy", "uint8"),
    ("copy_blocks", "torch_index", "uint8"),
)
_CUDA_LANES: tuple[Lane, ...] = (
    *_CPU_LANES,
    ("gemm", "torch_mm", "float16"),
    ("gemm", "torch_scaled_mm", "fp8"),
    ("attn_decode", "triton_paged", "bfloat16"),
    ("attn_mixed", "torch_sdpa+triton_paged", "bfloat16"),
    ("decoder_step", "torch_graph", "bfloat16"),
    ("copy_h2d", "torch_pinned", "uint8"),
    ("copy_d2h", "torch_pinned", "uint8"),
)
_ROUGH_EFFICIENCY = 0.5
_CPU = {"gemm": 1e10, "gemm/float32": 5e10, "attn_decode": 1.5e9, "attn_prefill": 4e10, "": 5e9}


@dataclass(frozen=True, slots=True)
class Machine:
    """A device as a design sees it; rates are rough and only decide how many shapes fit the budget.

    Attributes
    ----------
    id : ``cpu``, or the catalogue's id
    kind : ``cpu`` or ``cuda``
    units : compute units [-]
    cache_bytes, memory_bytes : last-level cache and memory [B]
    flop_rate : by ``op/dtype``, ``op``, or ``""`` for all others [FLOP/s]
    bandwidth : of memory [B/s]
    overhead_s : of a call [s]
    lanes : what it can run
    devices : devices of this kind that can sum over their links [-]
    """

    id: str
    kind: Literal["cpu", "cuda"]
    units: int
    cache_bytes: int
    memory_bytes: int
    flop_rate: Mapping[str, float]
    bandwidth: float
    overhead_s: float
    lanes: tuple[Lane, ...]
    devices: int = 1

    def rough_seconds(self, op: str, dtype: str, cost: OpCost) -> float:
        """Return about how long a call takes, within a factor of two, for planning only [s]."""
        rates = self.flop_rate
        rate = rates.get(f"{op}/{dtype}") or rates.get(op) or rates[""]
        return self.overhead_s + cost.flop / rate + cost.hbm_bytes / self.bandwidth

    def as_dict(self) -> dict[str, Any]:
        """Return all of it, for a file."""
        return asdict(self)


def machine_from(record: Mapping[str, Any]) -> Machine:
    """Return the machine that ``as_dict`` wrote."""
    return Machine(**{**record, "lanes": tuple(tuple(lane) for lane in record["lanes"])})


def machine_of(device: str) -> Machine:
    """Return what is known of a device without running anything on it: ``cpu``, or a catalogue entry.

    Raises
    ------
    CalibrationError : neither ``cpu`` nor in the catalogue

    Examples
    --------
    >>> machine_of("h100_sxm").units
    132
    """
    if device.strip().lower() == "cpu":
        return Machine("cpu", "cpu", 1, 32 << 20, 16 << 30, _CPU, 4e9, 20e-6, _CPU_LANES)
    try:
        profile = load_device(device)
    except MemboundError as error:
        raise CalibrationError(f"{error}; or cpu") from None
    peak = {f"gemm/{_TABLE_NAMES.get(dtype, dtype)}": rate for dtype, rate in profile.peak_flops.items()}
    base = profile.peak_flops.get("bf16", max(profile.peak_flops.values()))
    rates = {name: _ROUGH_EFFICIENCY * rate for name, rate in {"": base, **peak}.items()}
    return Machine(
        id=profile.id,
        kind="cuda",
        units=profile.n_sm,
        cache_bytes=profile.l2_bytes or 32 << 20,
        memory_bytes=profile.usable_bytes,
        flop_rate={**rates, "attn_prefill": 0.25 * base, "attn_decode": 0.1 * base},
        bandwidth=_ROUGH_EFFICIENCY * profile.hbm_bandwidth,
        overhead_s=10e-6,
        lanes=_CUDA_LANES,
    )


_TABLE_NAMES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
