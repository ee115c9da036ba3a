"""What the sidebar can change: every lever with its limits, and the scenario that their values make.

Nothing here knows Streamlit: a lever is a name in the address, a leaf of the scenario and what it may be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...hwmodels.device import list_devices
from ...hwmodels.engine import list_engines
from ...hwmodels.model import list_models
from ...sim.policies import policy_names

Value = str | int | float | None
Values = Mapping[str, Value]
AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing that can be changed.

    Attributes
    ----------
    key : its name in the address of a page
    label : what people read
    group : heading it stands under
    kind : one of some names, a whole number, or a number
    leaf : dotted leaf of the scenario that it sets; empty where several levers make one leaf
    default : value without a change; None of a number is the engine's own choice
    choices : names, of a choice
    low, high, step : limits and step, of a number
    scale : the scenario's unit in units of the lever (1000 where a lever in ms sets seconds)
    help : what it means, with its unit
    """

    key: str
    label: str
    group: str
    kind: Literal["choice", "whole", "number"]
    leaf: str = ""
    default: Value = None
    choices: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 0.0
    step: float = 1.0
    scale: float = 1.0
    help: str = ""

    def read(self, text: str) -> Value:
        """Return the value that a word in an address stands for.

        Raises
        ------
        ValueError : not one of the names, no number, or out of range; says what is allowed
        """
        if self.kind == "choice":
            if text in self.choices:
                return text
            raise ValueError(f"{text[:60]!r} is not known")
        if text == "" and self.default is None:
            return None
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"{text[:60]!r} is not a number; allowed: {self.allowed}") from None
        if not self.low <= value <= self.high or (self.kind == "whole" and not value.is_integer()):
            raise ValueError(f"{text[:60]} is not allowed; allowed: {self.allowed}")
        return int(value) if self.kind == "whole" else value

    @property
    def allowed(self) -> str:
        """What a number may be, in words."""
        whole = "whole numbers from " if self.kind == "whole" else ""
        return f"{whole}{self.low:,g} to {self.high:,g}"

    def to_leaf(self, value: Value) -> Any:
        """Return what the scenario's leaf becomes."""
        if value is None:
            return AUTO
        if self.choices == FLAG:
            return {AUTO: AUTO, "on": True, "off": False}[str(value)]
        if isinstance(value, int | float) and self.scale != 1.0:
            return float(f"{value / self.scale:.12g}")
        return value


FLAG = (AUTO, "on", "off")
SERVES, WHATIF, BATCH, MEMORY, LOAD, GOOD = (
    "What serves", "A GPU that does not exist", "Scheduler", "KV cache", "Load", "SLO and price",
)  # fmt: skip
GROUPS = (SERVES, WHATIF, BATCH, MEMORY, LOAD, GOOD)
WEIGHTS = (AUTO, "bf16", "fp8", "int8", "w4a16", "mxfp4", "nvfp4")
KV_DTYPES = (AUTO, "bf16", "fp8", "int8", "int4")
RATED = ("poisson", "gamma", "constant")
ARRIVALS = (*RATED, "closed_loop")
DEVICE_FACTORS = ("hbm_bandwidth", "hbm_capacity", "peak_flops", "link.bandwidth")


def levers() -> tuple[Lever, ...]:
    """Return every lever, in the order in which they are shown."""
    return (*_serves(), *_whatif(), *_batch(), *_memory(), *_load(), *_good())


def _serves() -> tuple[Lever, ...]:
    return (
        Lever("device", "GPU", SERVES, "choice", "device", "h100_sxm", tuple(list_devices()),
              help="Another card with its own datasheet and calibration."),
        Lever("model", "Model", SERVES, "choice", "model", "llama-3.1-8b", tuple(list_models()),
              help="Bundled checkpoints by their config.json."),
        Lever("engine", "Engine", SERVES, "choice", "engine", "vllm-0.24", tuple(list_engines()),
              help="Flag defaults, host time, memory reserve and kernels of that version."),
        Lever("tp", "Tensor parallel size", SERVES, "choice", "parallelism.tensor_parallel_size", "1",
              ("1", "2", "4", "8"), help="GPUs that share every layer."),
        Lever("weights", "Weights", SERVES, "choice", "quantization.weights", AUTO, WEIGHTS,
              help="Number format; auto: as the checkpoint has it."),
        Lever("kv", "KV cache entries", SERVES, "choice", "quantization.kv_cache", AUTO, KV_DTYPES,
              help="Number format; auto: the model's."),
    )  # fmt: skip


def _whatif() -> tuple[Lever, ...]:
    def factor(key: str, label: str, name: str, text: str) -> Lever:
        return Lever(
            key, label, WHATIF, "number", f"device.{name}", 1.0, low=0.1, high=10.0, step=0.1, help=text
        )

    return (
        factor("bw", "HBM bandwidth ×", "hbm_bandwidth", "Times the datasheet's bandwidth."),
        factor("mem", "HBM capacity ×", "hbm_capacity", "Times the datasheet's capacity."),
        factor("flops", "Compute rate ×", "peak_flops", "Times the datasheet's FLOP/s, of every number format."),
        factor("link", "Link bandwidth ×", "link.bandwidth", "Times the bandwidth between the GPUs of a group."),
    )  # fmt: skip


def _batch() -> tuple[Lever, ...]:
    return (
        Lever("scheduler", "Scheduler", BATCH, "choice", "scheduler.name", AUTO,
              (AUTO, *policy_names("scheduler")), help="auto: the engine's own."),
        Lever("seqs", "max_num_seqs", BATCH, "whole", "scheduler.max_num_seqs", low=1, high=8192,
              help="Most requests in a batch [requests]."),
        Lever("tokens", "max_num_batched_tokens", BATCH, "whole", "scheduler.max_num_batched_tokens", low=16,
              high=262_144, step=256, help="Most tokens in a step [tokens]."),
        Lever("chunked", "enable_chunked_prefill", BATCH, "choice", "scheduler.enable_chunked_prefill", AUTO,
              FLAG, help="Compute long prompts in pieces, beside others' decodes."),
        Lever("async", "async_scheduling", BATCH, "choice", "scheduler.async_scheduling", AUTO, FLAG,
              help="Compose a step while the one before it runs."),
    )  # fmt: skip


def _memory() -> tuple[Lever, ...]:
    return (
        Lever("allocator", "Allocator", MEMORY, "choice", "kv_cache.allocator", "paged",
              tuple(policy_names("kvcache")), help="Pages of blocks, or one slab a request."),
        Lever("util", "gpu_memory_utilization", MEMORY, "number", "kv_cache.gpu_memory_utilization", low=0.05,
              high=1.0, step=0.01, help="Share of the device's memory that the engine may fill [-]."),
        Lever("len", "max_model_len", MEMORY, "whole", "kv_cache.max_model_len", low=64, high=1_048_576,
              step=1024, help="Longest prompt plus answer; a longer request is rejected and counted [tokens]."),
        Lever("prefix", "enable_prefix_caching", MEMORY, "choice", "kv_cache.enable_prefix_caching", AUTO, FLAG,
              help="Share blocks of equal content."),
    )  # fmt: skip


def _load() -> tuple[Lever, ...]:
    return (
        Lever("arrivals", "Arrivals", LOAD, "choice", default="poisson", choices=ARRIVALS,
              help="poisson: independent users; gamma: bursts (cv 2); constant: equal gaps; closed_loop: users who "
              "wait for their answer before they ask again."),
        Lever("rate", "Rate [requests/s]", LOAD, "number", default=8.0, low=0.01, high=2000.0, step=1.0,
              help="Mean arrivals per second."),
        Lever("users", "Users", LOAD, "whole", default=32, low=1, high=8192, step=8,
              help="Requests kept in flight by a closed loop."),
        Lever("isl", "Prompt, median [tokens]", LOAD, "whole", default=900, low=1, high=200_000, step=100,
              help="Lengths are lognormal around it."),
        Lever("isl_spread", "Prompt, p99 / median", LOAD, "number", default=5.6, low=1.0, high=20.0, step=0.2,
              help="1: every prompt has the same length."),
        Lever("osl", "Answer, median [tokens]", LOAD, "whole", default=150, low=1, high=100_000, step=50,
              help="Lengths are lognormal around it."),
        Lever("osl_spread", "Answer, p99 / median", LOAD, "number", default=5.7, low=1.0, high=20.0, step=0.2,
              help="1: every answer has the same length."),
        Lever("n", "Requests", LOAD, "whole", "workload.requests", 1000, low=20, high=20_000, step=500,
              help="How many are served; few are quick, many are sure."),
        Lever("seed", "Seed", LOAD, "whole", "simulation.seed", 0, low=0, high=2**31 - 1,
              help="Of all random draws."),
    )  # fmt: skip


def _good() -> tuple[Lever, ...]:
    return (
        Lever("ttft", "TTFT at most [ms]", GOOD, "number", "slo.classes.default.ttft_s", 500.0, low=1.0,
              high=600_000.0, step=50.0, scale=1000.0, help="Arrival to first token, of each request."),
        Lever("tpot", "TPOT at most [ms]", GOOD, "number", "slo.classes.default.tpot_s", 50.0, low=0.1,
              high=10_000.0, step=5.0, scale=1000.0, help="Mean time between tokens, of each request."),
        Lever("attain", "Requests within [%]", GOOD, "number", "slo.attainment", 99.0, low=1.0, high=100.0,
              step=0.5, scale=100.0, help="Share of the requests that must meet both."),
        Lever("usd", "Price [USD per GPU hour]", GOOD, "number", "price.usd_per_gpu_hour", low=0.0, high=1000.0,
              step=0.1, help="Empty: the card's dated list price."),
    )  # fmt: skip


def shown(lever: Lever, value: Value) -> str:
    """Return a value as people read it."""
    if value is None:
        return AUTO
    if isinstance(value, str):
        return value
    return f"{value:,.10g}" if math.isfinite(value) else "-"
