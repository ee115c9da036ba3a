"""What is known of a kernel and not fitted: its name and its architecture say how it works."""

from __future__ import annotations

from typing import Any, Final

from ..hwmodels.timing.decode_attention import FLASH2

_WEIGHT_ONLY: Final = ("linear_w4a16", "linear_w8a16")
_RULED: Final = {"Hopper": {"Cutlass": 1, "sgl_kernel_fp8": 1}, "Ada": {"Cutlass": 2}}
"""Architecture and part of a kernel's name -> the rule by which it takes a tile (``tiles.RULES``)."""


def kernel_facts(family: str, lane: str, kernel: str, arch: str) -> dict[str, Any]:
    """Return the keyword arguments that a kernel's fit takes beside its rows.

    Parameters
    ----------
    family : ``moe``, ``linear_fp8``, ``decode_attention``, ``mla_decode``, ``mla_prefill``, ...
    lane, kernel : lane with its suffixes, and name of the kernel where one is known
    arch : architecture of the device

    Examples
    --------
    >>> kernel_facts("moe", "vllm", "vllm_fp8moe_triton_tritonexperts", "Hopper")
    {'all_rows': True}
    """
    if family.startswith("moe"):
        return {"all_rows": "triton" in kernel}
    if family.startswith("linear"):
        rule = next((rule for name, rule in _RULED.get(arch, {}).items() if name in kernel), 0)
        return {"quantise": family not in _WEIGHT_ONLY, "by_m": rule if family == "linear_fp8" else 0}
    if family == "decode_attention":
        return _decode_facts(lane, kernel)
    if family == "prefill_attention":
        return _prefill_facts(kernel, arch)
    if family == "mla_decode":
        return {
            "tile_heads": 128 if arch == "Blackwell" else 64,
            "split": arch in ("Hopper", "Blackwell"),
            "sharp_cache": arch == "Ada",
            "few_heads": 16 if arch == "Blackwell" else 0,
        }
    if family == "mla_prefill":
        return {"absorbed": lane.startswith("sglang") and arch != "Blackwell"}
    return {}


def _decode_facts(lane: str, kernel: str) -> dict[str, Any]:
    """Return whether the kernel splits a sequence, and in how many blocks of 128 keys at least.

    FlashAttention-2 packs the queries of a group and then splits, by a rule of its own; without groups it does
    neither. Its blocks hold 256 keys at heads of 64. TensorRT-LLM's generated kernels never split below 256 keys.
    """
    flash2 = _is_flash2(kernel)
    if flash2 and "_mha" in lane:
        return {"split": False}
    coarse = (flash2 and "_d64" in lane) or any(name in kernel for name in _GENERATED)
    return ({"split": FLASH2} if flash2 else {}) | ({"key_blocks": 2.0} if coarse else {})


def _is_flash2(kernel: str) -> bool:
    return "flash_attn" in kernel and not any(version in kernel for version in ("fa3", "fa4"))


def _prefill_facts(kernel: str, arch: str) -> dict[str, Any]:
    """Return whether a tile takes rows of several heads (of chunks of one token alone), and how many rows.

    FlashAttention-2 packs the queries of a group only where there is one token a sequence; its causal tiles are 64
    rows high where on-chip memory is small. TensorRT-LLM's generated kernels do not pack, and
    take longer over groups that are not a power of two.
    """
    if _is_flash2(kernel):
        return {"packed": False, "single": True, "tile": 64 if arch == "Ada" else 128}
    return {"packed": False, "uneven": True} if _GENERATED_PREFILL in kernel else {}


_GENERATED_PREFILL: Final = "trtllm"
_GENERATED: Final = ("trtllmdecode", "trtllm_mha")
