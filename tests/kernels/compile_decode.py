"""Compile the decode kernels to machine code of an H100, in a process whose Triton does not interpret."""

from __future__ import annotations

import triton
from membound.kernels import triton_decode
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

H100 = GPUTarget("cuda", 90, 32)
SPLIT = {
    **dict.fromkeys(("q_ptr", "k_ptr", "v_ptr"), "*bf16"),
    **dict.fromkeys(("table_ptr", "length_ptr"), "*i32"),
    **dict.fromkeys(("partial_ptr", "scale_ptr"), "*fp32"),
    "softmax_scale": "fp32",
    **dict.fromkeys(("table_stride", "keys_per_split", "splits", "kv_heads", "group"), "i32"),
}
JOIN = {"partial_ptr": "*fp32", "scale_ptr": "*fp32", "out_ptr": "*bf16", "splits": "i32", "heads": "i32"}


def compiled(kernel: object, signature: dict[str, str], fixed: dict[str, object]) -> dict[str, str]:
    given = signature | dict.fromkeys(fixed, "constexpr")
    return triton.compile(ASTSource(kernel, given, constexprs=fixed), target=H100).asm


split = compiled(
    triton_decode._split_kernel,
    SPLIT,
    {"ROWS": 16, "WIDTH": 64, "PAGE": 16, "KEYS": 64, "WIDEN": False},
)
assert split["cubin"]
print("mma" if "mma" in split["ptx"] else "no matrix units")
joined = compiled(triton_decode._join_kernel, JOIN, {"PADDED": 8, "WIDTH": 64})
print("joined" if joined["cubin"] else "")
