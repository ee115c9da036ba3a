"""Bytes that a stored weight matrix takes in each format, scales included."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import ceil

from .errors import CapacityError, unknown
from .spec import WeightQuantization

DTYPE_BYTES: dict[str, int] = {
    "bf16": 2, "bfloat16": 2, "fp16": 2, "float16": 2, "fp32": 4, "float32": 4,
}  # fmt: skip
"""Plain element types [B]."""


@dataclass(frozen=True, slots=True)
class WeightFormat:
    """How a quantized matrix is stored.

    Attributes
    ----------
    name : the format's name
    bits : one weight [bit]
    group : weights along k that share a scale; 0 means one scale a row (output channel)
    rows : rows that share it too (128 in DeepSeek's blocks)
    scale_bytes : one scale [B]
    """

    name: str
    bits: int
    group: int = 0
    rows: int = 1
    scale_bytes: int = 2

    @property
    def plain(self) -> bool:
        """Whether it is not quantized."""
        return self.scale_bytes == 0

    def matrix_bytes(self, n: int, k: int) -> int:
        """Return the bytes of an n x k matrix with its scales [B].

        >>> FORMATS["int4"].matrix_bytes(4096, 4096) / 4096**2
        0.515625
        """
        scales = ceil(n / self.rows) * (ceil(k / self.group) if self.group else 1)
        return ceil(Fraction(n * k * self.bits, 8)) + scales * self.scale_bytes


FORMATS: dict[str, WeightFormat] = {
    "bf16": WeightFormat("bf16", 16, scale_bytes=0),
    "fp16": WeightFormat("fp16", 16, scale_bytes=0),
    "fp32": WeightFormat("fp32", 32, scale_bytes=0),
    "fp8": WeightFormat("fp8", 8, scale_bytes=4),
    "int8": WeightFormat("int8", 8, scale_bytes=4),
    "int4": WeightFormat("int4", 4, group=128),
    "mxfp4": WeightFormat("mxfp4", 4, group=32, scale_bytes=1),
    "nvfp4": WeightFormat("nvfp4", 4, group=16, scale_bytes=1),
}
"""Source: the checkpoints' own layouts; bytes per weight as in the design note ``moe-mla-lowp.md``."""

SYNONYMS: dict[str, str] = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32",
    "fp8_e4m3": "fp8", "w8a8_fp8": "fp8", "fp8_block": "fp8_block", "fp8_dynamic": "fp8",
    "w8a8": "int8", "w8a16": "int8", "w4a16": "int4", "w4a8": "int4", "awq": "int4", "gptq": "int4",
    "fp4": "nvfp4", "w4a4": "nvfp4",
}  # fmt: skip


def weight_format(name: str, group_size: int = 0) -> WeightFormat:
    """Return the format of that name (``bf16``, ``fp8``, ``w8a16``, ``w4a16``, ``awq``, ``nvfp4``, ...).

    Parameters
    ----------
    name : format, or a scheme that uses it
    group_size : weights that share a scale, where it is not the format's own

    Raises
    ------
    CapacityError
        The name is unknown.
    """
    key = SYNONYMS.get(name.lower(), name.lower())
    if key == "fp8_block":
        return WeightFormat("fp8", 8, group_size or 128, group_size or 128, 4)
    if key not in FORMATS:
        raise CapacityError(
            unknown("weight format", name, ["auto", *FORMATS, *SYNONYMS], "quantization.weights", 30)
        )
    known = FORMATS[key]
    if group_size and key == "fp8":
        return WeightFormat("fp8", 8, group_size, group_size, 4)
    if group_size and known.scale_bytes:
        return WeightFormat(known.name, known.bits, group_size, known.rows, known.scale_bytes)
    return known


def stored_format(
    quantization: WeightQuantization | None, dtype: str, weights: str | None = None
) -> WeightFormat:
    """Return the format of the covered matrices: as asked, else the checkpoint's own, else the dtype."""
    if weights not in (None, "auto"):
        asked = weight_format(weights)
        own = quantization and weight_format(quantization.weights)
        if quantization and own and own.name == asked.name:
            return weight_format(weights, quantization.group_size)
        return asked
    if quantization:
        return weight_format(quantization.weights, quantization.group_size)
    return weight_format(dtype)
