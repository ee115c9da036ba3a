"""An engine of which only name and version are known, such as the one behind a pasted log."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .device import DeviceProfile
from .engine import EngineProfile
from .enginesections import CapacitySection
from .errors import CapacityError, unknown
from .memoryrules import GIB, MemoryRules, memory_rules, with_profile

ENGINES = ("vllm", "sglang", "tensorrt-llm")


@dataclass(frozen=True, slots=True)
class BareDefaults:
    """The defaults that size a pool."""

    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float


@dataclass(frozen=True, slots=True)
class BareEngine:
    """Name and version of an engine without a profile; its memory rules are those of the version."""

    engine: str
    version: str

    @property
    def id(self) -> str:
        """Id as the catalogue would spell it."""
        return f"{self.engine}-{self.version}"

    @property
    def capacity(self) -> CapacitySection | None:
        """Numbers of a profile: none."""
        return None

    def resolve_defaults(self, device: DeviceProfile) -> BareDefaults:
        """Return the server defaults of that version on a device.

        Cards of 70 GiB and more that are no A100 take larger batches in V1; V0 had one size of batch, and of
        chunk where it chunked (vLLM ``engine/arg_utils.py``).
        """
        rules = memory_rules(self.version)
        share = rules.gpu_memory_utilization
        if self.engine == "vllm" and rules.scheduler == "v0":
            return BareDefaults(256, 512 if rules.version < (0, 7, 0) else 2048, share)
        large = device.usable_bytes >= 70 * GIB and "a100" not in device.id
        return BareDefaults(1024, 8192, share) if large else BareDefaults(256, 2048, share)


EngineLike = EngineProfile | BareEngine


def engine_name(name: str) -> str:
    """Return the engine's name in one spelling.

    Raises
    ------
    CapacityError
        No rules for that engine.
    """
    key = name.lower().replace("_", "-")
    key = {"trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "tensorrtllm": "tensorrt-llm"}.get(key, key)
    if key not in ENGINES:
        raise CapacityError(unknown("engine", name, ENGINES))
    return key


def parse_engine(text: str) -> BareEngine:
    """Return name and version out of ``vllm-0.8.5``, ``vLLM 0.8.5`` or ``sglang v0.5.6``.

    >>> parse_engine("vLLM v0.8.5")
    BareEngine(engine='vllm', version='0.8.5')

    Raises
    ------
    CapacityError
        The name is none of ``ENGINES``, or there is no version.
    """
    found = re.match(r"\s*([A-Za-z][A-Za-z_-]*?)[\s_-]*v?(\d\S*)\s*$", text)
    if found is None:
        raise CapacityError(f"engine {text!r} is no name and version; allowed: such as vllm-0.8.5")
    return BareEngine(engine_name(found[1]), found[2])


def rules_of(engine: EngineLike, *, flashinfer_sampler: bool = False) -> MemoryRules:
    """Return the memory rules of a vLLM version, with the numbers of its profile where it has one."""
    rules = memory_rules(engine.version, flashinfer_sampler=flashinfer_sampler)
    if engine.capacity is None:
        return rules
    return with_profile(rules, engine.capacity, flashinfer_sampler=flashinfer_sampler)
