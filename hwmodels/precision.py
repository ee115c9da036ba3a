"""How a linear layer's numbers are held and multiplied, and which lane timed it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Protocol

from .errors import CapacityError, unknown
from .spec import ModelSpec
from .weightformat import DTYPE_BYTES, WeightFormat, stored_format


class QuantizationLike(Protocol):
    """The scenario's ``quantization`` section."""

    @property
    def weights(self) -> str:
        """Weight format, or ``auto``."""
        ...

    @property
    def activations(self) -> str:
        """Activation dtype, or ``auto``."""
        ...

    @property
    def kv_cache(self) -> str:
        """KV dtype, or ``auto``."""
        ...


@dataclass(frozen=True, slots=True)
class Quantization:
    """Dtypes of weights, activations and KV cache; ``auto`` takes what the checkpoint says."""

    weights: str = "auto"
    activations: str = "auto"
    kv_cache: str = "auto"


@dataclass(frozen=True, slots=True)
class Precision:
    """Precision of one kind of linear layer.

    Attributes
    ----------
    name : suffix of the lane's family (``linear_fp8``, ``moe_nvfp4``); empty for 16-bit weights
    weight_bytes, input_bytes : bytes per element, block scales included [B]
    output_bytes : bytes per output element [B]
    compute : dtype whose peak the matrix units reach
    quantises_inputs : True if activations arrive in 16 bit and are quantised in a pass of their own
    asked : compute dtype that was asked for, where the device has no matrix units for it; else empty
    """

    name: str
    weight_bytes: float
    input_bytes: float
    output_bytes: float
    compute: str
    quantises_inputs: bool = False
    asked: str = ""


_COMPUTE = {"fp8": "fp8", "int8": "int8", "nvfp4": "fp4", "mxfp4": "fp4"}
_ACTIVATION_BYTES = {"fp8": 1.0, "int8": 1.0, "fp4": 0.5625}
_PLAIN = {"auto", "bf16", "bfloat16", "fp16", "float16", "half"}


def plain_precision(model: ModelSpec) -> Precision:
    """Return the precision of matrices that no quantisation covers (routers, heads, embeddings)."""
    width = float(DTYPE_BYTES.get(model.dtype, 2))
    compute = {"float16": "fp16", "fp16": "fp16", "float32": "fp32", "fp32": "fp32"}.get(model.dtype, "bf16")
    return Precision("", width, width, width, compute)


def linear_precision(model: ModelSpec, quantization: QuantizationLike) -> Precision:
    """Return the precision of the matrices that a quantisation covers.

    Weights of 4 or 8 bits whose activations stay in 16 bit are weight-only: they are read narrow and
    multiplied wide.

    Raises
    ------
    CapacityError
        Unknown weight format or activation dtype.

    Examples
    --------
    >>> spec = ModelSpec("m", "llama", 8, 64, 16, (), False, 8)
    >>> linear_precision(spec, Quantization(weights="w4a16")).name
    'w4a16'
    """
    plain = plain_precision(model)
    fmt = stored_format(model.quantization, model.dtype, quantization.weights)
    if fmt.plain:
        if quantization.activations.lower() not in {*_PLAIN, "fp32", "float32"}:
            raise CapacityError(
                f"quantization.activations {quantization.activations!r} needs weights of at most 8 bits; those of "
                f"{model.id} are {fmt.name}: set quantization.weights too (fp8, int8, nvfp4)"
            )
        return plain
    compute = _activation_dtype(model, quantization, fmt)
    width = fmt.bits / 8.0 + (fmt.scale_bytes / (fmt.group * fmt.rows) if fmt.group else 0.0)
    if compute is None:
        return Precision(f"w{fmt.bits}a16", width, plain.input_bytes, plain.output_bytes, plain.compute)
    name = "fp8_block" if fmt.name == "fp8" and fmt.rows > 1 else fmt.name
    return Precision(name, width, _ACTIVATION_BYTES[compute], 2.0, compute, quantises_inputs=True)


def without_units(precision: Precision, plain: Precision, dtypes: Collection[str]) -> Precision:
    """Return what an engine makes of a precision whose compute dtype the device has no matrix units for.

    The weights stay as stored and are multiplied in 16 bit (vLLM's Marlin kernels: fp8 before Ada, nvfp4 before
    Blackwell); activations are then never quantised.

    Parameters
    ----------
    precision, plain : as asked for, and that of matrices that no quantisation covers
    dtypes : dtypes that the device has a matrix rate for

    Examples
    --------
    >>> fp8 = Precision("fp8", 1.0, 1.0, 2.0, "fp8", quantises_inputs=True)
    >>> without_units(fp8, Precision("", 2.0, 2.0, 2.0, "bf16"), {"bf16", "int8"}).name
    'w8a16'
    """
    if not precision.quantises_inputs or precision.compute in dtypes:
        return precision
    bits = 8 if precision.weight_bytes >= 1.0 else 4
    wide = plain.input_bytes, plain.output_bytes, plain.compute
    return Precision(f"w{bits}a16", precision.weight_bytes, *wide, asked=precision.compute)


def _activation_dtype(model: ModelSpec, quantization: QuantizationLike, fmt: WeightFormat) -> str | None:
    """Return the low-precision compute dtype, or None where activations stay in 16 bit."""
    asked = quantization.activations.lower()
    scheme = quantization.weights.lower()
    if asked not in _PLAIN:
        named = {"fp8_e4m3": "fp8", "nvfp4": "fp4", "mxfp4": "fp4", "w8a8": "int8"}.get(asked, asked)
        if named not in _ACTIVATION_BYTES:
            raise CapacityError(
                unknown(
                    "activation dtype",
                    asked,
                    ["auto", "bf16", "fp16", *_ACTIVATION_BYTES],
                    "quantization.activations",
                )
            )
        return named
    if asked != "auto" and scheme != "auto":
        # "bf16" activations beside an explicit format are what the scheme's own name says: w8a8 stays w8a8.
        return (
            _COMPUTE.get(fmt.name) if scheme in ("fp8", "w8a8", "fp8_block", "nvfp4", "w4a4", "fp4") else None
        )
    if scheme == "auto" and model.quantization is not None:
        own = model.quantization.activations
        return None if own in _PLAIN else _COMPUTE.get({"fp4": "nvfp4"}.get(own, own))
    if scheme in ("w8a16", "w4a16", "int4", "awq", "gptq", "mxfp4"):
        return None
    return _COMPUTE.get(fmt.name)
