"""What a serving engine's version decides: flag defaults, time outside the kernels, memory it keeps.

An engine version is one YAML in ``engines/`` (or a path). Flags are those of that version's own source; step
parameters are starting values until a calibration replaces them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

from .catalog import find, ids, read_yaml
from .device import DeviceProfile
from .enginesections import CapacitySection, FlagSection, GraphSection, ServedStep, StepSection
from .errors import CatalogError
from .units import parse_count
from .validation import validate

ENGINES = Path(__file__).parent / "engines"

Usage = Literal["server", "offline"]


@dataclass(frozen=True, slots=True)
class EngineDefaults:
    """What the engine takes for every flag that is left on ``auto``, on one device.

    Attributes
    ----------
    max_num_seqs, max_num_batched_tokens : limits of a batch [sequences], [tokens]
    gpu_memory_utilization : share of the driver's total that the engine may use [-]
    async_scheduling : whether a step is composed while the one before it runs
    scheduling_policy, block_size, enable_prefix_caching, enable_chunked_prefill,
        long_prefill_token_threshold, scheduler_reserve_full_isl, watermark : the flags of these names
    max_capture : largest captured batch [tokens]
    capture_sizes : captured batch sizes, ascending [tokens]
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: float
    async_scheduling: bool
    scheduling_policy: str
    block_size: int
    enable_prefix_caching: bool
    enable_chunked_prefill: bool
    long_prefill_token_threshold: int
    scheduler_reserve_full_isl: bool
    watermark: float
    max_capture: int
    capture_sizes: tuple[int, ...]


class EngineProfile(BaseModel):
    """One version of a serving engine.

    Attributes
    ----------
    lane : which kernel lane of a device it runs on (``vllm``, ``sglang``, ``trtllm``)
    fitted_through : device whose lanes timed the served runs that ``engine_gemm_efficiency`` was fitted to: an error of
        its GEMM lane went into that figure, and both together are known better than each; empty where not known
    served : how well whole steps with those lanes are known; None where nobody has seen any
    scope : ``full``; ``capacity`` where flags or step times are borrowed from another engine; ``notes`` says
        which
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid")

    id: str
    engine: str
    version: str
    aliases: tuple[str, ...] = ()
    lane: str
    fitted_through: str = ""
    served: ServedStep | None = None
    scope: Literal["full", "capacity"] = "full"
    notes: str = ""
    defaults: FlagSection
    graphs: GraphSection
    step: StepSection
    capacity: CapacitySection

    @property
    def async_scheduling(self) -> bool:
        """Whether steps are composed asynchronously by default."""
        return self.defaults.async_scheduling

    @property
    def max_capture(self) -> int:
        """Largest captured batch on most devices [tokens]."""
        return self.graphs.max_capture

    @property
    def capture_sizes(self) -> tuple[int, ...]:
        """Captured batch sizes on most devices, ascending [tokens]."""
        return self.graphs.sizes(self.graphs.max_capture)

    @property
    def host_exposed_s(self) -> float:
        """Host time per step that the GPU waits for [s]."""
        return self.step.host_exposed_s.value

    @property
    def host_per_seq_s(self) -> float:
        """Host time for each scheduled sequence [s]."""
        return self.step.host_per_seq_s.value

    @property
    def engine_gemm_efficiency(self) -> float:
        """GEMM compute rate inside the engine over the kernel table's [-]."""
        return self.step.engine_gemm_efficiency.value

    @property
    def engine_gemm_efficiency_low(self) -> float:
        """The same of matrices whose inputs are quantised [-]."""
        return self.step.engine_gemm_efficiency_low.value

    @property
    def mixed_decode_factor(self) -> float:
        """Decode attention beside a long prefill chunk, over its time alone [-]."""
        return self.step.mixed_decode_factor.value

    @property
    def mixed_decode_threshold_tokens(self) -> int:
        """Prefill chunk above which ``mixed_decode_factor`` applies [tokens]."""
        return round(self.step.mixed_decode_threshold_tokens.value)

    @property
    def quantise_fused(self) -> float:
        """Share of the passes that quantise activations that the kernel before does in passing [-]."""
        return self.step.quantise_fused.value

    @property
    def quantise_fused_4bit(self) -> float:
        """The same of passes to 4 bits [-]."""
        return self.step.quantise_fused_4bit.value

    @property
    def elementwise_t0_s(self) -> float:
        """Fixed time of an elementwise kernel [s]."""
        return self.step.elementwise_t0_s.value

    @property
    def elementwise_eb(self) -> float:
        """Share of HBM bandwidth an elementwise kernel reaches [-]."""
        return self.step.elementwise_eb.value

    @property
    def sampler_greedy_t0_s(self) -> float:
        """Fixed time of greedy sampling [s]."""
        return self.step.sampler_greedy_t0_s.value

    @property
    def sampler_greedy_bytes_per_entry(self) -> float:
        """HBM traffic of greedy sampling, for each row and vocabulary entry [B]."""
        return self.step.sampler_greedy_bytes_per_entry.value

    @property
    def sampler_topk_t0_s(self) -> float:
        """Fixed time of top-p/top-k sampling [s]."""
        return self.step.sampler_topk_t0_s.value

    @property
    def sampler_topk_bytes_per_entry(self) -> float:
        """HBM traffic of top-p/top-k sampling, for each row and vocabulary entry [B]."""
        return self.step.sampler_topk_bytes_per_entry.value

    @property
    def sampler_topk_serial_s_per_entry(self) -> float:
        """Time of one row of top-p/top-k sampling in one compute unit, for each vocabulary entry [s]."""
        return self.step.sampler_topk_serial_s_per_entry.value

    @property
    def client_overhead_s(self) -> float:
        """Server and client time on TTFT and E2E outside the engine [s]."""
        return self.step.client_overhead_s.value

    @property
    def client_turnaround_s(self) -> float:
        """Closed loop: last token to next request [s]."""
        return self.step.client_turnaround_s.value

    def resolve_defaults(
        self,
        device: DeviceProfile,
        tensor_parallel_size: int = 1,
        pipeline_parallel_size: int = 1,
        *,
        usage: Usage = "server",
        max_model_len: int | None = None,
        overrides: Mapping[str, object] | None = None,
    ) -> EngineDefaults:
        """Return what the engine takes for flags that are left on ``auto``.

        Parameters
        ----------
        device : the card; its memory and name choose the batch limits
        tensor_parallel_size : no default depends on it on a GPU; taken so that callers need not know
        pipeline_parallel_size : above 1, asynchronous scheduling is off
        usage : ``server`` (HTTP) or ``offline`` (Python class), which differ in ``max_num_batched_tokens``
        max_model_len : longest sequence [tokens]; bounds ``max_num_batched_tokens`` as the engine does
        overrides : ``max_num_seqs``, ``max_num_batched_tokens``, ``enable_chunked_prefill`` as the user set
            them; the defaults of the others follow from them

        Examples
        --------
        >>> from membound.hwmodels.device import load_device
        >>> load_engine("vllm-0.24").resolve_defaults(load_device("h100_sxm")).max_num_batched_tokens
        8192
        """
        del tensor_parallel_size
        flags, given = self.defaults, overrides or {}
        chunked = bool(given.get("enable_chunked_prefill", flags.enable_chunked_prefill))
        seqs, tokens = self._batch_limits(device, usage, max_model_len, chunked, given)
        capture = self.graphs.by_arch.get(device.arch, self.graphs.max_capture)
        largest = min(2 * seqs, capture, tokens)
        return EngineDefaults(
            max_num_seqs=seqs,
            max_num_batched_tokens=tokens,
            gpu_memory_utilization=flags.gpu_memory_utilization,
            async_scheduling=flags.async_scheduling
            and (pipeline_parallel_size == 1 or flags.async_scheduling_with_pipeline_parallel),
            scheduling_policy=flags.scheduling_policy,
            block_size=flags.block_size,
            enable_prefix_caching=flags.enable_prefix_caching,
            enable_chunked_prefill=chunked,
            long_prefill_token_threshold=flags.long_prefill_token_threshold,
            scheduler_reserve_full_isl=flags.scheduler_reserve_full_isl,
            watermark=flags.watermark,
            max_capture=largest,
            capture_sizes=self._captured(largest, seqs, tokens),
        )

    def _batch_limits(
        self,
        device: DeviceProfile,
        usage: Usage,
        max_model_len: int | None,
        chunked: bool,
        given: Mapping[str, object],
    ) -> tuple[int, int]:
        tier = next((tier for tier in self.defaults.batch if tier.matches(device)), None)
        if tier is None:
            raise CatalogError(f"engine {self.id} has no batch limits for device {device.id}")
        limits = tier.server if usage == "server" else tier.offline
        seqs = parse_count(given.get("max_num_seqs", limits.max_num_seqs))
        if "max_num_batched_tokens" in given:
            tokens = parse_count(given["max_num_batched_tokens"])
        else:
            tokens = limits.max_num_batched_tokens
            if max_model_len is not None:
                # without chunks a whole prompt must fit one step
                tokens = min(tokens if chunked else max(tokens, max_model_len), seqs * max_model_len)
        return seqs if "max_num_seqs" in given else min(seqs, tokens), tokens

    def _captured(self, largest: int, seqs: int, tokens: int) -> tuple[int, ...]:
        extra: set[int] = set()
        if self.graphs.captures_token_budget and tokens <= largest:
            extra.add(tokens)
        if self.graphs.captures_max_num_seqs and seqs <= largest:
            extra.add(seqs)
        return tuple(sorted({*self.graphs.sizes(largest), *extra}))


def load_engine(what: str | os.PathLike[str], relative_to: Path | None = None) -> EngineProfile:
    """Load an engine version by id, alias or path.

    Parameters
    ----------
    what : ``vllm-0.24``, ``vLLM 0.24.0``, ``./my-engine.yaml``
    relative_to : folder that relative paths start from; default: the working folder

    Raises
    ------
    CatalogError : unknown engine, or a malformed file

    Examples
    --------
    >>> load_engine("vllm-0.24").async_scheduling
    True
    """
    path = find("engine", what, ENGINES, relative_to=relative_to)
    return _read(path, path.stat().st_mtime_ns)


def list_engines() -> list[str]:
    """List the ids of the bundled engines, sorted."""
    return ids(ENGINES)


@lru_cache(maxsize=32)
def _read(path: Path, _mtime_ns: int) -> EngineProfile:
    profile = validate(EngineProfile, read_yaml(path, "engine"), "engine", str(path))
    if path.parent == ENGINES and profile.id != path.name.removesuffix(".yaml"):
        raise CatalogError(f"engine file {path.name!r} holds id {profile.id!r}; the two must be equal")
    return profile
