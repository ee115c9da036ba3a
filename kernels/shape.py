"""What is timed: one kernel, by the columns of the long schema of kernel tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

MISSING: Final = -1


@dataclass(frozen=True, slots=True)
class KernelShape:
    """One kernel and its sizes; a size that the operation does not have is ``MISSING``.

    Attributes
    ----------
    op : operation (``gemm``, ``attn_prefill``, ``attn_decode``, ``attn_mixed``, ``rmsnorm``, ``moe``, ...)
    kernel : which implementation, the table's ``kernel_source``
    dtype, kv_dtype : number formats (``bfloat16``, ``float32``, ``fp8``, ``int8``, ``int8_wo``, ``int4_wo``)
    m, n, k : tokens, outputs and inputs of a matrix multiplication
    batch, q_len, kv_len : sequences, new tokens and keys of each; mixed batches: ``batch`` decodes over ``kv_len``
        keys each, and one chunk of ``q_len`` new tokens that sees ``num_tokens`` keys
    n_heads, n_kv_heads, head_dim : heads of the device
    bytes : message or copy [B]
    world_size : devices that take part
    num_tokens, hidden, inter, topk, n_experts : of a layer that works token by token, and of experts
    distribution : how tokens choose experts (``balanced``)
    """

    op: str
    kernel: str
    dtype: str
    kv_dtype: str = ""
    m: int = MISSING
    n: int = MISSING
    k: int = MISSING
    batch: int = MISSING
    q_len: int = MISSING
    kv_len: int = MISSING
    n_heads: int = MISSING
    n_kv_heads: int = MISSING
    head_dim: int = MISSING
    bytes: int = MISSING
    world_size: int = MISSING
    num_tokens: int = MISSING
    hidden: int = MISSING
    inter: int = MISSING
    topk: int = MISSING
    n_experts: int = MISSING
    distribution: str = ""

    @property
    def key(self) -> str:
        """Name of the shape, the same in every run.

        >>> KernelShape("gemm", "torch_mm", "bfloat16", m=1, n=64, k=128).key
        'gemm/torch_mm/bfloat16/m=1/n=64/k=128'
        """
        sizes = [f"{name}={value}" for name, value in self.sizes().items()]
        names = (self.op, self.kernel, self.dtype, self.kv_dtype)
        return "/".join([*(name for name in names if name), *sizes])

    def sizes(self) -> dict[str, int | str]:
        """Return what is set beyond the names, in the order of the fields."""
        found = {field.name: getattr(self, field.name) for field in fields(self)[4:]}
        return {name: value for name, value in found.items() if value not in (MISSING, "")}

    def as_dict(self) -> dict[str, int | str]:
        """Return all that is set, for a file."""
        names = {"op": self.op, "kernel": self.kernel, "dtype": self.dtype, "kv_dtype": self.kv_dtype}
        return {name: value for name, value in names.items() if value} | self.sizes()


def shape_from(record: Mapping[str, Any]) -> KernelShape:
    """Return the shape that ``as_dict`` wrote.

    >>> shape = KernelShape("copy_d2d", "torch_copy", "uint8", bytes=1024)
    >>> shape_from(shape.as_dict()) == shape
    True
    """
    return KernelShape(**record)
