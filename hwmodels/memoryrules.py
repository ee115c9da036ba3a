"""How each version of vLLM divides a card's memory, as switches.

Every switch follows the engine's own source; the five fitted constants are those of ``kv-pool.md``. An
engine's YAML (``capacity:``) may give the numbers; versions without one take those below.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from .device import DeviceProfile
from .enginesections import CapacitySection
from .errors import CapacityError

GIB = 1 << 30

NON_TORCH_GIB = {"Hopper": 0.47, "Ampere": 0.04, "Ada": 0.04, "Turing": 0.04, "Volta": 0.04}
"""Growth outside torch's allocator while profiling, by architecture; fitted [GiB]."""
NCCL_GIB = {"nvlink": 2.05, "pcie": 0.44}
"""Communicators, where the profile counts them; fitted, NVLink's on one machine (printed 1.4-2.1) [GiB]."""
GRAPH_GIB = 0.56
"""What CUDA graphs take from the pool, from 0.18 on; printed estimates range from 0.2 to 5; fitted [GiB]."""
CONTEXT_GIB = 0.35
"""One CUDA context, printed on an RTX 3090; larger cards take more [GiB]."""
SORT_BYTES = 38
"""Torch sort of rows x vocabulary: bf16 and fp32 logits, values, two index arrays, scratch [B an entry]."""
SMALL_SORT_BYTES = 50
"""The same below 128 rows, which take another path; read, not seen [B an entry]."""
SMALL_SORT_ROWS = 128
NO_SORT_BYTES = 16
"""Triton or FlashInfer sampling: 2 + 4 + 4 + 4 B, rounded up [B an entry]."""

Version = tuple[int, int, int]


def parse_version(text: str) -> Version:
    """Return (major, minor, patch) of a version, whatever follows it.

    >>> parse_version("0.23.0+residency patch")
    (0, 23, 0)

    Raises
    ------
    CapacityError
        No version number in the text.
    """
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    if found is None:
        raise CapacityError(f"engine version {text!r} has no number; allowed: such as 0.24 or 0.15.1")
    return int(found[1]), int(found[2]), int(found[3] or 0)


@dataclass(frozen=True, slots=True)
class MemoryRules:
    """Switches and numbers of one vLLM version.

    Attributes
    ----------
    version : the version they belong to
    gpu_memory_utilization : its default [-]
    scheduler : ``v0`` or ``v1``; V0 splits the pool over the stages of a pipeline
    null_blocks : blocks of the pool that no request can have [blocks]
    sampler_bytes, small_sampler_bytes, small_sampler_rows : memory of the profile run's sampler by row and
        vocabulary entry, 0 where it does not sample [B]; the second below so many rows
    non_torch_gib : growth outside torch, by architecture, ``default`` for others [GiB]
    nccl_gib : communicators inside the budget (before 0.11), by ``nvlink`` or ``pcie``; empty: outside [GiB]
    graph_gib : what CUDA graphs take from the pool, unless eager [GiB]
    times_kernels : while compiling inside the profile run, Inductor times horizontally fused kernels on random
        copies of their inputs, the rotary table of queries and keys among them (torch 2.9, from 0.11.1 on)
    keeps_workspace : the experts' workspace is one tensor that stays, so it lies beside the sampler (from 0.11.2 on)
    counts_context : the CUDA context is inside the budget (0.6.4 and before)
    latent_expanded : latent attention stores full heads (before 0.7.1)
    hybrid : windows are allocated as windows (from 0.9.2 on)
    hybrid_chunked : models with chunked layers too (their flag was off to 0.15 at least)
    takes_pool_bytes : knows kv_cache_memory_bytes (from 0.11 on)
    token_line : the printed token count: blocks x block size, or concurrency x length (from 0.21 on)
    dense_gib, wide_gib : half width of the pool: dense text models, and MLA, experts or vision [GiB]
    """

    version: Version
    gpu_memory_utilization: float
    scheduler: Literal["v0", "v1"]
    null_blocks: int
    sampler_bytes: float
    small_sampler_bytes: float
    small_sampler_rows: int
    non_torch_gib: Mapping[str, float]
    nccl_gib: Mapping[str, float]
    graph_gib: float
    times_kernels: bool
    keeps_workspace: bool
    counts_context: bool
    latent_expanded: bool
    hybrid: bool
    hybrid_chunked: bool
    takes_pool_bytes: bool
    token_line: Literal["blocks", "concurrency"]
    dense_gib: float
    wide_gib: float

    def sampler_bytes_per_entry(self, rows: int) -> float:
        """Bytes the profile run's sampler takes for each of ``rows`` rows and vocabulary entry [B]."""
        return self.small_sampler_bytes if rows < self.small_sampler_rows else self.sampler_bytes

    def non_torch_bytes(self, device: DeviceProfile) -> tuple[int, str]:
        """Growth outside torch while profiling [B], with a note where the architecture was not seen."""
        if device.arch in self.non_torch_gib:
            return int(self.non_torch_gib[device.arch] * GIB), f"modules and library handles, {device.arch}"
        gib = self.non_torch_gib.get("default", NON_TORCH_GIB["Hopper"])
        return int(gib * GIB), f"no {device.arch} machine seen: the largest of the others"

    def nccl_bytes(self, device: DeviceProfile) -> int:
        """Communicators of a group of such devices, where the budget counts them [B]."""
        pcie = device.link_type.lower().startswith("pcie")
        return int(self.nccl_gib.get("pcie" if pcie else "nvlink", 0.0) * GIB)


def memory_rules(version: str | Version, *, flashinfer_sampler: bool = False) -> MemoryRules:
    """Return the switches of a vLLM version.

    Parameters
    ----------
    version : ``0.15.1`` or (0, 15, 1)
    flashinfer_sampler : VLLM_USE_FLASHINFER_SAMPLER was set: no sort before 0.18 either

    Raises
    ------
    CapacityError
        No version number in the text.

    Examples
    --------
    >>> memory_rules("0.15").sampler_bytes_per_entry(1024), memory_rules("0.24").sampler_bytes_per_entry(1024)
    (38, 16)
    """
    v = parse_version(version) if isinstance(version, str) else version
    sampled = v >= (0, 8, 0)
    sorts = v < (0, 18, 0) and not flashinfer_sampler
    return MemoryRules(
        version=v,
        gpu_memory_utilization=0.92 if v >= (0, 20, 0) else 0.90,
        scheduler="v1" if v >= (0, 8, 0) else "v0",
        null_blocks=1 if v >= (0, 8, 0) else 0,
        sampler_bytes=(SORT_BYTES if sorts else NO_SORT_BYTES) if sampled else 0,
        small_sampler_bytes=SMALL_SORT_BYTES if sampled and sorts else 0,
        small_sampler_rows=SMALL_SORT_ROWS if sampled and sorts else 0,
        non_torch_gib=NON_TORCH_GIB,
        nccl_gib=NCCL_GIB if v < (0, 11, 0) else {},
        graph_gib=GRAPH_GIB if v >= (0, 18, 0) else 0.0,
        # Read in 0.11.2, 0.12.0, 0.13.0, 0.15.1 and 0.23.0: config/compilation.py (combo_kernels with
        # benchmark_combo_kernel), fused_moe/modular_kernel.py and v1/worker/workspace.py.
        times_kernels=v >= (0, 11, 1),
        keeps_workspace=v >= (0, 11, 2),
        counts_context=v < (0, 6, 5),
        latent_expanded=v < (0, 7, 1),
        hybrid=v >= (0, 9, 2),
        # VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE defaults to 0 in older sources, 1 in newer ones:
        # the version between is inferred.
        hybrid_chunked=v >= (0, 16, 0),
        takes_pool_bytes=v >= (0, 11, 0),
        token_line="concurrency" if v >= (0, 21, 0) else "blocks",
        dense_gib=1.0 if v >= (0, 20, 0) else 0.4,
        wide_gib=2.0,
    )


def with_profile(
    rules: MemoryRules, capacity: CapacitySection, *, flashinfer_sampler: bool = False
) -> MemoryRules:
    """Return the rules with the numbers an engine's YAML gives."""
    if flashinfer_sampler:
        sampler, small, rows = rules.sampler_bytes, rules.small_sampler_bytes, rules.small_sampler_rows
    else:
        sampler = capacity.sampler_bytes_per_entry
        small, rows = capacity.small_batch_sampler_bytes_per_entry, capacity.small_batch_rows
    return replace(
        rules,
        null_blocks=int(capacity.null_block),
        sampler_bytes=sampler,
        small_sampler_bytes=small,
        small_sampler_rows=rows,
        non_torch_gib=capacity.non_torch_gib or rules.non_torch_gib,
        nccl_gib=capacity.nccl_gib,
        graph_gib=rules.graph_gib if capacity.graph_gib is None else capacity.graph_gib,
        dense_gib=capacity.uncertainty_gib.get("dense", rules.dense_gib),
        wide_gib=capacity.uncertainty_gib.get("other", rules.wide_gib),
    )
