"""The sections of an engine file: flag defaults, graph capture, the step outside the kernels, memory."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from .device import DeviceProfile

_STRICT = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class StepParameter(BaseModel):
    """One number of the step outside the kernels.

    Attributes
    ----------
    value, stderr : estimate and standard error, in ``unit``
    unit : ``s``, ``x``, ``tokens``, ``B``, ``-``
    measured : False where nobody has measured it yet
    run : the calibration run that gave it
    """

    model_config: ClassVar[ConfigDict] = _STRICT

    value: float = Field(ge=0)
    stderr: float = Field(ge=0)
    unit: str
    source: str
    measured: bool = True
    run: str | None = None


class StepSection(BaseModel):
    """Time and traffic of a step that no kernel form covers.

    Attributes
    ----------
    host_exposed_s : host time per step that the GPU waits for [s]
    host_per_seq_s : the same, for each scheduled sequence [s]
    engine_gemm_efficiency : GEMM compute rate inside the engine over the kernel table's [-]
    engine_gemm_efficiency_low : the same of matrices whose inputs are quantised (fp8, int8, nvfp4) [-]
    mixed_decode_factor : decode attention time in a step with a long prefill chunk, over its time alone [-]
    mixed_decode_threshold_tokens : chunk above which it applies [tokens]
    quantise_fused : share of the passes that quantise activations, and of the fixed time that such a linear layer
        has beyond a 16-bit one, that the kernel before it does in passing [-]
    quantise_fused_4bit : the same of inputs in 4 bits, which other kernels write [-]
    elementwise_t0_s, elementwise_eb : fixed time [s] and share of HBM bandwidth [-] of an elementwise kernel
    sampler_greedy_t0_s, sampler_topk_t0_s : fixed time of all kernels of the sampler [s]
    sampler_greedy_bytes_per_entry, sampler_topk_bytes_per_entry : HBM traffic of the sampler, for each row
        and vocabulary entry [B]
    sampler_topk_serial_s_per_entry : time that one compute unit spends on a row, for each vocabulary entry [s]; 0
        where the sampler sorts
    client_overhead_s : server and client time on TTFT and E2E outside the engine [s]
    client_turnaround_s : closed loop, from the last token to the next request [s]
    """

    model_config: ClassVar[ConfigDict] = _STRICT

    host_exposed_s: StepParameter
    host_per_seq_s: StepParameter
    engine_gemm_efficiency: StepParameter
    engine_gemm_efficiency_low: StepParameter
    mixed_decode_factor: StepParameter
    mixed_decode_threshold_tokens: StepParameter
    quantise_fused: StepParameter
    quantise_fused_4bit: StepParameter
    elementwise_t0_s: StepParameter
    elementwise_eb: StepParameter
    sampler_greedy_t0_s: StepParameter
    sampler_greedy_bytes_per_entry: StepParameter
    sampler_topk_t0_s: StepParameter
    sampler_topk_bytes_per_entry: StepParameter
    sampler_topk_serial_s_per_entry: StepParameter
    client_overhead_s: StepParameter
    client_turnaround_s: StepParameter


class ServedStep(BaseModel):
    """How well whole steps are known on the device that the profile was fitted through: dense, 16 bit, one device.

    Attributes
    ----------
    spread : standard deviation of log(time) of whole steps of models that the fit did not see [-]
    """

    model_config: ClassVar[ConfigDict] = _STRICT

    spread: float = Field(ge=0)
    source: str


class BatchLimits(BaseModel):
    """Default limits of a batch [sequences], [tokens]."""

    model_config: ClassVar[ConfigDict] = _STRICT

    max_num_seqs: int = Field(gt=0)
    max_num_batched_tokens: int = Field(gt=0)


class BatchTier(BaseModel):
    """Default batch limits of one kind of card; the first tier that matches counts.

    Attributes
    ----------
    min_gib : least memory that the driver reports [GiB]
    excludes : words whose presence in the device id rules the tier out
    devices : device ids the tier is for; empty means any
    """

    model_config: ClassVar[ConfigDict] = _STRICT

    min_gib: float = 0
    excludes: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    server: BatchLimits
    offline: BatchLimits

    def matches(self, device: DeviceProfile) -> bool:
        """Tell whether ``device`` falls into this tier."""
        return (
            device.usable_bytes >= self.min_gib * 2**30
            and not any(word in device.id for word in self.excludes)
            and (not self.devices or device.id in self.devices)
        )


class FlagSection(BaseModel):
    """Flag defaults, in vLLM's words; ``source`` says where they were read, ``scheduler`` names the policy."""

    model_config: ClassVar[ConfigDict] = _STRICT

    source: str
    scheduler: str = "vllm_v1"
    gpu_memory_utilization: float = Field(gt=0, le=1)
    async_scheduling: bool
    async_scheduling_with_pipeline_parallel: bool = False
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    block_size: int = Field(gt=0)
    enable_prefix_caching: bool = True
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = Field(default=0, ge=0)
    scheduler_reserve_full_isl: bool
    watermark: float = Field(ge=0, lt=1)
    batch: tuple[BatchTier, ...] = Field(min_length=1)


class GraphSection(BaseModel):
    """Graph capture: which batch sizes are captured, up to where.

    Attributes
    ----------
    ranges : [first, last, step] of captured token counts, ascending
    max_capture : largest captured size [tokens]; ``by_arch`` overrides it
    captures_max_num_seqs, captures_token_budget : whether these two are captured beside the ranges
    """

    model_config: ClassVar[ConfigDict] = _STRICT

    source: str
    ranges: tuple[tuple[int, int, int], ...]
    max_capture: int = Field(ge=0)
    by_arch: dict[str, int] = {}
    captures_max_num_seqs: bool = False
    captures_token_budget: bool = False

    def sizes(self, largest: int) -> tuple[int, ...]:
        """List the captured sizes up to ``largest``, ascending [tokens]."""
        grid = {size for first, last, step in self.ranges for size in range(first, last + 1, step)}
        return tuple(sorted(size for size in grid if size <= largest))


class CapacitySection(BaseModel):
    """How the engine sizes its KV pool.

    Attributes
    ----------
    accounting : which formula: ``vllm``, ``sglang`` or ``tensorrt_llm``
    sampler_bytes_per_entry : memory of the profile run's sampler, for each row and vocabulary entry [B]
    small_batch_sampler_bytes_per_entry, small_batch_rows : the same for fewer rows than ``small_batch_rows``
    non_torch_gib : growth outside torch by architecture, ``default`` for the others [GiB]
    nccl_gib : communicators inside the budget by link [GiB]; empty where they are outside
    graph_gib : graphs subtracted from the pool, None as the version's rules have it [GiB]
    null_block : whether one block is reserved
    uncertainty_gib : half-width by kind of model (``dense``, ``other``) [GiB]
    """

    model_config: ClassVar[ConfigDict] = _STRICT

    source: str
    accounting: Literal["vllm", "sglang", "tensorrt_llm"]
    sampler_bytes_per_entry: float = Field(default=0, ge=0)
    small_batch_sampler_bytes_per_entry: float = Field(default=0, ge=0)
    small_batch_rows: int = Field(default=0, ge=0)
    non_torch_gib: dict[str, float] = {}
    nccl_gib: dict[str, float] = {}
    graph_gib: float | None = Field(default=None, ge=0)
    null_block: bool = True
    uncertainty_gib: dict[str, float] = {}
