"""Time of a linear layer in any precision: a GEMM at its own widths and compute rate, plus a quantise pass.

Formats that compute in low precision (fp8, int8, nvfp4) read activations once more to quantise them, unless
the engine fuses that pass. Weight-only formats (w8a16, w4a16) shrink the weights and keep bf16 compute with
the loss of dequantising, so that the gain vanishes, or turns into a loss, at large m.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .form import MICRO, Array, Chip, KernelTime, LaneLike
from .gemm import BF16_WIDTHS, GemmParams, GemmWidths, gemm_time


@dataclass(frozen=True, slots=True)
class LinearParams:
    """One lane of linear layers.

    Attributes
    ----------
    gemm : the multiplication
    widths : bytes per element of weights (scales included), inputs and outputs [B]
    dtype : compute dtype
    tqz : fixed time of the quantise pass [s]; 0 where it is fused or there is none
    eqz : share of HBM bandwidth of that pass [-]; 0 means no pass
    passes : passes to a multiplication [-]; below 1 where an engine fuses some
    tqr : its time per row, beside its bytes [s]: rows that raise one maximum wait for each other
    """

    gemm: GemmParams
    widths: GemmWidths = BF16_WIDTHS
    dtype: str = "bf16"
    tqz: float = 0.0
    eqz: float = 0.0
    passes: float = 1.0
    tqr: float = 0.0

    @classmethod
    def from_lane(cls, lane: LaneLike, dtype: str, widths: GemmWidths) -> LinearParams:
        """Read a device's linear lane for a compute dtype and element widths."""
        p = lane.params
        return cls(
            gemm=GemmParams.from_lane(lane),
            widths=widths,
            dtype=dtype,
            tqz=p.get("tqz_us", 0.0) * MICRO,
            eqz=p.get("eqz", 0.0),
            tqr=p.get("tqr_ns", 0.0) * 1e-9,
        )

    def fused(self, share: float, plain_t0: float) -> LinearParams:
        """Return the lane of layers of which so many get inputs that the kernel before has quantised [-].

        Approximation: a kernel tables' fixed time beyond that of a 16-bit multiplication is that of the pass (up
        to 9 us on the lanes of TensorRT-LLM, whose tables time whole layers), so it goes with it.

        Parameters
        ----------
        share : of the passes, those that are fused [-]
        plain_t0 : fixed time of a 16-bit multiplication [s]
        """
        if share <= 0.0 or self.eqz <= 0.0:
            return self
        kept = 1.0 - min(share, 1.0)
        start = min(self.gemm.t0, plain_t0)
        return replace(
            self,
            gemm=replace(self.gemm, t0=start + kept * (self.gemm.t0 - start)),
            tqz=kept * self.tqz,
            tqr=kept * self.tqr,
            passes=kept * self.passes,
        )


def linear_time(
    chip: Chip,
    params: LinearParams,
    m: Array | float,
    n: Array | float,
    k: Array | float,
    *,
    warm: bool = False,
    compute_factor: float = 1.0,
) -> KernelTime:
    """Return the time of a linear layer n x k on m tokens [s]; parameters as in ``gemm_time``."""
    time = gemm_time(
        chip,
        params.gemm,
        m,
        n,
        k,
        dtype=params.dtype,
        widths=params.widths,
        warm=warm,
        compute_factor=compute_factor,
    )
    if params.eqz <= 0.0:
        return time
    rows = np.asarray(m, dtype=np.float64)
    passed = params.passes * 3.0 * rows * k / (params.eqz * chip.bandwidth)
    fixed = params.tqz + params.tqr * rows
    return replace(time, hbm_activations=time.hbm_activations + passed, latency=time.latency + fixed)
