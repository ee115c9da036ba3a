"""What is known of a kernel and not fitted: its name and its architecture say how it works."""

from __future__ import annotations

from typing import Any, Final

_WEIGHT_ONLY: Final = ("linear_w4a16", "linear_w8a16")
_CUTLASS: Final = ("Cutlass", "sgl_kernel_fp8")


def kernel_facts(family: str, software: str, kernel: str, arch: str) -> dict[str, Any]:
    """Return the keyword arguments that a kernel's fit takes beside its rows.

    Parameters
    ----------
    family : ``moe``, ``linear_fp8``, ``mla_decode``, ``mla_prefill``, ...
    software, kernel : lane of software, and name of the kernel where one is known
    arch : architecture of the device

    Examples
    --------
    >>> kernel_facts("moe", "vllm", "vllm_fp8moe_triton_tritonexperts", "Hopper")
    {'all_rows': True}
    """
    if family.startswith("moe"):
        return {"all_rows": "triton" in kernel}
    if family.startswith("linear"):
        cutlass = family == "linear_fp8" and arch == "Hopper" and any(name in kernel for name in _CUTLASS)
        return {"quantise": family not in _WEIGHT_ONLY, "by_m": cutlass}
    if family == "mla_decode":
        return {
            "tile_heads": 128 if arch == "Blackwell" else 64,
            "split": arch in ("Hopper", "Blackwell"),
            "sharp_cache": arch == "Ada",
        }
    if family == "mla_prefill":
        return {"absorbed": software == "sglang" and arch != "Blackwell"}
    return {}
