"""What can be changed about a scenario, one thing at a time: device numbers, settings, number formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

from ...hwmodels.datasheet import sourced_fields
from ...hwmodels.kvcaches import kv_dtype
from ...hwmodels.weightformat import stored_format
from ..fields import ScenarioError
from ..scenario.kernels import check_cascade
from ..scenario.schema import leaf

if TYPE_CHECKING:
    from ..scenario.resolve import ResolvedScenario

Group = Literal["device", "setting", "precision", "gpus"]
NOT_LEVERS = ("hbm_type", "usable_memory", "tdp")
"""Datasheet values that are no lever of their own: a name, what follows ``hbm_capacity``, and the power limit."""
NUMBERS: tuple[str, ...] = (
    "scheduler.max_num_seqs", "scheduler.max_num_batched_tokens", "scheduler.long_prefill_token_threshold",
    "scheduler.watermark", "kv_cache.gpu_memory_utilization", "kv_cache.max_model_len",
    "kv_cache.num_gpu_blocks_override", "kv_cache.kv_cache_memory_bytes",
)  # fmt: skip
"""Settings that are numbers; those that are off (0, null) are left alone."""
DOUBLED: tuple[str, ...] = (
    "parallelism.tensor_parallel_size", "kv_cache.block_size", "speculative.num_speculative_tokens",
)  # fmt: skip
"""Settings that are halved and doubled, since parts of them make no sense."""
SWITCHES: Mapping[str, tuple[object, ...]] = {
    "scheduler.enable_chunked_prefill": (False, True),
    "scheduler.async_scheduling": (False, True),
    "kv_cache.enable_prefix_caching": (False, True),
    "kernels.attention": ("naive", "flash"),
}
WEIGHTS = ("bf16", "fp8", "w4a16")
KV_CACHE = ("bf16", "fp8")


@dataclass(frozen=True, slots=True)
class Try:
    """One changed value of a lever.

    Attributes
    ----------
    text : how it is shown (``+10 %``, ``fp8``)
    settings : leaves that it sets
    ratio : new value over old; None where the lever is no number
    """

    text: str
    settings: Mapping[str, Any]
    ratio: float | None = None


@dataclass(frozen=True, slots=True)
class Lever:
    """One thing that can be changed.

    Attributes
    ----------
    leaf : dotted name; of a device ``device.hbm_bandwidth``
    group : ``device`` (its datasheet), ``setting``, ``precision``, or ``gpus`` (more or fewer of them)
    value : what it is
    tries : less and more of it; of what is no number, its other values
    """

    leaf: str
    group: Group
    value: Any
    tries: tuple[Try, ...]


def levers_of(resolved: ResolvedScenario, share: float) -> tuple[Lever, ...]:
    """Return every lever of a scenario.

    Parameters
    ----------
    resolved : the scenario, every ``auto`` filled
    share : by which share numbers are made less and more [-]
    """
    return (
        *_device(resolved, share),
        *_numbers(resolved, share),
        *_others(resolved),
        *_where_they_can(resolved),
        *_precision(resolved),
    )


def _device(resolved: ResolvedScenario, share: float) -> Iterator[Lever]:
    given = resolved.scenario.device
    same: dict[str, Any] = dict(given) if isinstance(given, dict) else {"base": given}
    for name, sourced in sourced_fields(resolved.device.datasheet).items():
        if name in NOT_LEVERS:
            continue
        value = cast("float", sourced.value)
        tries: list[Try] = []
        for factor in (1 - share, 1 + share):
            new: int | float = round(value * factor) if isinstance(value, int) else value * factor
            if new != value and new > 0:
                # Of a what-if the value itself, since a factor would start from what it varies.
                given_as = f"x{factor:g}" if len(same) == 1 else new
                others = {key: kept for key, kept in same.items() if key != name}
                tries.append(
                    Try(_signed(new / value - 1), {"device": {**others, name: given_as}}, new / value)
                )
        yield Lever(f"device.{name}", "device", value, tuple(tries))


def _numbers(resolved: ResolvedScenario, share: float) -> Iterator[Lever]:
    data = resolved.scenario.to_dict()
    for name in NUMBERS:
        value = leaf(data, name)
        if not value:
            continue
        tries: list[Try] = []
        for sign in (-1, 1):
            new = value * (1 + sign * share)
            new = round(new) if isinstance(value, int) else min(new, 1.0)
            if new not in (value, 0):
                tries.append(Try(_signed(new / value - 1), {name: new}, new / value))
        yield Lever(name, "setting", value, tuple(tries))


def _others(resolved: ResolvedScenario) -> Iterator[Lever]:
    data = resolved.scenario.to_dict()
    for name in DOUBLED:
        value = leaf(data, name)
        if not value:
            continue
        halved = (Try(str(value // 2), {name: value // 2}, 0.5),) if value % 2 == 0 else ()
        group = "gpus" if name.startswith("parallelism.") else "setting"
        yield Lever(name, group, value, (*halved, Try(str(2 * value), {name: 2 * value}, 2.0)))
    for name, values in SWITCHES.items():
        value = leaf(data, name)
        tries = tuple(Try(_word(other), {name: other}) for other in values if other != value)
        yield Lever(name, "setting", _word(value), tries)


def _where_they_can(resolved: ResolvedScenario) -> Iterator[Lever]:
    """Return switches that do something in some scenarios alone: groups that sum, prompts that share a prefix."""
    scenario = resolved.scenario
    parallel, disabled = scenario.parallelism, scenario.kernels.disable_cascade_attn
    if parallel.tensor_parallel_size > 1:
        now = parallel.communication_overlap
        other = "none" if now == "dual_batch" else "dual_batch"
        name = "parallelism.communication_overlap"
        yield Lever(name, "setting", now, (Try(other, {name: other}),))
    shares = resolved.workload is not None and resolved.workload.prefix is not None
    if shares and (disabled is False or _may_cascade(resolved)):
        name = "kernels.disable_cascade_attn"
        yield Lever(
            name, "setting", _word(disabled), (Try(_word(disabled is False), {name: disabled is False}),)
        )


def _may_cascade(resolved: ResolvedScenario) -> bool:
    """Tell whether a scenario can ask for cascade attention."""
    scenario = resolved.scenario
    asked = scenario.replace(kernels__disable_cascade_attn=False)
    try:
        check_cascade(asked, resolved.engine, resolved.model)
    except ScenarioError:
        return False
    return resolved.kv_cache.enable_prefix_caching


def _precision(resolved: ResolvedScenario) -> Iterator[Lever]:
    formats, model = resolved.scenario.quantization, resolved.model

    def weights(asked: str) -> str:
        return stored_format(model.quantization, model.dtype, asked).name

    def keys(asked: str) -> str:
        return kv_dtype(model, asked)

    for name, now, others, stored in (
        ("weights", formats.weights, WEIGHTS, weights),
        ("kv_cache", formats.kv_cache, KV_CACHE, keys),
    ):
        value = stored(now)
        tried = tuple(
            Try(other, {f"quantization.{name}": other}) for other in others if not _same(stored(other), value)
        )
        yield Lever(f"quantization.{name}", "precision", dtype_name(value), tried)


def _same(one: str, other: str) -> bool:
    return dtype_name(one) == dtype_name(other) or {dtype_name(one), dtype_name(other)} == {"bf16", "fp16"}


def dtype_name(name: str) -> str:
    """Return the usual short name of a number format.

    >>> dtype_name("bfloat16"), dtype_name("fp8")
    ('bf16', 'fp8')
    """
    return {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32"}.get(name, name)


def _signed(share: float) -> str:
    return f"{100 * share:+.3g} %"


def _word(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)
