"""The sections of a scenario that say what serves: parallelism, precision, scheduler, KV cache."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le
from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from ...hwmodels.errors import unknown
from ...hwmodels.kvcaches import KV_DTYPE_BITS
from ...hwmodels.tier import list_tiers
from ...hwmodels.units import Bytes, PositiveCount, RateBytes, Seconds, Unbounded
from ...hwmodels.weightformat import FORMATS, SYNONYMS
from ..fields import (
    AUTO,
    MOST_GPUS,
    Auto,
    AutoCount,
    AutoCountOr0,
    AutoFlag,
    AutoGroup,
    AutoShare,
    Flag,
    Section,
    Share,
)  # fmt: skip

Open = dict[str, Any]  # a section whose part is not built yet: named in the schema, refused when resolved


def _known(what: str, names: set[str]) -> AfterValidator:
    def check(value: str) -> str:
        if value not in names:
            raise ValueError(unknown(what, value, names, shown=30))
        return value

    return AfterValidator(check)


WeightFormatName = Annotated[str, _known("weight format", {AUTO, *FORMATS, *SYNONYMS})]
ActivationName = Annotated[
    str, _known("activation dtype", {AUTO, "bf16", "fp16", "fp32", "fp8", "fp8_e4m3", "int8", "fp4", "nvfp4"})
]
KVDtypeName = Annotated[str, _known("KV cache dtype", {AUTO, *KV_DTYPE_BITS})]


GroupSize = Annotated[Unbounded, Le(MOST_GPUS)]


class Parallelism(Section):
    """How one replica is spread over GPUs.

    Attributes
    ----------
    tensor_parallel_size : GPUs that share every layer
    pipeline_parallel_size : groups of layers, each on its own GPUs
    data_parallel_size : copies of all but the routed experts, which they share; each composes its own steps
    expert_parallel : whole experts on different GPUs instead of slices of all experts
    communication_overlap : dual_batch cuts a batch in two, of which one half sends while the other computes, wherever
        that is quicker
    enable_sp : from ``sp_min_token_num`` tokens of a step on, sums over a group are scattered and gathered, and each
        GPU norms its share of the tokens (vLLM's pass of that name)
    sp_min_token_num : auto: vLLM's rule, by device and model
    """

    tensor_parallel_size: GroupSize = 1
    pipeline_parallel_size: GroupSize = 1
    data_parallel_size: GroupSize = 1
    expert_parallel: Flag = False
    communication_overlap: Literal["none", "dual_batch"] = "none"
    enable_sp: Flag = False
    sp_min_token_num: AutoCount = AUTO


class Node(Section):
    """The machine around the GPUs.

    Attributes
    ----------
    gpus : GPUs in one machine; auto: 8
    link : link between the GPUs of a machine; auto: the device's; or pcie
    inter_node_link : network between machines: infiniband (auto), roce, ethernet, or a bandwidth of one GPU
    """

    gpus: AutoGroup = AUTO
    link: str = AUTO
    inter_node_link: str = AUTO


class QuantizationSection(Section):
    """Number formats; auto takes what the checkpoint says.

    Attributes
    ----------
    weights : bf16, fp8, w8a16, w4a16, nvfp4, ...
    activations : bf16, fp8, int8, ...
    kv_cache : auto (the model's dtype), fp8, ...
    """

    weights: WeightFormatName = AUTO
    activations: ActivationName = AUTO
    kv_cache: KVDtypeName = AUTO


class Kernels(Section):
    """Which kernels run.

    Attributes
    ----------
    attention : flash reads the KV once; naive writes the scores to memory and reads them back
    disable_cascade_attn : false lets a prefix that a whole batch shares be read once (cascade attention) where vLLM
        would; auto: true, vLLM's default since 0.18
    """

    attention: Literal["flash", "naive"] = "flash"
    disable_cascade_attn: AutoFlag = AUTO


class SchedulerSection(Section):
    """Which requests compute how many tokens in a step; auto is the engine version's default on that card.

    Attributes
    ----------
    name : a policy of this package, or ``module:Class``; auto is the engine's own
    scheduling_policy : order of the waiting line
    max_num_seqs : most requests in a batch
    max_num_batched_tokens : most tokens in a step
    enable_chunked_prefill : whether a prompt may be computed in pieces, beside others' decodes
    long_prefill_token_threshold : most tokens of one prompt in a step; 0 is no limit
    scheduler_reserve_full_isl : admit only if blocks for the whole prompt are free
    watermark : share of the blocks to be left free at an admission
    async_scheduling : compose a step while the one before it runs
    preemption_mode : a preempted request computes its KV again, or has it swapped to the host's memory
    options : further settings of the policy named, as its class describes them (``aging_s`` of ``priority``, ...)
    """

    name: str = AUTO
    scheduling_policy: Literal["auto", "fcfs", "priority"] = AUTO
    max_num_seqs: AutoCount = AUTO
    max_num_batched_tokens: AutoCount = AUTO
    enable_chunked_prefill: AutoFlag = AUTO
    long_prefill_token_threshold: AutoCountOr0 = AUTO
    scheduler_reserve_full_isl: AutoFlag = AUTO
    watermark: AutoShare = AUTO
    async_scheduling: AutoFlag = AUTO
    preemption_mode: Literal["recompute", "swap"] = "recompute"
    options: dict[str, Any] = Field(default_factory=dict)


def _tier_kind(value: str) -> str:
    if value not in list_tiers() and not value.endswith((".yaml", ".yml")):
        raise ValueError(unknown("KV tier", value, list_tiers()) + "; or path of a YAML file")
    return value


class Tier(Section):
    """A slower place that KV blocks move to; what is not given is that kind's datasheet value.

    Attributes
    ----------
    kind : dram, nvme, remote, or path of a file that describes another kind
    capacity : its size [B]
    policy : what goes when it is full: lru, lfu, 2q, or ``module:Class``
    write : through takes blocks when they are computed, back when the memory above lets go of them
    read_bandwidth, write_bandwidth : towards the device, and away from it [B/s]
    latency : of one operation [s]
    queue_depth : blocks in work at a time
    """

    kind: Annotated[str, AfterValidator(_tier_kind)]
    capacity: Bytes | None = None
    policy: str = "lru"
    write: Literal["through", "back"] = "through"
    read_bandwidth: Annotated[RateBytes, Ge(1)] | None = None
    write_bandwidth: Annotated[RateBytes, Ge(1)] | None = None
    latency: Seconds | None = None
    queue_depth: PositiveCount | None = None


DEFAULT_WINDOW = 4096
DEFAULT_SINKS = 4  # of StreamingLLM
OBSERVATION_WINDOW = 32  # of SnapKV
OF_KIND = {
    "window": ("window",),
    "sinks": ("window", "sinks"),
    "h2o": ("budget",),
    "snapkv": ("budget", "max_capacity_prompt", "window"),
}


class Eviction(Section):
    """KV entries of a sequence that are dropped while it runs.

    Attributes
    ----------
    kind : which entries are kept: the latest (``window``), the first ones too (``sinks``, StreamingLLM), those that
        drew most attention (``h2o``), or of prompts those that their last tokens attend to (``snapkv``)
    window : latest tokens kept, of ``window`` and ``sinks``; of ``snapkv`` a prompt's last tokens, which choose
    sinks : first tokens kept, of ``sinks``
    budget : share of the entries that is kept, of ``h2o``; of a prompt's, of ``snapkv``
    max_capacity_prompt : entries of a prompt that are kept, of ``snapkv``, in place of a share
    """

    kind: Literal["window", "sinks", "h2o", "snapkv"]
    window: PositiveCount | None = None
    sinks: PositiveCount | None = None
    budget: Annotated[Share, Gt(0)] | None = None
    max_capacity_prompt: PositiveCount | None = None

    @model_validator(mode="after")
    def _its_own(self) -> Eviction:
        own = OF_KIND[self.kind]
        for name in ("window", "sinks", "budget", "max_capacity_prompt"):
            if name not in own and getattr(self, name) is not None:
                raise ValueError(f"kind {self.kind!r} takes no {name}; allowed: {', '.join(own)}")
        if "budget" in own and self.budget is None and self.max_capacity_prompt is None:
            raise ValueError(f"kind {self.kind!r} needs budget, the share that is kept (25%)")
        return self

    @model_validator(mode="after")
    def _one_budget(self) -> Eviction:
        most = self.max_capacity_prompt
        if most is None:
            return self
        if self.budget is not None:
            raise ValueError(f"budget {self.budget:g} and max_capacity_prompt {most} exclude each other")
        if most < self.latest:
            raise ValueError(
                f"max_capacity_prompt {most} is below window {self.latest}, which always stays; allowed: from that on"
            )
        return self

    def keeps_all(self, longest: int) -> bool:
        """Tell whether nothing is ever dropped of sequences of up to ``longest`` tokens."""
        if self.max_capacity_prompt is not None:
            return self.max_capacity_prompt >= longest
        if self.budget is not None:
            return self.budget == 1
        return self.seen >= longest

    @property
    def seen(self) -> int:
        """Tokens kept of a long sequence by ``window`` and ``sinks`` [tokens]."""
        sinks = 0 if self.kind == "window" else DEFAULT_SINKS if self.sinks is None else self.sinks
        return self.latest + sinks

    @property
    def latest(self) -> int:
        """Latest tokens kept by ``window`` and ``sinks``, of a prompt by ``snapkv`` [tokens]."""
        return self.window or (OBSERVATION_WINDOW if self.kind == "snapkv" else DEFAULT_WINDOW)


class KVCacheSection(Section):
    """The KV cache; auto is the engine version's default on that card.

    Attributes
    ----------
    allocator : a policy of this package, or ``module:Class``
    block_size : tokens in a block; auto: the engine's, 1 under allocator radix
    gpu_memory_utilization : share of the device's memory the engine may fill
    enable_prefix_caching : whether blocks of equal content are shared
    max_model_len : longest prompt plus answer; auto: the model's
    num_gpu_blocks_override : this many blocks instead of what fits
    kv_cache_memory_bytes : this much memory for KV instead of what is left
    reserve_bytes : what a vLLM host keeps for growth outside torch and for graphs, as ``size --log`` fits it
    eviction : drop entries of running sequences
    cross_layer_sharing : one layer in so many stores keys and values, which the others read too; 1: every layer
    tiers : slower memory behind the device's, fastest first; needs prefix caching
    transfer_overlap : layerwise computes a layer once its KV is there; none starts a step when all of it is
    swap_space : host memory of each GPU for requests preempted with ``preemption_mode: swap`` [B]
    """

    allocator: str = "paged"
    block_size: AutoCount = AUTO
    gpu_memory_utilization: AutoShare = AUTO
    enable_prefix_caching: AutoFlag = AUTO
    max_model_len: AutoCount = AUTO
    num_gpu_blocks_override: PositiveCount | None = None
    kv_cache_memory_bytes: Bytes | None = None
    reserve_bytes: Bytes | None = None
    eviction: Eviction | None = None
    cross_layer_sharing: PositiveCount = 1
    tiers: tuple[Tier, ...] = ()
    transfer_overlap: Literal["layerwise", "none"] = "layerwise"
    swap_space: Bytes = 4 << 30


class Speculative(Section):
    """Speculative decoding, under the names of vLLM's ``--speculative-config``.

    Attributes
    ----------
    method : who drafts: a model of its own (``draft``), the sequence's own text (``ngram``), a head of the target
    draft_model : id or path of the draft model (vLLM's ``model``)
    num_speculative_tokens : draft passes of a step: tokens drafted one after the other
    width : candidates at each drafted position, all verified; above 1 a tree as wide at every depth
    acceptance : one number: chance that a drafted token is accepted, given that all before it were; a list: chance that
        each position is accepted, as vLLM logs it (``Per-position acceptance rate``)
    acceptance_mode : sampled draws every step of every request; expected gives each request the mean, exactly
    disable_by_batch_size : from so many running requests on nothing is drafted; null: always drafted
    quantization : weights of the draft model; auto: as its checkpoint says
    """

    method: Literal["draft", "ngram", "eagle", "mtp"]
    draft_model: str | None = None
    num_speculative_tokens: Annotated[Unbounded, Le(64)]
    width: Annotated[Unbounded, Le(64)] = 1
    acceptance: Share | Annotated[tuple[Share, ...], Field(min_length=1)]
    acceptance_mode: Literal["sampled", "expected"] = "sampled"
    disable_by_batch_size: PositiveCount | None = None
    quantization: WeightFormatName = AUTO

    @model_validator(mode="after")
    def _fits_the_method(self) -> Speculative:
        if (self.method == "draft") != (self.draft_model is not None):
            needs = "needs draft_model" if self.method == "draft" else "takes no draft_model; allowed: null"
            raise ValueError(f"method {self.method!r} {needs}")
        if self.method == "ngram" and self.width > 1:
            raise ValueError("method 'ngram' finds one continuation; allowed: width 1")
        if self.quantization != AUTO and self.method != "draft":
            raise ValueError(
                f"method {self.method!r} has the target's number formats; allowed: quantization auto"
            )
        return self

    @model_validator(mode="after")
    def _every_position(self) -> Speculative:
        given, count = self.acceptance, self.num_speculative_tokens
        if isinstance(given, int | float):
            return self
        if len(given) != count:
            raise ValueError(
                f"acceptance has {len(given)} positions; allowed: num_speculative_tokens, {count}"
            )
        if any(later > earlier for earlier, later in pairwise(given)):
            raise ValueError(
                f"acceptance {list(given)} rises; allowed: each position at most the one before it, "
                "which must be accepted too"
            )
        return self

    @property
    def survival(self) -> tuple[float, ...]:
        """Chance that the first, second, ... drafted token is accepted [-]."""
        given = self.acceptance
        if isinstance(given, int | float):
            return tuple(given ** (position + 1) for position in range(self.num_speculative_tokens))
        return given


class SloClass(Section):
    """Thresholds of one class of requests; every one given must be met.

    Attributes
    ----------
    ttft_s : arrival to first token [s]
    tpot_s : mean time between tokens after the first [s]
    e2e_s : arrival to last token [s]
    queue_s : arrival to first time scheduled [s]
    client_ttft_s : first token as the client sees it [s]
    """

    ttft_s: Annotated[Seconds, Gt(0)] | None = None
    tpot_s: Annotated[Seconds, Gt(0)] | None = None
    e2e_s: Annotated[Seconds, Gt(0)] | None = None
    queue_s: Annotated[Seconds, Gt(0)] | None = None
    client_ttft_s: Annotated[Seconds, Gt(0)] | None = None

    @model_validator(mode="after")
    def _some(self) -> SloClass:
        if not self.thresholds():
            raise ValueError(f"needs a threshold; allowed: {', '.join(type(self).model_fields)}")
        return self

    def thresholds(self) -> dict[str, float]:
        """Return metric to threshold, of those given [s]."""
        return {name: limit for name, limit in self.model_dump().items() if limit is not None}


class Slo(Section):
    """The service-level objective.

    Attributes
    ----------
    attainment : share of requests that must meet the thresholds of their class
    classes : thresholds by class; requests without a class are ``default``
    """

    attainment: Share = 0.99
    classes: dict[str, SloClass] = Field(default_factory=dict[str, SloClass])


class ComputeSplit(Section):
    """Shares of the compute units that prefill and decode hold, as streams beside each other; alone each has all.

    Attributes
    ----------
    prefill, decode : shares; together at most 1
    """

    prefill: Annotated[Share, Gt(0)]
    decode: Annotated[Share, Gt(0)]

    @model_validator(mode="after")
    def _at_most_1(self) -> ComputeSplit:
        if self.prefill + self.decode > 1.0 + 1e-12:
            raise ValueError(f"prefill {self.prefill} + decode {self.decode} is above 1")
        return self


def _seed(value: object) -> object:
    if isinstance(value, bool):
        raise ValueError(f"{value!r} is not a whole number")
    return value


class Simulation(Section):
    """How the run is carried out; without others on the device no setting but the seed changes how requests fare.

    Attributes
    ----------
    seed : of all random draws
    fidelity : what slows each other where several use the device: the parts of steps (step), or their kernels, those of
        identical layers together (kernel); a step alone takes the same time, to the nanosecond, but is not jumped over
    fast_forward : jump over steps that repeat; false steps through them, with the same result
    warmup : left out of the steady-state figures; auto finds how much [s]
    window : also tell of the run by windows of arrival time, such as 1h of a day; null does not [s]
    """

    seed: Annotated[int, BeforeValidator(_seed), Ge(0), Le(2**64 - 1)] = 0
    fidelity: Literal["step", "kernel"] = "step"
    fast_forward: Flag = True
    warmup: Seconds | Auto = AUTO
    window: Annotated[Seconds, Gt(0)] | None = None
