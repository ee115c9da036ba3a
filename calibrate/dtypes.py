"""The names that tables give to dtypes, and how wide their elements are."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..hwmodels.precision import Precision
from .table import KernelTable

COMPUTE: Final = {
    "bfloat16": "bf16", "bf16": "bf16", "float16": "fp16", "fp16": "fp16", "half": "fp16", "float32": "fp32",
    "fp32": "fp32", "fp8": "fp8", "fp8_static": "fp8", "fp8_block": "fp8", "int8": "int8", "sq": "int8",
    "nvfp4": "fp4", "mxfp4": "fp4", "int8_wo": "bf16", "int4_wo": "bf16", "w4a16_mxfp4": "bf16",
}  # fmt: skip
"""From a table's dtype to the dtype whose peak the matrix units reach."""
PRECISION: Final = {
    "fp8": Precision("fp8", 1.0, 1.0, 2.0, "fp8", quantises_inputs=True),
    "fp8_static": Precision("fp8", 1.0, 1.0, 2.0, "fp8", quantises_inputs=True),
    "fp8_block": Precision(
        "fp8_block", 1.0 + 4.0 / 128**2, 1.0 + 4.0 / 128, 2.0, "fp8", quantises_inputs=True
    ),
    "nvfp4": Precision("nvfp4", 0.5625, 0.5625, 2.0, "fp4", quantises_inputs=True),
    "int8": Precision("int8", 1.0, 1.0, 2.0, "int8", quantises_inputs=True),
    "sq": Precision("int8", 1.0, 1.0, 2.0, "int8", quantises_inputs=True),
    "int8_wo": Precision("w8a16", 1.0, 2.0, 2.0, "bf16"),
    "int4_wo": Precision("w4a16", 0.5 + 2.0 / 128, 2.0, 2.0, "bf16"),
}
"""From a table's dtype to how a linear layer of it is held and multiplied."""
_WIDTH: Final = {"bfloat16": 2.0, "bf16": 2.0, "float16": 2.0, "fp16": 2.0, "float32": 4.0, "fp32": 4.0,
                 "fp8": 1.0, "fp8_e4m3": 1.0, "int8": 1.0, "nvfp4": 0.5625}  # fmt: skip


def kv_width(table: KernelTable) -> NDArray[np.float64]:
    """Return the bytes of one cached element of each row; the compute dtype's where no KV dtype is given [B]."""
    widths = np.full(len(table), 2.0)
    for column in ("dtype", "kv_dtype"):
        for name in set(table[column].tolist()) & set(_WIDTH):
            widths[table[column] == name] = _WIDTH[name]
    return widths


def element_width(dtype: str) -> float:
    """Return the bytes of one element of a dtype, 2 where it is not known [B]."""
    return _WIDTH.get(dtype, 2.0)
